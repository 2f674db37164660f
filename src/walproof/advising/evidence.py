"""Events of records → evidence: priced arms with prediction intervals, results of drills, the cluster. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, UnionType
from typing import NamedTuple

import numpy as np
from scipy import special

from walproof.estimating.intervals import BETWEEN_RUNS, change, upper_bound
from walproof.estimating.observed_prices import predictions
from walproof.estimating.observed_waits import observation
from walproof.model.advice import OBSERVED, ClusterProfile, DrilledRto, DrillSummary, Environment, Evidence, PricedArm
from walproof.model.drill import Drill, Verdict, Victim
from walproof.model.estimate import Caveat, Estimate, quantile_ms
from walproof.model.event import (
    Described,
    DrillDone,
    DrillStarted,
    Event,
    Observed,
    SampleDone,
    is_simulated,
    record_caveats,
)
from walproof.model.guarantee import Level, Loss, QuorumKind, read_standby_names
from walproof.model.observed_waits import WaitsSeen
from walproof.model.sample import Arm, SampleResult, Scenario, WorkloadKind
from walproof.model.topology import Description

Records = Sequence[tuple[str, Sequence[Event]]]
"""(name of the record, its events)."""
FEWEST = 3
Caveats = Mapping[str, Mapping[tuple[Scenario, Arm], Sequence[str]]]
"""Those of prices, by the name of the record: they are pricing's to judge."""


class _Question(NamedTuple):
    """What one PricedArm is about: fields of it."""

    environment: Environment
    level: Level
    quorum_kind: QuorumKind | None
    quorum: int
    clients: int
    route: str
    pool: int | None
    parameters: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Measured:
    tps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    p95: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    busy: list[float] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)


def evidence_of(records: Records, caveats: Caveats = MappingProxyType({})) -> Evidence:
    """The evidence of all records together; the cluster is that of the last record that describes its target."""
    descriptions = [e.description for _, events in records for e in events if isinstance(e, Described)]
    return Evidence(
        (*_priced(records, caveats), *_observed(records)),
        _drills(records),
        cluster_of(descriptions[-1]) if descriptions else ClusterProfile(manager="none"),
        _caveats(records, descriptions),
        of_records=tuple((name, sentence) for name, events in records for sentence in record_caveats(name, events)),
        rtos=_rtos(records),
    )


def _rtos(records: Records) -> tuple[DrilledRto, ...]:
    """RTOs of drills of the leader by Patroni's timeouts and fault, but for simulated, guarded and planned ones."""
    drilled: dict[tuple[tuple[float, ...], str], list[float]] = defaultdict(list)
    for _, events in records:
        times: tuple[float, ...] = ()
        for event in events if not is_simulated(events) else ():
            if isinstance(event, Described):
                times = event.description.failover_times_s
            elif isinstance(event, DrillDone) and times:
                drill, rto_s = event.drill, event.drill.rto_s
                by_itself = drill.victim is Victim.LEADER and not drill.guarded and drill.fault != "switchover"
                if by_itself and rto_s is not None:
                    drilled[times, drill.fault].append(rto_s)
    return tuple(DrilledRto(times, fault, tuple(rtos)) for (times, fault), rtos in sorted(drilled.items()))


def _targets(records: Records, kind: UnionType | type[Event]) -> set[str]:
    holding = [events for _, events in records if any(isinstance(e, kind) for e in events)]
    return {e.description.target for events in holding for e in events if isinstance(e, Described)}


def _caveats(records: Records, descriptions: Sequence[Description]) -> tuple[str, ...]:
    caveats = []
    priced, drilled = _targets(records, SampleDone | WaitsSeen), _targets(records, DrillDone)
    if len(priced) > 1:
        caveats.append(f"prices are of different targets: {', '.join(sorted(priced))}")
    if drilled - priced and priced:
        where = f"{', '.join(sorted(drilled))}, prices of {', '.join(sorted(priced))}"
        caveats.append(f"drills are of {where}: what held there may not hold here")
    if len({d.postgres for d in descriptions}) > 1:
        caveats.append("the records are of different PostgreSQL versions")
    return tuple(caveats)


def cluster_of(description: Description) -> ClusterProfile:
    """The cluster of a description: its manager and versions.

    >>> cluster_of(Description("lab", ("n1", "n2"), {"postgres": "18.1", "patroni": "4.1.0"})).manager
    'patroni'
    """
    return ClusterProfile(
        manager=description.manager or ("patroni" if description.patroni else "none"),
        postgres=description.postgres or 18,
        patroni=description.patroni,
        members=description.members,
        target=description.target,
        barred=description.barred,
    )


def _question(result: SampleResult) -> _Question | None:
    """None for samples that are no evidence for a configuration: searches, fsync off, read-only, open loop, and of
    programs whose latency is not known.
    """
    planned, window = result.sample, result.window
    arm, scenario = planned.arm, planned.scenario
    if scenario.memory_mib is not None:
        # Pods of a size that the cluster does not have.
        return None
    if planned.block < 1 or scenario.fsync is False or arm.rate is not None or arm.mix or result.transactions == 0:
        return None
    if arm.workload.kind is WorkloadKind.SELECT_ONLY or not (result.histogram or result.mean_ms > 0):
        return None
    named = read_standby_names(window.standby_names)
    rtt = scenario.rtt_ms if scenario.rtt_ms is not None else window.rtt_ms
    rounded = None if rtt is None else round(rtt, 1)
    workload = ", ".join(filter(None, (arm.workload.text, arm.workload.data)))
    environment = Environment(workload, rounded, scenario.regions, scenario.cores)
    return _Question(
        environment=environment,
        level=arm.level,
        quorum_kind=named.kind if named else None,
        quorum=named.k if named else 0,
        clients=arm.clients,
        route=str(arm.route),
        pool=arm.pool,
        parameters=tuple(sorted(scenario.parameters)),
    )


def _priced(records: Records, caveats: Caveats) -> tuple[PricedArm, ...]:
    samples: dict[_Question, _Measured] = defaultdict(_Measured)
    simulated = {name for name, events in records if is_simulated(events)}
    for name, events in records:
        for event in events:
            if not isinstance(event, SampleDone) or (question := _question(event.result)) is None:
                continue
            of_arm = caveats.get(name, {}).get((event.result.sample.scenario, event.result.sample.arm), ())
            if Caveat.OTHER_LEVEL in of_arm:
                continue
            seen, result = samples[question], event.result
            seen.tps[name].append(result.tps)
            seen.p95[name].append(quantile_ms(result.histogram, 0.95) if result.histogram else result.mean_ms)
            seen.busy.append(result.window.machine_busy)
            seen.caveats += of_arm
    return tuple(
        PricedArm(
            **question._asdict(),
            tps=prediction_interval(seen.tps, "tps"),
            p95_ms=prediction_interval(seen.p95, "latency"),
            blocks=sum(len(v) for v in seen.tps.values()),
            runs=len(seen.tps),
            busy=sum(seen.busy) / len(seen.busy),
            records=tuple(sorted(seen.tps)),
            caveats=tuple(map(str, dict.fromkeys(seen.caveats))),
            simulated=seen.tps.keys() <= simulated,
        )
        for question, seen in sorted(samples.items(), key=lambda pair: repr(pair[0]))
    )


_OF_OBSERVED = (
    "p95 is taken from the mean wait observed, as of exponential waits; it is 20 times the mean at most (Markov)",
    "the load at other levels is predicted from what was observed (docs/observe.md): walproof price measures it",
)


def _observed(records: Records) -> Iterator[PricedArm]:
    """What each level would cost the load that was observed last, as far as it can be predicted with an interval."""
    observed = [(name, seen) for name, events in records if (seen := [e for e in events if isinstance(e, WaitsSeen)])]
    for name, seen in observed[-1:]:
        made, quorum = observation(seen), read_standby_names(seen[-1].standby_names or "ANY 1 (*)")
        sessions = sum(group.sessions for one in seen for group in one.groups) / made.polls
        for one in predictions(seen):
            faster, wait = one.throughput, one.commit_wait_ms
            if one.what not in list(Level) or not (faster.low > 0 and wait.low > 0):
                continue
            slower = Estimate(1 / faster.value, 1 / faster.high, 1 / faster.low)
            mean = change(Estimate(1.0, 1.0, 1.0), wait, between=BETWEEN_RUNS["latency"])
            yield PricedArm(
                environment=Environment(OBSERVED), level=Level(one.what), quorum_kind=quorum.kind if quorum else None,
                quorum=quorum.k if quorum else 0, clients=max(1, round(sessions)), route="direct", pool=None,
                parameters=(), tps=change(slower, made.commits_per_s, between=BETWEEN_RUNS["tps"]),
                p95_ms=Estimate(math.log(20) * mean.value, mean.low, 20 * mean.high), blocks=len(seen), runs=1,
                busy=math.nan, records=(name,), caveats=(*_OF_OBSERVED, *made.caveats),
            )  # fmt: skip


class _Kind(NamedTuple):
    """Drills that count together: fields of DrillSummary."""

    level: Level
    fault: str
    victim: str
    quorum_kind: QuorumKind | None
    quorum: int | None
    simulated: bool


_Decided = dict[tuple[_Kind, str, bool], list[tuple[str, Drill]]]
"""By kind, what was gone in fact, and whether that put commits at risk: (name of the record, drill)."""


def _drills(records: Records) -> tuple[DrillSummary, ...]:
    """One summary a kind of drill, with the drills of the same kind that were left undecided."""
    decided: _Decided = defaultdict(list)
    undecided: Counter[_Kind] = Counter()
    for name, events in records:
        for kind, drill in _of_record(events):
            if drill.verdict.decided:
                decided[kind, drill.loss, _at_risk(drill)].append((name, drill))
            elif drill.verdict is Verdict.UNDECIDED:
                undecided[kind] += 1
    for kind in undecided:
        if not any(other == kind for other, _, _ in decided):
            decided[kind, "", False] = []
    return tuple(
        _summary(kind, drills, loss, at_risk=at_risk, undecided=undecided[kind])
        for (kind, loss, at_risk), drills in sorted(decided.items(), key=lambda pair: repr(pair[0]))
    )


def _of_record(events: Sequence[Event]) -> Iterator[tuple[_Kind, Drill]]:
    """Each drill and its kind; the quorum is that of the names in effect when it began."""
    names = began = ""
    for event in events:
        if isinstance(event, Described):
            names = event.description.settings.get("synchronous_standby_names", names)
        elif isinstance(event, Observed):
            names = event.view.standby_names
        elif isinstance(event, DrillStarted):
            began = names
        elif isinstance(event, DrillDone):
            drill, quorum = event.drill, read_standby_names(began)
            kind, number = (quorum.kind, quorum.k) if quorum else (None, None)
            yield _Kind(drill.level, drill.fault, str(drill.victim), kind, number, is_simulated(events)), drill


def _at_risk(drill: Drill) -> bool:
    """Whether a leader was gone for good. Records of 1.0 do not all say what was gone, but whether anything was."""
    return drill.promised is not None and drill.loss not in (Loss.POSTGRES_CRASH, Loss.POWER_CUT)


def _summary(
    kind: _Kind, drills: Sequence[tuple[str, Drill]], loss: str, *, at_risk: bool, undecided: int
) -> DrillSummary:
    broken = sum(d.verdict is not Verdict.HELD for _, d in drills)
    return DrillSummary(
        **kind._asdict(),
        held=len(drills) - broken,
        broken=broken,
        loss_bound=upper_bound(broken, len(drills)),
        rto_s=tuple(d.rto_s for _, d in drills if d.rto_s is not None),
        rpo_s=tuple(d.rpo_s or 0.0 for _, d in drills),
        record=", ".join(sorted({name for name, _ in drills})),
        loss=loss,
        undecided=undecided,
        at_risk=at_risk,
    )


def prediction_interval(runs: Mapping[str, Sequence[float]], kind: str) -> Estimate:
    """Median prediction and 95 % interval for the mean of one further run; `runs`: block values per record, all > 0.

    One-way random effects on logs: variance of a block within a run plus variance between runs, both of which the next
    run has again (Searle, Casella & McCulloch 1992, ch. 3). With one run the spread between runs is not seen and
    BETWEEN_RUNS stands for it; with more, it is the larger of what was seen and half of that.

    >>> prediction_interval({"a": [100.0, 100.0, 100.0]}, "tps").covers(110.0)
    True
    """
    logs = {name: np.log(np.array(values)) for name, values in runs.items() if len(values)}
    if not logs:
        return Estimate(math.nan, math.nan, math.nan)
    means = np.array([float(np.mean(v)) for v in logs.values()])
    blocks = sum(len(v) for v in logs.values())
    centre = float(np.mean(means))
    free_within = blocks - len(logs)
    within = sum(float(np.sum((v - np.mean(v)) ** 2)) for v in logs.values()) / free_within if free_within > 0 else 0.04
    prior = BETWEEN_RUNS[kind] ** 2
    seen = float(np.var(means, ddof=1)) if len(means) > 1 else 0.0
    between = max(seen, prior / 4) if len(means) >= FEWEST else max(seen, prior)
    per_run = blocks / len(logs)
    # The next run's own mean is over fewer, possibly one, blocks: its within part is not divided.
    spread = math.sqrt(between * (1 + 1 / len(means)) + within * (1 + 1 / (per_run * len(means))))
    freedom = max(FEWEST, len(means) - 1 if len(means) > FEWEST else free_within)
    half = float(special.stdtrit(freedom, 0.975)) * spread
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half))
