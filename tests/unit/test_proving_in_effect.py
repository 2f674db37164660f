"""The level that ran: what each commit waited for, and what voids it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.test_proving_findings import A, R, U, ledger
from walproof.model.guarantee import Level
from walproof.model.load import Attempts
from walproof.model.topology import LedgerTable, MemberState
from walproof.proving.level_in_effect import (
    acknowledged,
    before_named,
    lasting_s,
    odd_table,
    overrides,
    unnamed,
    void,
    weaker,
)

TEXTS = ("ANY 2 (n2, n3)", "ANY 1 (n2, n3)", "", "*", "FIRST 2 (n2, n3)")
MEMBERS = ("n1", "n2", "n3")


def rows(*names: int, level: Level = Level.ON) -> Attempts:
    """Acknowledged attempts, a second apart from 1 on, each with the standby names of that index."""
    tries = ledger(*((n, A, float(n)) for n in range(1, len(names) + 1)), level=level)
    return replace(tries, names=np.array(names, np.int16), standby_names=TEXTS)


def causes(
    attempts: Attempts,
    asked: Level = Level.ON,
    *,
    declared: str = "",
    until: float = np.inf,
    senders: tuple[str, ...] = (),
) -> list[str]:
    chosen = acknowledged(attempts, until)
    found = weaker(attempts, asked, chosen, declared=declared, members=MEMBERS, senders=senders)
    return [one.cause for one in found]


def test_commits_that_waited_for_what_was_asked_have_no_cause() -> None:
    assert causes(rows(1, 1, 1), declared="ANY 1 (n2, n3)") == []
    assert causes(rows(0, 0, 4), declared="ANY 2 (n2, n3)") == []
    assert causes(rows(2, 2, level=Level.LOCAL), Level.LOCAL) == []


def test_a_level_weaker_than_asked_is_named_and_counted() -> None:
    assert causes(rows(1, 1, level=Level.OFF)) == ["2 acknowledged commits ran at off, not at on"]
    assert causes(rows(1, level=Level.REMOTE_APPLY)) == []
    assert causes(rows(1, level=Level.OFF), Level.LOCAL) == ["1 acknowledged commit ran at off, not at local"]
    unknown = replace(rows(1, 1), level=np.array([-1, 3], np.int8))
    assert causes(unknown) == ["1 acknowledged commit did not say at which level they ran"]


def test_only_acknowledged_commits_count() -> None:
    tries = replace(rows(1, 1, level=Level.OFF), outcome=np.array([U, R], np.int8))
    assert causes(tries) == []


def test_emptied_names_mean_local_for_as_long_as_they_were_empty() -> None:
    assert causes(rows(1, 2, 2, 2, 1)) == ["on was acknowledged for 2.0 s with no standby named: it meant local"]
    assert causes(rows(1, 1, 2, 2), until=3.0) == []
    assert causes(rows(1, 2, 2, 2, level=Level.LOCAL), Level.LOCAL) == []


def test_a_reduced_quorum_is_named() -> None:
    assert causes(rows(0, 1, 1, 0)) == ["for 1.0 s only ANY 1 (n2, n3) was waited for, not 2 standbys"]
    assert causes(rows(1, 1), declared="ANY 2 (n2, n3)") == [
        "for 1.0 s only ANY 1 (n2, n3) was waited for, not 2 standbys"
    ]
    assert causes(rows(1, 1), declared="ANY 1 (n2)") == []


def test_names_that_never_came_back_are_no_proof() -> None:
    assert causes(rows(-1, -1)) == ["on was not seen in effect: no standby names came back with its commits"]
    assert causes(rows(-1, -1, level=Level.OFF), Level.OFF) == []


def test_a_star_is_fine_only_where_nothing_but_members_streams() -> None:
    star = ["the standby names are *: any program that streams counts, a pg_receivewal too"]
    assert causes(rows(3, 3)) == star
    assert causes(rows(3, 3), senders=("n2", "backup")) == star
    assert causes(rows(3, 3), senders=("n2", "n3")) == []


def test_how_long_is_the_time_between_such_commits_and_at_least_their_own() -> None:
    tries = rows(2, 1, 2, 2, 1)
    nobody, later = unnamed(tries, Level.ON), tries.ended >= 3.0
    assert lasting_s(tries, nobody) == pytest.approx(1.0)
    assert lasting_s(tries, nobody & ~later) == pytest.approx(0.1)
    assert lasting_s(tries, nobody & later) == pytest.approx(1.0)
    assert lasting_s(tries, unnamed(tries, Level.LOCAL)) == 0
    assert (nobody & (tries.ended >= 2.5)).tolist() == [False, False, True, True, False]


def test_a_new_leader_that_has_not_named_a_standby_yet_differs_from_an_old_one() -> None:
    slow = replace(rows(2, 1, 2, 2, 1, 2), timeline=np.array([1, 1, 2, 2, 2, 2], np.int32))
    tries = replace(slow, ended=slow.ended / 10)
    assert before_named(slow, Level.ON, 1).tolist() == [False, False, True, False, False, False]
    assert before_named(tries, Level.ON, 1).tolist() == [False, False, True, True, False, False]
    assert before_named(tries, Level.ON, None).tolist() == [True, False, True, True, False, False]
    assert not before_named(tries, Level.ON, 2).any()
    assert not before_named(replace(tries, timeline=np.zeros(6, np.int32)), Level.ON, None).any()
    assert not before_named(replace(tries, outcome=np.full(6, U, np.int8)), Level.ON, 1).any()
    never = replace(rows(1, 2, 2), timeline=np.array([1, 2, 2], np.int32), ended=np.array([1.0, 2.0, 2.5]))
    assert before_named(never, Level.ON, 1).tolist() == [False, True, True]


def test_settings_that_void_every_level_are_named() -> None:
    states = [MemberState("n1", 0.0, settings={"fsync": "off", "full_page_writes": "on"}), MemberState("n2", 0.0)]
    assert void(states) == ["fsync is off on n1: nothing is flushed"]
    assert void([replace(states[0], settings={"full_page_writes": "off"})]) == [
        "full_page_writes is off on n1: pages may be torn"
    ]
    assert void([]) == []


def test_whoever_sets_the_level_elsewhere_is_named_once() -> None:
    one = MemberState("n1", 0.0, overrides=("b: synchronous_commit=off", "a: synchronous_commit=off"))
    assert overrides([one, one]) == "a: synchronous_commit=off; b: synchronous_commit=off"


def test_an_odd_ledger_table_is_named() -> None:
    def odd(table: LedgerTable | None) -> list[str]:
        return odd_table([MemberState("n1", 0.0, table=table), MemberState("n2", 0.0)])

    assert odd(None) == odd(LedgerTable()) == []
    assert odd(LedgerTable("u")) == ["the ledger's table is unlogged: a crash empties it by design"]
    assert odd(LedgerTable(triggers=("b", "a"))) == ["the ledger's table has triggers or rules of others: a, b"]
    assert odd(LedgerTable(row_security=True)) == ["the ledger's table has row security: rows may be hidden"]
