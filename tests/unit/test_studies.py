"""Studies as declared, their plans, and claims judged on made-up samples."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.model.drill import Drill, Findings, Verdict, Victim
from walproof.model.event import DrillDone, Event, SampleDone, SampleFailed
from walproof.model.guarantee import Level
from walproof.model.sample import Sample, SampleResult, Scenario
from walproof.proving.faults import CATALOGUE
from walproof.studies.claims import Measured, claim_judged, figure_compared, judge
from walproof.studies.declaration import (
    ArmNamed,
    Claim,
    Figure,
    RecoversClaim,
    StudyPart,
    read_study,
    shipped,
    studies,
)
from walproof.studies.run import StudyOptions, drills_of, questions

CLAIM: TypeAdapter[Claim] = TypeAdapter(Claim)
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


def claim(kind: str, **fields: Any) -> Claim:
    """A claim of that kind about the arms of PART."""
    return CLAIM.validate_python({"name": "n", "says": "s", "paper": "p", "kind": kind, **fields})


def failing(blocks: int, level: str, clients: int) -> list[Event]:
    """The samples, and some of one arm that gave no figures."""
    failed = PART.arm(Level(level), clients)
    lost = [SampleFailed(0.0, Sample(n, 0, failed, Scenario(rtt_ms=3.0)), "timed out") for n in range(1, blocks + 1)]
    return [*samples(), *lost]


def drill(rto_s: float | None, lost: int = 0, *, decided: bool = True) -> DrillDone:
    verdict = Verdict.BROKEN if lost else Verdict.HELD if decided else Verdict.UNDECIDED
    done = Drill(1, "kill", Victim.LEADER, Level.ON, verdict, "", Findings(lost=lost), rto_s, evidence={"part": "d"})
    return DrillDone(0.0, done)


@each(list(studies()))
def test_every_shipped_study_is_consistent(name: str) -> None:
    study, story = shipped(name)
    assert study.name == name
    assert len(story) > 200
    parts = {p.name: p for p in study.part}
    drills = {d.name for d in study.drill}
    for one in study.claim:
        for named in [getattr(one, "of", None), getattr(one, "to", None), *getattr(one, "arms", ())]:
            if named is not None:
                part = parts[named.part]
                assert named.level in part.levels
                assert named.clients in part.clients
                assert named.rtt_ms is None or named.rtt_ms in part.rtt_ms
                assert named.cores is None or named.cores in part.cores
        if isinstance(one, RecoversClaim):
            assert one.drill in drills
    for figure in study.figure:
        for named in (figure.of, figure.to):
            assert named is None or {named.level} <= {*parts[named.part].levels}
            assert named is None or {named.clients} <= {*parts[named.part].clients}
    assert all(d.fault in CATALOGUE for d in study.drill)


@each(list(studies()))
def test_a_quick_run_is_planned_within_five_minutes(name: str) -> None:
    study, _ = shipped(name)
    options = StudyOptions(quick=True)
    priced = sum(q.budget_s for _, q in questions(study, options))
    drilled = sum(len(plan) for _, plan in drills_of(study, options))
    assert priced + 30 * drilled <= 300 + 1


ON_TO_LOCAL = {"of": arm("on"), "to": arm("local")}
TREND: dict[str, Any] = {"part": "p", "level": "on", "clients": (8, 32)}
RECOVERS: dict[str, Any] = {"drill": "d", "within_s": 30, "lossless": True}


@each([
        (claim("ratio", **ON_TO_LOCAL, above=0.6, below=0.8), samples(), "reproduced", ""),
        (claim("ratio", **ON_TO_LOCAL, above=0.9), samples(), "not reproduced", ""),
        (claim("ratio", **ON_TO_LOCAL, above=0.70), samples(), "undecided", "straddles above 0.7; too near"),
        (claim("ratio", **ON_TO_LOCAL, above=0.69), samples(), "undecided", "a run 4 times as long would decide it"),
        (claim("ratio", **ON_TO_LOCAL, above=0.1, below=0.715), samples(), "undecided", "times as long"),
        (claim("order", arms=(arm("local", 8), arm("on", 8))), samples(noise=0.4), "undecided", "local from on cannot"),
        (claim("order", arms=(arm("off"), arm("local", 32))), samples(80), "not reproduced", "as fast as local"),
        (claim("trend", **TREND), samples(noise=0.3), "undecided", "overlap; a run"),
        (claim("ratio", of=arm("remote_apply"), to=arm("local"), above=0.1), samples(), "undecided", "not measured"),
        (claim("order", arms=(arm("off"), arm("local"), arm("on"))), samples(), "reproduced", ""),
        (claim("order", arms=(arm("on"), arm("local"))), samples(), "not reproduced", "on is slower than local"),
        (claim("trend", **TREND), samples(), "reproduced", ""),
        (claim("trend", **TREND, direction="falls"), samples(), "not reproduced", ""),
        (claim("trend", **TREND, then="q"), samples(), "reproduced", "with q"),
        (claim("latency", **ON_TO_LOCAL, above_ms=1, below_ms=9), samples(), "reproduced", "ms"),
        (claim("completes", of=arm("on"), paper_completes=False), samples(), "not reproduced", ""),
        (claim("completes", of=arm("on"), paper_completes=False), samples(failed=1), "reproduced", ""),
        (claim("completes", of=arm("remote_apply", 32), paper_completes=False), failing(4, "remote_apply", 32),
         "reproduced", "0 of 4 samples completed"),
        (claim("completes", of=arm("remote_apply", 32), paper_completes=True), failing(4, "remote_apply", 32),
         "not reproduced", "0 of 4 samples completed"),
        (claim("completes", of=arm("on"), paper_completes=False), failing(2, "on", 8), "undecided", ""),
        (claim("recovers", **RECOVERS), [drill(3.0)], "reproduced", ""),
        (claim("recovers", **RECOVERS), 3 * [drill(2.0)], "reproduced", "P(loss) at most 63%, 95 %"),
        (claim("recovers", **RECOVERS), [drill(3.0), drill(40.0)], "not reproduced", ""),
        (claim("recovers", **RECOVERS), [drill(3.0, lost=2)], "not reproduced", ""),
        (claim("recovers", **RECOVERS), [drill(None)], "undecided", ""),
        (claim("recovers", **RECOVERS), [], "undecided", ""),
        (claim("recovers", **RECOVERS), [drill(2.0, decided=False)], "undecided", ""),
        (claim("recovers", **RECOVERS), [drill(2.0), drill(2.0), drill(2.0, decided=False)], "undecided", ""),
    ])  # fmt: skip
def test_a_claim_is_judged_by_its_whole_interval_and_every_drill(
    judged: Claim, events: list[Event], verdict: str, said: str
) -> None:
    found = judge(judged, Measured(events, [PART, PART.model_copy(update={"name": "q"})]))
    assert str(found.verdict) == verdict, found
    assert said in f"{found.measured}: {found.why}"


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


def test_a_judged_claim_is_an_event_with_its_scaling() -> None:
    scaled = claim("ratio", **ON_TO_LOCAL, above=0.6, scaled="8 clients here")
    event = claim_judged("study", scaled, Measured(samples(), [PART]), 5.0)
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


def test_drills_are_numbered_through() -> None:
    study, _ = shipped("patroni-tradeoff")
    assert [d.number for _, plan in drills_of(study, StudyOptions()) for d in plan] == list(range(1, 7))
