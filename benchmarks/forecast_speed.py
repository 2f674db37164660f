"""How long a million simulated years of a configuration take.

`python -m benchmarks.forecast_speed [--years 1e6]`: the shipped rates, several configurations, with the importance
sampling of rare losses that `walproof forecast` does, by as many processes; exit 1 when one takes more than 10 s.
"""

import argparse
import os
import sys
import time

from walproof.forecasting.failure_rates import failures_of
from walproof.forecasting.forecast import forecast
from walproof.forecasting.outages_from_drills import Measured, Model
from walproof.forecasting.topology import Configuration, topology
from walproof.machine.processors import several_processes
from walproof.model.guarantee import Level, QuorumKind

LIMIT_S = 10.0
CASES = (
    ("z1,z2,z3", Configuration(Level.LOCAL)),
    ("z1,z2,z3", Configuration(Level.ON, QuorumKind.ANY, 1)),
    ("z1,z2,z3", Configuration(Level.ON, QuorumKind.FIRST, 1, strict=False)),
    ("r1/z1,r1/z2,r1/z3,r2/z1,r2/z2", Configuration(Level.ON, QuorumKind.ANY, 2)),
    ("r1/z1,r1/z2,r1/z3,r2/z1,r2/z2,r2/z3,r3/z1", Configuration(Level.REMOTE_WRITE, QuorumKind.ANY, 3)),
)


def _processor_s() -> float:
    """Of this process and of those that it has ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main() -> int:
    """Print seconds by configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=float, default=1e6)
    years = int(parser.parse_args().years)
    worst = 0.0
    for layout, what in CASES:
        model = Model(topology(layout), what, failures_of(), Measured({}, {}, {}))
        began, busy = time.perf_counter(), _processor_s()
        with several_processes() as each:
            made = forecast(model, layout, years=years, seed=1, each=each)
        took, cpu = time.perf_counter() - began, _processor_s() - busy
        worst = max(worst, took)
        minutes = f"{made.minutes.value:.3g} minutes a year"
        case = f"{what.text}, {len(model.where.members)} members"
        print(f"{took:5.1f} s ({cpu:.1f} s of processors)  {years:,} years  {case}: {minutes}", flush=True)
    print(f"slowest: {worst:.1f} s (at most {LIMIT_S:g} s); load {os.getloadavg()[0]:.0f}")
    return 0 if worst <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
