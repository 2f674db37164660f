"""Requirements against evidence → ranked choices, or which requirement cannot be met and why. Pure.

And advice as JSON and back: what `walproof advise --json` prints and `walproof apply` reads."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from walproof.advising.failover_timeouts import failovers, shortest_rto, timeouts_for
from walproof.advising.proof import drilled, effective_level, leader_drills, undecided, waits_for_standby
from walproof.advising.requirements import (
    Reason,
    assumptions,
    best_year,
    interval_risks,
    reasons,
    refused_year,
    trade_offs,
    yearly_assumptions,
    yearly_interval_risks,
    yearly_reasons,
)
from walproof.errors import UndecidedError, UsageError
from walproof.machine.quoting import pasted
from walproof.machine.toml_files import first_error
from walproof.machine.untrusted import from_json, printable
from walproof.model.advice import (
    OBSERVED,
    Advice,
    Choice,
    ClassChoice,
    Environment,
    Evidence,
    PricedArm,
    Refused,
    Requirements,
    YearlyRisk,
)
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.model.units import counted

_ADVICE = TypeAdapter(Advice)


def as_json(advice: Advice) -> dict[str, Any]:
    """One object; read back by `read_advice`."""
    tree: dict[str, Any] = _ADVICE.dump_python(advice, mode="json")
    return tree


def read_advice(text: str) -> Advice:
    """The advice in that JSON; UsageError when it is none."""
    try:
        return _ADVICE.validate_json(json.dumps(printable(from_json(text))))
    except (ValidationError, ValueError) as wrong:
        why = first_error(wrong) if isinstance(wrong, ValidationError) else wrong
        raise UsageError(f"this is not advice: {why}", "walproof advise RECORD --json > advice.json") from None


def chosen(advice: Advice, number: int) -> Choice:
    """The choice of that number; UsageError lists which there are."""
    for choice in advice.choices:
        if choice.number == number:
            return choice
    if not advice.choices:
        why = "; ".join(f"{r.requirement}: {r.limit}" for r in advice.refused)
        raise UsageError(f"the advice holds no choice to apply ({why})", "relax the requirement, see `walproof advise`")
    raise UsageError(f"there is no choice {number}", f"--choice 1 to {len(advice.choices)}")


MOST_CHOICES = 5
SAME_THROUGHPUT = 1.15
"""Throughputs whose ratio is less are ranked alike, and the stronger guarantee goes first."""
SAME_IN_CLASSES = ("quorum", "quorum_kind", "clients", "route", "parameters")
"""What a class of transactions cannot choose for itself."""
Classes = tuple[tuple[str, Requirements], ...]


def choose_environment(evidence: Evidence, rtt_ms: float | None, workload: str | None) -> Environment:
    """The environment the advice is for; UsageError lists those there are when it is not clear which."""
    priced = sorted({a.environment for a in evidence.priced}, key=repr)
    if not priced:
        raise UndecidedError(
            "the records hold no priced commits that are evidence for a configuration",
            "walproof price --levels off,local,remote_write,on,remote_apply --clients 1,16",
        )
    fitting = [
        s
        for s in priced
        if (rtt_ms is None or (s.rtt_ms is not None and math.isclose(s.rtt_ms, rtt_ms, rel_tol=0.15, abs_tol=0.3)))
        and (workload is None or s.workload == workload)
    ]
    if len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(s.text for s in priced)
    if not fitting:
        raise UsageError(f"nothing was priced in such an environment; there are: {listed}", "see --rtt and --workload")
    raise UsageError(
        f"the records were priced in several environments: {listed}", "choose one: --rtt 10ms --workload …"
    )


def advise(evidence: Evidence, required: Requirements, environment: Environment, classes: Classes = ()) -> Advice:
    """Ranked choices that meet the requirements, without dominated ones; with none, what is refused and the nearest.

    Those that were drilled come first; where none was, `prove` is the command whose drills would decide.
    """
    arms = [a for a in evidence.priced if a.environment == environment]
    overall = strictest(required, classes)
    against = [(arm, (*reasons(arm, overall, evidence), *yearly_reasons(arm, overall, evidence))) for arm in arms]
    meeting = [arm for arm, why in against if not why]
    parts = [[arm for arm in meeting if bool(undecided(arm, evidence)) is part] for part in (False, True)]
    # What was never drilled drops nothing that was.
    kept = [a for a in meeting if not any(beats(b, a) for b in (parts[0] if a in parts[0] else meeting))]
    ranked = [arm for part in parts for arm in _ranked([a for a in kept if a in part], overall, evidence)]
    choices = tuple(
        _choice(n, arm, overall, evidence, _classes(arm, classes, arms, evidence))
        for n, arm in enumerate(ranked[:MOST_CHOICES], 1)
    )
    refused = () if choices else refusals(against, overall, evidence, environment)
    return Advice(
        requirements=required,
        environment=environment,
        cluster=evidence.cluster,
        choices=choices,
        refused=refused,
        caveats=evidence.caveats,
        dominated=len(meeting) - len(kept),
        classes=classes,
        prove=prove_command(choices, evidence.cluster.target) if choices and choices[0].undecided else "",
    )


def prove_command(choices: Sequence[Choice], target: str) -> str:
    """The command whose drills decide about these choices, on the cluster of that name: one to paste, of our own words.

    Advice that was read holds one too, which is its sender's.
    """
    levels = ",".join(sorted({str(c.level) for c in choices}, key=lambda name: Level(name).strength))
    return _drills(target, levels, "kill")


def _drills(target: str, levels: str, faults: str) -> str:
    target = target.replace("lab ", "lab:", 1).replace("simulated", "sim") or "lab"
    consent = pasted("" if target.startswith(("lab", "sim")) else " --allow load,{faults:shell}", faults=faults)
    return pasted(
        "walproof prove --target {target:shell} --levels {levels:shell} --fault {faults:shell}{consent:composed}",
        target=target,
        levels=levels,
        faults=faults,
        consent=consent,
    )


def strictest(required: Requirements, classes: Classes) -> Requirements:
    """What the cluster must be able to do: the strictest class decides on loss and reads; the rest is unchanged."""
    every = [required, *(r for _, r in classes)]
    rpo_s = min((r.rpo_s for r in every if r.rpo_s is not None), default=None)
    return replace(required, rpo_s=rpo_s, read_your_writes=any(r.read_your_writes for r in every))


def _strength(arm: PricedArm) -> tuple[int, int]:
    return effective_level(arm).strength, arm.quorum if waits_for_standby(arm) else 0


def beats(one: PricedArm, other: PricedArm) -> bool:
    """At least as strong, as fast and as quick to answer, and better in one of them."""
    left = (*_strength(one), one.tps.value, -one.p95_ms.value)
    right = (*_strength(other), other.tps.value, -other.p95_ms.value)
    return all(a >= b for a, b in zip(left, right, strict=True)) and left != right


def _ranked(arms: Sequence[PricedArm], required: Requirements, evidence: Evidence) -> list[PricedArm]:
    """Fewer risks first, then faster by more than SAME_THROUGHPUT, then stronger, then of lower latency."""
    fastest_tps = max((arm.tps.value for arm in arms), default=1.0)

    def rank(arm: PricedArm) -> tuple[object, ...]:
        year = best_year(arm, required, evidence)
        risks = len(interval_risks(arm, required)) + len(yearly_interval_risks(year, required))
        slower = math.floor(math.log(fastest_tps / max(arm.tps.value, 1e-9)) / math.log(SAME_THROUGHPUT))
        strength = tuple(-s for s in _strength(arm))
        return (risks, slower, strength, arm.p95_ms.value, arm.clients, repr(arm))

    return sorted(arms, key=rank)


def _choice(
    number: int, arm: PricedArm, required: Requirements, evidence: Evidence, classes: tuple[ClassChoice, ...]
) -> Choice:
    synchronous, level, (proven, others) = waits_for_standby(arm), effective_level(arm), drilled(arm, evidence)
    year = best_year(arm, required, evidence) if required.of_a_year else None
    strict = synchronous and (required.rpo_s == 0 or (year is not None and year.strict))
    timeouts = timeouts_for(required.rto_s, evidence.cluster)
    rtos = sorted(rto for d in leader_drills(evidence, level) for rto in d.rto_s)
    return Choice(
        number=number,
        level=level,
        quorum_kind=arm.quorum_kind if synchronous else None,
        quorum=arm.quorum if synchronous else 0,
        strict=strict,
        clients=arm.clients,
        pool=arm.pool or arm.clients,
        route=arm.route,
        timeouts=timeouts,
        parameters=arm.parameters,
        tps=arm.tps,
        p95_ms=arm.p95_ms,
        rto_s=Estimate(rtos[len(rtos) // 2], rtos[0], rtos[-1]) if rtos else None,
        proven=proven,
        assumed=(
            *assumptions(arm, required, evidence),
            *yearly_interval_risks(year, required),
            *yearly_assumptions(year, required),
        ),
        trade_offs=trade_offs(arm, evidence, strict),
        records=arm.records,
        classes=classes,
        year=year,
        undecided=undecided(arm, evidence),
        caveats=_caveats(arm, others, evidence, year),
        failovers=failovers(timeouts, evidence, _drills(evidence.cluster.target, str(level), "kill,freeze")),
    )


def _caveats(arm: PricedArm, others: tuple[str, ...], evidence: Evidence, year: YearlyRisk | None) -> tuple[str, ...]:
    """Of its price, of drills of its level that decide nothing about it, of the records of both, and of its year."""
    level = effective_level(arm)
    names = {*arm.records, *(n for d in evidence.drills if d.level is level for n in d.record.split(", "))}
    of_records = (sentence for name, sentence in evidence.of_records if name in names)
    of_year = (f"a year: {caveat}" for caveat in year.caveats) if year else ()
    return tuple(dict.fromkeys((*arm.caveats, *others, *of_records, *of_year)))


def _classes(
    arm: PricedArm, classes: Classes, arms: Iterable[PricedArm], evidence: Evidence
) -> tuple[ClassChoice, ...]:
    """The level of each class: the fastest one that meets it, priced at the same quorum, clients and route."""
    weaker = [a for a in arms if a.level.strength <= arm.level.strength]
    alternatives = [a for a in weaker if all(getattr(a, name) == getattr(arm, name) for name in SAME_IN_CLASSES)]
    levels = []
    for name, required in classes:
        meeting = [a for a in alternatives if not reasons(a, required, evidence)]
        fitting = [a for a in meeting if not undecided(a, evidence)] or meeting
        best = min(fitting, key=lambda a: (-a.tps.value, -a.level.strength), default=arm)
        # Within a tenth of the fastest, the stronger costs nothing worth having.
        near = [a for a in fitting if a.tps.value >= 0.9 * best.tps.value]
        taken = max(near, key=lambda a: a.level.strength, default=best)
        met = "" if fitting else "no weaker level meets it: "
        never = f"; {why_not}" if (why_not := undecided(taken, evidence)) else ""
        why = f"{met}{taken.tps.value:.0f} transactions/s alone, p95 {taken.p95_ms.value:.1f} ms{never}"
        levels.append(ClassChoice(name, required, taken.level, why))
    return tuple(levels)


Against = Sequence[tuple[PricedArm, tuple[Reason, ...]]]


def refusals(
    against: Against, required: Requirements, evidence: Evidence, environment: Environment
) -> tuple[Refused, ...]:
    """Each requirement that nothing priced meets, alone or together with the rest, and the limit that forbids it."""
    names = dict.fromkeys(r.requirement for _, why in against for r in why)
    alone = [name for name in names if all(any(r.requirement == name for r in why) for _, why in against)]
    if alone:
        return tuple(_refused(name, against, required, evidence, environment) for name in alone)
    # No single requirement is impossible: the nearest arm is the one with the smallest shortfall.
    arm, why = min(against, key=lambda pair: (sum(r.shortfall for r in pair[1]), repr(pair[0])))
    meets_rpo = any(not any(r.requirement.startswith("--rpo") for r in reasons_) for _, reasons_ in against)
    limit = "; ".join(r.why for r in why)
    if meets_rpo and required.rpo_s == 0 and required.max_commit_latency_ms is not None:
        limit += _round_trip(environment, required.max_commit_latency_ms)
    return (Refused(" ".join(names), f"no configuration priced meets them together: {limit}", _nearest(arm)),)


def _nearest(arm: PricedArm) -> str:
    quorum = f" {arm.quorum_kind} {arm.quorum}" if waits_for_standby(arm) else ""
    return (
        f"{effective_level(arm)}{quorum} at {counted(arm.clients, 'client')}: {arm.tps.value:.0f} transactions/s "
        f"({arm.tps.low:.0f} to {arm.tps.high:.0f}), p95 {arm.p95_ms.value:.1f} ms "
        f"({arm.p95_ms.low:.1f} to {arm.p95_ms.high:.1f})"
    )


def _round_trip(environment: Environment, most_ms: float) -> str:
    if environment.rtt_ms is not None and environment.rtt_ms >= most_ms:
        return f"; a commit that waits for another member takes at least one round trip, {environment.rtt_ms:g} ms"
    return ""


def _refused(
    name: str, against: Against, required: Requirements, evidence: Evidence, environment: Environment
) -> Refused:
    if name.startswith("--rto"):
        shortest = shortest_rto(evidence)
        if shortest is not None:
            return Refused(name, shortest.limit, shortest.nearest)
        limit = "no standby is promoted here: there is no failover manager"
        return Refused(name, limit, "run the cluster under Patroni: 23 s is its shortest worst case")
    arm, why = min(
        ((a, next(r for r in w if r.requirement == name)) for a, w in against),
        key=lambda pair: (pair[1].shortfall, repr(pair[0])),
    )
    if name.startswith(("--availability", "--loss-per-year")):
        return refused_year(name, arm, why.why, required, evidence)
    if name.startswith("--min-tps"):
        if environment.workload == OBSERVED:
            raise UndecidedError(f"more than the load observed may be carried or not ({why.why})", "walproof price")
        limit = (
            f"processors and disk: the most measured at any level is {why.why}, {arm.busy:.0%} of the processors busy"
        )
        return Refused(name, limit, _nearest(arm))
    if name.startswith("--max-commit-latency"):
        most = float(name.removesuffix("ms").split()[-1])
        return Refused(name, f"the quickest measured: {why.why}" + _round_trip(environment, most), _nearest(arm))
    if name.startswith("--level "):
        return Refused(name, why.why, pasted("walproof price --levels {level:shell}", level=required.level))
    if name == "--read-your-writes":
        if arm.level is Level.REMOTE_APPLY:
            nearest = f"price it with --levels remote_apply --quorum all, or read on the leader; now: {_nearest(arm)}"
        else:
            nearest = "read on the leader, or price remote_apply with --quorum all"
        return Refused(name, why.why, nearest)
    return Refused(name, why.why, "price remote levels with standbys named (walproof doctor shows whether they are)")
