"""Studies as declared, their plans, and claims judged on made-up samples."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from walproof.errors import UsageError
from walproof.model.drill import Drill, Findings, Verdict, Victim
from walproof.model.event import ClaimJudged, DrillDone, Event, SampleDone, SampleFailed
from walproof.model.guarantee import Level
from walproof.model.sample import Sample, SampleResult, Scenario
from walproof.proving.faults import CATALOGUE
from walproof.studies.claims import ClaimVerdict, Measured, claim_judged, figure_compared, judge
from walproof.studies.declaration import (
    ArmNamed,
    CompletesClaim,
    Figure,
    LatencyClaim,
    OrderClaim,
    RatioClaim,
    RecoversClaim,
    StudyPart,
    TrendClaim,
    read_study,
    shipped,
    studies,
)
from walproof.studies.run import StudyOptions, drills_of, questions

TPS = {("off", 8): 2000.0, ("local", 8): 1000.0, ("on", 8): 700.0, ("local", 32): 2000.0, ("on", 32): 1900.0}

PART = StudyPart(name="p", levels=tuple(Level), clients=(8, 32), rtt_ms=(3.0,))


def samples(blocks: int = 8, noise: float = 0.02, failed: int = 0) -> list[Event]:
    """Samples of every arm of TPS in every block, with a block effect all arms share."""
    rng = np.random.default_rng(7)
    events: list[Event] = []
    for block in range(1, blocks + 1):
        shared = rng.normal(0, 0.2)
        for position, ((level, clients), tps) in enumerate(TPS.items()):
            arm = PART.arm(Level(level), clients)
            seen = tps * float(np.exp(shared + rng.normal(0, noise)))
            planned = Sample(block, position, arm, Scenario(rtt_ms=3.0))
            events.append(
                SampleDone(0.0, SampleResult(planned, 0.0, 1.0, int(seen), failed, seen, 1000 * clients / seen))
            )
    return events


def arm(level: str, clients: int = 8) -> ArmNamed:
    return ArmNamed(part="p", level=Level(level), clients=clients)


def ratio(of: str, to: str, above: float | None = None, below: float | None = None) -> RatioClaim:
    return RatioClaim(name="n", says="s", paper="p", kind="ratio", of=arm(of), to=arm(to), above=above, below=below)


@pytest.mark.parametrize("name", list(studies()))
def test_every_shipped_study_is_consistent(name: str) -> None:
    study, story = shipped(name)
    assert study.name == name
    assert len(story) > 200
    parts = {p.name: p for p in study.part}
    drills = {d.name for d in study.drill}
    for claim in study.claim:
        for named in [getattr(claim, "of", None), getattr(claim, "to", None), *getattr(claim, "arms", ())]:
            if named is not None:
                part = parts[named.part]
                assert named.level in part.levels
                assert named.clients in part.clients
                assert named.rtt_ms is None or named.rtt_ms in part.rtt_ms
                assert named.cores is None or named.cores in part.cores
        if isinstance(claim, RecoversClaim):
            assert claim.drill in drills
    for figure in study.figure:
        for named in (figure.of, figure.to):
            assert named is None or {named.level} <= {*parts[named.part].levels}
            assert named is None or {named.clients} <= {*parts[named.part].clients}
    assert all(d.fault in CATALOGUE for d in study.drill)


@pytest.mark.parametrize("name", list(studies()))
def test_a_quick_run_is_planned_within_five_minutes(name: str) -> None:
    study, _ = shipped(name)
    options = StudyOptions(quick=True)
    priced = sum(q.budget_s for _, q in questions(study, options))
    drilled = sum(len(plan) for _, plan in drills_of(study, options))
    assert priced + 30 * drilled <= 300 + 1


def test_a_ratio_is_judged_by_its_whole_interval() -> None:
    measured = Measured(samples(), [PART])
    assert judge(ratio("on", "local", above=0.6, below=0.8), measured).verdict is ClaimVerdict.REPRODUCED
    assert judge(ratio("on", "local", above=0.9), measured).verdict is ClaimVerdict.NOT_REPRODUCED
    assert judge(ratio("on", "local", above=0.70), measured).verdict is ClaimVerdict.UNDECIDED
    assert judge(ratio("remote_apply", "local", above=0.1), measured).verdict is ClaimVerdict.UNDECIDED


def test_pairs_take_away_what_blocks_share() -> None:
    estimate = Measured(samples(), [PART]).ratio(arm("on"), arm("local"))
    assert estimate is not None
    assert estimate.covers(0.7)
    assert estimate.half_width < 0.05


def test_a_figure_is_compared_with_its_arm_and_unknown_without_one() -> None:
    measured = Measured(samples(), [PART])
    tps = figure_compared("s", Figure(where="w", paper=650, of=arm("on")), measured, 1.0)
    assert (tps.paper, tps.unit) == (650, "tps")
    assert tps.low < tps.value < tps.high
    ratio = figure_compared(
        "s", Figure(where="w", paper=0.8, unit="ratio", of=arm("on"), to=arm("local")), measured, 1.0
    )
    assert ratio.value == pytest.approx(0.7, rel=0.05)
    assert math.isnan(figure_compared("s", Figure(where="48 processors", paper=1.0), measured, 1.0).value)


def test_an_order_needs_every_step_and_a_reversal_is_reported() -> None:
    measured = Measured(samples(), [PART])
    right = OrderClaim(name="n", says="s", paper="p", kind="order", arms=(arm("off"), arm("local"), arm("on")))
    wrong = replace_arms(right, (arm("on"), arm("local")))
    assert judge(right, measured).verdict is ClaimVerdict.REPRODUCED
    assert judge(wrong, measured).verdict is ClaimVerdict.NOT_REPRODUCED
    assert "on is slower than local" in judge(wrong, measured).why


def replace_arms(claim: OrderClaim, arms: tuple[ArmNamed, ...]) -> OrderClaim:
    return claim.model_copy(update={"arms": arms})


def test_a_trend_compares_two_ratios() -> None:
    rises = TrendClaim(name="n", says="s", paper="p", kind="trend", part="p", level=Level.ON, clients=(8, 32))
    falls = rises.model_copy(update={"direction": "falls"})
    assert judge(rises, Measured(samples(), [PART])).verdict is ClaimVerdict.REPRODUCED
    assert judge(falls, Measured(samples(), [PART])).verdict is ClaimVerdict.NOT_REPRODUCED


def test_a_trend_may_lead_from_one_part_to_another() -> None:
    other = PART.model_copy(update={"name": "q"})
    claim = TrendClaim(name="n", says="s", paper="p", kind="trend", part="p", then="q", level=Level.ON, clients=(8, 32))
    result = judge(claim, Measured(samples(), [PART, other]))
    assert result.verdict is ClaimVerdict.REPRODUCED
    assert "with p" in result.measured
    assert "with q" in result.measured


def test_latency_added_is_in_milliseconds() -> None:
    claim = LatencyClaim(
        name="n", says="s", paper="p", kind="latency", of=arm("on"), to=arm("local"), above_ms=1, below_ms=9
    )
    result = judge(claim, Measured(samples(), [PART]))
    assert result.verdict is ClaimVerdict.REPRODUCED
    assert "ms" in result.measured


def test_what_failed_in_the_paper_and_works_here_is_not_reproduced() -> None:
    claim = CompletesClaim(name="n", says="s", paper="p", kind="completes", of=arm("on"), paper_completes=False)
    assert judge(claim, Measured(samples(), [PART])).verdict is ClaimVerdict.NOT_REPRODUCED
    assert judge(claim, Measured(samples(failed=1), [PART])).verdict is ClaimVerdict.REPRODUCED


def failing(part: StudyPart, named: ArmNamed, blocks: int) -> list[Event]:
    """Samples of one arm that gave no figures."""
    failed = part.arm(named.level, named.clients)
    return [SampleFailed(0.0, Sample(n, 0, failed, Scenario(rtt_ms=3.0)), "timed out") for n in range(1, blocks + 1)]


@pytest.mark.parametrize(("paper_completes", "verdict"), [(False, "reproduced"), (True, "not reproduced")])
def test_an_arm_whose_every_sample_failed_never_completes(paper_completes: bool, verdict: str) -> None:
    claim = CompletesClaim(
        name="n", says="s", paper="p", kind="completes", of=arm("remote_apply", 32), paper_completes=paper_completes
    )
    found = judge(claim, Measured([*samples(), *failing(PART, claim.of, 4)], [PART]))
    assert (str(found.verdict), found.measured[:18]) == (verdict, "0 of 4 samples com")


def test_an_arm_that_completes_now_and_then_decides_nothing() -> None:
    claim = CompletesClaim(name="n", says="s", paper="p", kind="completes", of=arm("on"), paper_completes=False)
    found = judge(claim, Measured([*samples(), *failing(PART, claim.of, 2)], [PART]))
    assert found.verdict is ClaimVerdict.UNDECIDED


def test_undecided_drills_reproduce_nothing_and_a_loss_free_claim_states_its_bound() -> None:
    claim = RecoversClaim(name="n", says="s", paper="p", kind="recovers", drill="d", within_s=30, lossless=True)
    good, open_one = drill(2.0), drill(2.0)
    open_one = replace(open_one, drill=replace(open_one.drill, verdict=Verdict.UNDECIDED))
    assert judge(claim, Measured([open_one], [PART])).verdict is ClaimVerdict.UNDECIDED
    assert judge(claim, Measured([good, good, open_one], [PART])).verdict is ClaimVerdict.UNDECIDED
    found = judge(claim, Measured([good, good, good], [PART]))
    assert found.verdict is ClaimVerdict.REPRODUCED
    assert "P(loss) at most 63%, 95 %" in found.measured


def test_a_sample_that_stood_still_is_in_a_ratio() -> None:
    events = samples()
    stalled = [
        replace(e, result=replace(e.result, credit=0.0, transactions=0))
        if isinstance(e, SampleDone) and e.result.sample.block == 3 and e.result.sample.arm.level is Level.ON
        else e
        for e in events
    ]
    calm, found = (Measured(one, [PART]).ratio(arm("on"), arm("local")) for one in (events, stalled))
    assert calm is not None
    assert found is not None
    assert found.value < 0.95 * calm.value


def drill(rto_s: float | None, lost: int = 0) -> DrillDone:
    verdict = Verdict.BROKEN if lost else Verdict.HELD
    done = Drill(1, "kill", Victim.LEADER, Level.ON, verdict, "", Findings(lost=lost), rto_s, evidence={"part": "d"})
    return DrillDone(0.0, done)


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([drill(3.0)], ClaimVerdict.REPRODUCED),
        ([drill(3.0), drill(40.0)], ClaimVerdict.NOT_REPRODUCED),
        ([drill(3.0, lost=2)], ClaimVerdict.NOT_REPRODUCED),
        ([drill(None)], ClaimVerdict.UNDECIDED),
        ([], ClaimVerdict.UNDECIDED),
    ],
)
def test_recovery_is_judged_by_the_slowest_drill(events: list[Event], verdict: ClaimVerdict) -> None:
    claim = RecoversClaim(name="n", says="s", paper="p", kind="recovers", drill="d", within_s=30, lossless=True)
    assert judge(claim, Measured(events, [PART])).verdict is verdict


def test_a_judged_claim_is_an_event_with_its_scaling() -> None:
    claim = ratio("on", "local", above=0.6).model_copy(update={"scaled": "8 clients here"})
    event = claim_judged("study", claim, Measured(samples(), [PART]), 5.0)
    assert isinstance(event, ClaimJudged)
    assert "[8 clients here; counts as reproduced above 0.6]" in event.claim


def test_an_unknown_key_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    text = (Path(str(studies()["synchronous-commit"])) / "study.toml").read_text()
    path.write_text("colour = 'red'\n" + text)
    with pytest.raises(UsageError, match="colour"):
        read_study(path)


def test_an_unknown_study_names_those_there_are() -> None:
    with pytest.raises(UsageError) as error:
        shipped("nothing")
    assert "edb-varying-cost" in error.value.hint


def test_drills_can_be_left_without_events() -> None:
    study, _ = shipped("patroni-tradeoff")
    assert [d.number for _, plan in drills_of(study, StudyOptions()) for d in plan] == list(range(1, 7))
    assert replace(StudyOptions(), quick=True).quick
