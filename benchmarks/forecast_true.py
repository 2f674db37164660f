"""Forecasts put to the test: drills, then a forecast of accelerated periods, then those periods run, then compared.

`python -m benchmarks.forecast_true [--runs 100] [--target sim] [--minutes 30]`: on the simulated target (virtual time)
each run is a cluster of its own seed. Its drills give the forecast: unavailable seconds and lost commits of a period in
which faults of several kinds come as Poisson processes, and overlap. Then that period is run under the ledger.
Printed: how many runs fell into the 90 % intervals (seconds, commits); exit 1 when fewer than nine of ten did.
`--target lab` does the same in real time, each run on the lab that is up; recovery from what overlaps takes its time.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from walproof.forecasting.behaviour import Model
from walproof.forecasting.failures import YEAR_S, Data, Failure, Failures, Place
from walproof.forecasting.measured import Measured, measured
from walproof.forecasting.simulate import Risk, periods
from walproof.forecasting.topology import Configuration, topology
from walproof.model.attempt import Outcome
from walproof.model.event import DrillDone, Event
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder
from walproof.model.ports import Capability, Target
from walproof.model.verdict import Victim
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.reading import compared, lost_rows
from walproof.proving.run import Shell, run_drills
from walproof.targets.choose import choose

PER_HOUR = {"kill": 16.0, "kill-member": 6.0, "freeze": 6.0, "isolate": 6.0}
"""Of each fault on each member."""
LASTS_S = {"kill": 3.0, "kill-member": 40.0, "freeze": 40.0, "isolate": 40.0}
DRILLS = 5
WRITERS = 2
GAP_S = 1.0
"""A gap in the acknowledgements of all writers that counts as unavailable: they try again every half second."""
PERIODS = 1000
PROMOTES_S = 2.5
"""Without synchronous replication the first member that is back is promoted, whatever it lacks."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One period: what was forecast (5 % and 95 %), what came."""

    seconds: tuple[float, float]
    commits: tuple[float, float]
    unavailable_s: float
    lost: int

    @property
    def inside(self) -> tuple[bool, bool]:
        """Whether each came within its interval."""
        low, high = self.seconds
        fewest, most = self.commits
        return low <= self.unavailable_s <= high, fewest <= self.lost <= most


def accelerated() -> Failures:
    """The faults of a period as failures: rates known exactly, nothing of the DCS."""
    hours = YEAR_S / 3600
    kinds = tuple(
        Failure(name, Place.MEMBER, r * hours, r * hours, r * hours, Data.KEPT, (name,), LASTS_S[name], 0.0, dcs=False)
        for name, r in PER_HOUR.items()
    )
    return Failures(kinds, decide_s=PROMOTES_S, force_s=PROMOTES_S)


def drilled(target: Target, level: Level, failures: Failures, seed: int) -> Measured:
    """Drills of every fault on the leader, alone."""
    events: list[Event] = []
    plan = [
        PlannedDrill(number + 1, CATALOGUE[name], Victim.LEADER, level, writers=WRITERS)
        for number, name in enumerate(list(PER_HOUR) * DRILLS)
    ]
    run_drills(Shell(target, events.append, lambda *_: None, seed), plan, enough=lambda _: False)
    return measured([("drills", [e for e in events if isinstance(e, DrillDone)])], failures)


def intervals(model: Model, period_s: float, seed: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """5 % and 95 % quantiles of unavailable seconds and of lost commits in a period."""
    batches = periods(model, PERIODS, period_s, seed)
    seconds = np.concatenate([b.years_s for b in batches])
    risks = np.mean([b.risks for b in batches], axis=0)
    rng = np.random.default_rng([seed, 5])
    commits = np.concatenate([b.alone_s for b in batches]) * model.measured.acknowledged_per_s
    for number, failure in enumerate(model.failures.kinds):
        seen = model.measured.loss(failure.name, model.what.level)
        chance = rng.beta(seen.losing + 0.5, seen.drills - seen.losing + 0.5, PERIODS)
        losing = rng.poisson(risks[[Risk.TAKEOVER, Risk.NEAR], number].sum() * chance)
        # What one drill lost varies from drill to drill about as much as an exponential variable does.
        commits += np.where(losing > 0, rng.gamma(np.maximum(losing, 1), max(seen.commits, 1e-9)), 0.0)
    low, high = np.quantile(seconds, (0.05, 0.95))
    fewest, most = np.quantile(commits, (0.05, 0.95))
    return (float(low), float(high)), (float(np.floor(fewest)), float(np.ceil(most)))


def schedule(members: Sequence[str], period_s: float, rng: np.random.Generator) -> list[tuple[float, str, str, bool]]:
    """(when, fault, member, undo), in order; a member that is held by several is released after the last."""
    found = []
    for name, per_hour in PER_HOUR.items():
        for member in members:
            for at in rng.random(rng.poisson(per_hour * period_s / 3600)) * period_s:
                found += [(float(at), name, member, False), (float(at) + LASTS_S[name], name, member, True)]
    return sorted(found)


def run_period(target: Target, level: Level, period_s: float, seed: int) -> tuple[float, int]:
    """Run one period under the ledger: unavailable seconds, acknowledged commits lost."""
    capabilities, clock = target.capabilities(), target.clock
    ledger, faults, recovery = capabilities.ledger, capabilities.faults, capabilities.recovery
    assert ledger is not None
    assert recovery is not None
    run = ledger.open_ledger(LedgerOrder(level, WRITERS, drill=10_000 + seed))
    began = clock.now()
    held: dict[str, int] = {}
    by: dict[str, str] = {}
    for at, name, member, undo in schedule(target.describe().members, period_s, np.random.default_rng([seed, 3])):
        clock.pause(max(0.0, began + min(at, period_s) - clock.now()))
        held[member] = held.get(member, 0) + (-1 if undo else 1)
        if not undo and held[member] == 1:
            by[member] = name
            faults[Capability(name)].inject(member)
        elif undo and held[member] == 0:
            faults[Capability(by[member])].undo(member)
    recovery.recover()
    clock.pause(3.0)
    attempts = run.stop()
    view = target.observe()
    assert view.leader is not None
    reading = compared(attempts, ledger.read_ledger(view.leader, 10_000 + seed))
    acknowledged = np.sort(attempts.ended[attempts.outcome == Outcome.ACKNOWLEDGED])
    gaps = np.diff(np.concatenate([[began], acknowledged]))
    return float(gaps[gaps > GAP_S].sum()), int(lost_rows(attempts, reading).sum())


def one_run(text: str, level: Level, period_s: float, seed: int) -> Compared:
    """Drill, forecast, run, compare."""
    failures = accelerated()
    target = choose(text.format(seed=seed))
    try:
        known = drilled(target, level, failures, seed)
        where = topology(",".join(f"z{i}" for i in range(len(target.describe().members))))
        seconds, commits = intervals(Model(where, Configuration(level), failures, known), period_s, seed)
        unavailable_s, lost = run_period(target, level, period_s, seed)
    finally:
        target.close()
    return Compared(seconds, commits, unavailable_s, lost)


def main() -> int:
    """Print every run, then the shares inside."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--target", default="sim")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--level", default="local")
    asked = parser.parse_args()
    text = "sim?seed={seed}" if asked.target == "sim" else asked.target
    found: list[Compared] = []
    inside = [0, 0]
    for seed in range(1, asked.runs + 1):
        one = one_run(text, Level(asked.level), 60 * asked.minutes, seed)
        found.append(one)
        inside = [sum(each.inside[which] for each in found) for which in (0, 1)]
        print(
            f"{seed:3}  {one.unavailable_s:4.0f} s of {one.seconds[0]:.0f}–{one.seconds[1]:.0f}, {one.lost:6} lost of "
            f"{one.commits[0]:.0f}–{one.commits[1]:.0f}; inside so far {inside[0]} and {inside[1]} of {len(found)}",
            flush=True,
        )
    return 0 if min(inside) >= 0.9 * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
