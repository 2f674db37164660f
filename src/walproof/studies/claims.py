"""A claim of a paper against what was measured: reproduced, not reproduced or undecided. Pure; never measures."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import assert_never

import numpy as np

from walproof.estimating.intervals import change, duration_interval, stopped_interval, upper_bound
from walproof.estimating.ratios import rate_interval, ratio_interval
from walproof.model.drill import Drill
from walproof.model.estimate import Estimate
from walproof.model.event import ClaimJudged, DrillDone, Event, FigureCompared, SampleDone, SampleFailed
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, SampleResult
from walproof.model.units import counted
from walproof.pricing.estimates import Pair, paired_totals, totals
from walproof.pricing.sampling import WARM_BLOCK
from walproof.studies.declaration import (
    ArmNamed,
    Claim,
    CompletesClaim,
    Figure,
    LatencyClaim,
    OrderClaim,
    RatioClaim,
    RecoversClaim,
    StudyPart,
    TrendClaim,
    bounds_text,
)

LONGEST = 20
"""A run more than so many times as long is not proposed."""
SAME = 0.02
"""Levels whose throughputs differ by surely less are as fast as each other."""


class ClaimVerdict(StrEnum):
    """Whether a claim held here."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What was measured for a claim, in a phrase; its verdict, and why."""

    measured: str
    verdict: ClaimVerdict
    why: str


_NOT_MEASURED = ClaimResult("not measured", ClaimVerdict.UNDECIDED, "too few samples of these arms")


class Measured:
    """Samples of a study by arm, drills by part; gives estimates, None where nothing was measured."""

    def __init__(self, events: Sequence[Event], parts: Sequence[StudyPart]) -> None:
        self._parts = {part.name: part for part in parts}
        self._samples: dict[Arm, list[SampleResult]] = defaultdict(list)
        self._failed: dict[Arm, list[Sample]] = defaultdict(list)
        self.drills: dict[str, list[Drill]] = defaultdict(list)
        for event in events:
            if isinstance(event, SampleDone) and event.result.sample.block > WARM_BLOCK:
                # Earlier versions labelled arms with their part's name.
                self._samples[replace(event.result.sample.arm, label="")].append(event.result)
            elif isinstance(event, SampleFailed) and event.sample.block > WARM_BLOCK:
                self._failed[event.sample.arm].append(event.sample)
            elif isinstance(event, DrillDone):
                self.drills[event.drill.evidence.get("part", "")].append(event.drill)

    def samples(self, arm: ArmNamed) -> list[SampleResult]:
        """Every sample of that arm; a factor left out matches any value."""
        part = self._parts[arm.part]
        return [s for s in self._samples[part.arm(arm.level, arm.clients)] if _named_by(arm, part, s.sample)]

    def failed(self, arm: ArmNamed) -> int:
        """How many samples of that arm gave no figures."""
        part = self._parts[arm.part]
        return sum(_named_by(arm, part, s) for s in self._failed[part.arm(arm.level, arm.clients)])

    def ratio(self, of: ArmNamed, to: ArmNamed) -> Estimate | None:
        """Throughput of one arm over another's: paired by block within one scenario, else from independent totals."""
        left, right = self.samples(of), self.samples(to)
        pairs = _paired(left, right)
        if len(pairs) >= 2:
            return ratio_interval(*paired_totals(pairs))
        if len(left) < 2 or len(right) < 2:
            return None
        return change(rate_interval(totals(right)), rate_interval(totals(left)))

    def level_of(self, arm: ArmNamed, unit: str) -> Estimate | None:
        """Throughput in transactions per second or mean latency in ms of one arm; None below two samples."""
        samples = self.samples(arm)
        if len(samples) < 2:
            return None
        if unit == "tps":
            return rate_interval(totals(samples))
        return duration_interval(np.array([s.mean_ms for s in samples]))

    def added_ms(self, of: ArmNamed, to: ArmNamed) -> Estimate | None:
        """Mean latency of one arm less the other's, ms, paired by block; None below two samples of each."""
        left, right = self.samples(of), self.samples(to)
        pairs = _paired(left, right)
        if len(pairs) >= 2:
            return stopped_interval(np.array([a.mean_ms - b.mean_ms for a, b in pairs]))
        if len(left) < 2 or len(right) < 2:
            return None
        a, b = (duration_interval(np.array([s.mean_ms for s in one])) for one in (left, right))
        half = math.hypot(a.half_width, b.half_width)
        return Estimate(a.value - b.value, a.value - b.value - half, a.value - b.value + half)


def _named_by(arm: ArmNamed, part: StudyPart, planned: Sample) -> bool:
    scenario = planned.scenario
    wanted = arm.rtt_ms in (None, scenario.rtt_ms) and arm.cores in (None, scenario.cores)
    return wanted and scenario in part.scenarios()


def _paired(left: Sequence[SampleResult], right: Sequence[SampleResult]) -> list[Pair]:
    """Samples of the same block and scenario, in the order of blocks."""
    others = {(s.sample.scenario, s.sample.block): s for s in right}
    pairs = [(s, others[key]) for s in left if (key := (s.sample.scenario, s.sample.block)) in others]
    return sorted(pairs, key=lambda pair: pair[0].sample.block)


def _text(estimate: Estimate, unit: str = "") -> str:
    return f"{estimate.value:.2f}{unit} ({estimate.low:.2f}–{estimate.high:.2f})"


def _named(of: ArmNamed, to: ArmNamed, sign: str) -> str:
    """The two arms by their levels and what else differs between them."""
    left, right = str(of.level), str(to.level)
    factors = ((of.clients, to.clients, ""), (of.rtt_ms, to.rtt_ms, " ms"), (of.cores, to.cores, " cores"))
    for one, other, unit in factors:
        if one is not None and other is not None and one != other:
            left, right = f"{left} {one:g}{unit}", f"{right} {other:g}{unit}"
    return f"{left}{sign}{right}"


def _within(
    named: str, estimate: Estimate | None, low: float | None, high: float | None, unit: str = ""
) -> ClaimResult:
    """Reproduced when the whole interval lies within the bounds, undecided when it straddles one."""
    if estimate is None:
        return _NOT_MEASURED
    floor, ceiling = -math.inf if low is None else low, math.inf if high is None else high
    text = f"{named} {_text(estimate, unit)}"
    bounds = bounds_text(low, high, unit)
    if floor <= estimate.low and estimate.high <= ceiling:
        return ClaimResult(text, ClaimVerdict.REPRODUCED, f"the whole interval is {bounds}")
    if estimate.high < floor or estimate.low > ceiling:
        return ClaimResult(text, ClaimVerdict.NOT_REPRODUCED, f"the whole interval misses {bounds}")
    longer = max((_times_longer(estimate, b) for b in (floor, ceiling) if estimate.covers(b)), default=math.inf)
    return ClaimResult(text, ClaimVerdict.UNDECIDED, f"the interval straddles {bounds}; {_run_needed(longer)}")


def _times_longer(estimate: Estimate, bound: float) -> float:
    """How many times as long a run takes to tell the estimate from a bound: widths shrink with the root of time."""
    half = estimate.value - estimate.low if estimate.value > bound else estimate.high - estimate.value
    return math.inf if estimate.value == bound else (half / (estimate.value - bound)) ** 2


def _run_needed(longer: float) -> str:
    if not longer <= LONGEST:
        return "too near for any run to decide"
    return f"a run {math.ceil(longer)} times as long would decide it, if the value stays"


def _order(claim: OrderClaim, measured: Measured) -> ClaimResult:
    neighbours = list(pairwise(claim.arms))
    steps = [(a, b, ratio) for a, b in neighbours if (ratio := measured.ratio(a, b)) is not None]
    if len(steps) < len(neighbours):
        return _NOT_MEASURED
    text = ", ".join(f"{a.level}/{b.level} {s.value:.2f}" for a, b, s in steps)
    if all(s.low > 1 for _, _, s in steps):
        return ClaimResult(text, ClaimVerdict.REPRODUCED, "each step is above 1 with its whole interval")
    wrong = [f"{a.level} is slower than {b.level}" for a, b, s in steps if s.high < 1]
    wrong += [
        f"{a.level} is as fast as {b.level} within {SAME:.0%}"
        for a, b, s in steps
        if s.low > 1 - SAME and s.high < 1 + SAME
    ]
    if wrong:
        return ClaimResult(text, ClaimVerdict.NOT_REPRODUCED, "; ".join(wrong))
    open_steps = [(a, b, s) for a, b, s in steps if not s.low > 1]
    names = ", ".join(f"{a.level} from {b.level}" for a, b, _ in open_steps)
    longer = _run_needed(max(_times_longer(s, 1.0) for _, _, s in open_steps))
    return ClaimResult(text, ClaimVerdict.UNDECIDED, f"{names} cannot be distinguished; {longer}")


def _trend(claim: TrendClaim, measured: Measured) -> ClaimResult:
    def at(part: str, clients: int) -> Estimate | None:
        def arm(level: Level) -> ArmNamed:
            return ArmNamed(part=part, level=level, clients=clients, rtt_ms=claim.rtt_ms)

        return measured.ratio(arm(claim.level), arm(claim.baseline))

    first, last = at(claim.part, claim.clients[0]), at(claim.then or claim.part, claim.clients[1])
    if first is None or last is None:
        return _NOT_MEASURED
    where = (claim.part, claim.then) if claim.then else tuple(counted(clients, "client") for clients in claim.clients)
    name = f"{claim.level}/{claim.baseline}"
    text = f"{name} {_text(first)} with {where[0]}, {_text(last)} with {where[1]}"
    rises = (last.low > first.high, last.high < first.low)
    seen, opposite = rises if claim.direction == "rises" else rises[::-1]
    if seen:
        return ClaimResult(text, ClaimVerdict.REPRODUCED, f"it {claim.direction}, beyond both intervals")
    if opposite:
        return ClaimResult(text, ClaimVerdict.NOT_REPRODUCED, "it goes the other way, beyond both intervals")
    low, high = (first, last) if first.value < last.value else (last, first)
    gap = Estimate(high.value - low.value, high.low - low.high, math.inf)
    return ClaimResult(text, ClaimVerdict.UNDECIDED, f"the intervals overlap; {_run_needed(_times_longer(gap, 0.0))}")


def _completes(claim: CompletesClaim, measured: Measured) -> ClaimResult:
    samples, failed = measured.samples(claim.of), measured.failed(claim.of)
    if not samples and not failed:
        return ClaimResult("not measured", ClaimVerdict.UNDECIDED, "no sample of this arm")
    clean = sum(s.failed == 0 and s.transactions > 0 for s in samples)
    tried = len(samples) + failed
    done, lost = sum(s.transactions for s in samples), sum(s.failed for s in samples)
    text = f"{clean} of {counted(tried, 'sample')} completed; {done:,} transactions, {lost:,} failed"
    if 0 < clean < tried:
        return ClaimResult(text, ClaimVerdict.UNDECIDED, "some samples completed here and some failed")
    verdict = ClaimVerdict.REPRODUCED if bool(clean) == claim.paper_completes else ClaimVerdict.NOT_REPRODUCED
    return ClaimResult(text, verdict, "it completes here" if clean else "it never completes here")


def _recovers(claim: RecoversClaim, measured: Measured) -> ClaimResult:
    every = measured.drills[claim.drill]
    drills = [d for d in every if d.verdict.decided]
    times = [d.rto_s for d in drills if d.rto_s is not None]
    if not drills:
        why = f"none of {counted(len(every), 'drill')} was decided" if every else "no drill was run"
        return ClaimResult("not measured", ClaimVerdict.UNDECIDED, why)
    if len(times) < len(drills):
        return ClaimResult("not measured", ClaimVerdict.UNDECIDED, "not every drill recovered while it was watched")
    lost = sum(d.findings.lost for d in drills)
    bound = upper_bound(sum(d.findings.lost > 0 for d in drills), len(drills))
    most = "at most " if times[1:] else ""
    text = f"{most}{max(times):.1f} s in {counted(len(times), 'drill')}, {lost:,} lost"
    text += f" (P(loss) at most {bound:.0%}, 95 %)" if claim.lossless else ""
    if max(times) > claim.within_s:
        return ClaimResult(text, ClaimVerdict.NOT_REPRODUCED, f"slower than {claim.within_s:g} s")
    if claim.lossless and lost:
        return ClaimResult(text, ClaimVerdict.NOT_REPRODUCED, "acknowledged commits were lost")
    if len(drills) < len(every):
        why = f"{len(every) - len(drills)} of {counted(len(every), 'drill')} could not be decided"
        return ClaimResult(text, ClaimVerdict.UNDECIDED, why)
    return ClaimResult(
        text, ClaimVerdict.REPRODUCED, f"within {claim.within_s:g} s" + (", nothing lost" if not lost else "")
    )


def judge(claim: Claim, measured: Measured) -> ClaimResult:
    """Whether one claim held in what was measured."""
    match claim:
        case RatioClaim():
            ratio = measured.ratio(claim.of, claim.to)
            return _within(_named(claim.of, claim.to, "/"), ratio, claim.above, claim.below)
        case LatencyClaim():
            added = measured.added_ms(claim.of, claim.to)
            return _within(_named(claim.of, claim.to, " − "), added, claim.above_ms, claim.below_ms, " ms")
        case OrderClaim():
            return _order(claim, measured)
        case TrendClaim():
            return _trend(claim, measured)
        case CompletesClaim():
            return _completes(claim, measured)
        case RecoversClaim():
            return _recovers(claim, measured)
        case _:
            assert_never(claim)


def claim_judged(study: str, claim: Claim, measured: Measured, at: float) -> ClaimJudged:
    """The result of one claim, as the event of the record; what was scaled or widened stands in brackets."""
    judged = judge(claim, measured)
    notes = "; ".join(note for note in (claim.scaled, claim.accepted) if note)
    scaled = f" [{notes}]" if notes else ""
    return ClaimJudged(
        at, study, f"{claim.name}: {claim.says}{scaled}", claim.paper, judged.measured, str(judged.verdict), judged.why
    )


def figure_compared(study: str, figure: Figure, measured: Measured, at: float) -> FigureCompared:
    """One figure of the paper with the figure measured here, as the event of the record."""
    estimate: Estimate | None = None
    if figure.of is not None:
        estimate = measured.ratio(figure.of, figure.to) if figure.to else measured.level_of(figure.of, figure.unit)
    here = (math.nan, math.nan, math.nan) if estimate is None else (estimate.value, estimate.low, estimate.high)
    return FigureCompared(at, study, figure.where, figure.unit, figure.paper, *here)
