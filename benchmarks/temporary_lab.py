"""A temporary lab for a benchmark, destroyed whatever happens; never touches another lab."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from walproof.lab.blueprint import Blueprint
from walproof.lab.create import LabOrder, design, temporary_lab
from walproof.lab.home import state_folder
from walproof.machine.clock import RealClock

_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def benchmark_lab(name: str, order: LabOrder, *, in_memory: bool = False) -> Iterator[Blueprint]:
    """A lab of that name, destroyed afterwards; `in_memory` where the machine's disk shall not be measured."""
    if in_memory and _MEMORY.is_dir():
        os.environ["WALPROOF_STATE"] = str(_MEMORY / "walproof-benchmarks")
    # `timeout` and CI end a benchmark with SIGTERM, which would leave the lab behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    named = f"{name}-{os.getpid()}"
    try:
        with temporary_lab(design(replace(order, name=named)), RealClock(), lambda _: None, "benchmark") as blueprint:
            yield blueprint
    finally:
        (state_folder() / f".{named}.lock").unlink(missing_ok=True)
