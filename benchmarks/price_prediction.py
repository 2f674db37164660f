"""The queueing model against points it was not shown: round trips 0–20 ms, clients 1–64.

`python -m benchmarks.price_prediction`: about 9 minutes on a lab of its own. Fitted to clients 1, 4, 16, 64 at 0, 5
and 20 ms; judged at clients 2, 8, 32 and at round trips of 2 and 10 ms.
"""

import math
import sys
from collections.abc import Sequence

from benchmarks.priced_lab import judged, priced, priced_lab
from walproof.model.guarantee import Level
from walproof.pricing.prediction import Miss, Point, median_error, missed, points_of

SHOWN_CLIENTS = (1, 4, 16, 64)
SHOWN_RTTS = (0.0, 5.0, 20.0)
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
RTTS = (0, 2, 5, 10, 20)


def shown(point: Point) -> bool:
    """Whether the model may see the point; its round trip is the measured one, a little above the asked."""
    return point.clients in SHOWN_CLIENTS and any(abs(point.rtt_ms - rtt) < 0.3 + 0.15 * rtt for rtt in SHOWN_RTTS)


def misses_of(points: Sequence[Point]) -> list[Miss]:
    """Every point and its prediction from a fit to the shown ones, level by level."""
    found: list[Miss] = []
    for level in dict.fromkeys(p.level for p in points):
        of_level = [p for p in points if p.level is level]
        found += missed([p for p in of_level if shown(p)], of_level)
    return found


def main() -> int:
    """0 when the median error on hidden points is at most 10 %."""
    options = {
        "levels": ",".join((Level.LOCAL, Level.ON)),
        "clients": ",".join(map(str, CLIENTS)),
        "rtt": ",".join(f"{rtt}ms" for rtt in RTTS),
        "workload": "insert",
        "sample": "1.5s",
        "budget": "8min",
        "precision": "0.5%",
    }
    with priced_lab("prediction") as target:
        result, bench = priced(target, options)
    everything = misses_of([p for points in points_of(result.table, bench.events).values() for p in points])
    for miss in sorted(everything, key=lambda m: (m.point.level, m.point.rtt_ms, m.point.clients)):
        point, fitted = miss.point, miss.predicted
        print(
            f"{point.level:>6} {point.clients:>3} clients {point.rtt_ms:5.1f} ms: measured {point.tps:7.0f}, "
            f"{'fitted   ' if shown(point) else 'predicted'} {fitted.value:7.0f} ({fitted.low:.0f}–{fitted.high:.0f}), "
            f"off by {miss.error:.1%}"
        )
    misses = [miss for miss in everything if not shown(miss.point)]
    inside = sum(m.predicted.covers(m.point.tps) for m in misses)
    print(f"{inside} of {len(misses)} hidden points lie within their 95 % interval")
    error = median_error(misses)
    return judged("median error on hidden points", error, "at most 0.10", not math.isnan(error) and error <= 0.1)


if __name__ == "__main__":
    sys.exit(main())
