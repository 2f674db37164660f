"""Pitfalls of commits that wait for a standby: cancelled, restarted, released, or waiting for nobody."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from walproof.lab import member_links, members, patroni
from walproof.model.waiting import Wait
from walproof.studies.pitfalls.scene import Found, Scene


def cancelled(scene: Scene) -> Found:
    """P1: a cancelled wait is a warning and then success; the row is visible and on no standby."""
    leader, standbys = scene.leader, scene.standbys
    with scene.held(standbys):
        commit = scene.attempt("P1")
        scene.waits_for_standby(commit)
        scene.ask(leader, "SELECT pg_cancel_backend(%s)", commit.pid)
        commit.done(10)
        visible = scene.count(leader, "P1")
        elsewhere = sum(scene.count(m, "P1") for m in standbys)
    warned = any("canceling wait for synchronous replication" in n for n in commit.notices)
    return Found(
        commit.told == "success" and warned and visible == 1 and elsewhere == 0,
        f"the client was told {commit.told!r} with the warning {commit.notices[:1]}; "
        f"{visible} row on the leader, {elsewhere} on the standbys",
    )


@contextmanager
def _restarts_in_place(scene: Scene) -> Iterator[None]:
    """A crashed leader is started again where it is, as Patroni does by default (primary_start_timeout 300)."""
    before = patroni.config(scene.blueprint).get("primary_start_timeout")
    patroni.patch_config(scene.blueprint, {"primary_start_timeout": 300})
    try:
        scene.until(lambda: patroni.config(scene.blueprint).get("primary_start_timeout") == 300)
        yield
    finally:
        patroni.patch_config(scene.blueprint, {"primary_start_timeout": before})


def _crash(scene: Scene, leader: str) -> None:
    """Kill the leader's postmaster and wait until it serves again in the same place."""
    old = members.postmaster(scene.blueprint, leader)
    assert old is not None
    os.kill(old, signal.SIGKILL)

    def back() -> bool:
        try:
            return members.postmaster(scene.blueprint, leader) != old and scene.reads(leader)
        except psycopg.Error:
            return False

    scene.until(back, Wait.NEW_LEADER)


def restarted(scene: Scene) -> Found:
    """P2: commits that wait while the primary restarts are committed and visible afterwards, on no standby."""
    leader, standbys = scene.leader, scene.standbys
    with _restarts_in_place(scene), scene.held(standbys):
        commits = [scene.attempt(f"P2-{i}") for i in range(5)]
        for commit in commits:
            scene.waits_for_standby(commit)
        before = scene.count(leader, "P2")
        _crash(scene, leader)
        after = scene.count(leader, "P2")
        elsewhere = sum(scene.count(m, "P2") for m in standbys)
        told = [c.told for c in commits if c.done(5)]
    return Found(
        before == 0 and after == 5 and elsewhere == 0 and "success" not in told,
        f"5 commits waited, {before} visible; after the restart of {leader} {after} were visible there, "
        f"{elsewhere} on the standbys; no client was told success",
    )


def invisible_then_visible(scene: Scene) -> Found:
    """P13: a waiting commit is invisible, yet becomes visible when its client leaves and the server restarts."""
    leader, standbys = scene.leader, scene.standbys
    with _restarts_in_place(scene), scene.held(standbys):
        commit = scene.attempt("P13")
        scene.waits_for_standby(commit)
        before = scene.count(leader, "P13")
        assert commit.link is not None
        with socket.socket(fileno=os.dup(commit.link.fileno())) as cord:
            cord.shutdown(socket.SHUT_RDWR)
        commit.done(10)
        still = scene.count(leader, "P13")
        _crash(scene, leader)
        after = scene.count(leader, "P13")
    return Found(
        (before, still, after) == (0, 0, 1) and commit.told != "success",
        f"visible rows while it waited: {before}, after its client left: {still}, after the restart: {after}",
    )


def for_nobody(scene: Scene) -> Found:
    """P8: a name that no standby has makes commits wait for ever, though two stream; releasing says nothing."""
    leader = scene.leader
    patroni.pause(scene.blueprint, True)
    try:
        with psycopg.connect(scene.blueprint.member_endpoint(leader).conninfo(), autocommit=True) as link:
            link.execute("SET synchronous_commit = local")
            link.execute("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (nobody)'")
            link.execute("SELECT pg_reload_conf()")
            scene.until(lambda: "nobody" in str(scene.ask(leader, "SHOW synchronous_standby_names")))
            commit = scene.attempt("P8")
            scene.waits_for_standby(commit)
            waited = not commit.done(4)
            streaming = int(scene.ask(leader, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))
            link.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            link.execute("SELECT pg_reload_conf()")
            commit.done(10)
    finally:
        scene.ask(leader, "ALTER SYSTEM RESET synchronous_standby_names")
        scene.ask(leader, "SELECT pg_reload_conf()")
        patroni.pause(scene.blueprint, False)
    return Found(
        waited and streaming == 2 and commit.told == "success" and not commit.notices,
        f"{streaming} standbys streamed, yet the commit waited; emptying the names told it {commit.told!r} "
        f"with {len(commit.notices)} warnings",
    )


def vanished(scene: Scene) -> Found:
    """P15: a standby that vanishes on the network stalls commits until wal_sender_timeout."""
    from walproof.model.guarantee import SyncMode

    patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 2)
    try:
        leader, gone = scene.leader, scene.standbys[-1]
        timeout = scene.ask(leader, "SHOW wal_sender_timeout")
        usual = scene.attempt("P15-before")
        usual.done(30)
        member_links.isolate(scene.blueprint, gone)
        commit = scene.attempt("P15")
        stalled = not commit.done(12)
        other = scene.ask(leader, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
    finally:
        scene.target.operations.recover()
        patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 1)
    return Found(
        stalled and usual.told == "success",
        f"a commit took {1000 * (usual.ended - usual.began):.0f} ms before; with {gone} unreachable it still waited "
        f"after 12 s, {other} walsenders still said streaming (wal_sender_timeout {timeout})",
    )
