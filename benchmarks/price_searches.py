"""Break-even on simulated clusters of known throughput: how many searches claim something false, how many decide.

`python -m benchmarks.price_searches [--runs 200] [--noise 0.05]`: about two minutes. The real search and its pairs, on
a target whose samples are a known curve with noise. `on` ends below the goal of 99 %, just below it, on it, or above.
"""

import argparse
import math
import sys
from dataclasses import dataclass

from benchmarks.priced_lab import judged
from tests.fixtures.priced_fake import FakePriced, throughput
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, SampleResult
from walproof.pricing.break_even import GOAL
from walproof.pricing.command import run_command
from walproof.pricing.options import parse_options
from walproof.pricing.sampling import Bench, ignore_progress

PLATEAUS = (0.90, 0.95, 0.985, 1.0, 1.05)


def true_tps(arm: Arm, plateau: float) -> float:
    """Transactions per second without noise: more clients bring ever less; `on` waits longer and ends at `plateau`."""
    if arm.level is Level.LOCAL:
        return 4000 * math.tanh(arm.clients / 8)
    return plateau * 4000 * math.tanh(arm.clients / 20)


@dataclass
class Curve(FakePriced):
    """A target whose throughput is `true_tps` with the fake's noise."""

    plateau: float = 1.0

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """One sample, its throughput set on the curve."""
        found = super().run_sample(planned, seconds, seed)
        noisy = found.tps / throughput(planned.arm, self.rtt_ms)
        tps = true_tps(planned.arm, self.plateau) * noisy
        return SampleResult(planned, found.started_at, seconds, round(tps * seconds), 0, tps, found.mean_ms)


def searched(plateau: float, noise: float, seed: int) -> tuple[bool, bool]:
    """Whether the search claimed anything false, and whether it decided."""
    bench = Bench(Curve(noise=noise, plateau=plateau), lambda _: None, seed)
    raw = {"break_even": True, "levels": "on", "budget": "20min", "max_clients": "128", "seed": str(seed)}
    (found,) = run_command(bench, parse_options(raw), ignore_progress).parts["break_even"]
    if found["below"] is None:
        return False, False
    goal = GOAL * true_tps(Arm(Level.LOCAL, found["peak_clients"]), plateau)
    reached = {n: true_tps(Arm(Level.ON, n), plateau) >= goal for n in range(1, 129)}
    false = found["below"] > 0 and reached[found["below"]]
    false |= found["clients"] is not None and not reached[found["clients"]]
    false |= found["clients"] is None and found["decided"] and any(reached.values())
    return bool(false), bool(found["decided"])


def main() -> int:
    """0 when at most 5 of 100 searches claim something false, for each curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--noise", type=float, default=0.05)
    options = parser.parse_args()
    print(f"{options.runs} searches each, 20 min of simulated time; noise of a sample {options.noise:.0%}")
    worst = 0.0
    for plateau in PLATEAUS:
        found = [searched(plateau, options.noise, seed) for seed in range(1, options.runs + 1)]
        false, decided = (sum(one[i] for one in found) / options.runs for i in (0, 1))
        print(f"`on` ends at {plateau:.3f} of local: {false:.1%} false, {decided:.1%} decided", flush=True)
        worst = max(worst, false)
    return judged("most false claims", worst, "at most 0.05", worst <= 0.05)


if __name__ == "__main__":
    sys.exit(main())
