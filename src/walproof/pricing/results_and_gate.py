"""A price table as `walproof price --json` prints it, its conclusion in one sentence, and `--require on>=0.9@16`.

Whether throughput ratios are at least what is required, and waits of `observe` at most, is decided by their intervals;
so is the exit code: 0, 1, 4."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from walproof.errors import ExitCode, UsageError
from walproof.estimating.observed_waits import Cause, Observation
from walproof.model.estimate import Caveat, Estimate
from walproof.model.guarantee import Level, level
from walproof.model.sample import Arm
from walproof.model.units import counted, duration_s, parse_positive_int
from walproof.pricing.estimates import UNKNOWN, ArmPrice, ClassPrice, Latency, PriceTable
from walproof.pricing.sampling import AGAIN

NAMES = ("mean", "p50", "p95", "p99", "p999")
"""Of latencies, as keys; p999 is the 99.9th percentile."""


def table_as_json(table: PriceTable, record: str | None) -> dict[str, Any]:
    """{"record", "baseline", "stopped_by", "arms": […]}; "left_out" too where a scenario could not be had.

    "not_in_effect" too, where arms did not run at their level.
    """
    left_out = [{"scenario": one.scenario.text, "reason": one.reason} for one in table.left_out]
    return {
        "record": record,
        "baseline": str(table.baseline),
        "stopped_by": table.stopped_by,
        "arms": [arm_as_json(price) for price in table.arms],
        **({"left_out": left_out} if left_out else {}),
        **({"not_in_effect": list(table.not_in_effect)} if table.not_in_effect else {}),
    }


def arm_as_json(price: ArmPrice) -> dict[str, Any]:
    """One arm: the keys of the schema first, then the factors it was measured under."""
    return {
        **_arm(price.arm),
        "blocks": price.blocks,
        "tps": interval(price.tps),
        "ratio": interval(price.ratio),
        "latency_ms": _values(price.latency),
        "caveats": [str(caveat) for caveat in price.caveats],
        "scenario": price.scenario.text,
        "transactions": price.transactions,
        "failed": price.failed,
        "retries": price.retries,
        "latency_interval_ms": _intervals(price.latency),
        "classes": [_class(c) for c in price.classes],
        "without_stalls": interval(price.without_stalls),
        "stalled_s": number(price.stalled_s),
        "measured_s": number(price.measured_s),
        "wal_bytes_per_transaction": number(price.wal_bytes),
        "full_pages_per_transaction": number(price.full_pages),
    }


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "level": str(arm.level),
        "clients": arm.clients,
        "label": arm.label,
        "workload": arm.workload.text,
        "manner": arm.workload.manner,
        "scale": arm.workload.scale,
        "route": str(arm.route),
        "pool": arm.pool,
        "rate": arm.rate,
        "mix": {str(level): weight for level, weight in arm.mix},
    }


def _class(priced: ClassPrice) -> dict[str, Any]:
    return {
        "level": priced.level,
        "tps": interval(priced.tps),
        "latency_ms": _values(priced.latency),
        "latency_interval_ms": _intervals(priced.latency),
    }


def interval(estimate: Estimate) -> dict[str, float]:
    """{"value", "low", "high"}."""
    return {name: number(value) for name, value in asdict(estimate).items()}


def number(value: float) -> float:
    """The number to six significant digits."""
    return float(f"{value:.6g}")


def _values(latency: Latency) -> dict[str, float]:
    values = {name: number(getattr(latency, name).value) for name in NAMES}
    return {**values, "max": number(latency.max_ms)}


def _intervals(latency: Latency) -> dict[str, dict[str, float]]:
    return {name: interval(getattr(latency, name)) for name in NAMES}


def conclusion(table: PriceTable) -> str:
    """What `on` (else the strongest level) costs with the fewest and the most clients; or that nothing was measured.

    Where an arm did not run at its level, it is that alone: nothing is divided by it, and it by nothing.
    """
    if table.not_in_effect:
        return " ".join(table.not_in_effect)
    priced = [p for p in table.arms if math.isfinite(p.ratio.value) and p.arm.rate is None]
    again = next((p for p in priced if p.arm.label == AGAIN), None)
    if again is not None:
        covers = "covers 1, as it should" if again.ratio.covers(1.0) else "does not cover 1: this machine is not steady"
        return f"{table.baseline} against itself: {_ratio(again, table)}, which {covers}."
    others = [p for p in priced if p.arm.level is not table.baseline or p.arm.mix]
    if not others:
        return _alone(table)
    levels = [p for p in others if not p.arm.mix] or others
    strongest = max(levels, key=lambda p: (p.arm.level is Level.ON, p.arm.level.strength)).arm
    shown = [p for p in levels if p.arm.level is strongest.level and p.scenario == levels[0].scenario]
    ends = {p.arm.clients: p for p in sorted(shown, key=lambda p: p.arm.clients)}
    fewest, most = next(iter(ends)), next(reversed(ends))
    name = "this mix" if strongest.mix else f"the level {strongest.level}"
    parts = [_cost(ends[clients], table, clients == fewest) for clients in dict.fromkeys((fewest, most))]
    both = ", each of the two comparisons at 95 %" if len(parts) > 1 else ""
    return f"{name[:1].upper()}{name[1:]} {'; '.join(parts)}{both}."


def _cost(price: ArmPrice, table: PriceTable, first: bool) -> str:
    """What the arm costs of the baseline's throughput with its clients, and whether that may be nothing."""
    cost = 1 - price.ratio.value
    verb = "costs" if cost >= 0 else "gains"
    of = f" of {table.baseline}'s throughput" if first else ""
    clear = ", which may be nothing" if price.ratio.covers(1.0) or not price.ratio.known else ""
    clients = counted(price.arm.clients, "client")
    return f"{verb} {100 * abs(cost):.0f} %{of} with {clients}{clear} ({_ratio(price, table)})"


def _alone(table: PriceTable) -> str:
    if not table.arms or not math.isfinite(table.arms[0].tps.value):
        why = "; ".join(one.text for one in table.left_out)
        return f"Nothing was measured{f': {why}' if why else ''}."
    best = max(table.arms, key=lambda p: p.tps.value)
    return f"{best.arm.level} with {counted(best.arm.clients, 'client')}: {best.tps.value:.0f} transactions per second."


def _ratio(price: ArmPrice, table: PriceTable) -> str:
    ratio = price.ratio
    interval = f"95 % CI {ratio.low:.3f}–{ratio.high:.3f}" if ratio.known else "no interval from one block"
    return f"ratio to {table.baseline} {ratio.value:.3f}, {interval}"


MIX = "mix"
_EXAMPLE = "--require 'on>=0.9@16,remote_apply>=0.8'"
_WAITS: dict[str, Callable[[Observation], Estimate]] = {
    "commit-wait": lambda made: made.commit_wait_ms,
    "flush-wait": lambda made: made.causes_ms[Cause.FLUSH],
    "standby-wait": lambda made: made.standby_wait_ms,
    "lock-wait": lambda made: made.causes_ms[Cause.LOCKS],
}
"""What `observe --require` may limit, in ms per commit."""


class Answer(StrEnum):
    """What the interval says of a requirement."""

    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A level's throughput ratio is at least this, with that many clients, or with every number of them (None).

    Or, where the sign is <=, a commit waits that many milliseconds at most.
    """

    name: str
    limit: float
    clients: int | None = None
    sign: str = ">="

    def concerns(self, arm: Arm) -> bool:
        """Whether it is about that arm; never about the baseline against itself, or open loops of --load."""
        name = MIX if arm.mix else str(arm.level)
        return name == self.name and not arm.label and self.clients in (None, arm.clients)

    def answer(self, estimate: Estimate) -> Answer:
        """Met or not where the whole interval says so."""
        sign = 1 if self.sign == ">=" else -1
        nearest, farthest = sorted((sign * estimate.low, sign * estimate.high))
        if not estimate.known or nearest < sign * self.limit <= farthest:
            return Answer.UNDECIDED
        return Answer.MET if nearest >= sign * self.limit else Answer.NOT_MET

    @property
    def text(self) -> str:
        clients = "" if self.clients is None else f"@{self.clients}"
        return f"{self.name}{self.sign}{self.limit:g}{'ms' if self.sign == '<=' else clients}"


@dataclass(frozen=True, slots=True)
class Required:
    """A requirement with its answer for one arm under one scenario, or for what was observed; why it is open.

    estimate: the ratio it is decided by, or the ms.
    """

    requirement: Requirement
    answer: Answer
    estimate: Estimate
    clients: int | None = None
    scenario: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """One line."""
        of = self.estimate
        where = "" if self.clients is None else f", {counted(self.clients, 'client')}, {self.scenario}"
        interval = f" ({of.low:.3f}–{of.high:.3f})" if of.known else ""
        figure = f": {of.value:.3f} ms{interval}" if self.requirement.sign == "<=" else ""
        figure = f": ratio {of.value:.3f}{interval}" if self.clients else figure
        return f"{self.answer}: {self.requirement.text}{where}{figure}{f'; {self.why}' if self.why else ''}"


def parse_requirements(text: object, *, waits: bool = False) -> tuple[Requirement, ...]:
    """The requirements as typed, of throughput ratios or of waits, none when none are; UsageError where not valid.

    >>> [one.text for one in parse_requirements("on>=0.9@16, remote_apply >= 80%")]
    ['on>=0.9@16', 'remote_apply>=0.8']
    >>> [one.text for one in parse_requirements("commit-wait<=5ms, lock-wait <= 1s", waits=True)]
    ['commit-wait<=5ms', 'lock-wait<=1000ms']
    """
    read = _wait_requirement if waits else _requirement
    return () if text is None else tuple(read(part.strip()) for part in str(text).split(","))


def _requirement(text: str) -> Requirement:
    match = re.fullmatch(r"(\w+)\s*>=\s*(\d+(?:\.\d+)?)\s*(%?)\s*(?:@\s*(\S+))?", text)
    if match is None:
        raise UsageError(f"{text!r} is not a requirement of a throughput ratio", _EXAMPLE)
    name = MIX if match[1] == MIX else str(level(match[1]))
    clients = None if match[4] is None else parse_positive_int(match[4], "number of clients")
    return Requirement(name, float(match[2]) / (100 if match[3] else 1), clients)


def _wait_requirement(text: str) -> Requirement:
    name, _, limit = (part.strip() for part in text.partition("<="))
    if name not in _WAITS or not limit:
        raise UsageError(
            f"{text!r} is not a requirement of a wait", f"{' or '.join(_WAITS)}: --require 'commit-wait<=5ms'"
        )
    return Requirement(name, round(1000 * duration_s(limit), 6), sign="<=")


def waits_required(requirements: Sequence[Requirement], made: Observation) -> tuple[Required, ...]:
    """Each requirement of a wait with its answer: commits that hang do not meet it, none seen leaves it open."""
    judged = []
    for one in requirements:
        ms = _WAITS[one.name](made)
        answer = Answer.UNDECIDED if made.commits_per_s.value == 0 else one.answer(ms)
        judged.append(Required(one, Answer.NOT_MET if math.isinf(ms.value) else answer, ms))
    return tuple(judged)


def required(requirements: Sequence[Requirement], table: PriceTable) -> tuple[Required, ...]:
    """Each requirement with its answer for every arm it concerns; undecided where none was measured."""
    judged: list[Required] = []
    for one in requirements:
        concerned = [price for price in table.arms if one.concerns(price.arm)]
        judged += [_judged(one, price, table) for price in concerned]
        if not concerned:
            judged.append(Required(one, Answer.UNDECIDED, UNKNOWN, why="nothing of it was measured"))
    return tuple(judged)


def _judged(one: Requirement, price: ArmPrice, table: PriceTable) -> Required:
    where = (price.ratio, price.arm.clients, price.scenario.text)
    for caveat in (Caveat.NOT_IN_EFFECT, Caveat.OTHER_LEVEL):
        if caveat in price.caveats:
            return Required(one, Answer.UNDECIDED, *where, str(caveat))
    if table.not_in_effect:
        return Required(one, Answer.UNDECIDED, *where, "what it is divided by did not run at its level")
    if not price.ratio.known:
        return Required(one, Answer.UNDECIDED, *where, "one block has no interval")
    open_ = "the interval holds both; more --budget or a finer --precision narrows it"
    answer = one.answer(price.ratio)
    return Required(one, answer, *where, open_ if answer is Answer.UNDECIDED else "")


def exit_code(judged: Sequence[Required]) -> ExitCode:
    """HELD when every requirement is met, BROKEN when one is not, else UNDECIDED."""
    answers = {one.answer for one in judged}
    if Answer.NOT_MET in answers:
        return ExitCode.BROKEN
    return ExitCode.UNDECIDED if Answer.UNDECIDED in answers else ExitCode.HELD


def required_as_json(judged: Sequence[Required]) -> list[dict[str, Any]]:
    return [
        {
            "requirement": one.requirement.text,
            "answer": str(one.answer),
            "ms" if one.requirement.sign == "<=" else "ratio": interval(one.estimate),
            "clients": one.clients,
            "scenario": one.scenario or None,
            "why": one.why or None,
        }
        for one in judged
    ]
