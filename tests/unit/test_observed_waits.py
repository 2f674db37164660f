"""Little's law on waits that are known, who pays, what else would cost."""

import math
import random
from bisect import bisect_right
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.observed import N2, N3, at, group, seen
from tests.fixtures.tiers import each
from walproof.estimating.observed_prices import payers, predictions
from walproof.estimating.observed_waits import (
    Cause,
    completing,
    held_up_by,
    observation,
    per_commit_ms,
    resampled,
)
from walproof.model.guarantee import Level, read_standby_names
from walproof.model.observed_waits import StandbySeen, WaitsSeen


def polled(seconds: int, sessions: int, work_ms: float, flush_ms: float, standby_ms: float) -> list[WaitsSeen]:
    """Sessions that work, flush and wait in turn, each time exponential, as 20 polls a second would see them."""
    rng = random.Random(7)
    turns: list[tuple[list[float], list[str]]] = []
    ends: list[float] = []
    for _ in range(sessions):
        now, own = 0.0, (list[float](), list[str]())
        while now < seconds:
            for what, ms in (("work", work_ms), ("flush", flush_ms), ("standby", standby_ms)):
                now += rng.expovariate(1000 / ms)
                own[0].append(now)
                own[1].append(what)
            ends.append(now)
        turns.append(own)
    every = []
    for second in range(seconds):
        sums = dict.fromkeys(("work", "flush", "standby"), 0)
        for poll in range(20):
            at = second + (poll + rng.random()) / 20
            for own in turns:
                sums[own[1][bisect_right(own[0], at)]] += 1
        ended = sum(second <= end < second + 1 for end in ends)
        one = group(sessions=20 * sessions, busy=20 * sessions, flush=sums["flush"], standby=sums["standby"])
        every.append(seen(one, transaction_ids=ended, commits=ended))
    return every


@each([(1, 4.0, 3.0), (8, 4.0, 3.0), (8, 1.0, 10.0), (16, 5.0, 0.5)])
def test_known_waits_come_back_and_their_intervals_hold_them(sessions: int, flush_ms: float, standby_ms: float) -> None:
    made = observation(polled(40, sessions, 2.0, flush_ms, standby_ms))
    standby = made.standby_wait_ms
    assert made.causes_ms[Cause.FLUSH].value == pytest.approx(flush_ms, rel=0.25)
    assert made.commit_wait_ms.low <= flush_ms + standby_ms <= made.commit_wait_ms.high
    assert standby.low <= standby_ms <= standby.high
    # n2 completes: of its 1.5 ms until flushed 0.5 are until written.
    assert made.causes_ms[Cause.NETWORK].value == pytest.approx(standby.value / 3)


@each([
    (Level.ON, "ANY 1 (n2, n3)", None, (0.5, 1.5)),
    (Level.ON, "ANY 2 (n2, n3)", None, (2.0, 2.5)),
    (Level.ON, "ANY 1 (n2, n3)", "ANY 2 (*)", (2.0, 2.5)),
    (Level.ON, "FIRST 1 (n3, n2)", None, (2.0, 2.5)),
    (Level.ON, "FIRST 1 (n3, n2)", "ANY 1 (*)", (0.5, 1.5)),
    (Level.REMOTE_APPLY, "FIRST 1 (n3, n2)", "ANY 2 (*)", (2.0, 2.5, 9.0)),
    (Level.REMOTE_APPLY, "FIRST 2 (n3, n2)", "ANY 1 (*)", (0.5, 1.5, 2.0)),
    (Level.REMOTE_WRITE, 'ANY 1 ("N3")', None, (2.0,)),
    (Level.ON, "ANY 3 (n2, n3, n4)", None, None),
    (Level.ON, "", None, (0.5, 1.5)),
])  # fmt: skip
def test_the_wait_ends_with_the_standby_that_completes_the_quorum(
    level: Level, names: str, other: str | None, expected: object
) -> None:
    assert completing(seen(standby_names=names), level, read_standby_names(other or "")) == expected


def test_standbys_with_the_same_lag_and_an_unknown_stage_are_still_in_order() -> None:
    both = tuple(StandbySeen(name, "streaming", (None if name == "n2" else 1.0, 1.5, 2.0)) for name in ("n2", "n3"))
    assert completing(seen(standbys=both), Level.ON, read_standby_names("ANY 2 (*)")) == (1.0, 1.5)


@each([
    ((0.5, 1.5, None), "remote_apply", None),
    ((0.5, None, None), "on", None),
    ((None, None, None), "remote_write", None),
    ((None, 1.5, 2.0), "on", (math.nan, 1.5)),
    ((0.5, 1.5, None), "on", (0.5, 1.5)),
])  # fmt: skip
def test_a_lag_that_was_not_reported_is_unknown_and_never_nothing(
    lags: tuple[float | None, float | None, float | None], level: str, split: tuple[float | None, ...] | None
) -> None:
    one = seen(
        group(standby=20),
        level=level,
        standby_names="ANY 1 (n2)",
        standbys=(StandbySeen("n2", "streaming", lags),),
    )
    assert completing(one, Level(level)) == (split and pytest.approx(split, nan_ok=True))
    made = observation([one] * 10)
    assert made.causes_ms[Cause.NETWORK].value == pytest.approx(2.5 / 3 if split == (0.5, 1.5) else 2.5)
    found = {p.what: p for p in predictions([one] * 10)}
    unknown = [what for what in ("remote_write", "on", "remote_apply") if found[what].unknown]
    known = {name for name, lag in zip(("remote_write", "on", "remote_apply"), lags, strict=True) if lag is not None}
    assert not found[level].unknown
    assert set(unknown) == (
        {"remote_write", "on", "remote_apply"} - known - {level}
        if split
        else {"remote_write", "on", "remote_apply"} - {level}
    )


@each([("remote_write", Cause.NETWORK), ("on", Cause.STANDBY_FLUSH), ("remote_apply", Cause.STANDBY_FLUSH)])
def test_the_level_says_how_far_a_commit_waits(level: str, first: Cause) -> None:
    made = observation([seen(group(standby=40), level=level)] * 10)
    assert made.longest_first[0] is first
    assert (made.causes_ms[Cause.REPLAY].value > 0) is (level == "remote_apply")


def test_locks_behind_commits_count_by_the_share_of_their_blockers() -> None:
    one = seen(group(standby=20, lock=80), blocked=10, blockers={"app": 6}, blocked_by_flush=1)
    assert observation([one] * 10).causes_ms[Cause.LOCKS].value == pytest.approx(1000 * 4 * 0.7 / 400)


@each([
    (0, 0, 0, "no commit that wrote"),
    (1000, 400, 0, "subtransactions"),
    (400, 300, 100, "transactions rolled back: how many of them wrote is not known"),
])  # fmt: skip
def test_what_commits_are_counted_by_is_said(ids: int, commits: int, rollbacks: int, says: str) -> None:
    one = seen(group(standby=20), transaction_ids=ids, commits=commits, rollbacks=rollbacks)
    assert any(says in caveat for caveat in observation([one] * 10).caveats)


@each([
    ({"commits": 400, "rollbacks": 3600, "committed": 64}, 2.5),
    ({"commits": 4000, "rollbacks": 36_000, "committed": 64}, 2.5),
    ({"commits": 300, "rollbacks": 100, "committed": 48, "aborted": 16}, 1000 / 300),
    ({"commits": 40, "rollbacks": 360, "committed": 6, "aborted": 54}, 25.0),
    ({"commits": 300, "rollbacks": 4000, "committed": 48, "aborted": 16}, 1000 / 300),
    ({"transaction_ids": 4000, "commits": 400, "committed": 64}, 2.5),
    ({"commits": 400, "rollbacks": 3600}, 2.5),
    ({"commits": 4, "rollbacks": 396, "aborted": 64}, math.inf),
])  # fmt: skip
def test_commits_are_those_that_wrote_whatever_rolls_back(counted: dict[str, int], expected_ms: float) -> None:
    """The share of transaction ids that committed, not that of transactions, reads among them."""
    assert observation([seen(group(standby=20), **counted)] * 10).commit_wait_ms.value == pytest.approx(expected_ms)


AUDIT_LOCAL = (("audit", "", "local"),)


@pytest.mark.parametrize("own", [AUDIT_LOCAL, ()], ids=["by its role", "set by the session itself"])
@pytest.mark.parametrize("level", ["on", "remote_write", "remote_apply"])
def test_sessions_at_other_levels_of_their_own_are_predicted_at_them(level: str, own: Any) -> None:
    """A quarter of the commits wait 2 ms for standbys at `level`; the others at `local`: each would wait as long."""
    waits = at("shop", "shop", writing=100, writing_s=1.0, standby=4, flush=2, busy=8, sessions=8)
    rest = at("audit", "audit", writing=300, writing_s=3.0, flush=6, busy=12, sessions=12)
    every = [seen(waits, rest, level=level, overrides=own)] * 12
    found = {p.what: p for p in predictions(every)}
    assert observation(every).standby_wait_ms.value == pytest.approx(0.5)
    assert found[level].commit_wait_ms.high == pytest.approx(1.0 + 2.0 + 0.15)  # 10 % of what changes
    assert found["local"].commit_wait_ms.low == pytest.approx(1.0 - 0.05)
    assert found["round trip 10 ms longer"].commit_wait_ms.high == pytest.approx(1.5 + 2.5 + 0.25)
    first, second = {"remote_write": (0.5, 2.0), "on": (1.5, 2.5), "remote_apply": (2.0, 9.0)}[level]
    ends = sorted((1.0 + 0.5 * second / first, 1.5 + (second - first) / 4))
    any_2 = found[f"ANY 2 at {level}"].commit_wait_ms
    assert any_2.value == pytest.approx(sum(ends) / 2)
    assert any_2.high == pytest.approx(ends[1] + (ends[1] - 1.5) / 10)
    assert any("several levels: about 75 % at local" in caveat for caveat in observation(every).caveats)


@each([
    ("local", (("shop", "", "on"), ("audit", "", "remote_apply")), 0.5 * 1.5 + 0.5 * 2.0),
    ("on", (("", "", "remote_write"), ("audit", "", "remote_apply")), 0.5 * 0.5 + 0.5 * 2.0),
    ("local", (), 1.5),
])  # fmt: skip
def test_two_levels_that_both_wait_are_scaled_from_their_own_lags(
    default: str, own: tuple[tuple[str, str, str], ...], lag_ms: float
) -> None:
    """3 ms are waited, of which some beside the lag: that is as much longer, or as long as now."""
    groups = [at(name, name, writing=100, writing_s=1.0, standby=12) for name in ("shop", "audit")]
    found = {p.what: p for p in predictions([seen(*groups, level=default, overrides=own)] * 12)}
    ends = (3.0 * 2.0 / lag_ms, 3.0 + 2.0 - lag_ms)
    assert found["remote_apply"].commit_wait_ms.value == pytest.approx(sum(ends) / 2)
    assert all(found["remote_apply"].commit_wait_ms.covers(ms) for ms in ends)


@each(["local", "on", "remote_apply"])
def test_what_commits_at_off_would_wait_for_the_local_flush_is_not_known(what: str) -> None:
    one = seen(group(writing=100, writing_s=1.0), level="off")
    assert "how long the local flush takes was not seen" in {p.what: p for p in predictions([one] * 12)}[what].unknown


def test_half_the_commits_at_off_would_wait_for_the_flush_as_the_others_do() -> None:
    shop = at("shop", "shop", writing=100, writing_s=1.0, flush=20)
    one = seen(shop, at("bulk", "bulk", writing=100, writing_s=1.0), level="local", overrides=(("bulk", "", "off"),))
    assert {p.what: p for p in predictions([one] * 12)}["local"].commit_wait_ms.value == pytest.approx(5.0)


def test_commits_that_hang_name_the_standby_and_the_stage() -> None:
    paused = (replace(N2, behind=(0, 0, 5000)), replace(N3, behind=(0, 0, 90000)))
    one = seen(group(standby=60), transaction_ids=0, commits=0, level="remote_apply", standbys=paused)
    made = observation([one] * 10)
    assert math.isinf(made.commit_wait_ms.value)
    held = held_up_by(one, made.level)
    assert held is not None
    assert (held[0].name, held[1]) == ("n2", Cause.REPLAY)


def test_who_pays_by_shares_of_commits_and_of_waiting() -> None:
    audit = group("audit", writing=60, writing_s=0.3, standby=30, flush=10)
    rest = group('o"dd', writing=40, writing_s=0.2, standby=5, flush=5, lock=20)
    one = seen(audit, rest, blocked=4, blockers={"audit": 3})
    first, second = (p for p in payers([one] * 10) if p.by == "application")
    assert (first.name, second.name) == ("audit", 'o"dd')
    assert first.commits_share == pytest.approx(0.6)
    assert first.waiting_share == pytest.approx(0.8)
    assert first.standby_ms == pytest.approx(1000 * 1.5 / 240)
    assert first.others_behind_ms == pytest.approx(1000 * 1.0 * 0.75 / 400)
    assert "at local it would wait 6.25 ms less per commit" in first.text


def test_other_levels_quorums_and_round_trips() -> None:
    one = seen(group(sessions=160, busy=160, standby=24, flush=40))
    found = {p.what: p for p in predictions([one] * 12)}
    assert found["on"].commit_wait_ms.value == pytest.approx(8.0)
    # Eight at once, for whom the flush takes longer where they come back to it sooner.
    for what, standby_ms, more in (
        ("local", (0.0, 0.0), True),
        ("remote_write", (1.0, 2.0), True),
        ("remote_apply", (3.5, 4.0), False),
        ("ANY 2 at on", (4.0, 5.0), False),
        ("round trip 10 ms longer", (13.0, 13.0), False),
    ):
        flush_ms = found[what].commit_wait_ms.value - sum(standby_ms) / 2
        assert (5.0 < flush_ms < 6.0) if more else (4.0 < flush_ms < 5.0)
        assert all(found[what].commit_wait_ms.covers(flush_ms + each) for each in standby_ms)
    assert found["round trip 10 ms longer"].throughput.covers(20 / 30)
    assert found["local"].throughput.low == 1.0 < 20 / 17 < found["local"].throughput.high


def test_one_session_meets_nobody_in_the_flush_and_has_a_processor() -> None:
    one = seen(group(sessions=20, busy=20, standby=8, flush=4))
    local = {p.what: p for p in predictions([one] * 12)}["local"]
    assert local.commit_wait_ms.value == pytest.approx(0.5)
    assert local.throughput.low > 1.0


def test_who_writes_the_wal_where_sessions_count_it() -> None:
    groups = [group("shop", standby=9, wal=250), group("bulk", wal=740), group("tiny", wal=10, writing=1, writing_s=9)]
    found = {(p.by, p.name): p.wal_share for p in payers([seen(*groups)] * 10)}
    assert found == {("application", "bulk"): 0.74, ("application", "shop"): 0.25, ("application", "tiny"): 0.01}
    known = {p.wal_share for p in payers([seen(*(replace(g, wal=0.0) for g in groups))] * 10)}
    assert known == {None}


def test_a_session_of_which_only_the_wal_is_known_makes_no_level() -> None:
    one = seen(
        group(writing=20, writing_s=0.2, standby=20), at("bulk", "bulk", wal=5), overrides=(("bulk", "", "off"),)
    )
    assert not any("several levels" in caveat for caveat in observation([one] * 10).caveats)


def test_statements_before_a_commit_make_none() -> None:
    """By transactions: an UPDATE and its COMMIT, and as often an INSERT alone. The UPDATE is no commit of its own."""
    numbers: dict[str, Any] = {"writing": 10, "writing_s": 0.05}
    rows = (("update", 0, 0), ("COMMIT", 30, 0), ("insert", 20, 10), ("", 0, 0))
    groups = [replace(group(standby=s, flush=f, wal=9, **numbers), statement=name) for name, s, f in rows]
    found = {p.name: p for p in payers([seen(*groups)] * 10) if p.by == "statement"}
    assert set(found) == {"COMMIT", "insert"}
    assert [round(p.commits_share, 3) for p in found.values()] == [0.5, 0.5]
    assert [p.waiting_share for p in found.values()] == [0.5, 0.5]
    assert {p.wal_share for p in found.values()} == {None}


@each([
    (Cause.FLUSH, {"flush": 10}, {"flush": 30}),
    (Cause.NETWORK, {"standby": 10}, {"standby": 30}),
    (Cause.STANDBY_FLUSH, {"standby": 10}, {"standby": 30}),
    (Cause.LOCKS, {"lock": 40}, {"lock": 40}),
])  # fmt: skip
def test_an_interval_holds_what_differs_from_stretch_to_stretch(
    cause: Cause, low: dict[str, Any], high: dict[str, Any]
) -> None:
    """Of row locks also how often their holders were in a commit's wait."""
    every = [seen(group(**sums), blocked=10, blockers={"app": n}) for sums, n in ((low, 2), (high, 8))]
    ms = observation([one for one in every * 2 for _ in range(5)]).causes_ms[cause]
    assert ms.low < 0.9 * ms.value < 1.1 * ms.value < ms.high


@each([8, 12, 20, 60])
def test_an_interval_holds_the_truth_as_often_as_it_says(stretches: int) -> None:
    """400 observations of a commit that waits 5 ms, give or take 1.5 from stretch to stretch."""
    rng, counts = np.random.default_rng(3), resampled(stretches)
    commits = 400 * np.exp(0.1 * rng.normal(size=(400, stretches)))
    waiting_s = commits * 0.005 * (1 + 0.3 * rng.normal(size=commits.shape))
    made = [per_commit_ms(*one, counts) for one in zip(waiting_s, commits, strict=True)]
    assert 0.92 <= sum(one.covers(5.0) for one in made) / len(made) <= 0.98


@pytest.mark.parametrize("looked", [(10, 0), (0, 10), (0, 0)])
def test_stretches_without_a_look_at_holders_are_taken_as_the_others(looked: tuple[int, int]) -> None:
    every = [seen(group(lock=40), blocked=n, blockers={"app": n / 2} if n else {}) for n in looked]
    ms = observation(every * 5).causes_ms[Cause.LOCKS].value
    assert ms == pytest.approx(1000 * 2 * 0.5 / 400 if any(looked) else 0.0)


@each([1, 2, 3])
def test_every_standby_of_one_name_may_be_asked_for(number: int) -> None:
    standbys = tuple(StandbySeen("walreceiver", "streaming", (0.5, 1.0 + i, 9.0)) for i in range(number))
    found = predictions([seen(group(standby=20), standby_names="ANY 1 (*)", standbys=standbys)] * 10)
    ms = [p.commit_wait_ms.value for p in found if p.what.startswith("ANY")]
    assert ms == pytest.approx([(2.5 * (1.0 + i) + 2.5 + i) / 2 for i in range(number)])


def test_a_longer_round_trip_is_predicted_for_two_levels_without_their_lags() -> None:
    groups = [at(name, name, writing=100, writing_s=1.0, standby=12) for name in ("shop", "audit")]
    own = (("audit", "", "remote_apply"),)
    found = {p.what: p for p in predictions([seen(*groups, overrides=own, standbys=())] * 12)}
    assert found["round trip 10 ms longer"].commit_wait_ms.value == pytest.approx(3.0 + 10.0)
    assert found["remote_apply"].unknown


@pytest.mark.parametrize("standbys", [(), (replace(N2, lags_ms=(None, None, None)),)])
def test_what_no_standby_reported_is_not_predicted(standbys: tuple[StandbySeen, ...]) -> None:
    found = {p.what: p for p in predictions([seen(group(standby=24), standbys=standbys)] * 12)}
    assert found["remote_apply"].unknown
    assert not found["local"].unknown


@each([
    ((), Level.ON),
    ((("", "db", "remote_write"),), Level.REMOTE_WRITE),
    ((("role", "", "remote_apply"), ("", "db", "remote_write")), Level.REMOTE_APPLY),
    ((("other", "", "remote_apply"), ("role", "db", "local")), Level.ON),
])  # fmt: skip
def test_the_level_is_that_of_the_role_or_database_that_waits(
    overrides: tuple[tuple[str, str, str], ...], level: Level
) -> None:
    first = seen(group(standby=40), overrides=overrides)
    assert observation([first, *[seen(group(standby=40))] * 9]).level is level
