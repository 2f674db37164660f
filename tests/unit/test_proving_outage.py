"""The outage found in the acknowledgements, and its parts."""

from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from tests.unit.test_proving_findings import A, U, ledger
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.proving.outage import acknowledged_at, outage, pace, split
from walproof.targets.patroni.election import elected_at


def steady(begin: float, end: float) -> list[float]:
    return list(np.arange(begin, end, 0.01))


def acknowledged(*spans: tuple[float, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([t for span in spans for t in steady(*span)])


def test_the_gap_after_the_fault_is_the_outage() -> None:
    out = outage(acknowledged((0, 5), (8, 10)), fault_at=5.0, stopped_at=10)
    assert out is not None
    assert out.seconds == pytest.approx(3.01, abs=0.02)


def test_answers_under_way_when_the_fault_was_injected_belong_to_before() -> None:
    out = outage(np.append(acknowledged((0, 5)), [5.2, 8.0, 8.01]), fault_at=5.0, stopped_at=8.02)
    assert out is not None
    assert out.seconds == pytest.approx(2.8)


def test_a_leader_that_goes_on_after_the_fault_makes_the_outage_start_later() -> None:
    out = outage(acknowledged((0, 17), (21, 23)), fault_at=5.0, stopped_at=23)
    assert out is not None
    assert out.last_before == pytest.approx(16.99)
    assert out.seconds == pytest.approx(4.01)


def test_a_single_early_success_does_not_hide_a_late_recovery() -> None:
    out = outage(np.append(acknowledged((0, 5)), [6.0, 48.0, 48.1]), fault_at=5.0, stopped_at=48.2)
    assert out is not None
    assert out.seconds == pytest.approx(42.0)


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
    assert outage(acknowledged((6, 8)), fault_at=5.0) is None
    assert outage(np.array([]), fault_at=5.0) is None


def test_the_pace_counts_every_success_once() -> None:
    times = acknowledged((0, 5), (8, 10))
    assert sum(count for _, count in pace(times)) == len(times)
    assert pace(np.array([])) == ()


def view(at: float, leader: str | None) -> ClusterView:
    return ClusterView(at, (MemberView("n1", Role.STANDBY, "streaming"),), leader)


def test_the_parts_add_up_to_the_outage() -> None:
    tries = ledger((1, A, 4.0), (2, A, 5.0), (3, U, 5.1), (4, A, 9.0))
    tries = replace(tries, started=np.array([3.9, 4.9, 5.0, 8.8]))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=9.1)
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
    tries = ledger((1, A, 5.0), (2, A, 9.0))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=9.1)
    assert out is not None
    recovery, _ = split(tries, out, [view(4.0, "n1"), view(8.0, "n1")], "n1")
    assert (recovery.detection_s, recovery.promotion_s) == (None, None)
    assert (recovery.routing_s or 0) + (recovery.client_s or 0) == pytest.approx(4.0)


def test_the_managers_log_of_the_election_counts_more_than_views() -> None:
    tries = replace(ledger((1, A, 5.0), (2, A, 9.0)), started=np.array([4.9, 8.8]))
    out = outage(acknowledged_at(tries), fault_at=5.05, stopped_at=9.1)
    assert out is not None
    views = [view(4.5, "n1"), view(5.1, None), view(7.5, "n2")]
    recovery, _ = split(tries, out, views, "n1", elected_at=7.0)
    assert recovery.detection_s == pytest.approx(2.0)
    assert recovery.promotion_s == pytest.approx(0.5)


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
