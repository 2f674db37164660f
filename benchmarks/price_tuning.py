"""Tuned `on` against tuned `local` at round trips of 0, 3 and 10 ms.

`python -m benchmarks.price_tuning [--workload simple-update] [--cpu N] [--in-memory] [--budget 15min]`: on a
lab of its own; limit a p95 of 100 ms. Without --cpu the members, the clients and the link emulator share the machine's
processors; with it each member has at most so many, as where every member has a machine of its own. --in-memory puts
the members on tmpfs, so that only processors limit, no disk. With tpcb-like many sessions wait for
the same rows too, so its scale is larger.
"""

import argparse
import math
import sys

from benchmarks.priced_lab import judged, priced, priced_lab

RTTS = ("0", "3ms", "10ms")


def main() -> int:
    """0 when tuned `on` reaches 97 % of what the processors allow at each round trip."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="simple-update")
    parser.add_argument("--cpu", help="processors per member")
    parser.add_argument("--in-memory", action="store_true")
    parser.add_argument("--budget", default="15min")
    arguments = parser.parse_args()
    options = {
        "tune": True,
        "workload": arguments.workload,
        "limit": "100ms",
        "level": "on",
        "rtt": ",".join(RTTS),
        "scale": "300" if arguments.workload == "tpcb-like" else "100",
        "max_clients": "128",
        "budget": arguments.budget,
        "sample": "1.5s",
        "precision": "1.5%",
        "cpu": arguments.cpu,
    }
    with priced_lab("tuning", in_memory=arguments.in_memory, max_connections="200") as target:
        result, _ = priced(target, options)
    print("\n".join(result.conclusions))
    found = result.parts["tuning"]
    codes = []
    for one in found:
        bound, of_bound = one["processor_bound"]["value"], one["of_bound"]
        print(f"{one['scenario']}: ratio {one['ratio']['value']:.3f}; the processors allow {bound or math.nan:.3f}")
        good = of_bound is not None and of_bound >= 0.97
        codes.append(judged(f"share of the bound, {one['scenario']}", of_bound or math.nan, "at least 0.97", good))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
