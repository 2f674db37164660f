"""A lab of a benchmark's own as a target that can be priced, and the folding its benchmarks share."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.own_lab import own_lab
from walproof.lab.design import LabOrder
from walproof.model.event import Started
from walproof.pricing.answer import Answer
from walproof.pricing.bench import Bench, untold
from walproof.pricing.command import pursue
from walproof.targets.lab.target import LabTarget


@contextlib.contextmanager
def priced_lab(name: str, *, port: int = 5850, **parameters: str) -> Iterator[LabTarget]:
    """Three members with a quorum of one, on ports of their own; ended whatever happens."""
    with own_lab(f"bench-{name}", LabOrder(port=port, parameters=dict(parameters))) as blueprint:
        yield LabTarget(blueprint)


def asked(target: LabTarget, words: Mapping[str, Any]) -> tuple[Answer, Bench]:
    """The answer to these words of `walproof price` on the target, and the bench with every event."""
    bench = Bench(target, lambda _: None, int(words.get("seed", 1)))
    bench.say(Started(bench.now(), "price", dict(words), "", bench.seed, "benchmark"))
    return pursue(bench, words, untold), bench


def judged(what: str, value: float, limit: str, good: bool) -> int:
    """Print one figure beside its limit; exit code 0 when it is met, 1 when not."""
    print(f"{'met' if good else 'NOT MET'}: {what}: {value:.3f} ({limit})", flush=True)
    return 0 if good else 1
