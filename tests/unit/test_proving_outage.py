"""The outage found in the acknowledgements, and its parts."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.fixtures.tiers import each
from tests.unit.test_proving_findings import A, ledger
from walproof.model.drill import Findings, Mark, Recovery
from walproof.model.load import Attempts
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.proving.outage import (
    Outage,
    acknowledged_at,
    as_clause,
    outage,
    pace,
    rpo_s,
    short_returns,
    split,
    split_by_steps,
    writers_rto_s,
)
from walproof.targets.patroni.target import elected_at

Times = NDArray[np.float64]


def steady(begin: float, end: float) -> list[float]:
    return list(np.arange(begin, end, 0.01))


def acknowledged(*spans: tuple[float, float], stray: float | None = None) -> Times:
    """A hundred a second in each span, and a single one at `stray`."""
    return np.sort(np.array([*(t for span in spans for t in steady(*span)), *([stray] if stray else [])]))


def found(times: Times, fault_at: float, stopped_at: float, cleared_at: float = math.inf) -> Outage:
    out = outage(times, fault_at, cleared_at=cleared_at, stopped_at=stopped_at)
    assert out is not None
    return out


Drilled = tuple[Times, float, float] | tuple[Times, float, float, float]
"""Successes; when the fault was injected, the writers were stopped, the fault was cleared."""
SLOW = np.concatenate((np.arange(0, 20, 2.0), np.arange(26, 60, 2.0)))
HICCUP = acknowledged((0, 2), (2.4, 5), (5.7, 9), (10.2, 20))
OUTAGES: dict[str, tuple[Drilled, float | None, float | None]] = {
    "the gap after the fault": ((acknowledged((0, 5), (8, 10)), 5.0, 10), 3.01, 3.01),
    "answers under way belong to before": ((acknowledged((0, 5), (8, 9.2), stray=5.2), 5.0, 9.2), 2.8, 2.8),
    "a leader that goes on makes it start later": ((acknowledged((0, 17), (21, 23)), 5.0, 23), 4.01, 4.01),
    "an early success ends nothing": ((acknowledged((0, 5), (48, 49.2), stray=6.0), 5.0, 49.2), 43.01, None),
    "a stray success does not halve it": ((acknowledged((0, 5), (25, 30), stray=15.0), 5.0, 30), 20.01, None),
    "commits never come back": ((acknowledged((0, 5), stray=5.1), 5.0, 60), None, 54.9),
    "silence lasts until the writers stop": ((acknowledged((0, 5)), 5.0, 60), None, 55.01),
    "a stray success before the stop is no service": ((acknowledged((0, 5), stray=29.5), 5.0, 30), None, 24.51),
    "a stall after the clearing is not the fault's": (
        (acknowledged((0, 5), (6, 20), (25, 26)), 5.0, 26, 19.0), 1.01, None,
    ),
    "one that only the clearing ends": (
        (acknowledged((0, 5), (25, 26)), 4.9, 26, 20.0), 20.01, 20.01,
    ),
    "service between two gaps ends the first": ((acknowledged((0, 5), (8, 12), (14, 20)), 5.0, 20), 3.01, 5.02),
    "a return shorter than the next gap ends nothing": (
        (acknowledged((0, 5), (101, 101.4), (111, 114)), 5.0, 114, 101.0), 106.01, 105.6,
    ),
    "nor do two of them": ((acknowledged((0, 5), (15, 18), (22, 25), (30, 33)), 5.0, 33), 25.01, 19.0),
    "what outlasts the next gap ends it, of whatever follows that": (
        (acknowledged((0, 5), (15, 30), (31, 31.2), (33, 40)), 5.0, 40), 10.01, 12.8,
    ),
    "a burst and nothing more": ((acknowledged((0, 5), (101, 101.4)), 5.0, 103, 101.0), None, 97.6),
    "a long burst and nothing more": ((acknowledged((0, 5), (10, 20)), 5.0, 60), None, 45.0),
    "flapping adds up": (
        (acknowledged((0, 5), *((5 + 2 * n, 5.5 + 2 * n) for n in range(1, 10)), (26, 30)), 5.0, 30), 21.01, 16.6,
    ),
    "else the longest of the fault's own": (
        (acknowledged((0, 2), (2.4, 6), (6.2, 7), (7.3, 9), (9.45, 12)), 5.0, 12, 8.0), 0.31, 0.0,
    ),
    "else the longest before its end": (
        (acknowledged((0, 2), (2.4, 5), (5.2, 9), (9.3, 15), (15.45, 20)), 5.0, 20, 12.0), 0.31, 0.0,
    ),
    "slow but steady service is none": ((np.arange(0, 60, 2.0), 20.5, 60), 2.0, 0.0),
    "a hiccup before hides none": ((HICCUP, 5.0, 20), 1.21, 1.92),
    "gaps of a slow service hide no long one": ((SLOW, 18.5, 60), 8.0, 8.0),
}  # fmt: skip


@each(OUTAGES.values())
def test_the_outage_is_what_clients_saw(drilled: Drilled, seconds: float | None, unavailable: float | None) -> None:
    out = found(*drilled)
    assert out.seconds is None if seconds is None else out.seconds == pytest.approx(seconds, abs=0.02)
    assert unavailable is None or out.unavailable_s == pytest.approx(unavailable, abs=0.1)


def test_short_returns_are_told() -> None:
    times = acknowledged((0, 5), (101, 101.335), (111, 114))
    out = found(times, 5.0, 114, 101.0)
    assert [(first, round(last, 2)) for first, last in out.returns] == [(101.0, 101.33)]
    assert short_returns(out, times) == "34 commits came back after 96.0 s, then none for 9.7 s"
    assert found(acknowledged((0, 5), (8, 12), (14, 20)), 5.0, 20).returns == ()


def test_a_gap_is_noticeable_beyond_what_was_usual_before() -> None:
    assert found(HICCUP, 5.0, 20).noticeable_s == 0.5
    assert found(SLOW, 18.5, 60).noticeable_s == pytest.approx(4.0)


def test_without_any_success_before_there_is_no_outage() -> None:
    assert outage(acknowledged((6, 8)), fault_at=5.0, stopped_at=8) is None
    assert outage(np.array([]), fault_at=5.0, stopped_at=8) is None


def test_the_pace_counts_every_success_once_in_tenths_of_a_second_or_two_hundredths_of_the_drill() -> None:
    times = acknowledged((0, 5), (8, 10))
    assert sum(count for _, count in pace(times)) == len(times)
    assert pace(np.array([])) == ()
    bins = pace(np.array([1.0, 1.05, 1.25]))
    assert [count for _, count in bins] == [2, 0, 1]
    assert [at for at, _ in bins] == pytest.approx([1.0, 1.1, 1.2])
    short, long = pace(acknowledged((0, 5))), pace(acknowledged((0, 100)))
    assert short[0] == (0.0, 10)
    assert long[1][0] == pytest.approx(0.5, abs=0.01)
    assert len(long) in (200, 201)
    assert pace(acknowledged((0, 5)) + 1e9)[1][0] - 1e9 == pytest.approx(0.1)


def parts(
    *views: tuple[float, str | None], began: float = 8.9, elected_at: float | None = None
) -> tuple[Recovery, tuple[Mark, ...]]:
    """Of an outage from 5 to 9 s under n1; `began`: the attempt that ended it."""
    tries = ledger((1, A, 5.0), (2, A, 9.0), (3, A, 9.4), (4, A, 9.8), (5, A, 10.2))
    tries = replace(tries, started=np.array([4.9, began, 9.3, 9.7, 10.1]))
    out = found(acknowledged_at(tries), 5.05, 10.3)
    seen = [ClusterView(at, (MemberView("n1", Role.STANDBY, "streaming"),), leader) for at, leader in views]
    return split(tries, out, seen, "n1", elected_at)


# rows: they add up to the outage, what was not seen is left out, no routing where the attempt began before the
# promotion was seen, the manager's log of the election counts more than views, the old leader still shown after the
# election is no promotion, a leader restarted in place leads again, and is not promoted
@each([
    (partial(parts, (4.5, "n1"), (5.5, "n1"), (6.0, None), (7.5, "n2"), began=8.8), (1.0, 1.5, 1.3, 0.2)),
    (partial(parts, (4.0, "n1"), (8.0, "n1")), (None, None, 3.9, 0.1)),
    (partial(parts, (6.0, None), (7.5, "n2"), began=7.0), (1.0, 1.5, None, 1.5)),
    (partial(parts, (4.5, "n1"), (5.1, None), (7.5, "n2"), elected_at=7.0), (2.0, 0.5, 1.4, 0.1)),
    (partial(parts, (4.5, "n1"), (7.1, "n1"), (7.3, None), (7.5, "n2"), elected_at=7.0), (2.0, 0.5, 1.4, 0.1)),
    (partial(parts, (6.0, None), (7.5, "n1")), (1.0, 1.5, 1.4, 0.1)),
])  # fmt: skip
def test_the_parts(seen: Callable[[], tuple[Recovery, tuple[Mark, ...]]], seconds: tuple[float | None, ...]) -> None:
    recovery, marks = seen()
    again = recovery.promotion_s if recovery.restart_s is None else recovery.restart_s
    took = (recovery.detection_s, again, recovery.routing_s, recovery.client_s)
    assert [one is None for one in took] == [one is None for one in seconds]
    assert [one or 0.0 for one in took] == pytest.approx([one or 0.0 for one in seconds])
    back = "promotion" if recovery.restart_s is None else "restart"
    names = ["last acknowledgement", "detection", back, "routing", "first acknowledgement"]
    assert [m.what for m in marks] == [
        name for name, one in zip(names, (0.0, *seconds), strict=True) if one is not None
    ]
    assert marks[0].member == "n1"


def test_a_leader_that_leads_again_is_no_promotion() -> None:
    (recovery, marks), (by_steps, _) = parts((6.0, None), (7.5, "n1")), steps_of((6.0, None), (7.5, "n1"))
    assert (recovery.promotion_s, recovery.restart_s) == (None, 1.5)
    assert ("restart", "n1") in [(m.what, m.member) for m in marks]
    assert (by_steps.promotion_s, by_steps.restart_s, by_steps.endpoint_s) == (None, 2.5, 0.5)
    assert as_clause(by_steps) == "outage: restart 2.5 s, endpoint 0.5 s, client 1.0 s"
    # A thawed leader that led again for a moment, before another was promoted.
    taken_over, marks = parts((5.5, None), (6.0, "n1"), (6.5, None), (7.5, "n2"))
    assert (taken_over.promotion_s, taken_over.restart_s, marks[2].member) == (2.0, None, "n2")
    (other, _) = steps_of((6.0, None), (7.5, "n2"))
    assert (other.promotion_s, other.restart_s) == (2.5, None)


def steps_of(*seen: tuple[float, str | None]) -> tuple[Recovery, tuple[Mark, ...]]:
    """Of an outage from 5 to 9 s under n1 whose write service led to a leader at 8 s."""
    views = [ClusterView(at, (MemberView("n1", Role.STANDBY, "running"),), leader) for at, leader in seen]
    by_steps = split_by_steps(Outage(5.0, 9.0, 0.5), (Mark(8.0, "endpoint", "n1"),), views, "n1")
    assert by_steps is not None
    return by_steps


def test_the_promotion_is_marked_with_the_member_that_was_promoted() -> None:
    _, marks = parts((4.5, "n1"), (7.1, "n1"), (7.3, None), (7.5, "n2"), elected_at=7.0)
    assert [(m.what, m.member) for m in marks[1:3]] == [("detection", "n1"), ("promotion", "n2")]


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


def many(times: dict[int, list[float]]) -> Attempts:
    """Acknowledgements of several writers at these times."""
    flat = sorted((at, writer) for writer, every in times.items() for at in every)
    one = ledger(*((n, A, at) for n, (at, _) in enumerate(flat)))
    return replace(one, writer=np.array([writer for _, writer in flat], np.int32))


WRITERS: dict[str, tuple[dict[int, list[float]], tuple[float, float, float] | None]] = {
    "every writer has its own": ({n: [*steady(0, 5), *steady(6.0 + n, 30)] for n in range(20)}, (10.01, 19.01, 20.01)),
    "a stray success does not halve it": (
        {n: [*steady(0, 5), 15.0, *steady(25, 30)] for n in range(3)}, (20.01, 20.01, 20.01),
    ),
    "back shortly before the stop is back": ({0: [*steady(0, 5), *steady(29.4, 30)]}, (24.41, 24.41, 24.41)),
    "never again is the worst": (
        {0: [*steady(0, 5), *steady(6, 30)], 1: steady(0, 5), 2: steady(20, 30)}, (1.01, math.inf, math.inf),
    ),
    "a burst and nothing more is never again": (
        {0: [*steady(0, 5), *steady(12, 30)], 1: [*steady(0, 5), *steady(12, 14)]}, (7.01, math.inf, math.inf),
    ),
    "none that had committed before": ({2: steady(20, 30)}, None),
    "none at all": ({}, None),
}  # fmt: skip


@each(WRITERS.values())
def test_the_outage_of_single_writers(
    writers: dict[int, list[float]], expected: tuple[float, float, float] | None
) -> None:
    assert writers_rto_s(many(writers), 5.0, stopped_at=30) == (expected and pytest.approx(expected, abs=0.02))


@each([1.2, 2.0])
def test_slow_writers_that_are_stopped_between_two_commits_were_not_gone(every: float) -> None:
    writers = {n: [*np.arange(0.1 * n, 30 - every + 0.1, every)] for n in range(5)}
    assert writers_rto_s(many(writers), 10.05, stopped_at=30) == pytest.approx((every,) * 3)


def test_rpo_ends_with_the_newest_lost_acknowledgement_where_that_is_later_than_the_fault() -> None:
    assert rpo_s(Findings(lost=2, lost_from=9.0, lost_to=14.0), 10.0) == 5.0


@given(st.lists(st.floats(0.0, 100.0), min_size=2, max_size=60), st.floats(1.0, 99.0))
def test_an_outage_is_never_longer_than_all_unavailability_and_nothing_is_negative(
    times: list[float], fault_at: float
) -> None:
    out = found(np.sort(np.array([0.0, *times])), fault_at, 120.0)
    assert out.unavailable_s >= 0
    assert out.seconds is None or out.seconds >= 0
