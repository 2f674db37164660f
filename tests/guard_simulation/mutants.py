"""Which mutants of the guard's deciding files the simulation finds: each runs until any invariant is hurt."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain

from tests.guard_simulation.mutator import Mutant, in_place, mutants
from tests.guard_simulation.schedule import draw
from tests.guard_simulation.simulate import judge

_killers: list[int] = []
"""Seeds that have found mutants, the last one first: they often find the next one too."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: which seed found it, None for none; by which invariant."""

    name: str
    seed: int | None
    by: str = ""


def seeds(number: int) -> Iterator[int]:
    """First those whose schedules the guard must cope with in time, or must leave alone; then any."""
    due = [s for s in range(number) if s % 25 <= 2]
    return chain(due, (s for s in range(number) if s % 25 > 2))


def found_by(number: int) -> tuple[int, str] | None:
    """The first seed with which the code that is in place now goes wrong, and how."""
    for seed in chain(list(_killers), seeds(number)):
        try:
            wrong = judge(draw(seed)).wrong
        except Exception as error:  # noqa: BLE001: whatever a mutant raises ends its guard
            return seed, type(error).__name__
        if wrong:
            return seed, wrong[0].kind
    return None


def fate(mutant: Mutant, number: int) -> Fate:
    """Run a mutant on so many schedules, or until it is found."""
    with in_place(mutant.file, mutant.tree):
        found = found_by(number)
    if found is None:
        return Fate(str(mutant), None)
    if found[0] in _killers:
        _killers.remove(found[0])
    _killers.insert(0, found[0])
    del _killers[40:]
    return Fate(str(mutant), *found)


@cache
def _all() -> list[Mutant]:
    return list(mutants())


def _nth(n: int, number: int) -> Fate:
    return fate(_all()[n], number)


def fates(number: int, processes: int, only: str = "") -> Iterator[Fate]:
    """The fate of every mutant whose name contains those words."""
    chosen = [n for n, mutant in enumerate(_all()) if only in str(mutant)]
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_nth, chosen, [number] * len(chosen))
