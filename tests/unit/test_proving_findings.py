"""The ledger against the rows, counted by hand on small ones."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.attempts import attempts
from tests.fixtures.tiers import each
from walproof.model.drill import Findings
from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome, Rows, WitnessReport
from walproof.proving import lost_commits
from walproof.proving.level_in_effect import lasting_s, unnamed
from walproof.proving.lost_commits import compared, judged, lost_rows, two_leaders_s

A, D, U, R = Outcome.ACKNOWLEDGED, Outcome.DOWNGRADED, Outcome.UNKNOWN, Outcome.REFUSED


def ledger(*tries: tuple[int, Outcome, float], level: Level = Level.ON) -> Attempts:
    """One writer; (number, outcome, time of its end); each attempt takes a tenth of a second."""
    size = len(tries)
    ended = np.array([at if outcome is not U else np.nan for _, outcome, at in tries])
    return attempts(
        size,
        level=level,
        number=np.array([n for n, _, _ in tries], np.int64),
        started=np.array([at - 0.1 for _, _, at in tries]),
        ended=ended,
        outcome=np.array([o for _, o, _ in tries], np.int8),
        checksum=np.array([n for n, _, _ in tries], np.uint32),
    )


def rows(*numbers: int, member: str = "n2") -> Rows:
    """Rows of that writer whose checksum is their number."""
    check = np.array(numbers, np.uint32)
    return Rows(member, np.zeros(len(numbers), np.int32), np.array(numbers, np.int64), check, check.copy())


def found_in(tries: Attempts, members: list[Rows], witness: WitnessReport | None = None) -> Findings:
    """The findings of these rows, the leader's first; every member has caught up."""
    readings = [compared(tries, rows, caught_up=True) for rows in members]
    return judged(tries, readings, lost_rows(tries, readings), witness or WitnessReport({}))


def test_every_kind_of_attempt_is_counted_once() -> None:
    kinds = (A, A, A, U, U, U, D, D, D, R)
    tries = ledger(*((n, kind, float(n)) for n, kind in enumerate(kinds, 1)))
    found = found_in(tries, [rows(1, 4, 7, 8)])
    assert (found.acknowledged, found.kept, found.lost) == (3, 1, 2)
    assert (found.unknown, found.recovered) == (3, 1)
    assert (found.downgraded, found.downgraded_lost) == (3, 1)
    assert (found.refused, found.phantom, found.duplicate, found.corrupted) == (1, 0, 0, 0)


TWO = ledger((1, A, 1.0), (2, A, 2.0))


def other(numbers: tuple[int, ...], *, member: str = "n2", **columns: int) -> Rows:
    """Rows of these numbers of which the last has another checksum, or another stated one."""
    there = rows(*numbers, member=member)
    for name, value in columns.items():
        getattr(there, name)[-1] = value
    return there


# rows: the span of the loss, a row of a refused attempt, a row twice, a corrupted payload, a corrupted stated
# checksum, both corrupted alike, what another member corrupted and lacks, a leader without rows, a leader that was
# not read, an empty ledger
@each([
        (ledger((1, A, 1.0), (2, A, 2.0), (3, A, 4.5)), [rows(1)], {"lost": 2, "lost_from": 2.0, "lost_to": 4.5}),
        (ledger((1, A, 1.0), (2, R, 2.0)), [rows(1, 2)], {"phantom": 1}),
        (TWO, [rows(1, 2, 2)], {"duplicate": 1, "kept": 2, "lost": 0}),
        (TWO, [other((1, 2), checksum=9)], {"corrupted": 1}),
        (TWO, [other((1, 2), stated=9)], {"corrupted": 1}),
        (TWO, [other((1, 2), checksum=9, stated=9)], {"corrupted": 1}),
        (TWO, [rows(1, 2), other((1,), member="n3", checksum=7)], {"lost": 0, "corrupted": 1, "divergent": 1}),
        (TWO, [rows()], {"lost": 2}),
        (TWO, [], {"lost": 0, "acknowledged": 2}),
        (ledger(), [rows()], {"acknowledged": 0, "lost": 0}),
    ])  # fmt: skip
def test_what_is_found(tries: Attempts, members: list[Rows], expected: dict[str, float]) -> None:
    found = asdict(found_in(tries, members))
    assert {name: found[name] for name in expected} == expected


def test_a_row_nobody_wrote_is_phantom_even_with_absurd_numbers() -> None:
    strange = Rows(
        "n2", np.array([0, 0, -1], np.int32), np.array([1, -5, 1 << 41], np.int64), *[np.ones(3, np.uint32)] * 2
    )
    found = found_in(ledger((1, A, 1.0)), [strange])
    assert (found.kept, found.phantom) == (1, 2)


@each([(0, 1 << 41), (1 << 24, 5), (-(1 << 24), 5), (1 << 23, 5)])
def test_a_row_whose_numbers_are_out_of_range_is_never_taken_for_another(writer: int, number: int) -> None:
    others = replace(ledger((0, A, 1.0), (5, A, 2.0)), writer=np.array([2, 0], np.int32))
    strange = Rows("n2", np.array([writer], np.int32), np.array([number], np.int64), *[np.zeros(1, np.uint32)] * 2)
    found = found_in(others, [strange])
    assert (found.kept, found.phantom) == (0, 1)


def test_phantom_duplicate_and_corrupted_rows_are_those_of_the_worst_member() -> None:
    tries = ledger((1, A, 1.0), (2, A, 2.0), (3, A, 3.0))
    wrong = rows(1, 2, 3, 3, 9, member="n3")
    wrong.checksum[0] = 77
    for members in ([rows(1, 2, 3), wrong], [wrong, rows(1, 2, 3)]):
        found = found_in(tries, members)
        assert (found.phantom, found.duplicate, found.corrupted) == (1, 1, 1)


def test_a_standby_that_has_not_caught_up_does_not_diverge() -> None:
    tries = ledger((1, A, 1.0), (2, A, 2.0))
    for caught_up, divergent in ((True, 1), (False, 0), (None, 0)):
        behind = compared(tries, rows(1, member="n3"), caught_up=caught_up)
        readings = [compared(tries, rows(1, 2)), behind]
        assert judged(tries, readings, lost_rows(tries, readings)).divergent == divergent


def test_judging_in_parts_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = ledger(*[(n, (A, U, D, R)[n % 4], float(n)) for n in range(1, 400)])
    there = rows(*[n for n in range(1, 400) if n % 3])
    at_once = found_in(tries, [there])
    monkeypatch.setattr(lost_commits, "_PART", 50)
    assert found_in(tries, [there]) == at_once


def two_servers(late_start: float) -> Attempts:
    """n1 acknowledges on timeline 1, n2 from 10 s on timeline 2; the last one of n1 starts at `late_start`."""
    tries = ledger((1, A, 1.0), (2, A, 11.0), (3, A, 10.0), (4, A, 12.0))
    started = np.array([0.9, late_start, 9.9, 11.9])
    side = np.array([0, 0, 1, 1])
    return replace(tries, started=started, server=side.astype(np.int16), timeline=(side + 1).astype(np.int32))


# rows: a late answer of the old leader is not two leaders, an attempt started on the old leader after the new one
# served is, two timelines of one server are one leader, servers that are not known differ by their timelines, unknown
# timelines prove nothing, a refused attempt is no sign, an unanswered attempt is no sign
@each([
    (9.5, {}, 0.0),
    (10.7, {}, 0.7),
    (10.7, {"server": np.zeros(4, np.int16)}, 0.0),
    (10.7, {"server": np.full(4, -1, np.int16)}, 0.7),
    (10.7, {"timeline": np.array([0, 0, 2, 2], np.int32)}, 0.0),
    (10.7, {"outcome": np.array([A, R, A, A], np.int8)}, 0.0),
    (10.7, {"outcome": np.array([A, U, A, A], np.int8), "ended": np.array([1.0, np.nan, 10.0, 12.0])}, 0.0),
])  # fmt: skip
def test_two_leaders_are_proven_by_an_attempt_that_started(
    late_start: float, change: dict[str, Any], seconds: float
) -> None:
    assert two_leaders_s(replace(two_servers(late_start), **change)) == pytest.approx(seconds)


def test_a_server_whose_timeline_is_not_known_is_no_second_leader() -> None:
    """n1, then n2 on a higher timeline; n3 answers all the time, and nobody knows on which timeline."""
    tries = ledger(*((n, A, at) for n, at in enumerate((1.0, 5.0, 10.0, 15.0, 2.0, 12.0))))
    side = np.repeat([0, 1, 2], 2)
    timeline = np.repeat([1, 2, 0], 2).astype(np.int32)
    assert two_leaders_s(replace(tries, server=side.astype(np.int16), timeline=timeline)) == 0.0


def test_two_leaders_of_three_are_found_wherever_they_stand_and_the_longest_counts() -> None:
    """n1 and n3 acknowledge at once for 2 s, n1 and n2 for 1 s, n2 and n3 for half a second."""
    ends, starts = [10.0, 16.0, 12.0, 13.0, 12.5, 15.0], [9.0, 15.5, 11.5, 13.0, 12.0, 14.5]
    tries = ledger(*((n, A, at) for n, at in enumerate(ends)))
    for names in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        side = np.repeat(names, 2)
        at_once = replace(
            tries, started=np.array(starts), server=side.astype(np.int16), timeline=(side + 1).astype(np.int32)
        )
        assert two_leaders_s(at_once) == pytest.approx(2.0)


def test_a_remote_level_without_names_is_not_in_effect() -> None:
    tries = replace(ledger((1, A, 1.0), (2, A, 2.0), (3, A, 3.0), (4, A, 4.0)), names=np.array([0, 1, 1, 0], np.int16))
    assert lasting_s(tries, unnamed(tries, Level.ON)) == pytest.approx(1.0)
    assert lasting_s(tries, unnamed(tries, Level.ON) & (tries.ended < 2.0)) == 0.0
    assert lasting_s(tries, unnamed(tries, Level.LOCAL)) == 0.0


def test_a_row_seen_on_the_leader_and_gone_is_a_dirty_read() -> None:
    witness = WitnessReport({"n2": (5, 2), "n3": (1, 0)}, seen_on_leader=((0, 1), (0, 2), (0, 2), (0, 3)), long_forks=3)
    found = found_in(ledger((1, A, 1.0), (2, U, 2.0), (3, A, 3.0)), [rows(1, 3)], witness)
    assert (found.dirty_reads, found.fresh_reads, found.stale_reads, found.long_forks) == (1, 6, 2, 3)
