"""A writer whose commit hangs: no server gets more connections for it, and it goes on where another one leads."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair, plain_pair, promote, start, stop, synchronous
from walproof.errors import UsageError
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder, LedgerRun
from walproof.model.waiting import Wait, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("own_state")]
WRITERS, CLOCK = 4, RealClock()


@pytest.fixture
def pair() -> Iterator[PlainPair]:
    with plain_pair() as made:
        yield made


def target_file(pair: PlainPair, folder: Path, most: int) -> str:
    path = folder / "target.toml"
    path.write_text(
        f'kind = "postgres"\ndsn = "{pair_dsn(pair, "n1", "n2")}"\n[caps]\nmax_clients = {most}\n'
        f'[routes]\nport = "127.0.0.1:{pair.ports["n1"]}"\n'
    )
    return str(path)


@contextmanager
def writing(
    where: str, level: Level = Level.ON, route: str = "multi-host", writers: int = WRITERS
) -> Iterator[LedgerRun]:
    """Writers that commit, each of which takes half a second without an answer for a commit that hangs."""
    with opened(where) as target:
        run = target.ledger.open_ledger(LedgerOrder(level, writers, route, False, answer_timeout_s=0.5))
        try:
            wait_for(Wait.PROGRAM_READY, lambda: run.progress().acknowledged > 10 * writers, CLOCK)
            yield run
        finally:
            run.stop()


def connections(pair: PlainPair, member: str = "n1") -> int:
    """Of the ledger's writers."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walproof-ledger'"
    return int(str(pair.sql(member, asked)[0][0]))


def goes_on(run: LedgerRun) -> None:
    before = run.progress().acknowledged
    wait_for(Wait.PROGRAM_READY, lambda: run.progress().acknowledged > before + 10 * WRITERS, CLOCK)


def hangs(run: LedgerRun) -> bool:
    return "no answer within" in run.progress().last_error


def test_a_leader_without_its_standby_gets_no_second_connection_of_a_writer(pair: PlainPair, tmp_path: Path) -> None:
    """It got twice max_clients at the very moment it was in trouble: its own clients found no place any more."""
    synchronous(pair, "n2")
    with writing(target_file(pair, tmp_path, WRITERS)) as run:
        stop(pair, "n2")
        wait_for(Wait.PROGRAM_READY, lambda: hangs(run) or connections(pair) > WRITERS, CLOCK)
        seen = []
        for _ in range(20):  # a second one came within milliseconds
            seen.append(connections(pair))
            CLOCK.pause(0.1)
        assert max(seen) <= WRITERS and hangs(run), seen
        start(pair, "n2")
        goes_on(run)
        assert connections(pair) <= WRITERS


@pytest.mark.nightly
def test_writers_whose_leader_is_frozen_go_on_at_the_next_one(pair: PlainPair, tmp_path: Path) -> None:
    with writing(target_file(pair, tmp_path, WRITERS), Level.LOCAL) as run:
        postmaster = psutil.Process(pair.postmaster("n1"))
        frozen = [postmaster, *postmaster.children(recursive=True)]
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        try:
            promote(pair)
            wait_for(Wait.PROGRAM_READY, lambda: connections(pair, "n2") == WRITERS, CLOCK)
            goes_on(run)
        finally:
            for process in frozen:
                os.kill(process.pid, signal.SIGCONT)


@pytest.mark.nightly
def test_behind_one_address_a_writer_connects_once_more_and_counts_twice(pair: PlainPair, tmp_path: Path) -> None:
    """Another server may lead there meanwhile."""
    synchronous(pair, "n2")
    with opened(target_file(pair, tmp_path, 2 * WRITERS - 1)) as target:
        order = LedgerOrder(Level.LOCAL, WRITERS, "port")
        with pytest.raises(UsageError, match=f"{2 * WRITERS} clients are more than this target's max_clients"):
            target.ledger.open_ledger(order)
    with writing(target_file(pair, tmp_path, 2), route="port", writers=1):
        stop(pair, "n2")
        wait_for(Wait.PROGRAM_READY, lambda: connections(pair) == 2, CLOCK)
