"""What was observed without a load as evidence for the price of a level."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.observed import N2, group, seen
from tests.fixtures.priced_records import advice, described, price_record, prove_record
from tests.fixtures.tiers import each
from walproof.advising.evidence import evidence_of
from walproof.errors import Error, UndecidedError, UsageError
from walproof.model.advice import OBSERVED, PricedArm, Requirements
from walproof.model.event import Described, Event
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.topology import Description

BUSY = group(sessions=160, busy=160, standby=24, flush=40)


def record(*, number: int = 12, target: str = "lab", **more: Any) -> list[Event]:
    """8 sessions that make 400 commits a second, each 8 ms long: 5 for the flush, 3 for n2."""
    return [Described(0.0, Description(target, ("n1", "n2", "n3"))), *[seen(BUSY, **more)] * number]


def arms(*records: list[Event]) -> dict[Level, PricedArm]:
    return {arm.level: arm for arm in evidence_of([(str(i), one) for i, one in enumerate(records)]).priced}


def test_every_level_is_evidence_at_the_quorum_and_the_sessions_there_are() -> None:
    found = arms(record())
    assert set(found) == {Level.LOCAL, Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY}
    on = found[Level.ON]
    assert (on.environment.workload, on.clients, on.quorum_kind, on.quorum) == (OBSERVED, 8, QuorumKind.ANY, 1)
    assert on.tps.value == pytest.approx(400.0)
    assert on.p95_ms.value == pytest.approx(8.0 * math.log(20))
    assert on.tps.low < 400.0 < on.tps.high
    # The mean is known from below, and Markov's inequality from above.
    assert on.p95_ms.low < 8.0 and on.p95_ms.high > 20 * 8.0
    assert found[Level.LOCAL].tps.value > 400.0 > found[Level.REMOTE_APPLY].tps.value


# no standby, one that did not replay, all at off, too short, hanging, nobody: the levels that are evidence
UNPREDICTED: list[tuple[list[Event], set[Level]]] = [
    (record(standbys=()), {Level.LOCAL, Level.ON}),
    (record(standbys=(replace(N2, lags_ms=(0.5, 1.5, None)),)), {Level.LOCAL, Level.REMOTE_WRITE, Level.ON}),
    (record(level="off", groups=(group(sessions=160, writing=100, writing_s=1.0),)), set()),
    (record(number=7), set()),
    (record(transaction_ids=0, commits=0), set()),
    (record(groups=()), set()),
]


@each(UNPREDICTED)
def test_what_cannot_be_predicted_with_an_interval_is_no_evidence(given: list[Event], levels: set[Level]) -> None:
    assert set(arms(given)) == levels
    if not levels:
        with pytest.raises(UndecidedError, match="no priced commits"):
            advice(Requirements(), given)


def test_the_last_of_several_observations_counts_and_other_targets_are_said() -> None:
    given = (record(), record(target="elsewhere", transaction_ids=800, commits=800))
    assert arms(*given)[Level.ON].tps.value == pytest.approx(800.0)
    assert "prices are of different targets: elsewhere, lab" in advice(Requirements(), *given).caveats


UNANSWERED: list[tuple[Requirements, str | None, type[Error], str]] = [
    (Requirements(min_tps=5000.0), OBSERVED, UndecidedError, "more than the load observed"),
    (Requirements(rpo_s=0.0), None, UsageError, "choose one"),
    (Requirements(), "another", UsageError, "as observed"),
]


@each(UNANSWERED)
def test_what_the_load_that_was_there_cannot_answer_is_said(
    required: Requirements, workload: str | None, error: type[Error], says: str
) -> None:
    with pytest.raises(error) as wrong:
        advice(required, record(), price_record(), workload=workload)
    assert says in f"{wrong.value.message} {wrong.value.hint}"


@each([(500.0, True, False), (50.0, True, True), (2.0, False, True)])
def test_a_latency_is_met_for_sure_only_below_the_bound_that_holds_for_every_wait(
    most_ms: float, met: bool, risk: bool
) -> None:
    made = advice(Requirements(rpo_s=0.0, max_commit_latency_ms=most_ms), record(), prove_record(Level.ON))
    assert bool(made.choices) is met
    if met:
        assert any("p95 stays in the lower part" in text for text in made.choices[0].assumed) is risk


def test_drills_decide_about_what_was_observed_as_about_what_was_priced() -> None:
    (first, *_) = advice(Requirements(rpo_s=0.0), [described(), *record()[1:]], prove_record(Level.ON)).choices
    assert (first.level, first.undecided) == (Level.ON, "")
    assert any("10 of 10 drills" in text for text in first.proven)
    assert any("predicted from what was observed" in caveat for caveat in first.caveats)
