"""Requirements against evidence → ranked choices, or which requirement cannot be met and why. Pure."""

import math
from collections.abc import Iterable, Sequence

from walproof.advising.candidates import Reason, assumptions, effective, given_up, guards, of_leader, reasons
from walproof.advising.timeouts import fastest, timeouts_for
from walproof.errors import UndecidedError, UsageError
from walproof.model.advice import Advice, Choice, ClassChoice, Evidence, PricedArm, Refused, Requirements, Surroundings
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level

MOST_CHOICES = 5
SAME_PACE = 1.15
"""Throughputs whose ratio is less are ranked alike, and the stronger guarantee goes first."""
Classes = tuple[tuple[str, Requirements], ...]


def surroundings_in(evidence: Evidence) -> tuple[Surroundings, ...]:
    """Every surroundings something was priced in, in order."""
    return tuple(sorted({a.surroundings for a in evidence.priced}, key=repr))


def chosen_surroundings(evidence: Evidence, rtt_ms: float | None, workload: str | None) -> Surroundings:
    """The one the advice is for; UsageError lists them when it is not clear which."""
    there = surroundings_in(evidence)
    if not there:
        raise UndecidedError(
            "the records hold no priced commits that say anything about a configuration",
            "walproof price --levels off,local,remote_write,on,remote_apply --clients 1,16",
        )
    fitting = [
        s
        for s in there
        if (rtt_ms is None or (s.rtt_ms is not None and math.isclose(s.rtt_ms, rtt_ms, rel_tol=0.15, abs_tol=0.3)))
        and (workload is None or s.workload == workload)
    ]
    if len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(s.text for s in there)
    if not fitting:
        raise UsageError(f"nothing was priced in such surroundings; there are: {listed}", "see --rtt and --workload")
    raise UsageError(f"the records were priced in several surroundings: {listed}", "say yours: --rtt 10ms --workload …")


def advise(evidence: Evidence, wish: Requirements, surroundings: Surroundings, classes: Classes = ()) -> Advice:
    """Ranked choices which meet the wish, dominated ones dropped; with none, what is refused and the nearest."""
    arms = [a for a in evidence.priced if a.surroundings == surroundings]
    whole = strictest(wish, classes)
    against = [(arm, reasons(arm, whole, evidence)) for arm in arms]
    meeting = [arm for arm, why in against if not why]
    kept = undominated(meeting)
    fastest_tps = max((a.tps.value for a in kept), default=1.0)
    ranked = sorted(kept, key=lambda a: _rank(a, whole, evidence, fastest_tps))[:MOST_CHOICES]
    choices = tuple(
        _choice(n, arm, whole, evidence, _classes(arm, classes, arms, evidence)) for n, arm in enumerate(ranked, 1)
    )
    refused = () if choices else refusals(against, whole, evidence, surroundings)
    dropped = len(meeting) - len(kept)
    return Advice(wish, surroundings, evidence.place, choices, refused, evidence.caveats, dropped, classes)


def strictest(wish: Requirements, classes: Classes) -> Requirements:
    """What the cluster must be able to do: the strictest class decides on loss and reads; every other one stays."""
    requirements = [wish, *(w for _, w in classes)]
    rpos = [w.rpo_s for w in requirements if w.rpo_s is not None]
    return Requirements(
        min(rpos, default=None),
        wish.rto_s,
        wish.max_commit_latency_ms,
        wish.min_tps,
        any(w.read_your_writes for w in requirements),
    )


def _strength(arm: PricedArm) -> tuple[int, int]:
    return effective(arm).strength, arm.quorum if guards(arm) else 0


def beats(one: PricedArm, other: PricedArm) -> bool:
    """At least as strong, as fast and as quick to answer, and better in one of them."""
    mine = (*_strength(one), one.tps.value, -one.p95_ms.value)
    its = (*_strength(other), other.tps.value, -other.p95_ms.value)
    return all(m >= i for m, i in zip(mine, its, strict=True)) and mine != its


def undominated(arms: Sequence[PricedArm]) -> list[PricedArm]:
    """Those no other beats."""
    return [arm for arm in arms if not any(beats(other, arm) for other in arms)]


def _rank(arm: PricedArm, wish: Requirements, evidence: Evidence, fastest_tps: float) -> tuple[object, ...]:
    """Fewer things beyond a wish's edge first, then faster by more than SAME_PACE, then stronger, then quicker."""
    edge = sum("part of its interval" in text for text in assumptions(arm, wish, evidence))
    slower = math.floor(math.log(fastest_tps / max(arm.tps.value, 1e-9)) / math.log(SAME_PACE))
    strength = tuple(-s for s in _strength(arm))
    return (edge, slower, strength, arm.p95_ms.value, arm.clients, repr(arm))


def _choice(
    number: int, arm: PricedArm, wish: Requirements, evidence: Evidence, classes: tuple[ClassChoice, ...]
) -> Choice:
    strict = guards(arm) and wish.rpo_s == 0
    level = effective(arm)
    proven = tuple(p.text for p in evidence.proven if p.level is level)
    told = [rto for p in of_leader(evidence, level) for rto in p.rto_s]
    middle = sorted(told)[len(told) // 2] if told else 0.0
    return Choice(
        number,
        level,
        arm.quorum_kind if guards(arm) else None,
        arm.quorum if guards(arm) else 0,
        strict,
        arm.clients,
        arm.pool or arm.clients,
        arm.route,
        timeouts_for(wish.rto_s, evidence.place),
        arm.parameters,
        arm.tps,
        arm.p95_ms,
        Estimate(middle, min(told), max(told)) if told else None,
        proven,
        assumptions(arm, wish, evidence),
        given_up(arm, evidence, strict),
        arm.records,
        classes,
    )


def _classes(
    arm: PricedArm, classes: Classes, arms: Iterable[PricedArm], evidence: Evidence
) -> tuple[ClassChoice, ...]:
    """The level of each class beside this arm: the fastest priced at the same quorum, clients and route that does."""
    beside = [a for a in arms if _same_place(a, arm) and a.level.strength <= arm.level.strength]
    found = []
    for name, wish in classes:
        fitting = [a for a in beside if not reasons(a, wish, evidence)]
        best = min(fitting, key=lambda a: (-a.tps.value, -a.level.strength), default=arm)
        # Within a tenth of the fastest, the stronger costs nothing worth having.
        near = [a for a in fitting if a.tps.value >= 0.9 * best.tps.value]
        taken = max(near, key=lambda a: a.level.strength, default=best)
        met = "" if fitting else "no weaker level meets it: "
        why = f"{met}{taken.tps.value:.0f} transactions/s alone, p95 {taken.p95_ms.value:.1f} ms"
        found.append(ClassChoice(name, wish, taken.level, why))
    return tuple(found)


def _same_place(one: PricedArm, other: PricedArm) -> bool:
    return (one.quorum, one.quorum_kind, one.clients, one.route, one.parameters) == (
        other.quorum,
        other.quorum_kind,
        other.clients,
        other.route,
        other.parameters,
    )


Against = Sequence[tuple[PricedArm, tuple[Reason, ...]]]


def refusals(against: Against, wish: Requirements, evidence: Evidence, around: Surroundings) -> tuple[Refused, ...]:
    """Each wish that nothing priced meets, alone or together with the rest, and the limit that forbids it."""
    names = dict.fromkeys(r.wish for _, why in against for r in why)
    alone = [name for name in names if all(any(r.wish == name for r in why) for _, why in against)]
    if alone:
        return tuple(_refused(name, against, evidence, around) for name in alone)
    # No single wish is impossible: the one to give up is that whose relaxing is the smallest.
    arm, why = min(against, key=lambda pair: (sum(r.short for r in pair[1]), repr(pair[0])))
    under_rpo = [pair for pair in against if not any(r.wish.startswith("--rpo") for r in pair[1])]
    limit = "; ".join(r.why for r in why)
    if under_rpo and wish.rpo_s == 0 and wish.max_commit_latency_ms is not None:
        limit += _round_trip(around, wish.max_commit_latency_ms)
    return (Refused(" ".join(names), f"no configuration priced meets them together: {limit}", _nearest(arm)),)


def _nearest(arm: PricedArm) -> str:
    quorum = f" {arm.quorum_kind} {arm.quorum}" if guards(arm) else ""
    return (
        f"{effective(arm)}{quorum} at {arm.clients} clients: {arm.tps.value:.0f} transactions/s "
        f"({arm.tps.low:.0f} to {arm.tps.high:.0f}), p95 {arm.p95_ms.value:.1f} ms "
        f"({arm.p95_ms.low:.1f} to {arm.p95_ms.high:.1f})"
    )


def _round_trip(around: Surroundings, most_ms: float) -> str:
    if around.rtt_ms is not None and around.rtt_ms >= most_ms:
        return f"; a commit that waits for another member takes at least one round trip, {around.rtt_ms:g} ms"
    return ""


def _refused(name: str, against: Against, evidence: Evidence, around: Surroundings) -> Refused:
    if name.startswith("--rto"):
        least = fastest(evidence.place)
        if least is None:
            limit = "nobody promotes a standby here: there is no manager of failover"
            return Refused(name, limit, "run the cluster under Patroni: 23 s is its shortest worst case")
        limit = f"Patroni's ttl cannot go under 20 s: a leader that vanishes is replaced after up to {least:g} s"
        return Refused(name, limit, f"--rto {least:g}s (ttl 20, loop_wait 1, retry_timeout 3)")
    arm, why = min(
        ((a, next(r for r in w if r.wish == name)) for a, w in against), key=lambda pair: (pair[1].short, repr(pair[0]))
    )
    if name.startswith("--min-tps"):
        limit = (
            f"processors and disk: the most measured at any level is {why.why}, {arm.busy:.0%} of the processors busy"
        )
        return Refused(name, limit, _nearest(arm))
    if name.startswith("--max-commit-latency"):
        most = float(name.removesuffix("ms").split()[-1])
        return Refused(name, f"the quickest measured: {why.why}" + _round_trip(around, most), _nearest(arm))
    if name == "--read-your-writes":
        if arm.level is Level.REMOTE_APPLY:
            nearest = f"price it with --levels remote_apply --quorum all, or read on the leader; now: {_nearest(arm)}"
        else:
            nearest = "read on the leader, or price remote_apply with --quorum all"
        return Refused(name, why.why, nearest)
    return Refused(name, why.why, "price remote levels with standbys named (walproof doctor says whether they are)")
