"""Caveats about measured numbers: when one applies to a price. Judges windows and blocks; measures nothing."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev

import numpy as np
from scipy import stats

from walproof.model.estimate import Caveat
from walproof.model.event import Described, DrillStarted, Event, Observed
from walproof.model.guarantee import Level
from walproof.model.plan import Arm, WorkloadKind
from walproof.model.sample import SampleResult

FEW = 6
"""Blocks below which an interval is shown with a caveat."""
STOLEN_SHARE = 0.05
CLIENT_CORES = 0.85
LOCK_SHARE = 0.25
BEHIND_MS = 500.0
DRIFT_CHANGE = 0.1
BACKGROUND_SHARE = 0.1
"""Share of all polls from which a checkpoint or an autovacuum is shown."""
WAL_CHANGE = 0.25
"""Change of WAL per transaction from the first to the last third of the blocks that is shown."""
NOT_CARRIED = 0.02
"""Share of an offered rate that may stay undone before it counts as not carried."""

Results = Sequence[SampleResult]


def caveats_of(results: Results, logs: np.ndarray, general: tuple[Caveat, ...] = ()) -> tuple[Caveat, ...]:
    """Every caveat about one arm: of its samples in block order, its log-ratios, and the run in general."""
    if not results:
        return (Caveat.FEW_BLOCKS,)
    found = [caveat for caveat, applies in RULES.items() if applies(results)]
    if drifts(np.log([r.tps for r in results if r.tps > 0])) or drifts(logs):
        found.append(Caveat.DRIFT)
    return tuple(sorted({*found, *general}, key=list(Caveat).index))


def drifts(logs: np.ndarray) -> bool:
    """Whether values over blocks rise or fall: Kendall's tau at 1 %, and more than 10 % from first to last third.

    Mann (1945); a trend in throughput leaves the paired ratio sound, but says that the machine was not steady.
    """
    if len(logs) < 8:
        return False
    third = len(logs) // 3
    change = abs(float(np.median(logs[-third:]) - np.median(logs[:third])))
    return change > DRIFT_CHANGE and float(stats.kendalltau(np.arange(len(logs)), logs).pvalue) < 0.01


def failed_over(events: Iterable[Event]) -> bool:
    """Whether more than one leader was observed while samples were measured; drills of the same record do not count."""
    leaders: set[str] = set()
    for event in events:
        if isinstance(event, DrillStarted):
            break
        if isinstance(event, Observed) and event.view.leader:
            leaders.add(event.view.leader)
    return len(leaders) > 1


def mixed_versions(events: Iterable[Event]) -> bool:
    """Whether members, or the target at different times, ran different versions within one record."""
    seen = [
        {name: fact for name, fact in e.description.facts.items() if "version" in name or name == "postgres"}
        for e in events
        if isinstance(e, Described)
    ]
    members = [
        {v for n, v in facts.items() if n.startswith("postgres version of") and v[:1].isdigit()} for facts in seen
    ]
    return any(facts != seen[0] for facts in seen) or any(len(versions) > 1 for versions in members)


def _levels(arm: Arm) -> tuple[Level, ...]:
    return tuple(level for level, _ in arm.mix) or (arm.level,)


def _not_in_effect(results: Results) -> bool:
    remote = any(level.remote for level in _levels(results[0].sample.arm))
    durable = any(level is not Level.OFF for level in _levels(results[0].sample.arm))
    unsafe = durable and any(r.sample.scenario.fsync is False for r in results)
    return unsafe or (remote and any(not r.window.standby_names.strip() for r in results))


def _unverified(results: Results) -> bool:
    return any(
        r.window.link_verified is False or (bool(r.sample.scenario.rtt_ms) and r.window.link_verified is None)
        for r in results
    )


def _behind(results: Results) -> bool:
    lags = [m.replay_lag_ms for r in results for m in r.window.members.values() if m.replay_lag_ms is not None]
    return bool(lags) and max(lags) > BEHIND_MS


def _lock_bound(results: Results) -> bool:
    arm = results[0].sample.arm
    small = arm.workload.kind is WorkloadKind.TPCB_LIKE and arm.workload.scale < arm.clients
    waiting = fmean(sum(s for w, s in r.window.waits.items() if w.startswith("Lock:")) for r in results)
    return small or waiting > LOCK_SHARE


def _checkpoint(results: Results) -> bool:
    running = fmean(r.window.checkpointing for r in results) > BACKGROUND_SHARE
    return running or any(r.window.checkpoints for r in results)


def _transient(results: Results) -> bool:
    """Whether WAL per transaction changed over the blocks: full-page images after a checkpoint fade out."""
    known = [(r.window.of_leader.wal_bytes, r.transactions) for r in results if r.transactions]
    logs = [math.log(written / n) for written, n in known if written]
    third = len(logs) // 3
    return third > 0 and abs(fmean(logs[-third:]) - fmean(logs[:third])) > math.log(1 + WAL_CHANGE)


def _overload(results: Results) -> bool:
    """Whether the offered rate was not carried: fewer transactions than chance explains, or a backlog that rises."""
    rate = results[0].sample.arm.rate
    if not rate:
        return False
    seconds = sum(r.seconds for r in results)
    missing = rate * seconds - sum(r.tps * r.seconds for r in results)
    # pgbench's schedule is a Poisson process, whose count varies by its square root.
    if missing > max(NOT_CARRIED * rate * seconds, 3 * math.sqrt(rate * seconds)):
        return True
    rises = [r.backlog for r in results if r.backlog is not None]
    if not rises or fmean(rises) <= NOT_CARRIED:
        return False
    return len(rises) == 1 or fmean(rises) > 2 * stdev(rises) / math.sqrt(len(rises))


RULES: dict[Caveat, Callable[[Results], bool]] = {
    Caveat.STOLEN: lambda rs: fmean(r.window.stolen for r in rs) > STOLEN_SHARE,
    Caveat.CHECKPOINT: _checkpoint,
    Caveat.AUTOVACUUM: lambda rs: fmean(r.window.vacuuming for r in rs) > BACKGROUND_SHARE,
    Caveat.TRANSIENT: _transient,
    Caveat.CARRY_OVER: lambda rs: any(r.window.settled_s == math.inf for r in rs),
    Caveat.CLIENT_BOUND: lambda rs: fmean(r.window.client_cores for r in rs) > CLIENT_CORES,
    Caveat.FEW_BLOCKS: lambda rs: len(rs) < FEW,
    Caveat.LOCK_BOUND: _lock_bound,
    Caveat.UNVERIFIED_LINK: _unverified,
    Caveat.STANDBY_BEHIND: _behind,
    Caveat.NOT_IN_EFFECT: _not_in_effect,
    Caveat.FAILURES: lambda rs: any(r.failed for r in rs),
    Caveat.OVERLOAD: _overload,
    Caveat.FROM_OUTSIDE: lambda rs: any(r.window.outside for r in rs),
}
