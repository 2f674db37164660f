"""Pitfalls of commits that wait for a standby: cancelled, restarted, released, or waiting for nobody."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from walproof.lab import configuration, member_links, members, patroni
from walproof.model.waiting import Wait
from walproof.patroni.config import SyncMode
from walproof.studies.pitfalls.pitfall_lab import Finding, PitfallLab


def cancelled(lab: PitfallLab) -> Finding:
    """P1: a cancelled wait is a warning and then success; the row is visible and on no standby."""
    leader, standbys = lab.leader, lab.standbys
    with lab.receivers_frozen(standbys):
        commit = lab.attempt("P1")
        lab.wait_for_syncrep(commit)
        lab.query(leader, "SELECT pg_cancel_backend(%s)", commit.pid)
        commit.answered(10)
        visible = lab.count(leader, "P1")
        elsewhere = sum(lab.count(m, "P1") for m in standbys)
    warned = any("canceling wait for synchronous replication" in n for n in commit.notices)
    return Finding(
        commit.answer == "success" and warned and visible == 1 and elsewhere == 0,
        f"the client got {commit.answer!r} with the warning {commit.notices[:1]}; "
        f"{visible} row on the leader, {elsewhere} on the standbys",
    )


@contextmanager
def _restarts_in_place(lab: PitfallLab) -> Iterator[None]:
    """A crashed leader is started again where it is, as Patroni does by default (primary_start_timeout 300)."""
    before = patroni.config(lab.blueprint).get("primary_start_timeout")
    patroni.patch_config(lab.blueprint, {"primary_start_timeout": 300})
    try:
        lab.wait_until(lambda: patroni.config(lab.blueprint).get("primary_start_timeout") == 300)
        yield
    finally:
        patroni.patch_config(lab.blueprint, {"primary_start_timeout": before})


def _crash(lab: PitfallLab, leader: str) -> None:
    """Kill the leader's postmaster and wait until it serves again in the same place."""
    old = members.postmaster(lab.blueprint, leader)
    assert old is not None
    os.kill(old, signal.SIGKILL)

    def back() -> bool:
        try:
            return members.postmaster(lab.blueprint, leader) != old and lab.readable(leader)
        except psycopg.Error:
            return False

    lab.wait_until(back, Wait.NEW_LEADER)


def restarted(lab: PitfallLab) -> Finding:
    """P2: commits that wait while the primary restarts are committed and visible afterwards, on no standby."""
    leader, standbys = lab.leader, lab.standbys
    with _restarts_in_place(lab), lab.receivers_frozen(standbys):
        commits = [lab.attempt(f"P2-{i}") for i in range(5)]
        for commit in commits:
            lab.wait_for_syncrep(commit)
        before = lab.count(leader, "P2")
        _crash(lab, leader)
        after = lab.count(leader, "P2")
        elsewhere = sum(lab.count(m, "P2") for m in standbys)
        answers = [c.answer for c in commits if c.answered(5)]
    return Finding(
        before == 0 and after == 5 and elsewhere == 0 and "success" not in answers,
        f"5 commits waited, {before} visible; after the restart of {leader} {after} were visible there, "
        f"{elsewhere} on the standbys; no client got success",
    )


def invisible_then_visible(lab: PitfallLab) -> Finding:
    """P13: a waiting commit is invisible, yet becomes visible when its client leaves and the server restarts."""
    leader, standbys = lab.leader, lab.standbys
    with _restarts_in_place(lab), lab.receivers_frozen(standbys):
        commit = lab.attempt("P13")
        lab.wait_for_syncrep(commit)
        before = lab.count(leader, "P13")
        with socket.socket(fileno=os.dup(commit.connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
        commit.answered(10)
        still = lab.count(leader, "P13")
        _crash(lab, leader)
        after = lab.count(leader, "P13")
    return Finding(
        (before, still, after) == (0, 0, 1) and commit.answer != "success",
        f"visible rows while it waited: {before}, after its client left: {still}, after the restart: {after}",
    )


def for_nobody(lab: PitfallLab) -> Finding:
    """P8: a name that no standby has makes commits wait for ever, though two stream; releasing gives no warning."""
    leader = lab.leader
    patroni.pause(lab.blueprint, True)
    try:
        with psycopg.connect(lab.blueprint.member_endpoint(leader).conninfo(), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (nobody)'")
            connection.execute("SELECT pg_reload_conf()")
            lab.wait_until(lambda: "nobody" in str(lab.query(leader, "SHOW synchronous_standby_names")))
            commit = lab.attempt("P8")
            lab.wait_for_syncrep(commit)
            waited = not commit.answered(4)
            streaming = int(lab.query(leader, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            connection.execute("SELECT pg_reload_conf()")
            commit.answered(10)
    finally:
        lab.query(leader, "ALTER SYSTEM RESET synchronous_standby_names")
        lab.query(leader, "SELECT pg_reload_conf()")
        patroni.pause(lab.blueprint, False)
    return Finding(
        waited and streaming == 2 and commit.answer == "success" and not commit.notices,
        f"{streaming} standbys streamed, yet the commit waited; emptying the names ended it with {commit.answer!r} "
        f"with {len(commit.notices)} warnings",
    )


def unreachable_standby(lab: PitfallLab) -> Finding:
    """P15: an unreachable standby stalls commits until wal_sender_timeout."""
    configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 2)
    try:
        leader, unreachable = lab.leader, lab.standbys[-1]
        timeout = lab.query(leader, "SHOW wal_sender_timeout")
        usual = lab.attempt("P15-before")
        usual.answered(30)
        member_links.isolate(lab.blueprint, unreachable)
        commit = lab.attempt("P15")
        stalled = not commit.answered(12)
        other = lab.query(leader, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
    finally:
        lab.recover()
        configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 1)
    return Finding(
        stalled and usual.answer == "success",
        f"a commit took {1000 * (usual.ended - usual.began):.0f} ms before; with {unreachable} unreachable it still "
        f"waited after 12 s, {other} walsenders still showed streaming (wal_sender_timeout {timeout})",
    )
