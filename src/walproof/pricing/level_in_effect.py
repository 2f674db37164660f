"""Whether commits waited for what their level waits for, by looks at the load's sessions: a price of another is none.

The level may be set where no reader of a script sees it: in a function, a trigger, a DO block, an extension, a default
behind a pooler. A commit at a remote level lasts a round trip or longer from its commit record on (a walsender sends
what is flushed, SyncRepWaitForLSN waits for the transaction's own record), so that looks find it waiting. Pure.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from walproof.estimating.quantiles import median_interval
from walproof.model.estimate import Estimate, pooled, quantile_ms
from walproof.model.event import Event, Observed, SampleDone, ScenarioEntered
from walproof.model.guarantee import Level, QuorumKind, read_standby_names
from walproof.model.sample import Arm, SampleResult, Scenario, Window
from walproof.model.units import counted

SOONEST_MS = 0.02
"""What a flush or a standby's confirmation takes at least, where nothing longer was measured."""
LEAST_DUE, BEYOND_TIME = 16.0, 2.0
"""Looks due that decide; half of them, where waits needed so many times the time that sessions had."""
WAITED_SHARE = 1 / 16
"""The share of looks due up to which commits did not wait: a transaction may have several ids (subtransactions)."""
STRONGER_LOOKS, STRONGER_SHARE = 3, 1 / 20
"""Looks in SyncRep, and their share of all at sessions with a transaction id, from which a level is a remote one."""
FLUSHES_SEEN = 3
"""Flushes seen of the WAL writer that show that a flush takes time here: in memory it takes none."""
WAL_OF_WRITE = 80.0
"""Bytes a transaction id below which no logged row was changed: a commit record has about 40, with a row's lock 96."""
ROLLED_BACK = 0.02
"""Share of transactions rolled back from which what was written need not be committed."""
_WAITS = ("IPC:SYNCREP",)
_FLUSHES = ("IO:WALSYNC", "IO:WALWRITE", "LWLOCK:WALWRITE")
"""Of PostgreSQL 14 to 18, whose spelling differs."""


@dataclass(frozen=True, slots=True)
class Due:
    """Looks that should have found a commit waiting; the time that waits needed, as a share of sessions' time."""

    looks: float = 0.0
    needed: float = 0.0

    def missing(self, seen: int) -> bool:
        """Whether so few were found that commits did not wait."""
        enough = LEAST_DUE / 2 if self.needed >= BEYOND_TIME else LEAST_DUE
        return self.looks >= enough and seen <= self.looks * WAITED_SHARE


@dataclass(frozen=True, slots=True)
class Seen:
    """Looks: at the load's sessions, at those with a transaction id, in wait for a standby, in a flush; flushes of the
    WAL writer; and what was due of waits for a standby and of flushes, of a load that commits changes of logged rows.
    """

    looks: int = 0
    writing: int = 0
    standby: int = 0
    flush: int = 0
    wal_writer: int = 0
    standby_due: Due = Due()
    flush_due: Due = Due()
    p50_ms: float = math.nan
    round_trip_ms: float = 0.0

    @property
    def no_flush(self) -> bool:
        """Whether the WAL writer was seen in flushes, and sessions that must wait for theirs were not."""
        return self.wal_writer >= FLUSHES_SEEN and self.flush_due.missing(self.flush + self.standby)


def contradiction(levels: Sequence[Level], seen: Seen) -> str:
    """Why the level asked for (several: a mix) was not the one in effect; "" where nothing contradicts it.

    >>> contradiction([Level.ON], Seen(60, standby_due=Due(60, 80), p50_ms=0.04, round_trip_ms=8)).partition(" (")[0]
    'The level on was not in effect: transactions do not wait for a standby'
    >>> contradiction([Level.ON], Seen(60, 58, 55, standby_due=Due(60, 1), p50_ms=8.3, round_trip_ms=8))
    ''
    """
    remote = any(level.remote for level in levels)
    if remote and seen.standby_due.missing(seen.standby):
        p50 = "" if math.isnan(seen.p50_ms) else f"p50 {seen.p50_ms:.2g} ms "
        why = f"do not wait for a standby ({p50}under a round trip of {seen.round_trip_ms:.2g} ms; {_in_syncrep(seen)})"
    elif not remote and seen.standby >= max(STRONGER_LOOKS, seen.writing * STRONGER_SHARE):
        why = f"wait for a standby ({_in_syncrep(seen)})"
    elif Level.OFF not in levels and seen.no_flush:
        flushing = f"the WAL writer was seen in a flush {counted(seen.wal_writer, 'time')}"
        why = f"do not wait for a flush ({flushing}, sessions in {seen.flush} of {counted(seen.looks, 'look')})"
    else:
        return ""
    return (
        f"The {'mix' if len(levels) > 1 else f'level {levels[0]}'} was not in effect: transactions {why}. A function, "
        "a trigger, DO, an extension or a default of a role or database sets synchronous_commit: no price is stated; "
        "walproof doctor names such functions and defaults."
    )


def _in_syncrep(seen: Seen) -> str:
    return f"sessions in SyncRep in {seen.standby} of {counted(seen.looks, 'look')}"


def contradictions(events: Sequence[Event]) -> dict[Arm, str]:
    """By arm that was not measured at its level, why; arms of one workload, route and level are judged together."""
    done = [event.result for event in events if isinstance(event, SampleDone)]
    results: dict[Arm, list[SampleResult]] = defaultdict(list)
    for result in done:
        if result.sample.block and result.window.looks:
            results[_alike(result.sample.arm)].append(result)
    scenarios = {r.sample.scenario for of in results.values() for r in of}
    trips = {scenario: trip.value for scenario in scenarios if (trip := round_trip(events, scenario))}
    why = {key: contradiction(key.levels, seen_of(of, trips)) for key, of in results.items()}
    return {arm: text for arm in dict.fromkeys(r.sample.arm for r in done) if (text := why.get(_alike(arm), ""))}


def _alike(arm: Arm) -> Arm:
    """What is the same of arms whose transactions run at one level."""
    return Arm(arm.level, 1, arm.workload, arm.route, mix=arm.mix)


def seen_of(results: Sequence[SampleResult], trips: Mapping[Scenario, float]) -> Seen:
    """What was seen in these samples of arms alike; trips: measured round trips in ms.

    Samples in which it is known why nothing waits (no standby named at a remote level, fsync off) are left out.
    """
    arm = results[0].sample.arm
    remote = [(level.remote, weight) for level, weight in arm.mix or ((arm.level, 1.0),)]
    share = sum(weight for waits, weight in remote if waits) / sum(weight for _, weight in remote)
    safe = [r for r in results if r.sample.scenario.fsync is not False]
    used = [r for r in safe if r.window.standby_names.strip() or not share]
    confirmed = [confirmed_ms(r.window, trips.get(r.sample.scenario)) for r in used]
    flushed = [max(SOONEST_MS, (r.window.of_leader.wal_flush_ms or 0.0) / 2) for r in used]
    windows = [r.window for r in used]
    return Seen(
        sum(w.looks for w in windows),
        sum(w.writing for w in windows),
        sum(_looks(w, _WAITS) for w in windows),
        sum(_looks(w, _FLUSHES) for w in windows),
        sum(w.wal_writer for w in windows),
        due(used, [share * ms for ms in confirmed]),
        due(used, flushed),
        quantile_ms(pooled(r.histogram for r in used), 0.5),
        max(confirmed, default=0.0),
    )


def _looks(window: Window, events: Sequence[str]) -> int:
    return round(window.looks * sum(share for name, share in window.waits.items() if name.upper() in events))


def due(results: Sequence[SampleResult], waits_ms: Sequence[float]) -> Due:
    """What is due when each transaction that changes logged rows waits for so long (Little's law).

    Those are as many as there are transactions, but no more than the ids that the load took. None where the load
    changes temporary or unlogged tables, whose commits wait for nothing, or rolls back.
    """
    leaders = [r.window.of_leader for r in results]
    ids, written = (sum(getattr(m, name) or 0 for m in leaders) for name in ("transaction_ids", "wal_bytes"))
    if written < ids * WAL_OF_WRITE or max((m.rolled_back or 0.0 for m in leaders), default=0.0) > ROLLED_BACK:
        return Due()
    looks = needed = 0.0
    for result, wait_ms in zip(results, waits_ms, strict=True):
        of_others = result.window.others_ids
        ids = result.window.of_leader.transaction_ids or 0
        own = 0.0 if of_others is None else ids - of_others * result.seconds
        if own < ids / 2:
            continue
        share = min(own, result.credit) * wait_ms / (1000 * result.seconds * result.sample.arm.clients)
        looks += result.window.looks * min(1.0, share)
        needed += result.window.looks * share
    return Due(looks, needed / max(1, sum(r.window.looks for r in results)))


def confirmed_ms(window: Window, round_trip: float | None) -> float:
    """The least ms in which the quorum can confirm: the round trip measured, or half the nearest standby's lag."""
    lags = [m.write_lag_ms for m in window.members.values() if m.write_lag_ms is not None]
    return max(SOONEST_MS, round_trip or 0.0, min(lags, default=0.0) / 2)


def round_trip(events: Sequence[Event], scenario: Scenario) -> Estimate | None:
    """The median measured round trip, ms, to the standby that completes the quorum; None when it was not measured.

    Its interval is that of the medians of the pairs, from six round trips of each on. Without a quorum, or where the
    leader is not known, it is the mean over all pairs of members.
    """
    trips: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if isinstance(event, ScenarioEntered) and event.scenario == scenario:
            for pair, ms in event.measured.items():
                trips[pair] += event.round_trips_ms.get(pair, (ms,))
    medians = {pair: median_interval(of_pair) for pair, of_pair in trips.items()}
    if not all(m.known for m in medians.values()):
        medians = {pair: Estimate(m.value, math.nan, math.nan) for pair, m in medians.items()}
    results = [e.result for e in events if isinstance(e, SampleDone) and e.result.sample.scenario == scenario]
    window = results[-1].window if results else Window()
    leader = window.leader or next((e.view.leader for e in reversed(events) if isinstance(e, Observed)), None)
    ends = ({pair: getattr(m, end) for pair, m in medians.items()} for end in ("value", "low", "high"))
    of_quorum = (quorum_round_trip_ms(end, leader or "", window.standby_names) for end in ends)
    found = [trip for trip in of_quorum if trip is not None]
    return Estimate(*found) if found else None


def quorum_round_trip_ms(measured: Mapping[str, float], leader: str, standby_names: str) -> float | None:
    """The round trip to the standby that completes the quorum; measured: ms by "a-b".

    ANY k waits for the k-th nearest of those named, FIRST k for the farthest of the first k.

    >>> quorum_round_trip_ms({"n1-n2": 1.0, "n1-n3": 9.0, "n2-n3": 9.0}, "n1", "ANY 1 (n2,n3)")
    1.0
    >>> quorum_round_trip_ms({"n1-n2": 1.0, "n1-n3": 9.0, "n2-n3": 9.0}, "n1", "FIRST 1 (n3,n2)")
    9.0
    """
    if not measured:
        return None
    # Names have hyphens of their own (pg-1): the leader's tells where the other one begins.
    to = {pair.removeprefix(f"{leader}-"): ms for pair, ms in measured.items() if pair.startswith(f"{leader}-")}
    back = {pair.removesuffix(f"-{leader}"): ms for pair, ms in measured.items() if pair.endswith(f"-{leader}")}
    near = {**back, **to}
    quorum = read_standby_names(standby_names)
    if quorum is None or not near:
        return fmean(measured.values())
    named = [near[n] for n in sorted(near, key=quorum.priority) if quorum.counts(n)] or list(near.values())
    if quorum.kind is QuorumKind.ANY:
        named.sort()
    return max(named[: quorum.k])
