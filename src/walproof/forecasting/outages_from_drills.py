"""Drills as distributions of outages and as losses out of how many, for each kind of failure; or never drilled.

How long one failure stops service here is resampled from drills, or assumed of the failover manager. Seeded."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from walproof.forecasting.episodes import Floats
from walproof.forecasting.failure_rates import Failure, Failures
from walproof.forecasting.topology import Configuration, Topology
from walproof.model.cnpg_facts import CNPG_CUT_S, CNPG_DELETED_S, CNPG_KILLED_S, CNPG_MANAGER
from walproof.model.drill import Drill, Verdict, Victim
from walproof.model.event import Described, DrillDone, Event, record_caveats
from walproof.model.guarantee import Level, Loss
from walproof.model.units import counted

FEW = 3
STALL_S = 1.0
"""An outage after the loss of a synchronous standby that is a wait for it."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Drills that lost something, out of how many; `fault`: under which, "" where it was never drilled."""

    losing: int = 0
    drills: int = 0
    fault: str = ""
    lost: tuple[int, ...] = ()
    """Acknowledged commits lost by each of those that lost any."""

    @property
    def posterior(self) -> tuple[float, float]:
        """The parameters of the beta distribution of P(loss): Jeffreys' prior and these drills."""
        return self.losing + 0.5, self.drills - self.losing + 0.5


@dataclass(frozen=True, slots=True)
class Takeover:
    """Seconds without service after such a failure of the leader, one value a drill; of a standby: `stalls_s`."""

    outages_s: tuple[float, ...] = ()
    fault: str = ""
    ttls_s: tuple[float | None, ...] = ()
    """Patroni's ttl during each of those drills, where its record says it."""
    stalls_s: tuple[float, ...] = ()
    levels: tuple[Level, ...] = ()
    """The level of each of those drills."""

    def at(self, level: Level) -> "Takeover":
        """The drills at that level alone, where there are any: writers notice an outage later where commits wait."""
        own = [i for i, of in enumerate(self.levels) if of is level]
        if not own or len(own) == len(self.levels):
            return self
        outages_s, ttls_s = tuple(self.outages_s[i] for i in own), tuple(self.ttls_s[i] for i in own)
        return replace(self, outages_s=outages_s, ttls_s=ttls_s, levels=(level,) * len(own))


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything the records' drills say, by the name of a failure and the level."""

    takeovers: dict[str, Takeover]
    losses: dict[tuple[str, Level], Losses]
    unflushed: dict[Level, Losses]
    caveats: tuple[str, ...] = ()
    acknowledged_per_s: float = 0.0
    manager: str = ""
    """Who failed over in the records, "" where they do not say or differ."""
    nodes: dict[str, str] = field(default_factory=dict)
    """The node of each member, as the last record that says it has them."""

    @property
    def has_takeovers(self) -> bool:
        """Whether any drill tells how long service was away after a failure of the leader."""
        return any(t.outages_s for t in self.takeovers.values())

    def loss(self, failure: str, level: Level) -> Losses:
        """Losses after a takeover from a leader hit by that failure."""
        return self.losses.get((failure, level), Losses())

    def unseen(self, failure: str) -> Losses:
        """Losses where no survivor had been waited for: what `local` lost, else `off`, which loses more."""
        weaker = (self.loss(failure, weak) for weak in (Level.LOCAL, Level.OFF))
        return next((losses for losses in weaker if losses.drills), Losses())

    def sizes(self, failure: str, seen: Losses) -> tuple[int, ...]:
        """What one loss may take: as `seen` lost, else as drills of that failure at any level, else as any."""
        of_it = [self.loss(failure, level).lost for level in Level]
        every = [losses.lost for losses in self.losses.values()]
        return seen.lost or tuple(itertools.chain(*of_it)) or tuple(itertools.chain(*every))


def measured(records: Sequence[tuple[str, Sequence[Event]]], failures: Failures) -> Measured:
    """The drills of those records (name, events), sorted to the kinds of failure that they show."""
    drills: list[tuple[Drill, float | None]] = []
    caveats: list[str] = []
    managers, nodes = set(), dict[str, str]()
    for name, events in records:
        described = next((e.description for e in events if isinstance(e, Described)), None)
        of_record = [e.drill for e in events if isinstance(e, DrillDone)]
        caveats += [*record_caveats(name, events), *_about_drills(name, of_record)]
        managers.add(described.manager if described else "")
        nodes = (described.nodes if described else {}) or nodes
        ttl_s = described.failover_ttl_s if described else None
        drills += [(drill, ttl_s) for drill in of_record if _tells(drill)]
    losses = {(kind.name, level): _losses(drills, kind, level) for kind in failures.kinds for level in Level}
    return Measured(
        {kind.name: _takeover(drills, kind) for kind in failures.kinds},
        losses,
        {level: _unflushed([d for d, _ in drills], level) for level in Level},
        tuple(dict.fromkeys(caveats)),
        _pace(d for d, _ in drills),
        managers.pop() if len(managers) == 1 else "",
        nodes,
    )


def _tells(drill: Drill) -> bool:
    """Whether it is evidence. Of commits that wait for standbys which are all gone it is, although their level is then
    no longer in effect and the drill undecided. Of a guard of Patroni, which earlier records hold, it is of none now.
    """
    alone = drill.victim is Victim.ALL_STANDBYS and drill.findings.not_in_effect_s > 0
    return not drill.guarded and (drill.verdict.decided or alone)


def _about_drills(name: str, every: Sequence[Drill]) -> list[str]:
    caveats = []
    drills = [d for d in every if not d.guarded]
    if guarded := len(every) - len(drills):
        caveats.append(f"{name}: {counted(guarded, 'drill')} with a guard of Patroni left out: walproof has none now")
    undecided = sum(d.verdict is Verdict.UNDECIDED and not _tells(d) for d in drills)
    if undecided:
        caveats.append(f"{name}: {counted(undecided, 'undecided drill')} left out, neither held nor lost")
    if not every:
        caveats.append(f"{name} holds no drills")
    timed = [d for d in drills if d.verdict.decided and d.victim.takes_the_leader and not d.no_rto]
    endless = sum(_outage(d) is None for d in timed)
    if endless:
        caveats.append(f"{name}: {counted(endless, 'drill')} whose outage has no end is left out of the outages")
    return caveats


def _outage(drill: Drill) -> float | None:
    """Seconds until service lasted, or all gaps where those add up to more; None without an end."""
    if drill.rto_s is None or not math.isfinite(drill.rto_s):
        return None
    # Without a gap beyond the usual there was no outage, and RTO is the longest usual one.
    away = drill.rto_s if drill.unavailable_s is None else drill.unavailable_s
    return max(away, drill.rto_s) if away else 0.0


def _takeover(drills: Sequence[tuple[Drill, float | None]], kind: Failure) -> Takeover:
    stalls_s = _stalls(drills, kind)
    for fault in kind.drills:
        of_leader = [(_outage(d), ttl, d.level) for d, ttl in drills if d.fault == fault and d.victim.takes_the_leader]
        shown = [(outage, ttl, level) for outage, ttl, level in of_leader if outage is not None]
        if shown:
            outages_s, ttls_s, levels = zip(*shown, strict=True)
            return Takeover(outages_s, fault, ttls_s, stalls_s, levels)
    return Takeover(stalls_s=stalls_s)


def _stalls(drills: Sequence[tuple[Drill, float | None]], kind: Failure) -> tuple[float, ...]:
    """Of drills in which commits had to wait: a synchronous standby's whose loss others made up for says nothing."""
    waits = []
    for drill, _ in drills:
        least = {Victim.ALL_STANDBYS: 0.0, Victim.SYNC_STANDBY: STALL_S}.get(drill.victim)
        outage = _outage(drill)
        if drill.fault in kind.drills and least is not None and outage is not None and outage >= least:
            waits.append(outage)
    return tuple(waits)


def _losses(drills: Sequence[tuple[Drill, float | None]], kind: Failure, level: Level) -> Losses:
    """Of drills in which the leader was gone in fact: one restarted in place, or fenced, says nothing of a takeover."""
    for fault in kind.drills:
        shown = [
            d
            for d, _ in drills
            if d.fault == fault
            and d.level is level
            and d.victim.takes_the_leader
            and d.loss not in (Loss.POSTGRES_CRASH, Loss.POWER_CUT)
            and not d.no_rto
        ]
        if shown:
            return _counted(shown, fault)
    return Losses()


def _unflushed(drills: Sequence[Drill], level: Level) -> Losses:
    """Of drills after which only what was flushed could remain: a crash in place, power cut everywhere."""
    shown = [
        d
        for d in drills
        if d.level is level
        and (d.fault in ("double-power", "kill-all", "crash-in-place") or d.loss in (Loss.POSTGRES_CRASH,))
    ]
    return _counted(shown, "double-power" if level.remote else "crash in place") if shown else Losses()


def _counted(shown: Sequence[Drill], fault: str) -> Losses:
    losing = [d.findings.lost + d.findings.downgraded_lost for d in shown if d.findings.lost]
    return Losses(len(losing), len(shown), fault, tuple(losing))


def _pace(drills: Iterable[Drill]) -> float:
    """Acknowledged commits a second while service was up: the median over the bins of all paces that hold any."""
    rates = [
        count / (after - at)
        for d in drills
        for (at, count), (after, _) in itertools.pairwise(d.pace)
        if count and after > at
    ]
    return statistics.median(rates) if rates else 0.0


PROMOTION_S = 2.0
WAL_SENDER_TIMEOUT_S = 60.0
FEW_SIGMA = 0.3
"""Spread (of the logarithm) given to outages of fewer than three drills."""


class Basis(StrEnum):
    """What an outage rests on."""

    DRILLED = "drilled"
    ASSUMED = "never drilled: assumed"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Patroni's ttl and loop_wait, s. None: as they were while drilled; 30 and 10 where nothing was."""

    ttl_s: float | None = None
    loop_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """Everything a forecast rests on."""

    where: Topology
    what: Configuration
    failures: Failures
    measured: Measured
    timeouts: Timeouts = Timeouts()

    @property
    def loop_wait_s(self) -> float:
        """As asked, else Patroni's default."""
        return 10.0 if self.timeouts.loop_wait_s is None else self.timeouts.loop_wait_s

    def takeover(self, failure: Failure) -> Takeover:
        """What was drilled of that failure, at this level where it was."""
        return self.measured.takeovers.get(failure.name, Takeover()).at(self.what.level)

    def basis(self, failure: Failure) -> Basis:
        """What the outage after that failure of the leader rests on."""
        return Basis.DRILLED if self.takeover(failure).outages_s else Basis.ASSUMED


def takeovers(model: Model, failure: Failure, count: int, rng: np.random.Generator) -> Floats:
    """So many outages, s: drawn from a bootstrap of the drills, so that few drills give an uncertain mean."""
    if model.basis(failure) is Basis.ASSUMED:
        return rng.uniform(*assumed_takeover(model, failure), count)
    drilled = model.takeover(failure)
    seen = np.asarray(drilled.outages_s)
    again = rng.integers(len(seen), size=len(seen))
    spread = np.exp(FEW_SIGMA * rng.standard_normal() - FEW_SIGMA**2 / 2) if len(seen) < FEW else 1.0
    chosen = again[rng.integers(len(again), size=count)]
    drawn = seen[chosen] * spread
    if failure.silent and model.timeouts.ttl_s is not None:
        ttls = np.array(drilled.ttls_s, dtype=np.float64)[chosen]  # not a number where it is not known
        drawn = np.where(np.isnan(ttls), drawn, np.maximum(drawn + model.timeouts.ttl_s - ttls, PROMOTION_S))
    return drawn


def assumed_takeover(model: Model, failure: Failure) -> tuple[float, float]:
    """Shortest and longest outage where nothing was drilled, s. Patroni: the leader's lease ends between ttl -
    loop_wait and ttl after it was last renewed, one loop of a standby notices, and it is promoted. CloudNativePG: what
    a real cluster took.
    """
    orderly = failure.planned or not failure.silent
    if model.measured.manager == CNPG_MANAGER:
        return (PROMOTION_S, CNPG_KILLED_S) if orderly else (CNPG_DELETED_S, CNPG_CUT_S)
    ttl = 30.0 if model.timeouts.ttl_s is None else model.timeouts.ttl_s
    if orderly:
        return PROMOTION_S, PROMOTION_S + model.loop_wait_s
    return max(0.0, ttl - model.loop_wait_s) + PROMOTION_S, ttl + model.loop_wait_s + PROMOTION_S


def assumption(model: Model) -> str:
    """What outages that were never drilled are assumed from."""
    return "another CloudNativePG cluster" if model.measured.manager == CNPG_MANAGER else "Patroni's timeouts"


def stalls(model: Model, failure: Failure, count: int, rng: np.random.Generator) -> Floats:
    """So many waits of commits, s, for a standby that failed: as drilled, else until the manager stops naming it."""
    drilled = model.measured.takeovers.get(failure.name, Takeover()).stalls_s
    if drilled:
        return rng.choice(np.asarray(drilled), size=count)
    least = WAL_SENDER_TIMEOUT_S if failure.silent else 0.0
    return rng.uniform(least, least + model.loop_wait_s, count)
