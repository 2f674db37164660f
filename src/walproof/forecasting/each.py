"""How batches of simulated years are worked through: one after another, or by several processes if a caller wants."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Each(Protocol):
    """Applies a function to every item and gives the results in order, as `map` does."""

    def __call__(self, work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
        """The results."""


def in_turn(work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
    """One after another."""
    return map(work, items)
