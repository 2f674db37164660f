"""Which mutants of the guard's deciding files the simulation finds: each runs until any invariant is violated."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import chain

from tests.guard_simulation.mutator import Mutant, changed, mutants
from tests.guard_simulation.schedule import draw
from tests.guard_simulation.simulate import judge
from walproof.errors import Error

ENDS = (AssertionError, AttributeError, KeyError, IndexError, NameError, TypeError, ValueError, OSError, Error)
"""What a mutant may raise: it ends the guard."""
_killers: list[int] = []
"""Seeds that have found mutants, the last one first: they often find the next one too."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: which seed found it, None for none; by which invariant."""

    name: str
    seed: int | None
    by: str = ""


def seeds(number: int) -> Iterator[int]:
    """First as many again whose schedules the guard must cope with in time, or must leave alone; then any."""
    expected = [s for s in range(number * 4) if s % 25 <= 3]
    return chain(expected, (s for s in range(number) if s % 25 > 3))


def found_by(number: int) -> tuple[int, str] | None:
    """The first seed with which the code that is in place now goes wrong, and how."""
    for seed in chain(list(_killers), seeds(number)):
        try:
            wrong = judge(draw(seed)).wrong
        except ENDS as error:
            return seed, type(error).__name__
        if wrong:
            return seed, wrong[0].kind
    return None


def fate(mutant: Mutant, number: int) -> Fate:
    """Run a mutant on so many schedules, or until it is found."""
    with changed(mutant):
        found = found_by(number)
    if found is None:
        return Fate(str(mutant), None)
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
