"""Pitfalls of commits that wait for a standby (cancelled, restarted, released, waiting for no standby), and of what can
be seen: stale reads, order of visibility, replay that blocks, slow disks, lag that misleads."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import psycopg

from walproof.lab import configuration, members, network_links, patroni
from walproof.lab.faults import crashes, disks
from walproof.model.drill import Finding
from walproof.model.waiting import Wait
from walproof.patroni.config import SyncMode
from walproof.studies.pitfalls.pitfall_lab import PitfallLab


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
        with lab.client(leader) as connection:
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
        network_links.isolate(lab.blueprint, unreachable)
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


def _pause_replay(lab: PitfallLab, member: str) -> None:
    lab.query(member, "SELECT pg_wal_replay_pause()")
    lab.wait_until(lambda: lab.query(member, "SELECT pg_get_wal_replay_pause_state()") == "paused")


def stale(lab: PitfallLab) -> Finding:
    """P11: at `on` a standby's reads are stale; at quorum remote_apply some standby is fresh, not every one."""
    leader, (slow, other) = lab.leader, lab.standbys
    with lab.patroni_frozen((slow, other)):
        try:
            _pause_replay(lab, slow)
            applied = lab.attempt("P11-apply", "remote_apply", connection=lab.connect(leader, "remote_apply"))
            applied.answered(20)
            somewhere, not_there = lab.count(other, "P11-apply"), lab.count(slow, "P11-apply")
            _pause_replay(lab, other)
            flushed = lab.attempt("P11-on", connection=lab.connect(leader))
            flushed.answered(20)
            nowhere = lab.count(slow, "P11-on") + lab.count(other, "P11-on")
        finally:
            for member in (slow, other):
                lab.query(member, "SELECT pg_wal_replay_resume()")
    return Finding(
        applied.answer == flushed.answer == "success" and (somewhere, not_there, nowhere) == (1, 0, 0),
        f"remote_apply acknowledged by {leader}: visible on {other}, not on {slow}; "
        f"on acknowledged: visible on {nowhere} of 2 standbys",
    )


def long_fork(lab: PitfallLab) -> Finding:
    """P12: two readers see two commits in opposite orders on a healthy cluster (a long fork)."""
    configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 2)
    try:
        leader, (quick, slow) = lab.leader, lab.standbys
        with lab.receivers_frozen([slow]):
            first = lab.attempt("P12-first", "on")
            lab.wait_for_syncrep(first)
            lab.wait_until(lambda: lab.count(quick, "P12-first") == 1)
            standby_sees = (lab.count(quick, "P12-first"), lab.count(quick, "P12-second"))
            second = lab.attempt("P12-second", "local")
            second.answered(20)
            leader_sees = (lab.count(leader, "P12-first"), lab.count(leader, "P12-second"))
        first.answered(20)
    finally:
        configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 1)
    return Finding(
        standby_sees == (1, 0) and leader_sees == (0, 1) and first.answer == "success",
        f"{quick} showed the first commit and not the second, then {leader} the second and not the first; "
        "both were acknowledged",
    )


def replay_blocked(lab: PitfallLab) -> Finding:
    """P14: at remote_apply a long query on the standbys that conflicts with replay freezes every commit."""
    leader, standbys = lab.leader, lab.standbys
    lab.attempt("P14", "remote_apply").answered(20)
    readers = [lab.connect(member) for member in standbys]
    for reader in readers:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM walproof_pitfall")
    alter = lab.attempt("alter", "on", statement="ALTER TABLE walproof_pitfall ADD COLUMN more int")
    altered = alter.answered(20)
    lab.query(leader, "CREATE TABLE IF NOT EXISTS walproof_pitfall_other (n int)")
    other = "INSERT INTO walproof_pitfall_other VALUES (1)"
    frozen = lab.attempt("other", "remote_apply", statement=other)
    blocked = not frozen.answered(4)
    at_on = lab.attempt("other-on", "on", statement=other)
    not_blocked = at_on.answered(10) and at_on.answer == "success"
    for reader in readers:
        reader.execute("ROLLBACK")
    frozen.answered(20)
    delay = lab.query(standbys[0], "SHOW max_standby_streaming_delay")
    lab.query(leader, "DROP TABLE walproof_pitfall_other")
    return Finding(
        altered and blocked and not_blocked and frozen.answer == "success",
        f"with a reader on each standby, a commit to another table at remote_apply took "
        f"{frozen.ended - frozen.began:.1f} s, until the readers left (max_standby_streaming_delay {delay}); "
        f"at on {at_on.ended - at_on.began:.2f} s",
    )


def slow_disk(lab: PitfallLab) -> Finding:
    """P16: one standby with a slow disk slows every commit under ALL; ANY 1 hides it."""
    slow_s = 0.08

    def commits(prefix: str) -> float:
        connection = lab.connect(lab.leader, "on")
        lengths = []
        for i in range(15):
            began = time.monotonic()
            connection.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"{prefix}{i}",))
            lengths.append(time.monotonic() - began)
        return median(lengths) * 1000

    slow = lab.standbys[-1]
    before = commits("P16-before")
    disks.slow(lab.blueprint, slow, slow_s)
    try:
        any_ms = commits("P16-any")
        configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 2)
        all_ms = commits("P16-all")
    finally:
        disks.clear(lab.blueprint, slow)
        configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 1)
    return Finding(
        all_ms >= 1000 * slow_s and any_ms < all_ms / 2,
        f"median commit at on: {before:.1f} ms; with a flush {1000 * slow_s:.0f} ms slower on {slow}: "
        f"{any_ms:.1f} ms under ANY 1, {all_ms:.1f} ms when both must answer",
    )


def misleading_lag(lab: PitfallLab) -> Finding:
    """P21: lag columns show what was last reported, not what would be lost."""
    leader, standbys = lab.leader, lab.standbys
    lab.insert(leader, "warm", 50)
    network_links.partition(lab.blueprint, leader)
    lab.insert(leader, "P21", 300, "local")
    lags = lab.query(
        leader,
        "SELECT string_agg(coalesce(extract(epoch FROM replay_lag)::numeric(8,4)::text, 'null'), ', ')"
        " FROM pg_stat_replication WHERE state = 'streaming'",
    )
    listed = _listed_lag(lab, standbys)
    crashes.kill_member(lab.blueprint, leader)
    successor = lab.new_leader(leader)
    kept = lab.count(successor, "P21")
    worst = max((float(x) for x in str(lags).split(", ") if x not in ("null", "None")), default=0.0)
    return Finding(
        kept == 0 and worst < 1.0,
        f"pg_stat_replication.replay_lag showed {lags} s and Patroni's list {listed} bytes, while 300 commits "
        f"acknowledged at local were on {leader} only; the successor {successor} holds {kept} of them",
    )


def _listed_lag(lab: PitfallLab, standbys: tuple[str, ...]) -> str:
    """What /cluster lists as lag, which is what patronictl list prints, from a standby's Patroni."""
    rows = patroni.member_status(lab.blueprint, standbys[0], "/cluster").get("members")
    if rows is None:
        return "unknown"
    return ", ".join(str(row.get("lag", "-")) for row in rows if row.get("role") not in ("leader", "primary"))
