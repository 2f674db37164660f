"""Creates the lab that pitfalls need, reproduces them one after another, reports each, destroys the lab."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from walproof.errors import Error, MachineError
from walproof.lab import home
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.create import temporary_lab
from walproof.lab.design import LabOrder, design
from walproof.machine.clock import RealClock
from walproof.model.event import ClaimJudged, Emit, Ended
from walproof.studies.pitfalls.catalogue import Pitfall, TargetPitfall
from walproof.studies.pitfalls.pitfall_lab import Finding, PitfallLab

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
def pitfall_lab(report: Report, *, disk: str = "image", name: str = "", port: int = FIRST_PORT) -> Iterator[Blueprint]:
    """A lab for pitfalls, destroyed at the end of the block, also after an error or Ctrl-C."""
    order = LabOrder(
        name=name or f"{home.lab_name()}-pitfalls", port=port, disk=Disk(kind=disk), parameters=dict(DEFAULT_TIMEOUTS)
    )
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
            with pitfall_lab(report, disk=disk) as blueprint:
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
    """For --json."""
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


def as_text(runs: Sequence[PitfallRun], asked: int) -> str:
    """The runs as text, a conclusion first."""
    reproduced = sum(one.verdict == "reproduced" for one in runs)
    missing = f"; {asked - len(runs)} were not run" if len(runs) < asked else ""
    lines = [f"{reproduced} of {len(runs)} pitfalls reproduced{missing}."]
    for one in runs:
        lines += [f"{one.pitfall.number:4} {one.verdict:15} {one.pitfall.title}", f"     {one.evidence}"]
    return "\n".join(lines)


def exit_code(runs: Sequence[PitfallRun]) -> int:
    """0 when all were reproduced, 1 when one was not, 4 when one is undecided or skipped."""
    if any(one.verdict == "not reproduced" for one in runs):
        return 1
    return 4 if any(one.verdict in ("undecided", "skipped") for one in runs) else 0
