"""Forecasts of a year for advice: what advising ranks by, made from the same records. The two do not see each other."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from walproof.errors import UsageError
from walproof.forecasting.answer import forecast
from walproof.forecasting.behaviour import Model
from walproof.forecasting.failures_file import failures_of
from walproof.forecasting.measured import measured
from walproof.forecasting.topology import Configuration, check, topology
from walproof.machine.processes import several_processes
from walproof.model.advice import Evidence, YearlyRisk
from walproof.model.event import Event
from walproof.model.guarantee import Level

YEARS = 20_000
DEFAULT_MEMBERS = 3


def years_of(
    events: Sequence[tuple[str, Sequence[Event]]], evidence: Evidence, layout: str | None, failures_file: str | None
) -> tuple[YearlyRisk, ...]:
    """The year of every configuration that was priced, strict and degrading; UsageError without drills."""
    failures = failures_of(Path(failures_file) if failures_file else None)
    known = measured(events, failures)
    if not known.has_takeovers:
        raise UsageError(
            "a forecast of a year needs drills, and the records hold none of a leader",
            "walproof prove --fault kill,isolate,power-cut",
        )
    members = len(evidence.cluster.members) or DEFAULT_MEMBERS
    where = topology(layout or ",".join(f"z{number + 1}" for number in range(members)))
    configurations = _configurations(evidence)
    for what in configurations:
        check(where, what)
    with several_processes() as each:
        made = [
            forecast(Model(where, what, failures, known), layout or "", years=YEARS, seed=1, each=each)
            for what in configurations
        ]
    return tuple(
        YearlyRisk(w.level, w.quorum_kind, w.k, w.strict, one.availability, one.p_structural, one.p_loss)
        for w, one in zip(configurations, made, strict=True)
    )


def _configurations(evidence: Evidence) -> tuple[Configuration, ...]:
    """What was priced: without named standbys every remote level is local."""
    found = []
    for arm in evidence.priced:
        if not arm.level.remote:
            found.append(Configuration(arm.level))
        elif not arm.quorum:
            found.append(Configuration(Level.LOCAL))
        else:
            strict = Configuration(arm.level, arm.quorum_kind, arm.quorum)
            found += [strict, replace(strict, strict=False)]
    return tuple(dict.fromkeys(found))
