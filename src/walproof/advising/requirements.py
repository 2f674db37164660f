"""What is required, as typed, and whether a priced arm meets it: reasons against it, assumptions, trade-offs. Pure.

A forecast of a year speaks for or against an arm too: availability and P(loss). A loss is judged by the structure: that
takeovers keep what the manual promises is an assumption, and named as one together with what the drills do not
exclude."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from walproof.advising.failover_timeouts import rto_assumptions, shortest_rto
from walproof.advising.proof import effective_level, leader_drills, refuting, undecided, waits_for_standby
from walproof.errors import UsageError
from walproof.model.advice import Evidence, PricedArm, Refused, Requirements, YearlyRisk
from walproof.model.guarantee import Level, level
from walproof.model.units import counted, duration_s

EXAMPLE = "--class payments:rpo=0 --class logs:rpo=1s"


def _typed_rto(text: str) -> float:
    seconds = duration_s(text)
    if seconds <= 0:
        raise UsageError("no failover takes no time at all", "--rto 30s")
    return seconds


def _number(text: str, valid: Callable[[float], bool], wrong: str, example: str) -> float:
    """The number in that text; UsageError with that sentence where it is none or not a valid one."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not valid(number):
        raise UsageError(wrong, example)
    return number


def _typed_tps(text: str) -> float:
    wrong = f"{text!r} is not a number of transactions per second"
    return _number(text, lambda n: 0 <= n < math.inf, wrong, "--min-tps 2000")


def _availability(text: str) -> float:
    wrong = f"an availability of {text} is not valid: it is a percentage below 100, as every cluster stops some time"
    return _number(text.removesuffix("%").strip(), lambda n: 0 < n / 100 < 1, wrong, "--availability 99.99") / 100


def _loss_per_year(text: str) -> float:
    wrong = f"a loss per year of {text} is not valid: it is a probability above 0, as no cluster excludes a loss, "
    wrong += "and below 1"
    return _number(text, lambda n: 0 < n < 1, wrong, "--loss-per-year 1e-6")


REQUIREMENTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "rpo": ("rpo_s", duration_s),
    "rto": ("rto_s", _typed_rto),
    "max-commit-latency": ("max_commit_latency_ms", lambda text: 1000 * duration_s(text)),
    "min-tps": ("min_tps", _typed_tps),
    "read-your-writes": ("read_your_writes", lambda text: text.lower() in ("", "true", "yes", "on")),
    "availability": ("availability", _availability),
    "loss-per-year": ("loss_per_year", _loss_per_year),
    "level": ("level", level),
}
"""By its name: the field of Requirements, and how its text is read."""


def requirements_of(options: Iterable[tuple[str, str]]) -> Requirements:
    """The requirements in (name, text) pairs; UsageError lists the names there are.

    >>> requirements_of([("rpo", "0"), ("max-commit-latency", "10ms")]).text
    '--rpo 0s --max-commit-latency 10ms'
    """
    fields: dict[str, Any] = {}
    for name, text in options:
        if name not in REQUIREMENTS:
            raise UsageError(f"{name!r} is not a requirement", f"the requirements are {', '.join(REQUIREMENTS)}")
        field, read = REQUIREMENTS[name]
        fields[field] = read(text)
    return Requirements(**fields)


def class_of(text: str) -> tuple[str, Requirements]:
    """The name of a class of transactions and its requirements; UsageError when it is not written as such.

    >>> class_of("logs:rpo=1s")[1].rpo_s
    1.0
    """
    name, colon, rest = text.partition(":")
    if not name.strip() or not colon or not rest.strip():
        raise UsageError(f"{text!r} is not a class and its requirements", f"write it like {EXAMPLE}")
    pairs = [(key.strip(), value.strip()) for key, _, value in (part.partition("=") for part in rest.split(","))]
    required = requirements_of(pairs)
    if required.rto_s is not None:
        raise UsageError("an RTO is the cluster's, not one class's", "give --rto next to the classes")
    if required.of_a_year:
        raise UsageError("a year is forecast for the cluster, not for one class", "give it next to the classes")
    return name.strip(), required


def classes_of(texts: Iterable[str]) -> tuple[tuple[str, Requirements], ...]:
    """Every class; UsageError for a name that is given twice."""
    classes = tuple(class_of(text) for text in texts)
    for name, times in Counter(name for name, _ in classes).items():
        if times > 1:
            raise UsageError(f"the class {name} is given twice", EXAMPLE)
    return classes


CRASH_LOSS_OFF_S = 0.6
"""Level off loses up to 3 × wal_writer_delay (200 ms): PostgreSQL manual, wal-async-commit."""
ASSUMED_LAG_S = 1.0
"""How far an asynchronous standby is assumed to lag when no drill shows it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an arm does not meet one requirement, and by how much (0: just, 1: by as much as the requirement itself)."""

    requirement: str
    why: str
    shortfall: float


def reasons(arm: PricedArm, required: Requirements, evidence: Evidence) -> tuple[Reason, ...]:
    against = (
        _level(arm, required),
        _rpo(arm, required, evidence),
        _latency(arm, required),
        _tps(arm, required),
        _reads(arm, required, evidence),
        _rto(required, evidence),
    )
    return tuple(r for r in against if r is not None)


def _level(arm: PricedArm, required: Requirements) -> Reason | None:
    if required.level in (None, effective_level(arm)):
        return None
    return Reason(f"--level {required.level}", f"{effective_level(arm)} was priced, not {required.level}", 1.0)


def _rpo(arm: PricedArm, required: Requirements, evidence: Evidence) -> Reason | None:
    rpo_s = required.rpo_s
    if rpo_s is None:
        return None
    name, level = f"--rpo {rpo_s:g}s", effective_level(arm)
    if waits_for_standby(arm):
        broken = refuting(arm, evidence)
        return None if broken is None else Reason(name, f"{broken.level}: {broken.text} ({broken.record})", 1.0)
    if rpo_s == 0:
        if arm.level.remote:
            return Reason(name, f"{arm.level} was priced with empty standby names, where it means local", 1.0)
        return Reason(name, f"{arm.level} keeps acknowledged commits on the leader only", 1.0)
    seen = [rpo for d in leader_drills(evidence, level) for rpo in d.rpo_s]
    if seen and max(seen) > rpo_s:
        worst = max(seen)
        return Reason(name, f"{level} lost up to {worst:.1f} s of commits in drills", worst / rpo_s - 1)
    least = (CRASH_LOSS_OFF_S if level is Level.OFF else 0.0) + (0.0 if seen else ASSUMED_LAG_S)
    if rpo_s < least:
        return Reason(name, f"{level} may lose about {least:g} s with the leader", least / rpo_s - 1)
    return None


def _latency(arm: PricedArm, required: Requirements) -> Reason | None:
    most = required.max_commit_latency_ms
    if most is None or arm.p95_ms.value <= most:
        return None
    why = f"{_at_clients(arm)}: p95 {arm.p95_ms.value:.1f} ms"
    return Reason(f"--max-commit-latency {most:g}ms", why, arm.p95_ms.value / max(most, 1e-9) - 1)


def _tps(arm: PricedArm, required: Requirements) -> Reason | None:
    if required.min_tps is None or arm.tps.value >= required.min_tps:
        return None
    why = f"{_at_clients(arm)}: {arm.tps.value:.0f} transactions/s"
    return Reason(f"--min-tps {required.min_tps:g}", why, required.min_tps / max(arm.tps.value, 1e-9) - 1)


def _at_clients(arm: PricedArm) -> str:
    return f"{arm.level} at {counted(arm.clients, 'client')}"


def _reads(arm: PricedArm, required: Requirements, evidence: Evidence) -> Reason | None:
    if not required.read_your_writes:
        return None
    standbys = evidence.cluster.standbys
    if arm.level is not Level.REMOTE_APPLY or arm.quorum == 0:
        why = f"{effective_level(arm)} does not wait until a standby shows the commit"
        return Reason("--read-your-writes", why, 1.0)
    if arm.quorum < standbys:
        why = f"{arm.quorum} of {standbys} standbys have applied it: a read on another one is stale"
        return Reason("--read-your-writes", why, (standbys - arm.quorum) / standbys)
    return None


def _rto(required: Requirements, evidence: Evidence) -> Reason | None:
    if required.rto_s is None:
        return None
    name, shortest = f"--rto {required.rto_s:g}s", shortest_rto(evidence)
    if shortest is None:
        return Reason(name, "there is no failover manager to promote a standby", 1.0)
    if required.rto_s >= shortest.seconds:
        return None
    return Reason(name, shortest.limit, shortest.seconds / required.rto_s - 1)


def interval_risks(arm: PricedArm, required: Requirements) -> tuple[str, ...]:
    """Requirements that the prediction meets and an end of its interval does not."""
    risks = []
    if required.max_commit_latency_ms is not None and arm.p95_ms.high > required.max_commit_latency_ms:
        risks.append(f"p95 stays in the lower part of its interval (it may reach {arm.p95_ms.high:.1f} ms)")
    if required.min_tps is not None and arm.tps.low < required.min_tps:
        risks.append(f"throughput stays in the upper part of its interval (it may fall to {arm.tps.low:.0f}/s)")
    return tuple(risks)


def assumptions(arm: PricedArm, required: Requirements, evidence: Evidence) -> tuple[str, ...]:
    """What is assumed: survival without drills, ends of intervals that meet, spread between runs never seen."""
    level, assumed = effective_level(arm), []
    drills = leader_drills(evidence, level)
    if waits_for_standby(arm) and undecided(arm, evidence):
        assumed.append(f"{level} survives the loss of the leader (no drill decides it)")
    if not waits_for_standby(arm) and required.rpo_s and not drills:
        assumed.append(
            f"standbys are less than {ASSUMED_LAG_S:g} s behind when the leader is lost (no drill in the records)"
        )
    assumed += interval_risks(arm, required)
    if required.rto_s is not None:
        assumed += rto_assumptions(required.rto_s, evidence, drills)
    if arm.runs < 2:
        assumed.append("another run differs from the one recorded by about 10 % (only one was recorded)")
    return tuple(assumed)


def trade_offs(arm: PricedArm, evidence: Evidence, strict: bool) -> tuple[str, ...]:
    """What this configuration does not give, worst first."""
    level, standbys = effective_level(arm), evidence.cluster.standbys
    unreplicated = (
        "with the leader everything not yet streamed is lost; a partitioned leader goes on acknowledging until its ttl"
    )
    losses = {
        Level.OFF: [
            f"a crash of PostgreSQL alone loses up to {CRASH_LOSS_OFF_S:g} s of acknowledged commits",
            unreplicated,
        ],
        Level.LOCAL: [unreplicated],
        Level.REMOTE_WRITE: ["loss of the leader together with a power cut on the standby loses acknowledged commits"],
        Level.ON: [],
        Level.REMOTE_APPLY: ["a long query on a standby can freeze every commit (max_standby_streaming_delay)"],
    }[level]
    if waits_for_standby(arm):
        one = arm.quorum == 1
        if strict:
            needed = "no standby streams" if one else f"fewer than {arm.quorum} standbys stream"
            losses.append(f"writes stop while {needed}")
            if standbys and (able := evidence.cluster.able) <= arm.quorum:
                may = f"with {counted(able, 'standby')} that may answer"
                losses.append(f"{may} and {arm.quorum} needed, any one's restart stops writes")
        else:
            losses.append("when the last standby disconnects, commits silently become local")
        answered = "standby" if one else f"{arm.quorum} standbys"
        losses.append(f"losing the leader together with the {answered} that answered loses commits")
    if level is not Level.REMOTE_APPLY or arm.quorum < standbys:
        losses.append("reads on a standby may be stale")
    return tuple(losses)


def yearly_risks(arm: PricedArm, required: Requirements, evidence: Evidence) -> tuple[YearlyRisk, ...]:
    """Forecasts of the arm's configuration: strict and degrading, strict alone where nothing may be lost."""
    waits = waits_for_standby(arm)
    key = (effective_level(arm), arm.quorum_kind if waits else None, arm.quorum if waits else 0)
    of_arm = (y for y in evidence.years if (y.level, y.quorum_kind, y.quorum) == key)
    return tuple(y for y in of_arm if y.strict or not (waits and required.rpo_s == 0))


def best_year(arm: PricedArm, required: Requirements, evidence: Evidence) -> YearlyRisk | None:
    """The forecast nearest to what is required, with the smaller loss; None without a forecast."""
    return min(
        yearly_risks(arm, required, evidence),
        key=lambda y: (sum(r.shortfall for r in _unmet(arm, y, required)), y.structural.value, -y.availability.value),
        default=None,
    )


def yearly_reasons(arm: PricedArm, required: Requirements, evidence: Evidence) -> tuple[Reason, ...]:
    """Why the arm's year does not do."""
    if not required.of_a_year:
        return ()
    year = best_year(arm, required, evidence)
    if year is None:
        words = Requirements(availability=required.availability, loss_per_year=required.loss_per_year).text
        return (Reason(words, f"{arm.level} has no forecast", 1.0),)
    return _unmet(arm, year, required)


def _unmet(arm: PricedArm, year: YearlyRisk, required: Requirements) -> tuple[Reason, ...]:
    unmet, why = [], f"{_named(arm, year)}: {year.text}"
    if required.availability is not None and year.availability.value < required.availability:
        shortfall = (1 - year.availability.value) / (1 - required.availability) - 1
        unmet.append(Reason(Requirements(availability=required.availability).text, why, shortfall))
    if required.loss_per_year is not None and year.structural.value > required.loss_per_year:
        shortfall = year.structural.value / required.loss_per_year - 1
        unmet.append(Reason(Requirements(loss_per_year=required.loss_per_year).text, why, shortfall))
    return tuple(unmet)


def _named(arm: PricedArm, year: YearlyRisk) -> str:
    mode = " strict" if year.strict else " degrading"
    return f"{year.level}{f' {arm.quorum_kind} {arm.quorum}{mode}' if year.quorum else ''}"


def yearly_interval_risks(year: YearlyRisk | None, required: Requirements) -> tuple[str, ...]:
    """Requirements that the forecast meets and an end of its interval does not."""
    risks = []
    if year and required.availability is not None and year.availability.low < required.availability:
        risks.append(
            "the year is in the better part of its interval (availability may fall to "
            f"{100 * year.availability.low:.6g} %)"
        )
    if year and required.loss_per_year is not None and year.structural.high > required.loss_per_year:
        risks.append(f"rates are in the lower part of their ranges (P(loss) may reach {year.structural.high:.2g})")
    return tuple(risks)


def yearly_assumptions(year: YearlyRisk | None, required: Requirements) -> tuple[str, ...]:
    """What the forecast assumes, and what the drills do not exclude."""
    if year is None:
        return ()
    assumed = ["failures come at the rates of the failures file (walproof forecast lists them with their sources)"]
    if required.loss_per_year is not None and year.p_loss.value > required.loss_per_year:
        assumed.append(
            "takeovers lose nothing where they promise it: the drills alone do not exclude a loss in "
            f"{year.p_loss.value:.2g} of years (more drills: walproof prove --until-bound)"
        )
    return tuple(assumed)


def refused_year(name: str, arm: PricedArm, why: str, required: Requirements, evidence: Evidence) -> Refused:
    """A requirement on the year that nothing priced meets, and the nearest that is possible."""
    year = best_year(arm, required, evidence)
    if year is None:
        return Refused(name, why, "prove its level: walproof prove --fault kill,isolate,power-cut")
    nearest = (
        f"--availability {100 * year.availability.value:.4f}"
        if required.availability is not None and year.availability.value < required.availability
        else f"--loss-per-year {year.structural.value:.2g}"
    )
    limit = f"the nearest forecast of what was priced is {why}"
    return Refused(name, limit, f"{nearest} with {_named(arm, year)}; more zones or members (--layout) change it")
