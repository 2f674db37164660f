"""Drills with the former guard of Patroni, in earlier records: shown as such, and never mixed with others."""

from dataclasses import replace
from pathlib import Path

from tests.fixtures.forecasts import drill, failure, failures, lost, record
from walproof.forecasting.outages_from_drills import measured
from walproof.model.event import DrillDone
from walproof.model.guarantee import Level
from walproof.proving.campaign_results import conclusion, drill_as_json
from walproof.proving.history import decode as kept_drill
from walproof.proving.history import encode as to_be_kept
from walproof.proving.judge import judge
from walproof.proving.loss_bounds import bounds, controls
from walproof.records.codec import decode, encode
from walproof.reporting.drill_section import drill_sections
from walproof.reporting.outline import Table

GUARDED = drill(guarded=True, rto_s=2.5)
KINDS = failures(failure("crash", 1.0))


def test_a_guarded_drill_of_a_record_opens_and_is_shown_as_one() -> None:
    event, _ = decode(encode(DrillDone(1.0, GUARDED)))
    assert isinstance(event, DrillDone) and event.drill == GUARDED
    assert drill_as_json(event.drill)["guarded"] is True
    shown = [block for section in drill_sections([GUARDED, drill()]) for block in section.blocks]
    rows = [row[0].text for block in shown if isinstance(block, Table) and block.key == "levels" for row in block.rows]
    assert rows == ["kill", "kill, guarded"]
    assert "2.5 s (kill, guarded" in conclusion([GUARDED, drill()])


HISTORY = Path(__file__).parents[1] / "replay/records/prove/files/drill-1.history"


def test_a_guarded_drill_is_judged_again_as_one() -> None:
    plain = kept_drill(HISTORY.read_bytes())
    planned, run = replace(plain.planned, guarded=True), replace(plain.run, guard_log="12:00:00 sealed: n1")
    again = kept_drill(to_be_kept(replace(plain, planned=planned, run=run)))
    judged, without = judge(again).drill, judge(plain).drill
    assert judged.guarded and judged.evidence["guard"] == "12:00:00 sealed: n1"
    evidence = {name: what for name, what in judged.evidence.items() if name != "guard"}
    assert replace(judged, guarded=False, evidence=evidence) == without


def test_guarded_drills_bound_nothing_about_unguarded_ones() -> None:
    found = bounds([*[GUARDED] * 3, drill()])
    assert [(kind.guarded, bound.drills) for kind, bound in found.items()] == [(False, 1), (True, 3)]
    held = replace(GUARDED, loss="leader gone")
    assert list(controls([lost(3, Level.OFF), held]).values()) == [""]


def test_a_forecast_leaves_guarded_drills_out_and_says_so() -> None:
    guarded = [replace(one, guarded=True) for one in (lost(9), drill(rto_s=1.0))]
    known = measured([record(*guarded, drill(rto_s=22.0))], KINDS)
    assert known.takeovers["crash"].outages_s == (22.0,)
    assert known.loss("crash", Level.LOCAL).drills == 0
    assert "a-record: 2 drills with a guard of Patroni left out: walproof has none now" in known.caveats
    assert not measured([record(*guarded)], KINDS).has_takeovers
