"""What `observe --require` asks of commit waits, and the answers that the intervals give. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from walproof.errors import UsageError
from walproof.estimating.observed_waits import Cause, Observation
from walproof.model.estimate import Estimate
from walproof.model.units import duration_s
from walproof.pricing.results_and_gate import Answer

_MEASURES: dict[str, Callable[[Observation], Estimate]] = {
    "commit-wait": lambda made: made.total,
    "flush-wait": lambda made: made.causes[Cause.FLUSH],
    "standby-wait": lambda made: made.standby,
    "lock-wait": lambda made: made.causes[Cause.LOCKS],
}


@dataclass(frozen=True, slots=True)
class WaitRequirement:
    """Milliseconds per commit that a measure may have at most."""

    measure: str
    limit_ms: float

    @property
    def text(self) -> str:
        return f"{self.measure}<={self.limit_ms:g}ms"


@dataclass(frozen=True, slots=True)
class WaitRequired:
    """A requirement with its answer and the milliseconds it is decided by."""

    requirement: WaitRequirement
    answer: Answer
    ms: Estimate

    @property
    def text(self) -> str:
        interval = f" ({self.ms.low:.2f}–{self.ms.high:.2f})" if self.ms.known else ""
        return f"{self.answer}: {self.requirement.text}: {self.ms.value:.2f} ms{interval}"


def parse_wait_requirements(text: str | None) -> tuple[WaitRequirement, ...]:
    """The requirements as typed; UsageError for what is not valid.

    >>> [one.text for one in parse_wait_requirements("commit-wait<=5ms, lock-wait <= 1s")]
    ['commit-wait<=5ms', 'lock-wait<=1000ms']
    """
    return () if text is None else tuple(_requirement(part.strip()) for part in text.split(","))


def _requirement(text: str) -> WaitRequirement:
    match = re.fullmatch(r"([a-z-]+)\s*<=\s*(\S+)", text)
    if match is None or match[1] not in _MEASURES:
        raise UsageError(
            f"{text!r} is not a requirement of a wait", f"{' or '.join(_MEASURES)}: --require 'commit-wait<=5ms'"
        )
    return WaitRequirement(match[1], round(1000 * duration_s(match[2]), 6))


def wait_required(requirement: WaitRequirement, made: Observation) -> WaitRequired:
    """The answer: met or not where the whole interval says so; commits that hang are not met; none seen is open."""
    ms = _MEASURES[requirement.measure](made)
    if ms.value == float("inf"):
        return WaitRequired(requirement, Answer.NOT_MET, ms)
    if made.commits_per_s.value == 0 or not ms.known:
        return WaitRequired(requirement, Answer.UNDECIDED, ms)
    if ms.high <= requirement.limit_ms:
        return WaitRequired(requirement, Answer.MET, ms)
    return WaitRequired(requirement, Answer.NOT_MET if ms.low > requirement.limit_ms else Answer.UNDECIDED, ms)
