"""Which mutants of the guard's deciding files the simulation finds: each runs until any invariant is violated.

What no schedule finds the unit tests of the guard are asked, and are counted apart.
"""

import contextlib
import io
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import chain

import pytest

from tests.guard_simulation.mutator import Mutant, changed, mutants
from tests.guard_simulation.schedule import draw
from tests.guard_simulation.shortest import SHORTEST
from tests.guard_simulation.simulate import judge
from walproof.errors import Error

ENDS = (AssertionError, AttributeError, KeyError, IndexError, NameError, TypeError, ValueError, OSError, Error)
"""What a mutant may raise: it ends the guard."""
_UNITS = [f"tests/unit/test_{name}.py" for name in ("guarding", "guard_readers", "guard_harm", "leader_lock")]
_BY_HAND = tuple(SHORTEST.values())
"""Their numbers are -2, -3, …"""
_killers: list[int] = []
"""Seeds that have found mutants, the last one first: they often find the next one too."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: which seed found it, -1 for a unit test, None for none; by which invariant or test."""

    name: str
    seed: int | None
    by: str = ""


def seeds(number: int) -> Iterator[int]:
    """First as many again whose schedules the guard must cope with in time, or must leave alone; then any."""
    expected = [s for s in range(number * 4) if s % 25 <= 3]
    return chain(expected, (s for s in range(number) if s % 25 > 3))


def found_by(number: int) -> tuple[int, str] | None:
    """The first seed with which the code that is in place now goes wrong, and how; first the schedules by hand."""
    by_hand = range(-2, -2 - len(_BY_HAND), -1)
    for seed in chain(list(_killers), by_hand, seeds(number)):
        try:
            wrong = judge(draw(seed) if seed >= 0 else _BY_HAND[-2 - seed]).wrong
        except ENDS as error:
            return seed, type(error).__name__
        if wrong:
            return seed, wrong[0].kind
    return None


class _Failed:
    """The name of a unit test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.name = report.nodeid.rpartition("::")[2]


def failing_unit() -> str:
    """The first unit test that the code which is in place now fails, "" for none."""
    for name in [n for n in sys.modules if n.startswith("tests.unit.")]:
        del sys.modules[name]  # they took names from the code that was in place before
    failed = _Failed()
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(["-xq", "-pno:cacheprovider", "-k", "not thread and not nobody_asks", *_UNITS], [failed])
    return failed.name or ("" if code is pytest.ExitCode.OK else "the tests are not even collected")


def fate(mutant: Mutant, number: int) -> Fate:
    """Run a mutant on so many schedules, or until it is found."""
    with changed(mutant):
        found = found_by(number)
        unit = failing_unit() if found is None else ""
    if found is None:
        return Fate(str(mutant), -1 if unit else None, unit)
    if found[0] in _killers:
        _killers.remove(found[0])
    _killers.insert(0, found[0])
    del _killers[40:]
    return Fate(str(mutant), *found)


def _nth(n: int, number: int) -> Fate:
    return fate(mutants()[n], number)


def fates(number: int, processes: int, only: str = "", every: int = 1) -> Iterator[Fate]:
    """The fate of every mutant whose name contains those words, or of every so manieth, as they are known."""
    chosen = [n for n, mutant in enumerate(mutants()) if only in str(mutant)][::every]
    with ProcessPoolExecutor(processes) as pool:
        for done in as_completed([pool.submit(_nth, n, number) for n in chosen]):
            yield done.result()
