"""A temporary lab as a target that can be priced, and what the price benchmarks share."""

import contextlib
from collections.abc import Iterator

from benchmarks.temporary_lab import benchmark_lab
from walproof.lab.create import LabOrder
from walproof.model.event import Started
from walproof.pricing.command import PriceResult, run_command
from walproof.pricing.options import RawOptions, parse_options
from walproof.pricing.sampling import Bench, ignore_progress
from walproof.targets.lab.target import LabTarget


@contextlib.contextmanager
def priced_lab(name: str, *, port: int = 5850, in_memory: bool = False, **parameters: str) -> Iterator[LabTarget]:
    """Three members with a quorum of one, on ports of their own; destroyed whatever happens."""
    order = LabOrder(port=port, parameters=dict(parameters))
    with benchmark_lab(f"bench-{name}", order, in_memory=in_memory) as blueprint:
        yield LabTarget(blueprint)


def priced(target: LabTarget, raw: RawOptions) -> tuple[PriceResult, Bench]:
    """The result of these options of `walproof price` on the target, and the bench with every event."""
    options = parse_options(raw)
    bench = Bench(target, lambda _: None, options.grid.seed)
    bench.emit(Started(bench.now(), "price", dict(raw), "", bench.seed, "benchmark"))
    return run_command(bench, options, ignore_progress), bench


def judged(what: str, value: float, limit: str, good: bool) -> int:
    """Print one figure and its limit; exit code 0 when it is met, 1 when not."""
    print(f"{'met' if good else 'NOT MET'}: {what}: {value:.3f} ({limit})", flush=True)
    return 0 if good else 1
