"""What could make `walproof observe` name a wrong cause first, or be too sure, and what it says then."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.observed import N2, N3, at, group, seen
from tests.fixtures.tiers import each
from walproof.estimating.observed_prices import predictions
from walproof.estimating.observed_waits import OWN, Cause, Observation, held_up_by, levels_of, observation
from walproof.model.guarantee import Level
from walproof.model.observed_waits import StandbySeen, WaitsSeen
from walproof.reporting.observe_section import observe_sentences

HANGING: dict[str, Any] = {"transaction_ids": 0, "commits": 0}
N4 = StandbySeen("n4", "streaming", (0.1, 0.2, 0.3))


def behind(*standbys: tuple[StandbySeen, tuple[int, int, int]]) -> tuple[StandbySeen, ...]:
    return tuple(replace(one, behind=bytes_) for one, bytes_ in standbys)


@each([
    ("ANY 1 (n2, n3)", behind((N2, (0, 0, 5)), (N3, (0, 0, 900))), "n2", Cause.REPLAY),
    ("ANY 2 (n2, n3)", behind((N2, (0, 0, 5)), (N3, (0, 900, 900))), "n3", Cause.STANDBY_FLUSH),
    ("ANY 2 (n2, n3)", behind((N2, (0, 0, 0)), (N3, (900, 900, 900))), "n3", Cause.NETWORK),
    ("FIRST 1 (n3, n2)", behind((N2, (0, 0, 5)), (N3, (0, 0, 900))), "n3", Cause.REPLAY),
    ("FIRST 2 (n4, n3, n2)", behind((N2, (0, 0, 5)), (N3, (0, 9, 9)), (N4, (0, 0, 3))), "n3", Cause.STANDBY_FLUSH),
    ("ANY 1 (n3)", behind((N2, (0, 0, 5)), (N3, (7, 7, 900))), "n3", Cause.NETWORK),
    ("", behind((N2, (0, 0, 5)), (N3, (7, 7, 900))), "n2", Cause.REPLAY),
])  # fmt: skip
def test_commits_hang_at_the_standby_that_would_complete_the_quorum(
    names: str, standbys: tuple[StandbySeen, ...], name: str, cause: Cause
) -> None:
    """Not at the one nearest of all: of ANY 2 the second, of FIRST the listed first."""
    one = seen(group(standby=60), level="remote_apply", standby_names=names, standbys=standbys, **HANGING)
    held = held_up_by(one, Level.REMOTE_APPLY)
    assert held and (held[0].name, held[1]) == (name, cause)


@each([
    ({"standby": 60}, "ANY 2 (n2, n3)", (N2,), "1 of 2 standbys of the quorum (ANY 2 (n2, n3)) stream"),
    ({"standby": 60}, "ANY 3 (*)", (N2, N3), "2 of 3 standbys"),
    ({"standby": 60}, "FIRST 1 (n4)", (N2, N3), "0 of 1 standbys"),
    ({"standby": 60}, "ANY 1 (n2)", (replace(N2, state="catchup", behind=(9, 9, 9)),), "0 of 1 standbys"),
    ({"standby": 60}, "ANY 1 (n2)", (replace(N2, state="no standby", behind=(9, 9, 9)),), "0 of 1 standbys"),
    ({"standby": 60}, "ANY 1 (n2)", (N2, N3), "none of which was behind when last looked at"),
    ({"flush": 60}, "ANY 1 (n2)", (N2, N3), "most for the local flush: look at the disk of n1"),
    ({"flush": 60, "standby": 3}, "ANY 2 (n2)", (N2,), "most for the local flush"),
])  # fmt: skip
def test_what_hangs_is_not_blamed_on_standbys_that_stream(
    waiting: dict[str, Any], names: str, standbys: tuple[StandbySeen, ...], says: str
) -> None:
    one = seen(group(**waiting), standby_names=names, standbys=standbys, **HANGING)
    assert says in " ".join(observe_sentences([one] * 10))


def test_where_nothing_ends_what_most_sessions_wait_for_is_first() -> None:
    """Not the one that is listed first of causes that are all infinite."""
    one = seen(group(standby=600, flush=1), **HANGING)
    assert observation([one] * 10).longest_first[0] is not Cause.FLUSH


@pytest.mark.parametrize("lags", [(0.5, 1.5, None), (0.5, 1.5, 2.0), (None, None, None)])
@pytest.mark.parametrize(
    ("bytes_", "cause"),
    [((0, 0, 900), Cause.REPLAY), ((0, 900, 900), Cause.STANDBY_FLUSH), ((900, 900, 900), Cause.NETWORK)],
)
def test_a_wait_without_a_new_lag_is_where_the_standby_is_behind(
    lags: Any, bytes_: tuple[int, int, int], cause: Cause
) -> None:
    """Replay is paused, or no answer comes, while another application commits at local: lags are of before."""
    groups = at("report", "report", standby=60), at("app", "app", writing=100, writing_s=0.5, flush=9)
    standbys = (replace(N2, lags_ms=lags, behind=bytes_),)
    own = (("app", "", "local"),)
    every = [
        seen(
            *groups, level="remote_apply", standby_names="ANY 1 (n2)", standbys=standbys, overrides=own, longest_ms=1500
        )
    ] * 10
    made = observation(every)
    assert made.longest_first[0] is cause
    assert any(f"began 1.5 s ago: n2 has yet to confirm it ({cause})" in caveat for caveat in made.caveats)


@pytest.mark.parametrize("lags", [(None, 1.5, 2.0), (0.5, None, None), (None, None, None)])
def test_a_wait_that_is_not_split_says_so(lags: Any) -> None:
    standbys = (replace(N2, lags_ms=lags),)
    made = observation([seen(group(standby=20), standby_names="ANY 1 (n2)", standbys=standbys)] * 10)
    assert any("not split" in caveat for caveat in made.caveats)


@pytest.mark.parametrize("polls", [1, 3, 20])
@pytest.mark.parametrize("sums", [{}, {"standby": 1}, {"flush": 1}])
def test_few_polls_do_not_make_sure(polls: int, sums: dict[str, Any]) -> None:
    """None seen waiting in 8 polls may be a third of a session; a bootstrap of zeros is a zero without an interval."""
    made = observation([seen(group(**sums), polls=polls), *[seen(group(), polls=polls)] * 7])
    one_ms = 1000 / polls / 3200
    assert made.commit_wait_ms.low < made.commit_wait_ms.high
    assert made.commit_wait_ms.high >= 3.6 * one_ms
    assert all(made.causes_ms[cause].high > 0 for cause in (Cause.FLUSH, Cause.NETWORK))
    local = next(p for p in predictions([seen(group(), polls=polls)] * 8) if p.what == "local")
    assert local.commit_wait_ms.high > 0


@each([10, 20, 100])
def test_many_sightings_are_the_bootstraps(number: int) -> None:
    made = observation([seen(group(standby=number))] * 10)
    assert made.standby_wait_ms.low == pytest.approx(made.standby_wait_ms.value)


# rows: long transactions, many of them, the other way round
@each([
    ({"writing": 200, "writing_s": 90.0, "standby": 4}, {"writing": 200, "writing_s": 0.5, "standby": 100}),
    ({"writing": 800, "writing_s": 300.0, "standby": 3}, {"writing": 20, "writing_s": 0.1, "standby": 15}),
    ({"writing": 20, "writing_s": 0.1, "standby": 15}, {"writing": 200, "writing_s": 90.0, "standby": 2}),
])  # fmt: skip
def test_long_transactions_that_wait_now_and_then_are_not_at_local(slow: Any, quick: Any) -> None:
    """They are seen to write far more often than to wait: by the transactions that begin they wait like all others."""
    levels, _ = levels_of([seen(at("slow", "slow", **slow), at("quick", "quick", **quick))] * 3)
    assert set(levels.values()) == {Level.ON}


@each([(4, 100, False), (4, 200, True), (60, 100, True), (1, 1, False)])
def test_transactions_reported_a_second_late_are_no_subtransactions(seconds: int, late: int, scaled: bool) -> None:
    """Of so many seconds with 400 ids each, pg_stat_database misses `late` transactions a second."""
    every = [seen(group(standby=20), transaction_ids=400, commits=400 - late)] * seconds
    assert any("subtransactions" in caveat for caveat in observation(every).caveats) is scaled


@each([("ANY 1 (*)", 2), ("ANY 1 (n2, n3)", 2), ("FIRST 1 (n2)", 2)])
def test_what_streams_but_is_no_standby_completes_no_quorum(names: str, expected: int) -> None:
    """A subscriber, pg_receivewal, the stream of a base backup: quicker than every standby."""
    others = tuple(
        StandbySeen(n, state, (0.01, 0.01, 0.01)) for n, state in (("sub", "no standby"), ("pg_basebackup", "backup"))
    )
    every = [seen(group(standby=20), standby_names=names, standbys=(N2, N3, *others))] * 10
    made = observation(every)
    assert made.causes_ms[Cause.NETWORK].value == pytest.approx(made.standby_wait_ms.value / 3)
    assert sum(p.what.startswith("ANY") for p in predictions(every)) == expected


@each([
    ((N2,), (N2, N3), "standbys that came: n3"),
    ((N2, N3), (N2,), "standbys that streamed and went: n3"),
    ((N2,), (N3,), "standbys that came: n3"),
    ((N2, N3), (N2, N3), ""),
])  # fmt: skip
def test_standbys_that_come_and_go_are_named(first: Any, last: Any, says: str) -> None:
    every = [seen(group(standby=20), standbys=one) for one in (first, last)] * 1
    made: Observation = observation(every)
    assert any(says in caveat for caveat in made.caveats)
    assert says or not any("standbys that" in caveat for caveat in made.caveats)


def test_causes_are_in_the_order_of_their_waits() -> None:
    every: list[WaitsSeen] = [seen(group(standby=20, flush=9, lock=80), blocked=9, blockers={"app": 9})] * 10
    made = observation(every)
    assert next(iter(made.causes_ms)) is Cause.LOCKS
    values = [made.causes_ms[cause].value for cause in made.longest_first]
    assert values == sorted(values, reverse=True) and set(made.longest_first) == set(OWN)


@pytest.mark.parametrize("stretches", [8, 20])
@pytest.mark.parametrize(("since_s", "hangs"), [(0.0, True), (3.0, False)])
def test_commits_of_background_workers_do_not_hide_that_clients_hang(
    stretches: int, since_s: float, hangs: bool
) -> None:
    """Autovacuum commits at `local`: an oldest wait that lasts all the while says that no other commit has ended."""
    every = [
        seen(group(standby=80), at=i + 1.0, transaction_ids=3, commits=3, longest_ms=max(0.0, i + 0.9 - since_s) * 1000)
        for i in range(stretches)
    ]
    assert math.isinf(observation(every).commit_wait_ms.value) == hangs
    (said, *_) = observe_sentences(every)
    assert ("No commit that waits for standbys ended" in said) == hangs


def test_long_waits_that_end_do_not_hang() -> None:
    """Each waits for three seconds, one after another."""
    ages_ms = [1000 * (1 + i % 3) for i in range(12)]
    every = [seen(group(standby=20), at=i + 1.0, longest_ms=ms) for i, ms in enumerate(ages_ms)]
    assert math.isfinite(observation(every).commit_wait_ms.value)
