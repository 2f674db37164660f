"""`walproof observe`: what commits wait for and who pays, without a load; read-only, with the rights of pg_monitor."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import cloup
from rich.console import Group
from rich.live import Live

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import call_after, started
from walproof.errors import ExitCode, TargetError, UsageError
from walproof.estimating.observed_waits import observation
from walproof.machine.redaction import without_secrets
from walproof.model.drill import Capability
from walproof.model.event import Described, Emit, Ended, Observed
from walproof.model.observed_waits import WaitsSeen
from walproof.model.ports import CommitWaits
from walproof.pricing.results_and_gate import Required, exit_code, parse_requirements, required_as_json, waits_required
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.reporting.console_output import console, print_json, print_tables, write_file
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
    opt.option(
        "--every",
        "1s",
        "One line of the record each; twice that after 300 lines, and so on.",
        type=opt.DURATION,
        default="1s",
    ),
    opt.words(
        "--require",
        "commit-wait<=5ms,…",
        "Or standby-wait, flush-wait, lock-wait per commit; exit 0 met, 1 not met, 4 undecided.",
    ),
)
@opt.output(opt.record, opt.option("--html html_file", "FILE", "Write one self-contained page; - is standard output."))
def observe(
    target: str | None,
    duration: float | None,
    every: float,
    require: str | None,
    directory: Path | None,
    html_file: str | None,
    as_json: bool,
) -> ExitCode:
    """What commits wait for and who pays: no load, nothing written, under 1 % of a processor."""
    if html_file == "-" and as_json:
        raise UsageError("only one thing can go to standard output", "name a file for --html")
    if duration is not None and not 0 < duration < threading.TIMEOUT_MAX:
        raise UsageError("--duration must be greater than 0", "--duration 1min, or leave it out")
    if not _SHORTEST_S <= every <= _LONGEST_S:
        raise UsageError(f"--every {every:g} s is not valid", "0.5s to 1h, for instance 1s")
    requirements = parse_requirements(require, waits=True)
    chosen = choose(target)
    able = chosen.capabilities()
    if able.commit_waits is None:
        raise UsageError(f"{chosen.name}: {able.why_not(Capability.OBSERVE)}", "observe real servers only")
    with Writer(directory, "observe") as writer:
        asked = {"target": without_secrets(target or "lab"), "duration": duration, "every": every, "require": require}
        writer(started("observe", asked, at=chosen.clock.now(), seed=1))
        writer(Described(chosen.clock.now(), chosen.describe()))
        writer(Observed(chosen.clock.now(), chosen.observe()))
        live = not as_json and html_file != "-" and console().is_terminal
        seen, wrong = _watched(able.commit_waits, (duration, every), writer, live=live)
        writer(Ended(chosen.clock.now(), wrong.message if wrong else "done"))
    if wrong is not None and not seen:
        raise wrong
    answers = waits_required(requirements, observation(seen)) if requirements and seen else ()
    _print(seen, answers, writer.directory, html_file, as_json=as_json)
    if wrong is not None:
        console(stderr=True).print(f"walproof: {wrong.message}\n  hint: {wrong.hint}")
        return ExitCode.UNDECIDED
    if not seen:
        return ExitCode.UNDECIDED
    return exit_code(answers)


def _watched(
    waits: CommitWaits, times: tuple[float | None, float], emit: Emit, *, live: bool
) -> tuple[list[WaitsSeen], TargetError | None]:
    """What was seen until the time was over, Ctrl-C, or an error, which is handed back."""
    duration, every = times
    ended, seen, doublings = threading.Event(), list[WaitsSeen](), 0
    call_after(duration, ended.set)
    screen = Live(console=console(), screen=False, transient=True, auto_refresh=False) if live else nullcontext()
    wrong: TargetError | None = None

    def full() -> bool:
        return ended.is_set() or len(seen) >= _LINES * (doublings + 1)

    try:
        with screen as shown:
            while len(seen) == _LINES * doublings:
                for one in waits.watch(every * 2**doublings, full):
                    emit(one)
                    seen.append(one)
                    if shown is not None:
                        shown.update(_drawn(seen[-60:]), refresh=True)
                doublings += 1
    except KeyboardInterrupt:
        pass
    except TargetError as error:
        wrong = error
    return seen, wrong


def _drawn(seen: Sequence[WaitsSeen]) -> Group:
    """The last minute, for the terminal while it goes on."""
    return Group(" ".join(observe_sentences(seen)), *tables(observe_sections(seen)[:1]), "Ctrl-C ends it")


def _print(
    seen: Sequence[WaitsSeen], answers: Sequence[Required], record: Path, html_file: str | None, *, as_json: bool
) -> None:
    if html_file:
        from walproof.reporting.html_and_markdown import page
        from walproof.reporting.record_outline import composed

        write_file(html_file, page(composed(read(record))), "name a writable file with --html", [record])
    if as_json:
        requirements = {"requirements": required_as_json(answers)} if answers else {}
        print_json({"record": str(record), **(observe_json(seen) if seen else {}), **requirements})
    elif html_file != "-":
        caveats = observation(seen).caveats if seen else ("nothing was seen",)
        text = " ".join(observe_sentences(seen)) if seen else "Nothing was observed."
        notes = [*(f"⚠ {c}" for c in caveats), *(a.text for a in answers)]
        print_tables(text, tables(observe_sections(seen)), *notes, f"record: {record}")
