"""The parts of a commit, taken from one half of the blocks, against the latency measured in the other half.

`python -m benchmarks.price_anatomy`: about 6 minutes on a lab of its own, at round trips of 0 and 5 ms. Within the same
blocks the parts add up by construction; in other blocks they need not.
"""

import sys
from collections.abc import Sequence

from benchmarks.priced_lab import asked, judged, priced_lab
from walproof.model.event import Event, SliceDone
from walproof.pricing.anatomy import anatomies


def half(events: Sequence[Event], odd: int) -> list[Event]:
    """The events with every other block only."""
    return [e for e in events if not isinstance(e, SliceDone) or e.result.slice.block % 2 == odd]


def main() -> int:
    """0 when the parts add up to the measured latency within 10 % everywhere."""
    words = {"clients": "1,8", "rtt": "0,5ms", "slice": "1.2s", "budget": "6min", "precision": "0.1%"}
    with priced_lab("anatomy") as target:
        _, bench = asked(target, words)
    worst = 0.0
    for parts_from, judged_on in ((0, 1), (1, 0)):
        made = {(a.setting, a.clients): a for a in anatomies(half(bench.events, parts_from))}
        for other in anatomies(half(bench.events, judged_on)):
            anatomy = made[other.setting, other.clients]
            off = abs(anatomy.sum_ms / other.measured.value - 1)
            worst = max(worst, off)
            parts = ", ".join(f"{p.name} {p.ms.value:.3f}" for p in anatomy.parts)
            print(f"{anatomy.setting.text}, {anatomy.clients} clients: {parts} = {anatomy.sum_ms:.3f} ms;")
            print(f"  measured in the other blocks {other.measured.value:.3f} ms, off by {off:.1%}")
            print(f"  {anatomy.sentence}")
    return judged("worst miss of the parts' sum", worst, "at most 0.10", worst <= 0.1)


if __name__ == "__main__":
    sys.exit(main())
