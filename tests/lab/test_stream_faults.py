"""A standby's stream cut in one direction, its replay paused, its PostgreSQL crash-restarted: on a real lab, undone."""

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import psycopg
import pytest

from tests.fixtures.labs import asked, leader_and_standby
from walproof.errors import UsageError
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, catalogue, crashes, replication
from walproof.lab.members import postmaster
from walproof.machine.clock import RealClock
from walproof.machine.programs import ip
from walproof.model.waiting import Wait, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture
def roles(lab: Blueprint) -> Iterator[tuple[str, str]]:
    """The leader and a standby; every fault is undone afterwards."""
    try:
        yield leader_and_standby(lab)
    finally:
        catalogue.recover(lab)


def written(lab: Blueprint, leader: str) -> None:
    """A row is committed on the leader alone."""
    local = "SET synchronous_commit = local"
    asked(lab, leader, f"{local}; CREATE TABLE IF NOT EXISTS ticks (t timestamptz)")
    asked(lab, leader, f"{local}; INSERT INTO ticks VALUES (now())")


RECEIVED = "SELECT pg_last_wal_receive_lsn()::text"
FLUSHED = "SELECT flush_lsn::text FROM pg_stat_replication WHERE application_name = '{}'"
PAUSE_STATE = "SELECT pg_get_wal_replay_pause_state()"
REPLAYED = "SELECT pg_last_wal_replay_lsn()::text"


def test_no_wal_arrives_while_rest_and_clients_do(lab: Blueprint, roles: tuple[str, str]) -> None:
    leader, standby = roles
    replication.cut(lab, standby, replication.WAL)
    RealClock().pause(0.5)
    before = asked(lab, standby, RECEIVED)
    written(lab, leader)
    RealClock().pause(1.5)
    assert asked(lab, standby, RECEIVED) == before
    assert httpx2.get(f"{lab.rest_url(standby)}/health", timeout=3, trust_env=False).status_code == 200
    with pytest.raises(UsageError, match="already in effect"):
        replication.cut(lab, standby, replication.WAL)
    replication.restore_stream(lab, standby)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, RECEIVED) != before, RealClock())


def test_wal_arrives_and_no_acknowledgement_comes_back(lab: Blueprint, roles: tuple[str, str]) -> None:
    leader, standby = roles
    replication.cut(lab, standby, replication.ACKS)
    RealClock().pause(0.5)
    received, flushed = asked(lab, standby, RECEIVED), asked(lab, leader, FLUSHED.format(standby))
    written(lab, leader)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, RECEIVED) != received, RealClock())
    assert asked(lab, leader, FLUSHED.format(standby)) == flushed
    catalogue.recover(lab, member=standby)
    wait_for(Wait.REPLAYED, lambda: asked(lab, leader, FLUSHED.format(standby)) != flushed, RealClock())


def test_paused_replay_receives_and_shows_nothing_until_it_is_resumed(lab: Blueprint, roles: tuple[str, str]) -> None:
    leader, standby = roles
    with pytest.raises(UsageError, match="leads"):
        replication.pause_replay(lab, leader)
    replication.pause_replay(lab, standby)
    received, replayed = asked(lab, standby, RECEIVED), asked(lab, standby, REPLAYED)
    written(lab, leader)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, RECEIVED) != received, RealClock())
    states = []
    for _ in range(60):  # cycles of Patroni, each of which resumes it
        states.append(asked(lab, standby, PAUSE_STATE))
        RealClock().pause(0.05)
    assert states.count([("paused",)]) > 50
    replication.resume_replay(lab, standby)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, REPLAYED) != replayed, RealClock())
    assert all(asked(lab, standby, PAUSE_STATE) == [("not paused",)] for _ in range(20))
    assert active.in_effect(lab) == ()


@pytest.mark.nightly
def test_a_crash_restart_ends_every_process_but_the_postmaster(lab: Blueprint, roles: tuple[str, str]) -> None:
    _, standby = roles
    question = "SELECT backend_start::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    before, pid = asked(lab, standby, question), postmaster(lab, standby)
    crashes.crash_restart(lab, standby)

    def again() -> bool:
        try:
            return asked(lab, standby, question) not in (before, [])
        except psycopg.OperationalError:
            return False

    wait_for(Wait.PROGRAM_READY, again, RealClock())
    assert postmaster(lab, standby) == pid


KILLED = """
import os, sys
from walproof.lab import home
from walproof.lab.faults import replication
b = home.load(sys.argv[1])
for direction in (replication.WAL, replication.ACKS):
    replication.cut(b, sys.argv[2], direction)
replication.pause_replay(b, sys.argv[2])
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_walproof_left_is_undone_by_the_next(lab: Blueprint, roles: tuple[str, str]) -> None:
    leader, standby = roles
    done = subprocess.run([sys.executable, "-c", KILLED, lab.name, standby], check=False, env=dict(os.environ))
    assert done.returncode == -9
    assert {f.fault for f in active.in_effect(lab)} == {replication.WAL, replication.ACKS, replication.PAUSED}
    assert set(catalogue.recover(lab)) == {
        f"{f} of {standby}" for f in (replication.WAL, replication.ACKS, replication.PAUSED)
    }
    assert active.in_effect(lab) == ()
    assert not any(ip("rule", "show", "pref", "90", namespace=lab.namespace(m)) for m in lab.members)
    replayed = asked(lab, standby, REPLAYED)
    written(lab, leader)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, REPLAYED) != replayed, RealClock())
