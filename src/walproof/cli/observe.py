"""`walproof observe`: what commits wait for and who pays, without a load; read-only, with the rights of pg_monitor."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import cloup
from rich.console import Console, Group
from rich.live import Live

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import call_after, started
from walproof.errors import ExitCode, TargetError, UndecidedError, UsageError
from walproof.estimating.observed_waits import observation
from walproof.machine.redaction import without_secrets
from walproof.model.drill import Capability
from walproof.model.event import Described, Emit, Ended, Observed
from walproof.model.observed_waits import WaitsSeen
from walproof.model.ports import CommitWaits
from walproof.pricing.results_and_gate import exit_code, parse_requirements, required_as_json, waits_required
from walproof.records.writer import Writer
from walproof.reporting.console_output import console, print_json, print_tables
from walproof.reporting.observe_section import observe_json, observe_sections, observe_sentences
from walproof.reporting.terminal import tables
from walproof.targets.choose import choose

_SHORTEST_S, _LONGEST_S = 0.5, 3600.0
_LINES = 300
"""Of the record at one length: then each is of twice the time, since until Ctrl-C may be a month."""


@cloup.command(cls=Command)
@opt.cluster()
@opt.group(
    "Time",
    opt.option("--duration", "1min", "End after this time.  [default: at Ctrl-C]", type=opt.DURATION),
    opt.option("--every", "1s", "A line of the record each; doubled every 300 lines.", type=opt.DURATION, default="1s"),
    opt.words(
        "--require", "commit-wait<=5ms,…", "Or standby-wait, flush-wait, lock-wait; exit 0 met, 1 not, 4 undecided."
    ),
)
@opt.output(opt.record)
def observe(
    target: str | None, duration: float | None, every: float, require: str | None, directory: Path | None, as_json: bool
) -> ExitCode:
    """What commits wait for and who pays: no load, nothing written, under 1 % of a processor."""
    if duration is not None and not 0 < duration < threading.TIMEOUT_MAX:
        raise UsageError("--duration must be greater than 0", "--duration 1min, or leave it out")
    if not _SHORTEST_S <= every <= _LONGEST_S:
        raise UsageError(f"--every {every:g} s is not valid", "0.5s to 1h, for instance 1s")
    requirements = parse_requirements(require, waits=True)
    chosen = choose(target)
    able, clock = chosen.capabilities(), chosen.clock
    if able.commit_waits is None:
        raise UsageError(f"{chosen.name}: {able.why_not(Capability.OBSERVE)}", "observe real servers only")
    with Writer(directory, "observe") as writer:
        asked = {"target": without_secrets(target or "lab"), "duration": duration, "every": every, "require": require}
        writer(started("observe", asked, at=clock.now(), seed=1))
        writer(Described(clock.now(), chosen.describe()))
        writer(Observed(clock.now(), chosen.observe()))
        stretches = _watched(able.commit_waits, every, duration)
        seen, wrong = _kept(stretches, writer, console(stderr=True), live=not as_json)
        writer(Ended(clock.now(), wrong.message if wrong else "done"))
    if not seen:
        raise wrong or UndecidedError("nothing was observed", "let it run for longer: --duration 1min")
    made = observation(seen)
    answers = waits_required(requirements, made)
    if as_json:
        judged = {"requirements": required_as_json(answers)} if answers else {}
        print_json({"record": str(writer.directory), **observe_json(seen), **judged})
    else:
        notes = [*(f"⚠ {c}" for c in made.caveats), *(a.text for a in answers), f"record: {writer.directory}"]
        print_tables(" ".join(observe_sentences(seen)), tables(observe_sections(seen)), *notes)
    if wrong is not None:
        console(stderr=True).print(f"walproof: {wrong.message}", f"  hint: {wrong.hint}", sep="\n")
    return ExitCode.UNDECIDED if wrong else exit_code(answers)


def _watched(waits: CommitWaits, every: float, duration: float | None) -> Iterator[WaitsSeen]:
    """What is seen until the time is over: _LINES of that length each, as many of twice that, and so on."""
    ended, left = threading.Event(), 0
    call_after(duration, ended.set)
    while not left:
        left = _LINES
        for one in islice(waits.watch(every, ended.is_set), _LINES):
            left -= 1
            yield one
        every *= 2


def _kept(
    stretches: Iterator[WaitsSeen], emit: Emit, screen: Console, *, live: bool
) -> tuple[list[WaitsSeen], TargetError | None]:
    """Each as it comes, into the record and onto the screen, until Ctrl-C or an error, which is handed back."""
    seen: list[WaitsSeen] = []
    try:
        with Live(console=screen, transient=True, auto_refresh=False) as drawn:
            for one in stretches:
                emit(one)
                seen.append(one)
                if live and screen.is_terminal:
                    first, last = observe_sections(seen[-60:])[:1], observe_sentences(seen[-60:])
                    drawn.update(Group(" ".join(last), *tables(first), "Ctrl-C ends it"), refresh=True)
    except KeyboardInterrupt:
        pass
    except TargetError as error:
        return seen, error
    return seen, None
