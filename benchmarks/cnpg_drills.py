"""Drills of CloudNativePG on the stand-in over real PostgreSQL: nothing lost at `on`, losses at `off` seen.

`python -m benchmarks.cnpg_drills [--kills 10] [--freezes 3] [--switchovers 5] [--speed 10]`: prints what each kind
acknowledged and lost, and its RTO; exit 1 when a commit at `on` was lost, a drill was undecided or `off` lost nothing.
The operator's delays are the recorded ones divided by --speed, and so is the RTO: it says nothing of a real cluster.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.command import command
from tests.fixtures.drills import drilled
from tests.fixtures.kubernetes.target import real_stand_in, target_of
from walproof.model.drill import Drill, Verdict, Victim
from walproof.model.guarantee import Level
from walproof.model.ports import Target
from walproof.model.waiting import Wait
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.records.journal import Journal

FROZEN_S = 15.0
"""How long a drill waits for commits: a frozen primary keeps its lease for as long as it is frozen."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Drills of one fault at one level."""

    fault: str
    level: Level
    count: int


@contextlib.contextmanager
def cluster(speed: float) -> Iterator[Target]:
    """The target; its journal lies in a folder that is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="walproof-cnpg-drills-") as folder,
        real_stand_in(Path(folder), speed=speed) as (running, _),
        target_of(running) as target,
    ):
        target.journal = Journal(Path(folder) / "journal.jsonl")
        target.clock.waits = {**target.clock.waits, Wait.FIRST_COMMIT_AFTER.name: FROZEN_S}
        yield target


def campaign(target: Target, kinds: Sequence[Kind], writers: int) -> dict[Kind, list[Drill]]:
    """Every drill, printed as it ends."""
    found: dict[Kind, list[Drill]] = {kind: [] for kind in kinds}
    for number, kind in enumerate([one for one in kinds for _ in range(one.count)], 1):
        plan = PlannedDrill(number, CATALOGUE[kind.fault], Victim.LEADER, kind.level, writers=writers)
        found[kind].append(drilled(target, plan))
        print(f"  {kind.fault} at {kind.level}: {found[kind][-1].why}", flush=True)
    return found


def row(kind: Kind, drills: Sequence[Drill]) -> str:
    """One line of the table."""
    times = [drill.rto_s for drill in drills if drill.rto_s is not None]
    rto = f"RTO {median(times):.1f} s ({min(times):.1f}–{max(times):.1f})" if times else "no RTO"
    acknowledged = sum(drill.findings.acknowledged for drill in drills)
    lost = sum(drill.findings.lost for drill in drills)
    undecided = sum(drill.verdict in (Verdict.UNDECIDED, Verdict.SKIPPED) for drill in drills)
    return f"{kind.fault} ×{len(drills)} at {kind.level}: {lost} lost of {acknowledged:,}, {undecided} undecided, {rto}"


def falls_short(kind: Kind, drills: Sequence[Drill]) -> bool:
    """Whether these drills do not show what they must."""
    lost = sum(drill.findings.lost for drill in drills)
    if kind.level is Level.OFF:
        return lost == 0
    return lost > 0 or len(drills) < kind.count or any(drill.verdict is not Verdict.HELD for drill in drills)


def main(*, kills: int = 10, freezes: int = 3, switchovers: int = 5, speed: float = 10.0, writers: int = 8) -> int:
    """Exit code."""
    kinds = [
        Kind("kill", Level.OFF, kills),
        Kind("kill", Level.ON, kills),
        Kind("freeze", Level.ON, freezes),
        Kind("switchover", Level.ON, switchovers),
    ]
    with cluster(speed) as target:
        found = campaign(target, kinds, writers)
    for kind, drills in found.items():
        print(row(kind, drills))
    return 1 if any(falls_short(kind, drills) for kind, drills in found.items()) else 0


if __name__ == "__main__":
    command(main)
