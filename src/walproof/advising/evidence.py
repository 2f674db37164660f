"""Events of records → evidence: priced arms with prediction intervals, what drills proved, the place. Only folds."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from walproof.advising.guarantees import promised
from walproof.estimating.binomial import upper_bound
from walproof.model.advice import Evidence, Place, PricedArm, Proven, Surroundings
from walproof.model.event import Described, DrillDone, Event, SampleDone
from walproof.model.guarantee import Level, QuorumKind, read_standby_names
from walproof.model.histogram import quantile_ms
from walproof.model.plan import WorkloadKind
from walproof.model.sample import SampleResult
from walproof.model.topology import Description
from walproof.model.verdict import Drill, Verdict

Records = Sequence[tuple[str, Sequence[Event]]]
"""(name of the record, its events)."""


@dataclass(frozen=True, slots=True)
class _Key:
    surroundings: Surroundings
    level: Level
    kind: QuorumKind | None
    quorum: int
    clients: int
    route: str
    pool: int | None
    parameters: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Seen:
    tps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    p95: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    busy: list[float] = field(default_factory=list)


def evidence_of(records: Records) -> Evidence:
    """What all records together say; the last one that describes its target names the place."""
    descriptions = [e.description for _, events in records for e in events if isinstance(e, Described)]
    place = place_of(descriptions[-1]) if descriptions else Place(manager="none")
    caveats = _caveats(descriptions)
    return Evidence(_priced(records), _proven(records), place, caveats)


def _caveats(descriptions: Sequence[Description]) -> tuple[str, ...]:
    caveats = []
    if len({d.target for d in descriptions}) > 1:
        caveats.append("the records are of different targets")
    if len({_major(d) for d in descriptions}) > 1:
        caveats.append("the records are of different PostgreSQL versions")
    return tuple(caveats)


def _major(description: Description) -> int:
    text = next((v for k, v in sorted(description.facts.items()) if "postgres" in k.lower()), "")
    match = re.search(r"(\d+)", text)
    return int(match[1]) if match else 0


def place_of(description: Description) -> Place:
    """The place a description tells of: manager and versions are read from its facts.

    >>> place_of(Description("lab", ("n1", "n2"), {"postgres": "18.1", "patroni": "4.1.0"})).manager
    'patroni'
    """
    patroni = next((v for k, v in sorted(description.facts.items()) if "patroni" in k.lower()), "")
    match = re.search(r"\d+(\.\d+)+", patroni)
    return Place(
        manager="patroni" if patroni else "none",
        postgres=_major(description) or 18,
        patroni=match[0] if match else "",
        members=description.members,
        target=description.target,
    )


def _key(result: SampleResult) -> _Key | None:
    """None for samples that say nothing about a configuration to run: searches, fsync off, read-only, open loop."""
    planned, window = result.sample, result.window
    arm, setting = planned.arm, planned.scenario
    if planned.block < 1 or setting.fsync is False or arm.rate is not None or arm.mix or result.transactions == 0:
        return None
    if arm.workload.kind is WorkloadKind.SELECT_ONLY:
        return None
    named = read_standby_names(window.standby_names)
    quorum = named.k if named else 0
    rtt = setting.rtt_ms if setting.rtt_ms is not None else window.rtt_ms
    around = Surroundings(arm.workload.text, _round(rtt), setting.regions, setting.cores)
    parameters = tuple(sorted(setting.parameters))
    kind = named.kind if named else None
    return _Key(around, arm.level, kind, quorum, arm.clients, str(arm.route), arm.pool, parameters)


def _round(rtt_ms: float | None) -> float | None:
    return None if rtt_ms is None else round(rtt_ms, 1)


def _priced(records: Records) -> tuple[PricedArm, ...]:
    found: dict[_Key, _Seen] = defaultdict(_Seen)
    for name, events in records:
        for event in events:
            if not isinstance(event, SampleDone) or (key := _key(event.result)) is None:
                continue
            seen, result = found[key], event.result
            seen.tps[name].append(result.tps)
            seen.p95[name].append(quantile_ms(result.histogram, 0.95) if result.histogram else result.mean_ms)
            seen.busy.append(result.window.machine_busy)
    return tuple(_arm(key, seen) for key, seen in sorted(found.items(), key=lambda pair: repr(pair[0])))


def _arm(key: _Key, seen: _Seen) -> PricedArm:
    return PricedArm(
        key.surroundings,
        key.level,
        key.kind,
        key.quorum,
        key.clients,
        key.route,
        key.pool,
        key.parameters,
        promised(seen.tps, "tps"),
        promised(seen.p95, "latency"),
        sum(len(v) for v in seen.tps.values()),
        len(seen.tps),
        sum(seen.busy) / len(seen.busy),
        tuple(sorted(seen.tps)),
    )


def _proven(records: Records) -> tuple[Proven, ...]:
    groups: dict[tuple[Level, str, str], list[tuple[str, Drill]]] = defaultdict(list)
    for name, events in records:
        for event in events:
            if isinstance(event, DrillDone) and event.drill.verdict in (Verdict.HELD, Verdict.BROKEN):
                drill = event.drill
                groups[(drill.level, drill.fault, str(drill.victim))].append((name, drill))
    return tuple(_campaign(key, drills) for key, drills in sorted(groups.items(), key=lambda pair: repr(pair[0])))


def _campaign(key: tuple[Level, str, str], drills: Iterable[tuple[str, Drill]]) -> Proven:
    told = list(drills)
    broken = sum(d.verdict is Verdict.BROKEN for _, d in told)
    return Proven(
        key[0],
        key[1],
        key[2],
        len(told) - broken,
        broken,
        upper_bound(broken, len(told)),
        tuple(d.rto_s for _, d in told if d.rto_s is not None),
        tuple(d.rpo_s or 0.0 for _, d in told),
        ", ".join(sorted({name for name, _ in told})),
    )
