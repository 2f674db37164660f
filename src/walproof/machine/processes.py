"""Pure functions on all processors of this machine: a `map` that several processes share."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Shared(Protocol):
    """As the built-in `map`, for one iterable."""

    def __call__(self, work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
        """The results in order."""


@contextmanager
def several_processes() -> Iterator[Shared]:
    """One process a processor, ended with the block. Function, items and results are pickled.

    They are forked, while no thread runs: a new interpreter imports numpy longer than most forecasts take.
    """
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork")) as pool:

        def shared(work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
            return pool.map(work, items)

        yield shared
