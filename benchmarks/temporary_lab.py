"""A temporary lab for a benchmark, destroyed whatever happens; never touches another lab. A price run on it."""

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
from walproof.model.event import Started
from walproof.pricing.command import PriceResult, run_command
from walproof.pricing.options import RawOptions, parse_options
from walproof.pricing.sampling import Bench, ignore_progress
from walproof.targets.lab.target import LabTarget

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


@contextlib.contextmanager
def benchmark_target(
    name: str, *, port: int = 5850, in_memory: bool = False, programs: str | None = None, **parameters: str
) -> Iterator[LabTarget]:
    """Three members with a quorum of one and these parameters of PostgreSQL, on ports of their own."""
    order = LabOrder(port=port, postgres=programs, parameters=parameters)
    with benchmark_lab(name, order, in_memory=in_memory) as blueprint:
        yield LabTarget(blueprint)


def priced(target: LabTarget, raw: RawOptions) -> tuple[PriceResult, Bench]:
    """The result of these options of `walproof price` on the target, and the bench with every event."""
    options = parse_options(raw)
    bench = Bench(target, lambda _: None, options.grid.seed)
    bench.emit(Started(bench.now(), "price", dict(raw), "", bench.seed, "benchmark"))
    return run_command(bench, options, ignore_progress), bench
