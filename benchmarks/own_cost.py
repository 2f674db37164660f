"""What does measuring cost? Throughput through `price` against plain pgbench, in pairs on a lab of its own.

`python -m benchmarks.own_cost [--pairs 30] [--seconds 4] [--level on] [--clients 8] [--in-memory]`: 0 when the interval
of the ratio lies above 98 %, 1 when it lies below, 4 when it holds 98 %. Each pair runs both in random order, settings
being equal; pgbench alone is given its own connection time back, as pgbench itself reports it ("without initial
connection time").
"""

import argparse
import math
import random
import re
import subprocess
import sys
from statistics import fmean

import numpy as np

from benchmarks.temporary_lab import benchmark_lab
from walproof.estimating.intervals import t_interval
from walproof.lab.create import LabOrder
from walproof.load.pgbench import threads
from walproof.model.guarantee import level
from walproof.model.sample import Arm, Sample, Scenario, Workload
from walproof.targets.lab.target import LabTarget

WANTED = 0.98


def plain(target: LabTarget, arm: Arm, seconds: int, seed: int) -> float:
    """Transactions per second as pgbench reports it, nothing else running."""
    conninfo = target.endpoint(arm.route).conninfo(gssencmode="disable", options=f"-c synchronous_commit={arm.level}")
    argv = [str(target.blueprint.postgres_bin / "pgbench"), "-n", "-M", "prepared", "-b", "tpcb-like"]
    argv += ["-c", str(arm.clients), "-j", str(threads(arm.clients)), "-T", str(seconds)]
    argv += [f"--random-seed={seed}", conninfo]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = re.search(r"tps = ([0-9.]+) \(without initial connection time\)", output)
    assert found is not None, output
    return float(found[1])


def main() -> int:
    """Run the pairs and judge their mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--level", default="on")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--in-memory", action="store_true", help="members on tmpfs: more tps, no disk's noise")
    asked = parser.parse_args()
    arm = Arm(level(asked.level), asked.clients, Workload(scale=20), "direct")
    chance = random.Random(1)
    logs: list[float] = []
    with benchmark_lab("cost", LabOrder(port=5890), in_memory=asked.in_memory) as blueprint:
        target = LabTarget(blueprint)
        target.pricing.prepare(arm.workload)
        plain(target, arm, asked.seconds, 0)
        for number in range(asked.pairs):
            seed, pair = number + 1, {}
            for kind in chance.sample(["price", "plain"], 2):
                if kind == "plain":
                    pair[kind] = plain(target, arm, asked.seconds, seed)
                else:
                    pair[kind] = target.pricing.run_sample(
                        Sample(number, 0, arm, Scenario()), float(asked.seconds), seed
                    ).tps
            logs.append(math.log(pair["price"] / pair["plain"]))
            print(f"  pair {number + 1}: price {pair['price']:,.0f}, plain {pair['plain']:,.0f} tps", flush=True)
    around = t_interval(np.array(logs))
    value, low, high = (math.exp(v) for v in (fmean(logs), around.low, around.high))
    verdict, code = ("met", 0) if low >= WANTED else ("NOT MET", 1) if high < WANTED else ("undecided", 4)
    print(f"{verdict}: price/plain = {value:.3f} (95 % interval {low:.3f} to {high:.3f})")
    return code


if __name__ == "__main__":
    sys.exit(main())
