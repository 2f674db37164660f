"""`walproof prove --salvage`: each drill's lost commits, looked for on old leaders' disks. The ledger judges."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from walproof.errors import UsageError
from walproof.model.drill import Drill, Verdict
from walproof.model.ports import Clock, Target
from walproof.model.salvage import OldDisks, SalvageJudged
from walproof.proving.history import decode, history_name
from walproof.proving.salvaged import salvage_judged
from walproof.records.layout import FILES
from walproof.salvaging.drill import require_private_state, rewind_script, salvaged
from walproof.salvaging.plan import require_root


def check_salvage(target: Target) -> None:
    """UsageError where walproof copies no disks; MachineError where it may not."""
    if target.capabilities().old_disks is None:
        why = f"{target.name} has no --salvage: walproof copies the disks of a lab's members alone"
        raise UsageError(why, "leave it out; walproof salvage --keep says how to keep those of a cluster of yours")
    require_root()
    require_private_state()


@contextmanager
def salvage_of_drills(
    target: Target, record: Path, *, asked: bool
) -> Iterator[Callable[[Drill], SalvageJudged] | None]:
    """What looks for a drill's lost commits, None unless asked; disks are copied before they are rewound meanwhile."""
    disks = target.capabilities().old_disks
    if not asked or disks is None:
        yield None
        return
    with disks.kept(rewind_script(disks.programs)):
        yield partial(_judged, disks, target.clock, record)


def _judged(disks: OldDisks, clock: Clock, record: Path, drill: Drill) -> SalvageJudged:
    found = salvaged(disks, drill.number)
    kept = record / FILES / history_name(drill.number)
    if not kept.is_file():
        return SalvageJudged(clock.now(), drill.number, Verdict.UNDECIDED, why=f"no ledger: {drill.why}")
    return salvage_judged(clock.now(), decode(kept.read_bytes()), found)
