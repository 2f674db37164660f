"""Tuned `on` against tuned `local` at round trips of 0, 3 and 10 ms.

`python -m benchmarks.price_tuning [WORKLOAD]`: about 15 minutes on a lab of its own; the limit is a p95 of 100 ms. The
workload is simple-update: with tpcb-like many sessions wait for the same rows too (there at scale 300, else 100).
"""

import sys

from benchmarks.priced_lab import asked, judged, priced_lab

RTTS = ("0", "3ms", "10ms")


def main() -> int:
    """0 when tuned `on` reaches 97 % of tuned `local` at each round trip."""
    workload = sys.argv[1] if len(sys.argv) == 2 else "simple-update"
    words = {
        "tune": True,
        "workload": workload,
        "limit": "100ms",
        "level": "on",
        "rtt": ",".join(RTTS),
        "scale": "300" if workload == "tpcb-like" else "100",
        "max_clients": "128",
        "budget": "15min",
        "slice": "1.5s",
        "precision": "1.5%",
    }
    with priced_lab("tuning", max_connections="200") as target:
        answer, _ = asked(target, words)
    print("\n".join(answer.sentences))
    found = dict(answer.parts)["tuning"]
    codes = [
        judged(
            f"tuned on of tuned local, {one['setting']}",
            one["ratio"]["value"],
            "at least 0.97",
            one["ratio"]["value"] >= 0.97,
        )
        for one in found
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
