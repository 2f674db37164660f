"""The outage found in the acknowledgements, and its parts."""

from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_proving_findings import A, U, ledger
from walproof.model.drill import Findings
from walproof.model.load import Attempts
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.proving.outage import acknowledged_at, outage, pace, rpo_s, split, writers_rto_s
from walproof.targets.patroni.target import elected_at


def steady(begin: float, end: float) -> list[float]:
    return list(np.arange(begin, end, 0.01))


def acknowledged(*spans: tuple[float, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([t for span in spans for t in steady(*span)])


def test_the_gap_after_the_fault_is_the_outage() -> None:
    out = outage(acknowledged((0, 5), (8, 10)), fault_at=5.0, stopped_at=10)
    assert out is not None
    assert out.seconds == pytest.approx(3.01, abs=0.02)


def test_answers_under_way_when_the_fault_was_injected_belong_to_before() -> None:
    out = outage(np.append(acknowledged((0, 5)), [5.2, *steady(8.0, 9.2)]), fault_at=5.0, stopped_at=9.2)
    assert out is not None
    assert out.seconds == pytest.approx(2.8)


def test_a_leader_that_goes_on_after_the_fault_makes_the_outage_start_later() -> None:
    out = outage(acknowledged((0, 17), (21, 23)), fault_at=5.0, stopped_at=23)
    assert out is not None
    assert out.last_before == pytest.approx(16.99)
    assert out.seconds == pytest.approx(4.01)


def test_a_single_early_success_does_not_hide_a_late_recovery() -> None:
    out = outage(np.append(acknowledged((0, 5)), [6.0, *steady(48.0, 49.2)]), fault_at=5.0, stopped_at=49.2)
    assert out is not None
    assert out.seconds == pytest.approx(43.01)


def test_commits_that_never_come_back_have_no_length() -> None:
    out = outage(np.append(acknowledged((0, 5)), [5.1]), fault_at=5.0, stopped_at=60.0)
    assert out is not None
    assert out.seconds is None


def test_a_stall_that_clearing_the_fault_causes_is_not_the_faults() -> None:
    out = outage(acknowledged((0, 5), (6, 20), (25, 26)), fault_at=5.0, cleared_at=19.0, stopped_at=26)
    assert out is not None
    assert out.seconds == pytest.approx(1.01, abs=0.02)


def test_an_outage_that_only_clearing_the_fault_ends_is_seen_in_full() -> None:
    out = outage(acknowledged((0, 5), (25, 26)), fault_at=4.9, cleared_at=20.0, stopped_at=26)
    assert out is not None
    assert out.seconds == pytest.approx(20.01, abs=0.02)


def test_without_any_success_before_there_is_no_outage() -> None:
    assert outage(acknowledged((6, 8)), fault_at=5.0, stopped_at=8) is None
    assert outage(np.array([]), fault_at=5.0, stopped_at=8) is None


def test_the_pace_counts_every_success_once() -> None:
    times = acknowledged((0, 5), (8, 10))
    assert sum(count for _, count in pace(times)) == len(times)
    assert pace(np.array([])) == ()
    bins = pace(np.array([1.0, 1.05, 1.25]))
    assert [count for _, count in bins] == [2, 0, 1]
    assert [at for at, _ in bins] == pytest.approx([1.0, 1.1, 1.2])
    assert len(pace(np.arange(0.0, 1000.0, 1.0))) <= 201


def test_an_attempt_that_reached_the_new_leader_before_it_was_seen_has_no_routing_of_its_own() -> None:
    tries = ledger((1, A, 5.0), (2, A, 9.0), (3, A, 9.4), (4, A, 9.8), (5, A, 10.2))
    tries = replace(tries, started=np.array([4.9, 7.0, 9.3, 9.7, 10.1]))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=10.3)
    assert out is not None
    recovery, _ = split(tries, out, [view(4.5, "n1"), view(5.5, None), view(7.5, "n2")], "n1")
    assert recovery.routing_s is None
    assert (recovery.detection_s, recovery.promotion_s, recovery.client_s) == pytest.approx((0.5, 2.0, 1.5))


def test_the_pace_is_in_bins_of_a_tenth_of_a_second_or_of_a_two_hundredth_of_the_drill() -> None:
    short, long = pace(acknowledged((0, 5))), pace(acknowledged((0, 100)))
    assert short[0] == (0.0, 10)
    assert short[1][0] == pytest.approx(0.1)
    assert long[1][0] == pytest.approx(0.5, abs=0.01)
    assert len(long) in (200, 201)
    assert pace(acknowledged((0, 5)) + 1e9)[1][0] - 1e9 == pytest.approx(0.1)


def test_where_no_gap_is_longer_than_usual_the_longest_of_the_faults_own_is_given() -> None:
    """0.4 s before the fault, 0.2 and 0.3 s while it was in effect, 0.45 s once it had been cleared."""
    times = acknowledged((0, 2), (2.4, 6), (6.2, 7), (7.3, 9), (9.45, 12))
    out = outage(times, fault_at=5.0, cleared_at=8.0, stopped_at=12)
    assert out is not None
    assert [out.last_before, out.first_after] == pytest.approx([6.99, 7.3])
    assert out.unavailable_s == 0


def view(at: float, leader: str | None) -> ClusterView:
    return ClusterView(at, (MemberView("n1", Role.STANDBY, "streaming"),), leader)


def test_the_parts_add_up_to_the_outage() -> None:
    tries = ledger((1, A, 4.0), (2, A, 5.0), (3, U, 5.1), (4, A, 9.0))
    tries = replace(tries, started=np.array([3.9, 4.9, 5.0, 8.8]))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=10.1)
    assert out is not None
    views = [view(4.5, "n1"), view(5.5, "n1"), view(6.0, None), view(7.5, "n2")]
    recovery, marks = split(tries, out, views, "n1")
    assert recovery.detection_s == pytest.approx(1.0)
    assert recovery.promotion_s == pytest.approx(1.5)
    assert recovery.routing_s == pytest.approx(1.3)
    assert recovery.client_s == pytest.approx(0.2)
    assert [m.what for m in marks] == [
        "last acknowledgement",
        "detection",
        "promotion",
        "routing",
        "first acknowledgement",
    ]


def test_a_part_nobody_saw_is_left_out() -> None:
    tries = ledger((1, A, 5.0), (2, A, 9.0), (3, A, 9.4), (4, A, 9.8), (5, A, 10.2))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=10.1)
    assert out is not None
    recovery, _ = split(tries, out, [view(4.0, "n1"), view(8.0, "n1")], "n1")
    assert (recovery.detection_s, recovery.promotion_s) == (None, None)
    assert (recovery.routing_s or 0) + (recovery.client_s or 0) == pytest.approx(4.0)


def test_an_attempt_that_began_before_the_promotion_was_seen_needed_no_routing() -> None:
    tries = ledger((1, A, 5.0), (2, A, 9.0), (3, A, 9.4), (4, A, 9.8), (5, A, 10.2))
    tries = replace(tries, started=np.array([4.9, 7.0, 9.3, 9.7, 10.1]))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=10.3)
    assert out is not None
    recovery, marks = split(tries, out, [view(6.0, None), view(7.5, "n2")], "n1")
    assert (recovery.detection_s, recovery.promotion_s, recovery.routing_s) == (1.0, 1.5, None)
    assert recovery.client_s == pytest.approx(1.5)
    assert [m.what for m in marks] == ["last acknowledgement", "detection", "promotion", "first acknowledgement"]


def test_the_managers_log_of_the_election_counts_more_than_views() -> None:
    tries = ledger((1, A, 5.0), (2, A, 9.0), (3, A, 9.4), (4, A, 9.8), (5, A, 10.2))
    tries = replace(tries, started=tries.ended - 0.1)
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=10.1)
    assert out is not None
    views = [view(4.5, "n1"), view(5.1, None), view(7.5, "n2")]
    recovery, _ = split(tries, out, views, "n1", elected_at=7.0)
    assert recovery.detection_s == pytest.approx(2.0)
    assert recovery.promotion_s == pytest.approx(0.5)


def test_a_view_that_still_shows_the_old_leader_after_the_election_is_no_promotion() -> None:
    tries = ledger((1, A, 5.0), (2, A, 9.0), (3, A, 9.4), (4, A, 9.8), (5, A, 10.2))
    tries = replace(tries, started=tries.ended - 0.1)
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=10.1)
    assert out is not None
    views = [view(4.5, "n1"), view(7.1, "n1"), view(7.3, None), view(7.5, "n2")]
    recovery, marks = split(tries, out, views, "n1", elected_at=7.0)
    assert (recovery.detection_s, recovery.promotion_s) == (2.0, 0.5)
    assert [(m.what, m.member) for m in marks[:3]] == [
        ("last acknowledgement", "n1"), ("detection", "n1"), ("promotion", "n2"),
    ]  # fmt: skip


def test_a_leader_restarted_in_place_is_promoted_when_it_leads_again() -> None:
    tries = ledger((1, A, 5.0), (2, A, 9.0), (3, A, 9.4), (4, A, 9.8), (5, A, 10.2))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=10.1)
    assert out is not None
    recovery, _ = split(tries, out, [view(6.0, None), view(7.5, "n1")], "n1")
    assert (recovery.detection_s, recovery.promotion_s) == (1.0, 1.5)


def test_the_election_is_read_from_patronis_log() -> None:
    text = (
        "==> patroni.log <==\n"
        "2026-11-22 03:59:58,100 INFO: promoted self to leader by acquiring session lock\n"
        "2026-11-22 04:01:58,733 INFO: no action. I am (n2), a secondary, and following a leader (n3)\n"
        "2026-11-22 04:02:00,250 INFO: promoted self to leader by acquiring session lock\n"
    )
    noon = datetime(2026, 11, 22, 4, 0, 0).astimezone().timestamp()
    assert elected_at(text, noon) == pytest.approx(noon + 120.25)
    assert elected_at(text, noon + 130) is None
    assert elected_at("", noon) is None


def test_one_stray_acknowledgement_does_not_halve_an_outage() -> None:
    times = np.sort(np.append(acknowledged((0, 5), (25, 30)), [15.0]))
    out = outage(times, fault_at=5.0, stopped_at=30)
    assert out is not None
    assert out.seconds == pytest.approx(20.01)


def test_service_that_lasts_between_two_gaps_ends_the_first_outage() -> None:
    out = outage(acknowledged((0, 5), (8, 12), (14, 20)), fault_at=5.0, stopped_at=20)
    assert out is not None
    assert out.seconds == pytest.approx(3.01, abs=0.02)
    assert out.unavailable_s == pytest.approx(5.02, abs=0.04)


def test_flapping_adds_up() -> None:
    flaps = [(5.0 + 2 * n, 5.5 + 2 * n) for n in range(1, 10)]
    out = outage(acknowledged((0, 5), *flaps, (26, 30)), fault_at=5.0, stopped_at=30)
    assert out is not None
    assert out.unavailable_s == pytest.approx(2 + 8 * 1.5 + 2.5, abs=0.3)
    assert out.seconds == pytest.approx(21.0, abs=0.1)


def test_where_no_gap_is_longer_than_usual_the_longest_after_the_fault_and_before_its_end_is_given() -> None:
    times = acknowledged((0, 2), (2.4, 5), (5.2, 9), (9.3, 15), (15.45, 20))
    out = outage(times, fault_at=5.0, cleared_at=12.0, stopped_at=20)
    assert out is not None
    assert out.seconds == pytest.approx(0.31, abs=0.02)
    assert out.unavailable_s == 0


def test_slow_but_steady_service_is_no_outage() -> None:
    out = outage(np.arange(0, 60, 2.0), fault_at=20.5, stopped_at=60)
    assert out is not None
    assert out.unavailable_s == 0
    assert out.seconds == pytest.approx(2.0)


def test_one_hiccup_before_the_fault_hides_no_outage() -> None:
    times = acknowledged((0, 2), (2.4, 5), (5.7, 9), (10.2, 20))
    out = outage(times, fault_at=5.0, stopped_at=20)
    assert out is not None
    assert out.noticeable_s == 0.5
    assert out.unavailable_s == pytest.approx(0.7 + 1.2, abs=0.05)
    assert out.seconds == pytest.approx(1.21, abs=0.02)


def test_the_gaps_of_a_slow_service_hide_no_long_outage() -> None:
    times = np.concatenate((np.arange(0, 20, 2.0), np.arange(26, 60, 2.0)))
    out = outage(times, fault_at=18.5, stopped_at=60)
    assert out is not None
    assert out.noticeable_s == pytest.approx(4.0)
    assert (out.seconds, out.unavailable_s) == (8.0, 8.0)


def test_a_stray_acknowledgement_just_before_the_stop_is_no_service() -> None:
    out = outage(np.append(acknowledged((0, 5)), [29.5]), fault_at=5.0, stopped_at=30.0)
    assert out is not None
    assert out.seconds is None
    assert out.unavailable_s == pytest.approx(24.51, abs=0.02)


def test_silence_at_the_end_is_unavailable_until_the_writers_stop() -> None:
    out = outage(acknowledged((0, 5)), fault_at=5.0, stopped_at=60.0)
    assert out is not None
    assert out.seconds is None
    assert out.unavailable_s == pytest.approx(55.01, abs=0.02)


def many(times: dict[int, list[float]]) -> Attempts:
    """Acknowledgements of several writers at these times."""
    flat = sorted((at, writer) for writer, every in times.items() for at in every)
    one = ledger(*((n, A, at) for n, (at, _) in enumerate(flat)))
    return replace(one, writer=np.array([writer for _, writer in flat], np.int32))


def test_every_writer_has_an_outage_of_its_own() -> None:
    writers = {n: [*steady(0, 5), *steady(6.0 + n, 30)] for n in range(20)}
    found = writers_rto_s(many(writers), 5.0, stopped_at=30)
    assert found == pytest.approx((10.01, 19.01, 20.01), abs=0.02)


def test_one_stray_acknowledgement_does_not_halve_a_writers_outage() -> None:
    writers = {n: [*steady(0, 5), 15.0, *steady(25, 30)] for n in range(3)}
    assert writers_rto_s(many(writers), 5.0, stopped_at=30) == pytest.approx((20.01,) * 3, abs=0.02)


@pytest.mark.parametrize("every", [1.2, 2.0])
def test_slow_writers_that_are_stopped_between_two_commits_were_not_gone(every: float) -> None:
    writers = {n: [*np.arange(0.1 * n, 30 - every + 0.1, every)] for n in range(5)}
    found = writers_rto_s(many(writers), 10.05, stopped_at=30)
    assert found == pytest.approx((every,) * 3)


def test_a_writer_back_shortly_before_the_stop_is_back() -> None:
    writers = {0: [*steady(0, 5), *steady(29.4, 30)]}
    assert writers_rto_s(many(writers), 5.0, stopped_at=30) == pytest.approx((24.41,) * 3, abs=0.02)


def test_a_writer_that_never_commits_again_is_the_worst() -> None:
    writers = {0: [*steady(0, 5), *steady(6, 30)], 1: steady(0, 5), 2: steady(20, 30)}
    found = writers_rto_s(many(writers), 5.0, stopped_at=30)
    assert found == pytest.approx((1.01, np.inf, np.inf), abs=0.02)
    assert writers_rto_s(many({2: steady(20, 30)}), 5.0, stopped_at=30) is None
    assert writers_rto_s(ledger(), 5.0, stopped_at=30) is None


def test_rpo_is_from_the_oldest_lost_acknowledgement_to_the_fault() -> None:
    assert rpo_s(Findings(lost=2, lost_from=9.0, lost_to=9.5), 10.0) == 1.0
    assert rpo_s(Findings(lost=2, lost_from=9.0, lost_to=14.0), 10.0) == 5.0
    assert rpo_s(Findings(), 10.0) == 0.0
    # Acknowledged after the fault's moment, before the outage: not nothing.
    assert rpo_s(Findings(lost=1, lost_from=10.2, lost_to=10.2), 10.0, last_before=10.3) == pytest.approx(0.1)


@given(st.lists(st.floats(0.0, 100.0), min_size=2, max_size=60), st.floats(1.0, 99.0))
def test_an_outage_is_never_longer_than_all_unavailability_and_nothing_is_negative(
    times: list[float], fault_at: float
) -> None:
    out = outage(np.sort(np.array([0.0, *times])), fault_at, stopped_at=120.0)
    assert out is not None
    assert out.unavailable_s >= 0
    assert out.seconds is None or out.seconds >= 0
