"""Canaries of one database: none takes another's table away, and what was killed with -9 leaves nothing for good."""

import threading
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair
from walproof.model.guarantee import Level
from walproof.model.ports import Target
from walproof.model.waiting import Wait, wait_for
from walproof.watching.canary import _ONE_AT_A_TIME, TABLE, Canary, Probe

pytestmark = pytest.mark.lab
LEVELS = (Level.OFF, Level.LOCAL)


class Heard:
    """A canary, and what it reported."""

    def __init__(self, target: Target) -> None:
        self.probes: list[Probe] = []
        self.canary = Canary(target, LEVELS, self.probes.append, pace_s=0.02)

    def goes_on(self, probes: int = 3) -> bool:
        """Whether it commits that often at each level, and nothing else."""
        self.probes.clear()
        wait_for(
            Wait.PROGRAM_READY,
            lambda: min(Counter(p.level for p in self.probes).get(one, 0) for one in LEVELS) >= probes,
            self.canary._target.clock,
        )
        return {p.outcome_name for p in self.probes} == {"acknowledged"}


@pytest.fixture
def target(pair: PlainPair) -> Iterator[Target]:
    with opened(pair_dsn(pair, "n1")) as target:
        yield target


def left(pair: PlainPair) -> list[tuple[object, ...]]:
    return pair.sql("n1", "SELECT nspname FROM pg_namespace WHERE nspname = 'walproof'")


def test_the_one_that_ends_leaves_the_table_to_the_other(pair: PlainPair, target: Target) -> None:
    """It dropped it, and the exporter counted a refused commit a second for ever."""
    exporter, page = Heard(target), Heard(target)
    assert exporter.goes_on() and page.goes_on()
    oid = pair.sql("n1", f"SELECT '{TABLE}'::regclass::oid")
    page.canary.close()
    assert exporter.goes_on()
    assert pair.sql("n1", f"SELECT '{TABLE}'::regclass::oid") == oid
    exporter.canary.close()
    assert left(pair) == []


def test_a_table_that_is_gone_is_no_refused_commit(pair: PlainPair, target: Target) -> None:
    heard = Heard(target)
    assert heard.goes_on()
    pair.sql("n1", "DROP SCHEMA walproof CASCADE")
    assert heard.goes_on()
    heard.canary.close()
    assert left(pair) == []


def test_what_a_killed_one_left_is_removed_by_the_next(pair: PlainPair, target: Target) -> None:
    killed = Heard(target)
    assert killed.goes_on()
    killed.canary._closed.set()
    for thread in killed.canary._threads:
        thread.join()
    following = Heard(target)
    assert following.goes_on()
    pair.sql("n1", f"UPDATE {TABLE} SET at = at - interval '1 minute' WHERE level LIKE '% {killed.canary._name}'")
    following.canary.close()
    assert left(pair) == []


def test_a_lock_that_another_role_keeps_stops_none(pair: PlainPair, target: Target) -> None:
    """An advisory lock is for whoever may connect to take."""
    with psycopg.connect(pair.member_endpoint("n1").conninfo()) as other:
        other.execute(*_ONE_AT_A_TIME)
        heard = Heard(target)
        assert heard.goes_on()
        heard.canary.close()
    assert left(pair) == []


def test_a_schema_that_was_there_or_is_used_stays(pair: PlainPair, target: Target) -> None:
    pair.sql("n1", "CREATE SCHEMA walproof")
    Heard(target).canary.close()
    assert left(pair) == [("walproof",)]
    pair.sql("n1", "DROP SCHEMA walproof")
    heard = Heard(target)
    pair.sql("n1", "CREATE TABLE walproof.of_the_owner ()")
    heard.canary.close()
    assert pair.sql("n1", "SELECT relname FROM pg_class WHERE relnamespace = 'walproof'::regnamespace") == [
        ("of_the_owner",)
    ]
    pair.sql("n1", "DROP SCHEMA walproof CASCADE")


def test_those_that_begin_and_end_at_once_disturb_neither_one_another_nor_one_that_stays(
    pair: PlainPair, target: Target
) -> None:
    stays, wrong = Heard(target), list[Exception]()
    assert stays.goes_on()

    def comes_and_goes() -> None:
        try:
            for _ in range(5):
                Heard(target).canary.close()
        except Exception as odd:  # noqa: BLE001
            wrong.append(odd)

    threads = [threading.Thread(target=comes_and_goes) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and stays.goes_on()
    stays.canary.close()
    assert left(pair) == []
