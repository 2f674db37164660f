"""`--require on>=0.9@16`: whether throughput ratios are at least what is required, decided by their intervals."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from walproof.errors import UsageError
from walproof.model.estimate import Caveat, Estimate
from walproof.model.guarantee import level
from walproof.model.plan import Arm
from walproof.model.units import counted, parse_positive_int
from walproof.pricing.as_json import interval
from walproof.pricing.estimates import UNKNOWN, ArmPrice, PriceTable
from walproof.pricing.options import PriceOptions, RawOptions

MIX = "mix"
_EXAMPLE = "--require 'on>=0.9@16,remote_apply>=0.8'"


class Answer(StrEnum):
    """What the interval says of a requirement."""

    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"


EXIT = {Answer.MET: 0, Answer.NOT_MET: 1, Answer.UNDECIDED: 4}


@dataclass(frozen=True, slots=True)
class Requirement:
    """The level's throughput ratio is at least this, with that many clients, or with every number of them (None)."""

    level: str
    ratio: float
    clients: int | None = None

    def concerns(self, arm: Arm) -> bool:
        """Whether it is about that arm; never about the baseline against itself, or open loops of --load."""
        name = MIX if arm.mix else str(arm.level)
        return name == self.level and not arm.label and self.clients in (None, arm.clients)

    @property
    def text(self) -> str:
        """As it is typed."""
        return f"{self.level}>={self.ratio:g}" + ("" if self.clients is None else f"@{self.clients}")


@dataclass(frozen=True, slots=True)
class Required:
    """A requirement with its answer for one arm under one scenario: the ratio it is decided by, and why it is open."""

    requirement: Requirement
    answer: Answer
    ratio: Estimate
    clients: int | None = None
    scenario: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """One line."""
        where = "" if self.clients is None else f", {counted(self.clients, 'client')}, {self.scenario}"
        found = f": ratio {self.ratio.value:.3f} ({self.ratio.low:.3f}–{self.ratio.high:.3f})" if self.clients else ""
        return f"{self.answer}: {self.requirement.text}{where}{found}{f'; {self.why}' if self.why else ''}"


def parse_requirements(text: object) -> tuple[Requirement, ...]:
    """The requirements as typed, none when none are; UsageError for what is not valid.

    >>> [one.text for one in parse_requirements("on>=0.9@16, remote_apply >= 80%")]
    ['on>=0.9@16', 'remote_apply>=0.8']
    """
    return () if text is None else tuple(_requirement(part.strip()) for part in str(text).split(","))


def _requirement(text: str) -> Requirement:
    match = re.fullmatch(r"(\w+)\s*>=\s*(\d+(?:\.\d+)?)\s*(%?)\s*(?:@\s*(\S+))?", text)
    if match is None:
        raise UsageError(f"{text!r} is not a requirement of a throughput ratio", _EXAMPLE)
    name = MIX if match[1] == MIX else str(level(match[1]))
    clients = None if match[4] is None else parse_positive_int(match[4], "number of clients")
    return Requirement(name, float(match[2]) / (100 if match[3] else 1), clients)


def requirements_of(raw: RawOptions, options: PriceOptions) -> tuple[Requirement, ...]:
    """The requirements of a run; UsageError when one concerns nothing that it would measure."""
    requirements = parse_requirements(raw.get("require"))
    if requirements and (options.tune or options.break_even):
        raise UsageError("a search measures no ratio that --require could decide", "leave --require out")
    for one in requirements:
        if not any(one.concerns(arm) for arm in options.grid.arms):
            raise UsageError(
                f"--require {one.text} concerns nothing that this run measures", "see --levels and --clients"
            )
    return requirements


def required(requirements: Sequence[Requirement], table: PriceTable) -> tuple[Required, ...]:
    """Each requirement with its answer for every arm it concerns; undecided where none was measured."""
    found: list[Required] = []
    for one in requirements:
        concerned = [price for price in table.arms if one.concerns(price.arm)]
        found += [_judged(one, price) for price in concerned]
        if not concerned:
            found.append(Required(one, Answer.UNDECIDED, UNKNOWN, why="nothing of it was measured"))
    return tuple(found)


def _judged(one: Requirement, price: ArmPrice) -> Required:
    where = (price.ratio, price.arm.clients, price.scenario.text)
    if Caveat.NOT_IN_EFFECT in price.caveats:
        return Required(one, Answer.UNDECIDED, *where, str(Caveat.NOT_IN_EFFECT))
    if not price.ratio.known:
        return Required(one, Answer.UNDECIDED, *where, "one block has no interval")
    if price.ratio.low >= one.ratio:
        return Required(one, Answer.MET, *where)
    if price.ratio.high < one.ratio:
        return Required(one, Answer.NOT_MET, *where)
    return Required(
        one, Answer.UNDECIDED, *where, "the interval holds both; more --budget or a finer --precision narrows it"
    )


def exit_code(found: Sequence[Required]) -> int:
    """0 when every requirement is met, 1 when one is not, else 4."""
    answers = {one.answer for one in found}
    return EXIT[next((a for a in (Answer.NOT_MET, Answer.UNDECIDED) if a in answers), Answer.MET)]


def required_as_json(found: Sequence[Required]) -> list[dict[str, Any]]:
    """One object a line."""
    return [
        {
            "requirement": one.requirement.text,
            "answer": str(one.answer),
            "ratio": interval(one.ratio),
            "clients": one.clients,
            "scenario": one.scenario or None,
            "why": one.why or None,
        }
        for one in found
    ]
