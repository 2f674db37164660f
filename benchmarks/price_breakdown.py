"""The parts of a commit, taken from one half of the blocks, against the latency measured in the other half.

`python -m benchmarks.price_breakdown`: about 6 minutes on a lab of its own, at round trips of 0 and 5 ms. Within the
same blocks the parts add up by construction; in other blocks they need not.
"""

import math
import sys
from collections.abc import Sequence

from benchmarks.priced_lab import judged, priced, priced_lab
from walproof.model.event import Event, SampleDone
from walproof.model.units import counted
from walproof.pricing.latency_breakdown import breakdowns


def half(events: Sequence[Event], odd: int) -> list[Event]:
    """The events with every other block only."""
    return [e for e in events if not isinstance(e, SampleDone) or e.result.sample.block % 2 == odd]


def main() -> int:
    """0 when the parts add up to the measured latency within 10 % everywhere."""
    options = {"clients": "1,8", "rtt": "0,5ms", "sample": "1.2s", "budget": "6min", "precision": "0.1%"}
    with priced_lab("breakdown") as target:
        _, bench = priced(target, options)
    misses = []
    for parts_from, judged_on in ((0, 1), (1, 0)):
        made = {(a.scenario, a.clients): a for a in breakdowns(half(bench.events, parts_from))}
        for other in breakdowns(half(bench.events, judged_on)):
            breakdown = made[other.scenario, other.clients]
            off = abs(breakdown.sum_ms / other.measured.value - 1)
            misses.append(off)
            parts = ", ".join(f"{p.name} {p.ms.value:.3f}" for p in breakdown.parts)
            clients = counted(breakdown.clients, "client")
            print(f"{breakdown.scenario.text}, {clients}: {parts} = {breakdown.sum_ms:.3f} ms;")
            print(f"  measured in the other blocks {other.measured.value:.3f} ms, off by {off:.1%}")
            print(f"  {breakdown.bottleneck}")
    worst = max(misses, default=math.nan)
    return judged("worst miss of the parts' sum", worst, "at most 0.10", worst <= 0.1)


if __name__ == "__main__":
    sys.exit(main())
