"""Steps the wall clock by ±5 s in the middle of honest drills on a real lab: the verdicts must be held all the same.

`python -m benchmarks.clock_steps`: about two minutes; exit 1 when one is not held. What steps is time.time() of
walproof and of every process that it starts for the ledger: the wall clock of the machine itself is left alone.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.lab_lies import Act, Lie, LyingTarget, Other, telling
from benchmarks.temporary_lab import benchmark_lab
from walproof.lab.blueprint import Blueprint
from walproof.lab.create import LabOrder
from walproof.model.drill import Verdict
from walproof.model.guarantee import Level
from walproof.model.ports import MemberFault
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.run import Shell, run_drills

PORT = int(os.environ.get("WALPROOF_TEST_PORT", "5860"))
CODE = """
import time
wall = time.time
time.time = lambda: wall() + float(open({offset!r}).read() or 0)
"""
STEPS = ((0, 0), (5, 5), (-5, -5), (5, -5), (-5, 5))
"""Offsets of the wall clock, s: once the writers commit, and when the fault has been injected."""


@contextlib.contextmanager
def own_wall_clock() -> Iterator[Callable[[float], None]]:
    """A function that sets the wall clock so many seconds off, for this process and its children."""
    with tempfile.TemporaryDirectory(prefix="walproof-clock-") as folder, pytest.MonkeyPatch.context() as patch:
        offset = Path(folder) / "offset"
        offset.write_text("0", encoding="ascii")
        code = CODE.format(offset=str(offset))
        (Path(folder) / "sitecustomize.py").write_text(code, encoding="ascii")
        patch.setattr(time, "time", time.time)  # as it was, afterwards
        patch.syspath_prepend(folder)  # the ledger's processes get this path
        exec(compile(code, "sitecustomize", "exec"), {})
        yield lambda seconds: print(seconds, file=offset.open("w", encoding="ascii"))


def stepping(step: Callable[[], None]) -> Callable[[Blueprint, MemberFault], Other]:
    """The fault itself, and then the step."""

    def made(_blueprint: Blueprint, honest: MemberFault) -> Other:
        def act(member: str) -> None:
            honest.inject(member)
            step()

        return Other(act, honest.undo)

    return made


def beginning(step: Callable[[float], None], to: float) -> Act:
    """That step, once the writers commit."""
    return lambda _target: step(to)


def main() -> int:
    """A kill of the leader with each pair of steps."""
    held = 0
    with own_wall_clock() as step, benchmark_lab("clocks", LabOrder(port=PORT)) as blueprint:
        for number, (early, late) in enumerate(STEPS, 1):
            steps = Lie("the wall clock steps", instead=stepping(partial(step, late)), begin=beginning(step, early))
            target, fault = LyingTarget(blueprint, steps), CATALOGUE["kill"]
            planned = PlannedDrill(number, fault, fault.victims[0], Level.ON, writers=8)
            shell = Shell(target, lambda _event: None, lambda _name, _content: None, seed=number)
            with telling(target):
                drill = run_drills(shell, [planned], enough=lambda _drills: False)[0]
                step(0)
            held += drill.verdict is Verdict.HELD
            rto = "no RTO" if drill.rto_s is None else f"RTO {drill.rto_s:.1f} s"
            print(f"{early:+} s, then {late:+} s: {drill.verdict}: {drill.why} ({rto})", flush=True)
    print(f"{held} of {len(STEPS)} drills were held")
    return int(held < len(STEPS))


if __name__ == "__main__":
    sys.exit(main())
