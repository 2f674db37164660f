"""The pitfalls P1–P22 of the field: their titles, and the function that reproduces each.

Creates the lab they need, reproduces them one after another, reports each, destroys the lab."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from walproof.errors import Error, ExitCode, MachineError, UsageError
from walproof.lab import home
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.create import LabOrder, design, temporary_lab
from walproof.machine.clock import RealClock
from walproof.model.drill import Finding
from walproof.model.event import ClaimJudged, Emit, Ended
from walproof.model.units import listed
from walproof.studies.pitfalls import failover, visibility
from walproof.studies.pitfalls.pitfall_lab import PitfallLab


@dataclass(frozen=True, slots=True)
class Pitfall:
    """One known trap. `slow`: takes about half a minute or more."""

    number: str
    title: str
    reproduce: Callable[[PitfallLab], Finding]
    slow: bool = False
    ruins: bool = False
    """Leaves data files behind that were never flushed: the lab is not used again."""


CATALOGUE: tuple[Pitfall, ...] = (
    Pitfall("P1", "a cancelled wait becomes success, visible and unreplicated", visibility.cancelled),
    Pitfall("P2", "restarting the primary makes waiting commits visible, unreplicated", visibility.restarted),
    Pitfall("P3", "remote_write does not survive the standby's power cut", failover.standby_power, slow=True),
    Pitfall(
        "P4", "a partitioned leader acknowledges until it demotes; all lost", failover.partitioned_leader, slow=True
    ),
    Pitfall("P5", "non-strict mode: the last standby goes, commits silently become local", failover.silently_local),
    Pitfall("P6", "strict mode's '*' is satisfied by any WAL receiver", failover.anybody, slow=True),
    Pitfall("P7", "ANY 1 (a, b): leader and acknowledging standby lost together", failover.quorum_dies_together),
    Pitfall("P8", "a standby name that no standby has: commits wait for ever", visibility.for_nobody),
    Pitfall("P9", "pg_rewind erases acknowledged commits without a trace", failover.rewound, slow=True),
    Pitfall("P10", "divergence is not loss: commits in doubt count apart", failover.divergence_is_not_loss, slow=True),
    Pitfall("P11", "standby reads are stale at on; at remote_apply only some are fresh", visibility.stale),
    Pitfall("P12", "order of visibility differs between members (long fork)", visibility.long_fork),
    Pitfall("P13", "an invisible waiting commit becomes visible by a restart", visibility.invisible_then_visible),
    Pitfall("P14", "remote_apply freezes when a standby's query blocks replay", visibility.replay_blocked),
    Pitfall("P15", "an unreachable standby stalls commits until wal_sender_timeout", visibility.unreachable_standby),
    Pitfall("P16", "one slow standby disk stalls every client under ALL; ANY hides it", visibility.slow_disk),
    Pitfall("P17", "clients never notice a dead leader without TCP timeouts", failover.unnoticed, slow=True),
    Pitfall("P18", "fsync off, or a lying disk, breaks every promise", failover.lying_disk, slow=True, ruins=True),
    Pitfall("P19", "a frozen leader wakes up and answers after its successor", failover.frozen_leader, slow=True),
    Pitfall("P20", "SET LOCAL synchronous_commit opts one transaction out", failover.opted_out, slow=True),
    Pitfall("P21", "lag columns show what was reported, not what would be lost", visibility.misleading_lag, slow=True),
    Pitfall("P22", "maximum_lag_on_failover 0 leaves no standby eligible", failover.nobody_eligible, slow=True),
)


@dataclass(frozen=True, slots=True)
class TargetPitfall:
    """One known trap of a target's manager, reproduced on a cluster there is; `thread`: where it is known upstream."""

    number: str
    title: str
    thread: str
    consents: tuple[str, ...] = ()


ON_TARGET: tuple[TargetPitfall, ...] = (
    TargetPitfall(
        "K1",
        "PostgreSQL frozen under a living manager: the lease is renewed, no standby is promoted",
        "cloudnative-pg#11348, #11265",
        ("freeze",),
    ),
    TargetPitfall(
        "K2",
        "dataDurability preferred: the last standby goes, commits silently become local",
        "cloudnative-pg#5793, #8790",
        ("kill-member",),
    ),
    TargetPitfall(
        "K3",
        "enableAlterSystem: ALTER SYSTEM overrides what the operator writes, and is not corrected",
        "no thread is known",
        ("config",),
    ),
    TargetPitfall(
        "K4", "status.phase says healthy during an outage", "cloudnative-pg#5150 (the same words, no pod)", ("freeze",)
    ),
    TargetPitfall("K5", "fsync = off and full_page_writes = off pass admission", "cloudnative-pg#5506 (on purpose)"),
    TargetPitfall(
        "K6",
        "an isolated primary, reachable again, holds its lease while it shuts down",
        "cloudnative-pg#11280, #11518",
        ("isolate",),
    ),
    TargetPitfall(
        "K7", "kubectl's port-forward ends with the first client of TLS", "kubernetes/kubectl#1169, cloudnative-pg#8767"
    ),
)
"""Those of CloudNativePG (targets/cnpg/pitfalls.py)."""


def target_pitfalls(text: str) -> tuple[TargetPitfall, ...]:
    """The target's pitfalls named in a text: "all", or numbers like "K1,K5"; UsageError for an unknown one."""
    if {p.number.lower() for p in CATALOGUE} & set(listed(text.lower(), "pitfall")):
        raise UsageError(
            f"{text} is reproduced on a lab of its own and leaves every other cluster alone",
            "leave --target and --lab out",
        )
    numbers = f"{', '.join(p.number for p in ON_TARGET)}, or all"
    return _named(text, ON_TARGET, UsageError(f"{text!r} is no pitfall of a target", numbers))


def pitfalls(text: str) -> tuple[Pitfall, ...]:
    """The pitfalls named in a text: "all", or numbers like "P1,P4"; UsageError for an unknown one."""
    unknown = UsageError(f"{text!r} is not a known pitfall", "P1 to P22, several with commas, or all")
    return _named(text, CATALOGUE, unknown)


P = TypeVar("P", Pitfall, TargetPitfall)


def _named(text: str, catalogue: tuple[P, ...], unknown: UsageError) -> tuple[P, ...]:
    numbers, known = listed(text.lower(), "pitfall"), {p.number.lower(): p for p in catalogue}
    if numbers == ["all"]:
        return catalogue
    if any(number not in known for number in numbers):
        raise unknown
    return tuple(known[number] for number in numbers)


Report = Callable[[str], None]
FIRST_PORT = 8600
DEFAULT_TIMEOUTS = {
    "wal_sender_timeout": "60s",
    "wal_receiver_timeout": "60s",
    "tcp_user_timeout": "0",
    "tcp_keepalives_idle": "7200",
}
"""PostgreSQL's defaults: the lab's own fast timeouts would soften some of these pitfalls."""


@dataclass(frozen=True, slots=True)
class PitfallRun:
    """One pitfall as it was run; `finding` is None when the lab could not reproduce it, for the reason `why`."""

    pitfall: Pitfall | TargetPitfall
    finding: Finding | None
    seconds: float
    why: str = ""

    @property
    def verdict(self) -> str:
        """reproduced, not reproduced, skipped, or undecided."""
        if self.finding is None:
            return "undecided"
        if self.finding.reproduced is None:
            return "skipped"
        return "reproduced" if self.finding.reproduced else "not reproduced"

    @property
    def evidence(self) -> str:
        """What was seen, or why nothing could be."""
        return self.finding.evidence if self.finding is not None else self.why


@contextmanager
def pitfall_lab(report: Report, disk: str) -> Iterator[Blueprint]:
    """A lab for pitfalls, destroyed at the end of the block, also after an error or Ctrl-C."""
    name, parameters = f"{home.lab_name()}-pitfalls", dict(DEFAULT_TIMEOUTS)
    order = LabOrder(name=name, port=FIRST_PORT, disk=Disk(kind=disk), parameters=parameters)
    with temporary_lab(design(order), RealClock(), report, "prove --pitfall") as blueprint:
        yield blueprint


def run_pitfall(blueprint: Blueprint, pitfall: Pitfall) -> PitfallRun:
    """Reproduce one pitfall on a lab that is up, and leave the lab healthy (unless the pitfall ruins it)."""
    lab = PitfallLab(blueprint)
    began = time.monotonic()
    finding: Finding | None = None
    why = ""
    try:
        lab.create_table()
        finding = pitfall.reproduce(lab)
    except (Error, psycopg.Error) as error:
        why = error.message if isinstance(error, Error) else str(error).strip()
    except KeyboardInterrupt:
        # The lab is about to be destroyed: nothing to recover.
        lab.close(recover=False)
        raise
    try:
        lab.close(recover=not pitfall.ruins)
    except Error as error:
        why = why or f"the lab did not recover afterwards: {error.message}"
    return PitfallRun(pitfall, finding, time.monotonic() - began, why)


def run_on_target(
    able: Mapping[str, Callable[[], Finding]], wanted: Sequence[TargetPitfall], report: Report
) -> Generator[PitfallRun, None, None]:
    """Every pitfall as it ends, on a cluster there is; stops at one that could not be reverted."""
    for pitfall in wanted:
        report(f"{pitfall.number}: {pitfall.title} ({pitfall.thread})")
        began, finding, why = time.monotonic(), None, ""
        if pitfall.number in able:
            try:
                finding = able[pitfall.number]()
            except Error as error:
                why = error.message
        else:
            why = "this target has no such pitfall"
        done = PitfallRun(pitfall, finding, time.monotonic() - began, why)
        report(f"  {done.verdict} in {done.seconds:.1f} s: {done.evidence}")
        yield done


def run_all(wanted: Sequence[Pitfall], report: Report) -> Generator[PitfallRun, None, None]:
    """Every pitfall as it ends, on one lab as long as it recovers; a new lab when it does not."""
    left = list(wanted)
    disk = "image"
    while left:
        try:
            with pitfall_lab(report, disk) as blueprint:
                while left:
                    pitfall = left.pop(0)
                    report(f"{pitfall.number}: {pitfall.title}")
                    done = run_pitfall(blueprint, pitfall)
                    report(f"  {done.verdict} in {done.seconds:.1f} s: {done.evidence}")
                    yield done
                    if done.why or pitfall.ruins:
                        break
        except MachineError:
            if disk == "plain" or len(left) < len(wanted):
                raise
            report("no disk images on this machine: without them power cuts are not possible")
            disk = "plain"


def as_dict(done: PitfallRun) -> dict[str, Any]:
    return {
        "pitfall": done.pitfall.number,
        "title": done.pitfall.title,
        "verdict": done.verdict,
        "evidence": done.evidence,
        "seconds": round(done.seconds, 1),
    }


def reproduce(wanted: Generator[PitfallRun, None, None], emit: Emit) -> tuple[list[PitfallRun], bool]:
    """Run them into a record, each as it ends; (the runs, whether Ctrl-C ended them)."""
    runs: list[PitfallRun] = []
    try:
        with closing(wanted) as running:
            for one in running:
                runs.append(one)
                name, took = f"{one.pitfall.number}: {one.pitfall.title}", f"in {one.seconds:.1f} s"
                emit(ClaimJudged(time.time(), "pitfalls", name, "it happens", one.evidence, one.verdict, took))
    except KeyboardInterrupt:
        emit(Ended(time.time(), "interrupted"))
        return runs, True
    return runs, False


def as_lines(runs: Sequence[PitfallRun], asked: int) -> list[str]:
    """The runs as lines, a conclusion first."""
    reproduced = sum(one.verdict == "reproduced" for one in runs)
    missing = f"; {asked - len(runs)} were not run" if len(runs) < asked else ""
    lines = [f"{reproduced} of {len(runs)} pitfalls reproduced{missing}."]
    for one in runs:
        lines += [f"{one.pitfall.number:4} {one.verdict:15} {one.pitfall.title}", f"     {one.evidence}"]
    return lines


def exit_code(runs: Sequence[PitfallRun]) -> ExitCode:
    """HELD when all were reproduced, BROKEN when one was not, UNDECIDED when one is undecided or skipped."""
    if any(one.verdict == "not reproduced" for one in runs):
        return ExitCode.BROKEN
    undecided = any(one.verdict in ("undecided", "skipped") for one in runs)
    return ExitCode.UNDECIDED if undecided else ExitCode.HELD
