"""`python -m benchmarks.forecast truth|speed`: forecasts put to the test, and how long a million years take."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.command import command
from benchmarks.temporary_lab import benchmark_lab
from tests.fixtures.drills import shell
from walproof.errors import Error
from walproof.forecasting.failure_rates import YEAR_S, Failures, failures_of
from walproof.forecasting.forecast import Period, forecast, one_period
from walproof.forecasting.outages_from_drills import Measured, Model, measured
from walproof.forecasting.topology import Configuration, topology
from walproof.lab.create import LabOrder
from walproof.machine.processors import several_processes
from walproof.model.drill import Victim
from walproof.model.event import DrillDone, Event
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.load import LedgerOrder, Outcome
from walproof.model.ports import Target
from walproof.patroni.config import SyncMode
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.inject import inject, undo
from walproof.proving.lost_commits import compared, lost_rows
from walproof.proving.run import run_drills
from walproof.targets.choose import choose
from walproof.targets.lab.target import LabTarget

PER_HOUR = {"kill": 16.0, "kill-member": 6.0, "freeze": 6.0, "isolate": 6.0}
"""Of each fault on each member."""
LASTS_S = {"kill": 3.0, "kill-member": 40.0, "freeze": 40.0, "isolate": 40.0}
WRITERS = 2
GAP_S = 1.0
"""A gap in the acknowledgements of all writers that counts as unavailable: they try again every half second."""
LIMIT_S = 10.0
CASES = (
    ("z1,z2,z3", Configuration(Level.LOCAL)),
    ("z1,z2,z3", Configuration(Level.ON, QuorumKind.ANY, 1)),
    ("z1,z2,z3", Configuration(Level.ON, QuorumKind.FIRST, 1, strict=False)),
    ("r1/z1,r1/z2,r1/z3,r2/z1,r2/z2", Configuration(Level.ON, QuorumKind.ANY, 2)),
    ("r1/z1,r1/z2,r1/z3,r2/z1,r2/z2,r2/z3,r3/z1", Configuration(Level.REMOTE_WRITE, QuorumKind.ANY, 3)),
)
Kind = Literal["sim", "lab"]


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of target: drills of each fault; which of them on all standbys as well, for levels that wait for them;
    seconds until a member streams again once its fault is cleared, and until one that lacks commits is promoted where
    no better member is there; whether what takes a member takes its etcd too.
    """

    drills: int
    stalls: tuple[str, ...]
    back_s: float
    promotes_s: float
    etcd: bool


SIMULATED = Place(5, tuple(PER_HOUR), 0.0, 0.5, etcd=False)
LAB = Place(3, ("kill",), 8.0, 1e7, etcd=True)
"""Patroni starts a member again in some seconds, and promotes only a synchronous standby."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One period: what was forecast, what came."""

    forecast: Period
    unavailable_s: float
    lost: int

    @property
    def inside(self) -> tuple[bool, bool]:
        """Whether each came within its interval."""
        return self.forecast.unavailable_s.covers(self.unavailable_s), self.forecast.lost.covers(self.lost)

    @property
    def text(self) -> str:
        """One line."""
        seconds, lost = self.forecast.unavailable_s, self.forecast.lost
        return (
            f"{self.unavailable_s:4.0f} s of {seconds.low:.0f}–{seconds.high:.0f} (median {seconds.value:.0f}), "
            f"{self.lost:6,} lost of {lost.low:,.0f}–{lost.high:,.0f}"
        )


def accelerated(place: Place) -> Failures:
    """The faults of a period as a file of failure rates, as --failures takes it."""
    people = f'[people]\ndecide_s = {place.promotes_s}\nforce_s = {place.promotes_s}\nsource = "of the target"\n'
    kinds = (
        f'[[failure]]\nname = "{name}"\nper = "member"\nper_year = {rate}\nlow = {rate}\nhigh = {rate}\n'
        f'data = "kept"\ndrills = ["{name}"]\nrepair_s = {LASTS_S[name] + place.back_s}\nrepair_cv = 0.0\n'
        f"dcs = {str(place.etcd and name != 'kill').lower()}\n"
        f'source = "how often the benchmark injects it"\n'
        for name, rate in ((name, per_hour * YEAR_S / 3600) for name, per_hour in PER_HOUR.items())
    )
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "accelerated.toml")).write_text(people + "\n".join(kinds))
        return failures_of(path)


def drilled(target: Target, level: Level, failures: Failures, place: Place, seed: int) -> Measured:
    """Drills of every fault on the leader, alone, and on all standbys where commits wait for them; what they say."""
    events: list[Event] = []
    once = [(name, Victim.LEADER) for name in PER_HOUR]
    if level.remote:
        once += [(name, Victim.ALL_STANDBYS) for name in place.stalls]
    plan = [
        PlannedDrill(number, CATALOGUE[name], victim, level, writers=WRITERS)
        for number, (name, victim) in enumerate(once * place.drills, 1)
    ]
    run_drills(shell(target, events.append, seed=seed), plan, enough=lambda _: False)
    return measured([("drills", [e for e in events if isinstance(e, DrillDone)])], failures)


@dataclass(slots=True)
class Faults:
    """Injects faults as they come and clears them: a member is released when the last of its faults has ended."""

    target: Target
    held: dict[str, int] = field(default_factory=dict)
    injected: dict[str, list[str]] = field(default_factory=dict)

    def begin(self, name: str, member: str) -> None:
        """A kill of a member that is gone already changes nothing; whatever else comes is done to it as well."""
        self.held[member] = self.held.get(member, 0) + 1
        here = self.injected.setdefault(member, [])
        if name in here or (here and name == "kill"):
            return
        fault = CATALOGUE[name]
        try:
            inject(self.target, fault, fault.steps, victims=(member,), view=self.target.observe())
        except Error as no:
            print(f"  {name} of {member}: {no.message}", file=sys.stderr)
        here.append(name)

    def end(self, member: str) -> None:
        """One of its faults has lasted its time."""
        self.held[member] -= 1
        if self.held[member]:
            return
        for name in self.injected.pop(member, []):
            with contextlib.suppress(Error):  # recovery tries again
                undo(self.target, CATALOGUE[name], member)


def schedule(members: Sequence[str], period_s: float, rng: np.random.Generator) -> list[tuple[float, str, str, bool]]:
    """(when, fault, member, whether it begins), in order."""
    found = []
    for name, per_hour in PER_HOUR.items():
        for member in members:
            for at in rng.random(rng.poisson(per_hour * period_s / 3600)) * period_s:
                found += [(float(at), name, member, True), (float(at) + LASTS_S[name], name, member, False)]
    return sorted(found)


def run_period(target: Target, level: Level, period_s: float, seed: int) -> tuple[float, int]:
    """Run one period under the ledger: unavailable seconds, acknowledged commits lost. As in a forecast, what began in
    the period counts until it has ended.
    """
    capabilities, clock = target.capabilities(), target.clock
    ledger, recovery = capabilities.ledger, capabilities.recovery
    assert ledger is not None
    assert recovery is not None
    faults, drill = Faults(target), 10_000 + seed
    run = ledger.open_ledger(LedgerOrder(level, WRITERS, drill=drill))
    began = clock.now()
    for at, name, member, begins in schedule(target.describe().members, period_s, np.random.default_rng([seed, 3])):
        clock.pause(max(0.0, began + at - clock.now()))
        if begins:
            faults.begin(name, member)
        else:
            faults.end(member)
    recovery.recover()
    clock.pause(3.0)
    attempts = run.stop()
    view = target.observe()
    assert view.leader is not None
    reading = compared(attempts, ledger.read_ledger(view.leader, drill))
    acknowledged = np.sort(attempts.ended[attempts.outcome == Outcome.ACKNOWLEDGED])
    gaps = np.diff(np.concatenate([[began], acknowledged]))
    return float(gaps[gaps > GAP_S].sum()), int(lost_rows(attempts, [reading]).sum())


def one_forecast(target: Target, place: Place, what: Configuration, period_s: float, seed: int) -> Period:
    """Drill, then forecast."""
    failures = accelerated(place)
    known = drilled(target, what.level, failures, place, seed)
    where = topology(",".join(f"z{i}" for i in range(len(target.describe().members))))
    return one_period(Model(where, what, failures, known), period_s, seed, vary=False)


@contextlib.contextmanager
def a_target(kind: Kind, level: Level, port: int, seed: int) -> Iterator[tuple[Target, Place]]:
    """A simulated cluster of that seed, or a lab of its own, destroyed afterwards."""
    if kind == "lab":
        order = LabOrder(port=port) if level.remote else LabOrder(port=port, sync=SyncMode.OFF)
        with benchmark_lab("forecast-true", order) as blueprint:
            yield LabTarget(blueprint), LAB
    else:
        with contextlib.closing(choose(f"sim?seed={seed}")) as target:
            yield target, SIMULATED


def truth(
    *,
    runs: int = 100,
    first_seed: int = 1001,
    target: Kind = "sim",
    minutes: float = 30.0,
    level: Level = Level.LOCAL,
    drills: int | None = None,
    port: int = 7000,
) -> int:
    """Drills, then the forecast of a period of many faults, then that period, then compared.

    Simulated clusters in virtual time, each of its own seed. Its drills and a file of failure rates give what
    `walproof forecast --period` prints: unavailable seconds and lost commits of one period in 90 % intervals. Then
    faults come as Poisson processes, overlapping as they come, under the ledger. Printed: how many periods fell into
    their intervals; exit code 1 below nine of ten. `--target lab --level on --runs 10 --minutes 6` does the same in
    real time on a lab of its own (root, --port): it is drilled once, and every period begins with a healthy cluster.
    --drills of each fault, in place of the usual number.
    """
    what = Configuration(level, QuorumKind.ANY, 1, strict=False) if level.remote else Configuration(level)
    seeds, period_s = range(first_seed, first_seed + runs), 60 * minutes
    inside, number = [0, 0], 0
    for cluster in [seeds] if target == "lab" else [[seed] for seed in seeds]:
        with a_target(target, level, port, cluster[0]) as (where, usual):
            place = replace(usual, drills=drills or usual.drills)
            expected = one_forecast(where, place, what, period_s, cluster[0])
            for seed in cluster:
                one = Compared(expected, *run_period(where, level, period_s, seed))
                inside, number = [n + within for n, within in zip(inside, one.inside, strict=True)], number + 1
                print(f"{seed:5}  {one.text}; inside so far {inside[0]} and {inside[1]} of {number}", flush=True)
    return 0 if min(inside) >= 0.9 * runs else 1


def speed(*, years: float = 1e6) -> int:
    """How long so many simulated years of a configuration take.

    The shipped rates, several configurations, with the importance sampling of rare losses that `walproof forecast`
    does, by as many processes; exit code 1 when one takes more than 10 s.
    """
    worst = 0.0
    for layout, what in CASES:
        model = Model(topology(layout), what, failures_of(), Measured({}, {}, {}))
        began, busy = time.perf_counter(), sum(os.times()[:4])
        with several_processes() as each:
            expected = forecast(model, layout, years=int(years), seed=1, each=each)
        took, cpu = time.perf_counter() - began, sum(os.times()[:4]) - busy
        worst = max(worst, took)
        minutes = f"{expected.minutes.value:.3g} minutes a year"
        case = f"{what.text}, {len(model.where.members)} members"
        print(f"{took:5.1f} s ({cpu:.1f} s of processors)  {int(years):,} years  {case}: {minutes}", flush=True)
    print(f"slowest: {worst:.1f} s (at most {LIMIT_S:g} s); load {os.getloadavg()[0]:.0f}")
    return 0 if worst <= LIMIT_S else 1


if __name__ == "__main__":
    command(truth, speed)
