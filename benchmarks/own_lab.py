"""A lab of a benchmark's own, ended whatever happens; never touches another lab."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from walproof.lab.blueprint import Blueprint
from walproof.lab.clock import RealClock
from walproof.lab.designing import LabOrder, design
from walproof.lab.home import state_folder
from walproof.lab.raising import lower_lab, raise_lab

_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def own_lab(name: str, order: LabOrder, *, in_memory: bool = False) -> Iterator[Blueprint]:
    """Raise a lab of that name and end it afterwards; `in_memory` where the machine's disk shall not be measured."""
    if in_memory and _MEMORY.is_dir():
        os.environ["WALPROOF_STATE"] = str(_MEMORY / "walproof-benchmarks")
    clock = RealClock()
    # `timeout` and CI end a benchmark with SIGTERM, which would leave the lab behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    named = f"{name}-{os.getpid()}"
    lower_lab(named, clock)
    try:
        yield raise_lab(design(replace(order, name=named)), clock, lambda _: None)
    finally:
        lower_lab(named, clock)
        (state_folder() / f".{named}.lock").unlink(missing_ok=True)
