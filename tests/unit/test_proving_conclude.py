"""A whole history judged: assumptions, what was at risk, sentences and times of the drill."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.attempts import attempts as ledger
from tests.fixtures.tiers import each
from tests.unit.test_proving_happened import BACK, ORDERLY, run, silent, state, view
from walproof.model.drill import Drill, Recovery, Verdict, Victim
from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome, WitnessReport
from walproof.model.topology import LedgerTable
from walproof.proving.campaign import PlannedDrill
from walproof.proving.campaign_results import by_recovery
from walproof.proving.faults import CATALOGUE
from walproof.proving.gate import exceeded, gate
from walproof.proving.history import DrillRun, History
from walproof.proving.judge import judge
from walproof.proving.lost_commits import MemberReading

KILLED = run(silent(postmaster="none"), BACK)


def attempts(level: Level = Level.ON, *, gap: tuple[float, float] = (100.0, 103.0)) -> Attempts:
    """Two writers that commit ten times a second from 80 to 130 s, but for a gap."""
    ends = np.array([t for t in np.arange(80.0, 130.0, 0.05) if not gap[0] < t < gap[1]])
    size = len(ends)
    return ledger(
        size,
        level=level,
        writer=np.arange(size, dtype=np.int32) % 2,
        number=np.arange(size, dtype=np.int64) // 2,
        started=ends - 0.01,
        ended=ends,
        server=(ends > gap[0]).astype(np.int16),
        timeline=np.where(ends > gap[0], 2, 1).astype(np.int32),
        lsn=(ends * 1e6).astype(np.uint64),
    )


def history(
    drill: DrillRun = KILLED, *, level: Level = Level.ON, fault: str = "kill", lost: tuple[float, float] | None = None
) -> History:
    """A drill in which the acknowledgements between two moments are lost."""
    tries = attempts(level)
    begin, end = lost or (0.0, 0.0)
    present = ~((tries.ended > begin) & (tries.ended < end))
    readings = tuple(MemberReading(name, present, caught_up=True) for name in ("n2", "n1", "n3"))
    planned = PlannedDrill(1, CATALOGUE[fault], CATALOGUE[fault].victims[0], level, writers=2)
    return History(planned, drill, tries, WitnessReport({}), readings)


def judged(**more: object) -> Drill:
    return judge(history(**more)).drill  # type: ignore[arg-type]


def test_a_takeover_that_kept_everything_is_held_with_its_times() -> None:
    drill = judged()
    assert (drill.verdict, drill.why) == (Verdict.HELD, "all 940 acknowledged commits are there")
    assert (drill.loss, drill.promised, drill.writers) == ("leader gone", True, 2)
    assert drill.rto_s == pytest.approx(3.0, abs=0.06)
    assert drill.unavailable_s == pytest.approx(3.0, abs=0.06)
    assert drill.writers_rto_s is not None
    assert drill.writers_rto_s[2] == pytest.approx(3.05, abs=0.11)
    assert drill.rpo_s == 0.0
    assert all(drill.assumptions.values())
    assert drill.evidence["kill of n1"] == "its postmaster is another process than before"


def test_a_loss_is_broken_where_promised_and_expected_where_not() -> None:
    broken, expected = judged(lost=(99.0, 100.0)), judged(lost=(99.0, 100.0), level=Level.LOCAL)
    assert broken.verdict is Verdict.BROKEN
    assert "which on promises to keep after the loss of the leader" in broken.why
    assert expected.verdict is Verdict.EXPECTED_LOSS
    assert expected.rpo_s == pytest.approx(0.95, abs=0.06)


def test_a_leader_restarted_in_place_is_judged_as_a_crash() -> None:
    drill = judged(drill=run(BACK, after=view("n1", 2)))
    assert (drill.verdict, drill.loss) == (Verdict.HELD, "postgres crash")
    assert drill.why.endswith("n1 leads again, no other member took over: judged as a crash of PostgreSQL")
    lost = judged(drill=run(BACK, after=view("n1", 2)), level=Level.LOCAL, lost=(99.0, 100.0))
    assert lost.verdict is Verdict.BROKEN
    cut = judged(drill=run(silent(disk="dead", processes="none"), BACK, after=view("n1", 2)), fault="power-cut")
    assert cut.why.endswith("judged as a power cut")


def test_a_leader_that_stays_is_no_remark_where_the_fault_fell_on_a_standby() -> None:
    gone = replace(run(silent("n2", postmaster="none"), after=view("n1", 1)), victims=("n2",))
    whole = history(drill=gone)
    drill = judge(replace(whole, planned=replace(whole.planned, victim=Victim.STANDBY))).drill
    assert (drill.verdict, drill.why) == (Verdict.HELD, "all 940 acknowledged commits are there")


def test_a_fault_that_did_not_happen_is_undecided_and_puts_nothing_at_risk() -> None:
    drill = judged(drill=run(state(at=110.0), after=view("n1", 1)))
    assert (drill.verdict, drill.loss, drill.promised) == (Verdict.UNDECIDED, "", None)
    assert drill.why == "kill did not happen: n1: its postmaster is the same process as before"
    lost = judged(drill=run(state(at=110.0), after=view("n1", 1)), level=Level.OFF, lost=(99.0, 100.0))
    assert lost.verdict is Verdict.BROKEN
    assert "though nothing was at risk" in lost.why
    orderly = judged(drill=run(ORDERLY, after=view("n1", 1)))
    assert (orderly.verdict, orderly.loss, orderly.promised) == (Verdict.UNDECIDED, "", None)


def test_what_nobody_can_ask_is_noticed_by_clients_or_not_at_all() -> None:
    blind = replace(KILLED, states=())
    assert judged(drill=blind).verdict is Verdict.HELD
    quiet = replace(blind, after=view("n1", 1))
    unnoticed = replace(history(drill=quiet), attempts=attempts(gap=(0.0, 0.0)))
    held = tuple(replace(r, present=np.ones(len(unnoticed.attempts), bool)) for r in unnoticed.readings)
    drill = judge(replace(unnoticed, readings=held)).drill
    assert drill.verdict is Verdict.UNDECIDED
    assert drill.why == "nothing that was observed shows that kill happened"
    moved = replace(quiet, views=(replace(view("n2", 2), at=101.0),))
    assert judge(replace(unnoticed, readings=held, run=moved)).drill.verdict is Verdict.HELD


@each([
    ({"recovered": False}, "the cluster did not recover"),
    ({"recovered": False, "error": "n1 is gone"}, "n1 is gone"),
    ({"timed_out": "timed out after 90 s"}, "timed out after 90 s"),
    ({"incomplete": "a writer was killed"}, "a writer was killed"),
    ({"refused": "kill could not be done: no"}, "kill could not be done: no"),
    ({"before": replace(view(), leader=None)}, "the cluster was not healthy before the fault"),
    ({"fault_at": 70.0}, "the writers had only 0 commits acknowledged before the fault"),
    ({"after": view("n2", 1)}, "n2 is reported as leader, on the old timeline: no standby was promoted"),
])  # fmt: skip
def test_a_failed_assumption_is_undecided_and_named(change: dict[str, object], sentence: str) -> None:
    drill = judged(drill=replace(KILLED, **change))  # type: ignore[arg-type]
    assert drill.verdict is Verdict.UNDECIDED
    assert sentence in drill.why
    if "refused" in change:
        assert (drill.rto_s, drill.unavailable_s, drill.writers_rto_s, drill.marks) == (None, None, None, ())


@each([{"recovered": False}, {"timed_out": "late"}, {"incomplete": "a writer was killed"}])
def test_a_proven_loss_wins(change: dict[str, object]) -> None:
    drill = judged(drill=replace(KILLED, **change), lost=(99.0, 100.0))  # type: ignore[arg-type]
    assert drill.verdict is Verdict.BROKEN


def test_a_wait_that_ran_out_while_the_fault_was_in_effect_is_in_the_sentence() -> None:
    drill = judged(drill=replace(KILLED, stalled="timed out after 90 s"))
    assert (drill.verdict, drill.why.endswith("; timed out after 90 s")) == (Verdict.HELD, True)


def test_a_fault_is_told_in_the_words_of_its_target_with_attempts_that_got_no_answer() -> None:
    there = judged(drill=replace(KILLED, happens="the pod is deleted"))
    assert (there.evidence["story"], judged().evidence["story"]) == (
        "the pod is deleted",
        CATALOGUE["kill"].story.happens,
    )
    orderly = run(ORDERLY, after=view("n2", 2))
    whole = history(drill=orderly, fault="switchover")
    outcome = np.where(np.isclose(whole.attempts.ended, 103.5), Outcome.UNKNOWN, whole.attempts.outcome).astype(np.int8)
    drill = judge(replace(whole, attempts=replace(whole.attempts, outcome=outcome))).drill
    assert drill.verdict is Verdict.HELD and "1 transaction under way got no answer" in drill.why
    assert "no answer" not in judge(whole).drill.why
    assert "no transaction fails where clients are held" in drill.evidence["promise"]


def test_an_outage_that_walproof_makes_itself_is_no_rto() -> None:
    stays = "writes stop for as long as it is fenced; no instance takes over"
    drill = judged(drill=replace(run(ORDERLY, after=view("n2", 2)), no_takeover=stays), fault="stop")
    assert drill.verdict is Verdict.HELD and drill.why.endswith(f"; no RTO: {stays}"), drill.why
    assert (drill.rto_s, drill.writers_rto_s, drill.unavailable_s, drill.no_rto) == (None, None, None, stays)
    assert drill.recovery == Recovery() and by_recovery([drill]) == {}
    limits = gate("rpo=0,rto=1s,unavailable=1s")
    assert exceeded(limits, drill) == ""
    timed = judged(drill=run(ORDERLY, after=view("n2", 2)), fault="stop")
    assert timed.rto_s and "1 s are allowed" in exceeded(limits, timed)


def test_an_outage_without_an_end_is_not_held_and_a_writer_that_stays_away_is_told() -> None:
    whole = history(drill=replace(KILLED, stopped_at=160.0))
    drill = judge(whole).drill
    assert (drill.verdict, drill.rto_s, drill.assumptions["commits came back"]) == (Verdict.UNDECIDED, None, False)
    assert drill.why.startswith("commits did not come back to stay before the drill ended")
    away = (whole.attempts.writer == 1) & (whole.attempts.ended > 110.0)
    whole = history()
    outcome = np.where(away, Outcome.UNKNOWN, whole.attempts.outcome).astype(np.int8)
    drill = judge(replace(whole, attempts=replace(whole.attempts, outcome=outcome))).drill
    assert drill.verdict is Verdict.HELD and drill.rto_s == pytest.approx(3.0, abs=0.06)
    assert drill.writers_rto_s is not None and drill.writers_rto_s[2] == float("inf")


def test_an_incomplete_ledger_has_no_times_and_no_phantoms() -> None:
    whole = history(drill=replace(KILLED, incomplete="a writer was killed"))
    drill = judge(replace(whole, readings=tuple(replace(r, phantom=3) for r in whole.readings))).drill
    assert (drill.findings.phantom, drill.rto_s, drill.unavailable_s) == (0, None, None)
    assert drill.verdict is Verdict.UNDECIDED


def test_unread_members_are_named() -> None:
    whole = history()
    assert "n3 could not be read afterwards" in judge(replace(whole, readings=whole.readings[:2])).drill.why
    nobody = judge(replace(whole, readings=())).drill
    assert "the leader could not be read afterwards" in nobody.why
    assert (nobody.verdict, nobody.findings.lost) == (Verdict.UNDECIDED, 0)


def test_two_leaders_are_proven_by_the_answers_alone() -> None:
    whole = history()
    started = np.where(whole.attempts.ended > 128.0, 90.0, whole.attempts.started)
    side = np.where(whole.attempts.ended > 128.0, 0, whole.attempts.server).astype(np.int16)
    late = replace(whole.attempts, started=started, server=side, timeline=(side + 1).astype(np.int32))
    drill = judge(replace(whole, attempts=late, readings=())).drill
    assert drill.findings.two_leaders_s == 0
    started = np.where(whole.attempts.ended > 128.0, 127.0, whole.attempts.started)
    both = judge(replace(whole, attempts=replace(late, started=started), readings=())).drill
    assert both.verdict is Verdict.BROKEN
    assert both.why.startswith("two leaders acknowledged at once for 24.0 s; ")


def test_without_a_reading_a_weaker_level_is_still_named() -> None:
    weak = replace(history(), attempts=attempts(Level.OFF), readings=())
    drill = judge(weak).drill
    assert drill.verdict is Verdict.UNDECIDED
    assert "401 acknowledged commits ran at off, not at on" in drill.why
    assert "the leader could not be read afterwards" in drill.why


def test_a_leader_reported_long_before_the_first_commit_got_through_is_evidence() -> None:
    whole = history(drill=replace(KILLED, views=(view(None), view("n2", 2))))
    moments = (replace(whole.run.views[0], at=101.0), replace(whole.run.views[1], at=102.0))
    tries = attempts(gap=(100.0, 115.0))
    started = tries.started.copy()
    started[np.flatnonzero(tries.ended > 100.0)[0]] = 111.0
    late = replace(
        whole,
        run=replace(whole.run, views=moments),
        attempts=replace(tries, started=started),
        readings=tuple(replace(r, present=np.ones(len(tries), bool)) for r in whole.readings),
    )
    drill = judge(late).drill
    assert drill.recovery.promotion_s == pytest.approx(1.0)
    assert drill.evidence["late"] == "a leader was reported 13.0 s before the first commit got through"
    soon = replace(late, run=replace(late.run, views=(moments[0], replace(moments[1], at=109.0))))
    assert "late" not in judge(soon).drill.evidence
    assert drill.evidence["standby names before"] == "(empty)"
    named = replace(late, run=replace(late.run, before=replace(late.run.before, standby_names="ANY 1 (n2)")))
    assert judge(named).drill.evidence["standby names before"] == "ANY 1 (n2)"
    never_seen = replace(late, run=replace(late.run, views=()))
    assert "late" not in judge(never_seen).drill.evidence


def test_odd_tables_and_strangers_make_missing_rows_prove_nothing() -> None:
    odd = replace(KILLED, states=(*KILLED.states, state(at=125.0, table=LedgerTable("u"))))
    assert judged(drill=odd, lost=(99.0, 100.0)).verdict is Verdict.UNDECIDED
    strangers = (state(system="1"), state("n2", system="2"))
    stranger = judged(drill=replace(KILLED, states=(*KILLED.states, *strangers)), lost=(99.0, 100.0))
    assert stranger.verdict is Verdict.UNDECIDED
    assert "n1 and n2 say that they are of different clusters" in stranger.why
    one = judged(drill=replace(KILLED, states=(*KILLED.states, state(system="1"), state("n2", system="1"))))
    assert one.verdict is Verdict.HELD


def test_voided_settings_and_overrides_are_in_the_sentence() -> None:
    off = replace(KILLED, states=(*KILLED.states, state(settings={"fsync": "off"})))
    assert judged(drill=off).why == "fsync is off on n1: nothing is flushed"
    override = replace(KILLED, states=(*KILLED.states, state(overrides=("walproof: synchronous_commit=off",))))
    assert judged(drill=override).verdict is Verdict.HELD
    weak = replace(history(drill=override), attempts=attempts(Level.OFF))
    assert judge(weak).drill.why == (
        "401 acknowledged commits ran at off, not at on; set there: walproof: synchronous_commit=off"
    )


def test_commits_lost_at_a_weaker_level_name_it_as_the_cause() -> None:
    weak = replace(history(lost=(99.0, 100.0)), attempts=attempts(Level.OFF))
    drill = judge(weak).drill
    assert drill.verdict is Verdict.BROKEN
    assert drill.why == "20 acknowledged commits lost, because 401 acknowledged commits ran at off, not at on"


def test_names_emptied_after_a_takeover_are_a_window_and_before_it_a_failure() -> None:
    whole = history()
    ended = whole.attempts.ended
    after = replace(whole.attempts, names=np.where((ended > 102.0) & (ended < 103.5), 1, 0).astype(np.int16))
    drill = judge(replace(whole, attempts=after)).drill
    assert drill.verdict is Verdict.HELD
    assert drill.findings.unnamed_after_takeover_s == pytest.approx(0.45, abs=0.06)
    assert drill.findings.not_in_effect_s == 0
    assert "n2 acknowledged on for 0.45 s before it named a standby" in drill.why
    assert drill.evidence["no standby named after the takeover"] == "0.45 s"
    before = replace(whole.attempts, names=np.where(ended < 90.0, 1, 0).astype(np.int16))
    failed = judge(replace(whole, attempts=before)).drill
    assert failed.verdict is Verdict.UNDECIDED
    assert failed.findings.not_in_effect_s == pytest.approx(9.9, abs=0.2)


def test_a_leader_that_stays_and_acknowledges_alone_is_found_and_timed() -> None:
    """As dataDurability: preferred does once the last standby is gone."""
    planned = replace(history().planned, fault=CATALOGUE["kill-member"], victim=Victim.ALL_STANDBYS)
    whole = replace(history(), planned=planned)
    well = tuple(state for state in whole.run.states if state.member != "n1" or state.at < whole.run.fault_at)
    stayed = replace(whole.run, after=whole.run.before, states=well)
    ended = whole.attempts.ended
    late = replace(whole.attempts, names=np.where(ended > 103.0, 1, 0).astype(np.int16))
    count = int(((ended > 103.0) & (late.outcome == Outcome.ACKNOWLEDGED)).sum())
    drill = judge(replace(whole, run=stayed, attempts=late)).drill
    assert drill.verdict is not Verdict.HELD
    first = float(ended[ended > 103.0].min()) - stayed.fault_at
    assert f"n1 acknowledged {count} commits at on alone, the first {first:.1f} s after it" in drill.why
    always = replace(whole.attempts, names=np.ones(len(ended), dtype=np.int16))
    assert "alone" not in judge(replace(whole, run=stayed, attempts=always)).drill.why


def test_a_standby_that_differs_is_divergence_only_when_it_has_replayed_everything() -> None:
    whole = history()
    lacking = whole.readings[1].present.copy()
    lacking[5:8] = False
    for caught_up, verdict in ((True, Verdict.BROKEN), (False, Verdict.HELD), (None, Verdict.HELD)):
        other = replace(whole.readings[1], present=lacking, caught_up=caught_up)
        drill = judge(replace(whole, readings=(whole.readings[0], other, whole.readings[2]))).drill
        assert drill.verdict is verdict
        assert drill.evidence["n1 differs"].startswith("3 rows from the leader's")


def visible(fault: str, level: Level, names: str) -> Drill:
    """A history whose readers saw stale and backward reads of n2."""
    whole = history(drill=run(after=view("n1", 1)), fault=fault, level=level)
    report = WitnessReport({"n2": (9, 4)}, backward_by_member={"n2": 2, "n3": 7})
    tries = replace(whole.attempts, standby_names=(names, ""))
    planned = replace(whole.planned, victim=Victim.CLUSTER)
    return judge(replace(whole, attempts=tries, witness=report, planned=planned)).drill


def test_reads_of_standbys_are_judged_at_remote_apply_where_every_commit_waits_for_them() -> None:
    drill = visible("none", Level.REMOTE_APPLY, "ANY 1 (n2)")
    assert (drill.findings.broken_freshness, drill.findings.backward_reads) == (4, 2)
    assert drill.verdict is Verdict.BROKEN
    for fault, level, names in (
        ("none", Level.ON, "ANY 1 (n2)"),
        ("none", Level.REMOTE_APPLY, "ANY 1 (n2, n3)"),
        ("restart", Level.REMOTE_APPLY, "ANY 1 (n2)"),
    ):
        assert visible(fault, level, names).findings.broken_freshness == 0


def test_marks_say_when_the_fault_was_injected_and_cleared() -> None:
    marks = [(mark.at, mark.what, mark.member) for mark in judged().marks]
    assert (100.0, "kill", "n1") in marks
    assert (120.0, "fault cleared", "n1") in marks
    assert marks == sorted(marks)
    assert all(mark.what != "none" for mark in visible("none", Level.ON, "ANY 1 (n2)").marks)


def test_data_that_nobody_could_check_is_a_caveat_and_no_damage() -> None:
    why = "role app may not use amcheck: as superuser in template1: …"
    unchecked = judge(replace(history(), problems={"n2 unchecked": why, "n3 unchecked": why})).drill
    assert unchecked.verdict is Verdict.HELD
    assert unchecked.why.endswith("; data files of n2, n3 were not checked, only rows compared")
    assert unchecked.evidence["n2 unchecked"] == why
    damaged = judge(replace(history(), problems={"data of n2": "item order invariant violated"})).drill
    assert damaged.verdict is not Verdict.HELD
    assert "not checked" not in damaged.why
