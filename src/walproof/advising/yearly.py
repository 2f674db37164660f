"""What a forecast of a year says for or against an arm: availability and P(loss) against what is required. Pure.

A loss is judged by the structure: that takeovers keep what the manual promises is an assumption, and named as one
together with what the drills do not exclude.
"""

from walproof.advising.candidates import Reason, effective_level, waits_for_standby
from walproof.model.advice import Evidence, PricedArm, Refused, Requirements, YearlyRisk


def yearly_risks(arm: PricedArm, required: Requirements, evidence: Evidence) -> tuple[YearlyRisk, ...]:
    """Forecasts of the arm's configuration: strict and degrading, strict alone where nothing may be lost."""
    waits = waits_for_standby(arm)
    key = (effective_level(arm), arm.quorum_kind if waits else None, arm.quorum if waits else 0)
    found = (y for y in evidence.years if (y.level, y.quorum_kind, y.quorum) == key)
    return tuple(y for y in found if y.strict or not (waits and required.rpo_s == 0))


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
    found = []
    if required.availability is not None and year.availability.value < required.availability:
        shortfall = (1 - year.availability.value) / (1 - required.availability) - 1
        name = Requirements(availability=required.availability).text
        found.append(Reason(name, f"{_named(arm, year)}: {year.text}", shortfall))
    if required.loss_per_year is not None and year.structural.value > required.loss_per_year:
        name = Requirements(loss_per_year=required.loss_per_year).text
        found.append(
            Reason(name, f"{_named(arm, year)}: {year.text}", year.structural.value / required.loss_per_year - 1)
        )
    return tuple(found)


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
