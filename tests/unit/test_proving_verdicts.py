"""Verdicts, bounds, positive controls, the gate and the matrix."""

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.estimating.intervals import upper_bound
from walproof.model.drill import Drill, Findings, Verdict, Victim
from walproof.model.guarantee import Level, Loss
from walproof.model.junit import junit
from walproof.proving.campaign import enough
from walproof.proving.campaign_results import answer_as_json, back_after, conclusion
from walproof.proving.gate import cases, exit_code, gate
from walproof.proving.loss_bounds import Bound, Kind, bounds, cell, controls, drills_for, reached, worst_bounds
from walproof.proving.options import parse_options
from walproof.proving.verdict import Assumption, AtRisk, decided
from walproof.reporting.console_output import json_text

FINE = Findings(acknowledged=100, kept=100)
LOSS = Findings(acknowledged=100, kept=90, lost=10)


def at_risk(level: Level = Level.ON, weaker: str = "") -> AtRisk:
    return AtRisk(level, Loss.LEADER_GONE, weaker)


NOTHING = AtRisk(Level.ON, None)


def drill(level: Level = Level.ON, findings: Findings = FINE, *, number: int = 1, fault: str = "kill") -> Drill:
    verdict, why = decided(findings, [], at_risk(level))
    shown = Drill(number, fault, Victim.LEADER, level, verdict, why, findings, rto_s=3.0, rpo_s=0.0, writers=16)
    return replace(shown, loss="leader gone")


BROKEN, GONE = Verdict.BROKEN, "the loss of the leader"


@each([
        (FINE, at_risk(), [], Verdict.HELD, "all 100 acknowledged commits are there"),
        (LOSS, at_risk(), [], BROKEN, f"10 acknowledged commits lost, which on promises to keep after {GONE}"),
        (
            LOSS, at_risk(Level.OFF), [], Verdict.EXPECTED_LOSS,
            f"expected loss: 10 acknowledged commits lost, which off does not promise to keep after {GONE}",
        ),
        (
            replace(LOSS, corrupted=1), at_risk(Level.OFF), [], BROKEN,
            f"10 acknowledged commits lost, which off does not promise to keep after {GONE}; 1 row corrupted",
        ),
        (LOSS, NOTHING, [], BROKEN, "10 acknowledged commits lost, though nothing was at risk"),
        (replace(FINE, two_leaders_s=1.5), NOTHING, [], BROKEN, "two leaders acknowledged at once for 1.5 s"),
        (FINE, NOTHING, ["3 pages of n2 failed their checksum"], BROKEN, "3 pages of n2 failed their checksum"),
    ])  # fmt: skip
def test_the_verdict_and_why(findings: Findings, risk: AtRisk, damage: list[str], verdict: Verdict, why: str) -> None:
    assert decided(findings, [], risk, damage) == (verdict, why)


@each(["corrupted", "duplicate", "phantom", "divergent", "out_of_order", "broken_freshness", "backward_reads"])
def test_every_contradiction_breaks(wrong: str) -> None:
    assert decided(replace(FINE, **{wrong: 1}), [], NOTHING)[0] is BROKEN
    verdict, why = decided(replace(FINE, **{wrong: 2}), [], NOTHING)
    assert (verdict, why[:2]) == (BROKEN, "2 ")


def test_missing_rows_prove_nothing_where_the_ledger_itself_is_odd() -> None:
    failed = Assumption("ledger table ordinary", False, "the table is unlogged", invalidates_loss=True)
    verdict, why = decided(LOSS, [failed], at_risk())
    assert verdict is Verdict.UNDECIDED
    assert "the table is unlogged; 10 rows of acknowledged commits are missing" in why


def test_the_sentence_of_a_loss_names_why_the_commits_waited_for_less() -> None:
    failed = Assumption("level in effect", False, "it meant local")
    assert decided(FINE, [failed], at_risk()) == (Verdict.UNDECIDED, "it meant local")
    verdict, why = decided(LOSS, [failed], at_risk(weaker="they ran at off, not at on"))
    assert verdict is Verdict.BROKEN
    assert "because they ran at off, not at on" in why
    assert "promises to keep" not in why


def test_the_bound_is_the_exact_binomial_one() -> None:
    assert upper_bound(0, 12) == pytest.approx(1 - 0.05 ** (1 / 12))
    assert upper_bound(1, 10) == pytest.approx(0.3942, abs=1e-3)
    assert upper_bound(3, 3) == 1.0
    assert upper_bound(0, drills_for(0.05)) <= 0.05
    assert upper_bound(0, drills_for(0.05) - 1) > 0.05


KILL_ON = Kind(Level.ON, "kill", Victim.LEADER, "leader gone")


def test_undecided_drills_are_counted_with_the_bound_and_not_in_it() -> None:
    undecided = replace(drill(), verdict=Verdict.UNDECIDED, loss="")
    assert bounds([drill(), drill(), undecided]) == {KILL_ON: Bound(2, 0, 1, upper_bound(0, 2))}
    assert bounds([undecided]) == {replace(KILL_ON, loss=""): Bound(0, 0, 1, 1.0)}


def test_the_worst_bound_of_a_level_is_that_of_its_least_proven_kind() -> None:
    frozen = replace(drill(), fault="freeze")
    undecided = replace(drill(), fault="power-cut", verdict=Verdict.UNDECIDED)
    drills = [drill(), drill(), frozen, undecided, drill(Level.OFF), drill(Level.OFF)]
    for every in (drills, drills[::-1]):
        assert worst_bounds(every) == {Level.ON: upper_bound(0, 1), Level.OFF: upper_bound(0, 2)}


def test_drills_of_another_fault_victim_or_loss_say_nothing() -> None:
    others = [
        replace(drill(), fault="freeze"),
        replace(drill(), victim=Victim.STANDBY),
        replace(drill(), loss="postgres crash"),
        drill(Level.OFF),
    ]
    assert [bound.drills for bound in bounds([drill(), *others]).values()] == [1] * 5
    clean = [drill() for _ in range(60)]
    asked = [KILL_ON, replace(KILL_ON, fault="freeze")]
    assert reached(clean, [KILL_ON], 0.05)
    assert not reached(clean, asked, 0.05)
    assert not reached([replace(d, victim=Victim.STANDBY) for d in clean], [KILL_ON], 0.05)
    assert reached([drill(Level.ON, LOSS)], [KILL_ON], 0.05)
    assert not reached([replace(d, verdict=Verdict.UNDECIDED) for d in clean], [KILL_ON], 0.05)
    # A leader that was restarted in place was not lost.
    assert not reached([replace(d, loss="postgres crash") for d in clean], [KILL_ON], 0.05)
    assert not reached([replace(drill(Level.ON, LOSS), loss="postgres crash")], [KILL_ON], 0.05)
    assert reached([*clean, replace(drill(), loss="postgres crash")], [KILL_ON], 0.05)


def test_until_bound_asks_for_what_the_fault_takes_from_its_victim() -> None:
    options = parse_options({"fault": "kill", "levels": "on", "until_bound": "5%"})
    clean = [drill() for _ in range(60)]
    assert enough(options, clean)
    assert not enough(options, [replace(d, loss="postgres crash") for d in clean])
    standby = parse_options({"fault": "kill", "victim": "standby", "levels": "on", "until_bound": "5%"})
    assert enough(standby, [replace(d, victim=Victim.STANDBY, loss="") for d in clean])


def test_a_weaker_level_that_lost_is_the_positive_control() -> None:
    strong = controls([drill(Level.OFF, LOSS), drill(Level.ON)])
    assert "off lost 10 in 1 of 1 drill" in strong[KILL_ON]
    nearest = controls([drill(Level.OFF, LOSS), drill(Level.LOCAL, LOSS), drill(Level.ON)])
    assert nearest[KILL_ON].startswith("local lost 10")
    thrice = controls([drill(Level.OFF, LOSS), drill(Level.OFF, LOSS), drill(Level.OFF), drill(Level.ON)])
    assert thrice[KILL_ON].startswith("off lost 20 in 2 of 3 drills")
    other = replace(drill(Level.OFF, LOSS), fault="freeze")
    assert controls([other, drill(Level.OFF, LOSS), drill(Level.ON)])[KILL_ON].startswith("off lost 10 in 1 of 1 drill")
    weak = controls([drill(Level.OFF), drill(Level.ON)])
    assert weak[KILL_ON] == ""
    assert controls([drill(Level.OFF, LOSS), drill(Level.ON), drill(Level.ON, LOSS)]) == {}


def test_what_cannot_be_lost_needs_no_control() -> None:
    assert controls([drill(Level.OFF)]) == {}
    assert controls([replace(drill(), loss="", victim=Victim.STANDBY)]) == {}
    assert "weak" not in conclusion([drill(Level.OFF)])


def test_the_conclusion_names_victims_and_shows_undecided_drills_with_every_result() -> None:
    undecided = replace(drill(), verdict=Verdict.UNDECIDED, rto_s=80.0)
    standby = replace(drill(), victim=Victim.STANDBY, loss="")
    text = conclusion([drill(), standby, undecided])
    assert "of any standby" in text
    assert "the any" not in text
    assert "commits came back after 3.0 s (kill, 1 drill), 3.0 s (kill of any standby, 1 drill); weak" in text
    lost = conclusion([drill(findings=LOSS), undecided])
    assert "on lost 10 acknowledged commits, 1 undecided" in lost


def test_a_median_is_of_one_level_and_one_kind_of_recovery() -> None:
    there = replace(drill(), leader_before="n1", leader_after="n2")
    back = replace(there, leader_after="n1", loss="postgres crash")

    def lasting(one: Drill, *times: float | None) -> list[Drill]:
        return [replace(one, rto_s=s) for s in times]

    assert back_after(lasting(there, 4.0)) == "4.0 s (1 drill)"
    assert back_after(lasting(there, 4.0, 6.0, 9.0, None)) == "6.0 s (median of 3 drills), 9.0 s at worst"
    assert back_after([*lasting(there, 4.0, 6.0), *lasting(back, 1.0)]) == (
        "1.0 s (restart in place, 1 drill), 5.0 s (takeover, median of 2 drills), 6.0 s at worst"
    )
    off = replace(there, level=Level.OFF)
    assert back_after([*lasting(there, 4.0), *lasting(off, 2.0, 0.3)]) == "2.0 s (off, 1 drill), 4.0 s (on, 1 drill)"
    many = [one for level in Level for one in lasting(replace(there, level=level), float(level.strength), 8.0)]
    assert (
        back_after(many) == "4.5 to 8.0 s (medians of 9 drills); medians by level and kind of recovery; 8.0 s at worst"
    )
    frozen = [replace(one, fault="freeze", guarded=True) for one in lasting(there, 2.0, 2.2)]
    assert back_after([*many, *frozen]) == (
        "2.1 s (freeze, guarded, medians of 2 drills), 4.5 to 8.0 s (kill, medians of 9 drills)"
        "; medians by level and kind of recovery; 8.0 s at worst"
    )
    went_on = replace(there, leader_after="n1", loss="")
    assert [one.back_by for one in (there, back, went_on, drill())] == ["takeover", "restart in place", "", ""]


@each([{"fault": "freeze"}, {"victim": Victim.STANDBY}, {"writers": 4}, {"route": "pgbouncer"}, {"loss": ""}])
def test_a_loss_under_another_fault_victim_or_load_is_no_control(other: dict[str, Any]) -> None:
    lost = replace(drill(Level.OFF, LOSS), **other)
    assert controls([lost, drill(Level.ON)])[KILL_ON] == ""


def test_the_conclusion_says_when_a_proof_is_weak() -> None:
    assert "weak for on" in conclusion([drill(Level.OFF), drill(Level.ON)])
    strong = conclusion([drill(Level.OFF, LOSS), drill(Level.ON)])
    assert "off lost 10 acknowledged commits" in strong
    assert "off lost 10 acknowledged commits (expected loss)" in conclusion(
        [replace(drill(Level.OFF, LOSS), promised=False)]
    )
    assert "weak" not in strong


def test_the_gate_reads_limits_and_refuses_nonsense() -> None:
    for text in ("rpo", "rto=", "speed=3", "rto=fast"):
        with pytest.raises(UsageError):
            gate(text)


def test_only_a_loss_exceeds_the_limit_of_lost_seconds() -> None:
    later = replace(drill(), rpo_s=5.0)
    assert exit_code([later], gate("rpo=1s")) == 0
    assert exit_code([later], gate("rpo=0")) == 0
    assert exit_code([replace(drill(Level.OFF, LOSS), rpo_s=0.5)], gate("rpo=1s")) == 0
    assert exit_code([drill(Level.OFF, LOSS)], gate("rto=1h")) == 0


def test_exit_codes() -> None:
    limits = gate("rpo=0,rto=5s")
    undecided = replace(drill(), verdict=Verdict.UNDECIDED)
    skipped = replace(drill(), verdict=Verdict.SKIPPED)
    assert exit_code([drill()]) == 0
    assert exit_code([drill(Level.OFF, LOSS)]) == 0
    assert exit_code([drill(Level.ON, LOSS)]) == 1
    assert exit_code([drill(), drill(Level.ON, LOSS), drill()]) == 1
    assert exit_code([drill(), undecided]) == 4
    assert exit_code([skipped]) == 4
    assert exit_code([drill(), skipped]) == 0
    assert exit_code([drill()], limits) == 0
    assert exit_code([replace(drill(), rto_s=6.0)], limits) == 1
    assert exit_code([drill(), replace(drill(), rto_s=6.0), drill()], limits) == 1
    assert exit_code([replace(drill(), rto_s=None)], limits) == 1
    assert exit_code([drill(Level.OFF, LOSS)], gate("rpo=1s")) == 0
    assert exit_code([replace(drill(Level.OFF, LOSS), rpo_s=2.0)], gate("rpo=1s")) == 1
    assert exit_code([drill(Level.OFF, LOSS)], gate("rpo=0")) == 1
    assert exit_code([drill(findings=LOSS)], gate("rpo=1s")) == 1
    assert exit_code([drill(findings=LOSS)], gate("rto=1h")) == 1
    assert exit_code([replace(drill(), unavailable_s=9.0)], gate("unavailable=10s")) == 0
    assert exit_code([replace(drill(), unavailable_s=11.0)], gate("unavailable=10s")) == 1
    assert exit_code([drill()], gate("unavailable=10s")) == 1
    assert exit_code([undecided], limits) == 4


def test_junit_separates_failures_errors_and_skips() -> None:
    undecided = replace(drill(), verdict=Verdict.UNDECIDED, why="the writers were dead")
    skipped = replace(drill(), verdict=Verdict.SKIPPED, why="skipped, because no power")
    text = junit("prove", cases([drill(), drill(findings=LOSS), drill(Level.OFF, LOSS), undecided, skipped]))
    assert text.startswith("<?xml")
    suite = ElementTree.fromstring(text)
    assert suite.attrib["tests"] == "5"
    assert (suite.attrib["failures"], suite.attrib["errors"], suite.attrib["skipped"]) == ("1", "1", "1")
    failure = suite.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("10 acknowledged commits lost")


def test_a_cell_of_the_matrix_shows_promise_mark_and_evidence() -> None:
    kept = cell(Level.ON, "kill", [drill(), drill()])
    assert (kept.promised, kept.mark) == (True, "✔")
    lost = cell(Level.OFF, "kill", [drill(Level.OFF, LOSS)])
    assert (lost.promised, lost.mark, lost.surprising) == (False, "✘", False)
    assert cell(Level.ON, "kill", [drill(findings=LOSS)]).surprising
    assert cell(Level.ON, "kill-all", []).mark == "–"
    in_place = replace(drill(fault="crash-in-place"), loss="postgres crash")
    assert cell(Level.ON, "kill-all", [in_place]).mark == "✔"
    assert cell(Level.ON, "kill-all", [replace(in_place, loss="leader gone")]).mark == "–"
    assert cell(Level.ON, "kill", [in_place]).mark == "–"
    several = cell(Level.ON, "kill", [drill(), drill(), replace(drill(), victim=Victim.STANDBY, loss="")])
    assert (several.mark, several.evidence) == ("✔", "0 of 3 lost, loss in at most 95% of drills")
    seen = replace(FINE, fresh_somewhere=9, fresh_nowhere=1)
    assert cell(Level.ON, "none", [drill(findings=seen, fault="none")]).mark == "✘"


def test_json_holds_only_numbers_json_can_express() -> None:
    odd = replace(drill(), rto_s=float("nan"), rpo_s=float("inf"))
    text = json_text(answer_as_json(parse_options({}), [odd], "rec"))
    assert json.loads(text)["drills"][0]["rto_s"] is None
