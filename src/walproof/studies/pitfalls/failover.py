"""Pitfalls of the manager's modes and of clients: non-strict, strict, lag limits, and connections that never notice."""

import subprocess
import time

from walproof.lab import home, member_links, members, patroni
from walproof.lab.faults import processes as member_faults
from walproof.model.guarantee import SyncMode
from walproof.model.waiting import Wait
from walproof.studies.pitfalls.scene import Found, Scene


def names(scene: Scene, leader: str) -> str:
    """synchronous_standby_names in effect on the leader."""
    return str(scene.ask(leader, "SHOW synchronous_standby_names"))


def silently_local(scene: Scene) -> Found:
    """P5: non-strict synchronous mode: the last standby goes and commits silently become local."""
    leader = scene.leader
    before = names(scene, leader)
    with scene.no_standby_runs(scene.standbys):
        took = scene.until(lambda: names(scene, leader) == "", Wait.NEW_LEADER)
        commit = scene.attempt("P5", link=scene.link(leader))
        commit.done(20)
    return Found(
        commit.told == "success" and not commit.notices and bool(before),
        f"{before} was emptied {took:.0f} s after the last standby went; a commit at on then was told "
        f"{commit.told!r} with {len(commit.notices)} warnings and is on {leader} alone",
    )


def anybody(scene: Scene) -> Found:
    """P6: strict mode without standbys is '*': any WAL receiver, a backup tool too, satisfies it."""
    patroni.set_sync(scene.blueprint, SyncMode.STRICT, 1)
    receiver: subprocess.Popen[bytes] | None = None
    try:
        leader = scene.leader
        with scene.no_standby_runs(scene.standbys):
            scene.until(lambda: names(scene, leader) == "*", Wait.NEW_LEADER)
            commit = scene.attempt("P6", link=scene.link(leader))
            waited = not commit.done(3)
            folder = scene.blueprint.access_dir / "received"
            folder.mkdir(exist_ok=True)
            way = scene.blueprint.member_endpoint(leader).conninfo(dbname="", application_name="a_backup_tool")
            receiver = subprocess.Popen(
                [str(scene.blueprint.postgres_bin / "pg_receivewal"), "-d", way, "-D", str(folder), "--synchronous"],
                env=home.environment(scene.blueprint),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            commit.done(20)
            who = scene.ask(
                leader, "SELECT string_agg(application_name || ' ' || sync_state, ', ') FROM pg_stat_replication"
            )
    finally:
        if receiver is not None:
            receiver.kill()
            receiver.wait()
        scene.target.operations.recover()
        patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 1)
    return Found(
        waited and commit.told == "success",
        f"with no standby left the names were '*' and a commit waited; pg_receivewal connected ({who}) and it was told "
        f"{commit.told!r}: no standby holds it",
    )


def unnoticed(scene: Scene) -> Found:
    """P17: a client never notices a dead leader without tcp_user_timeout or keepalives."""
    old = scene.leader
    plain = scene.link(old, keepalives="0", tcp_user_timeout="0")
    careful = scene.link(old, tcp_user_timeout="3000")
    member_links.isolate(scene.blueprint, old)
    waiting, noticing = scene.attempt("P17-plain", link=plain), scene.attempt("P17-careful", link=careful)
    new = scene.new_leader(old)
    noticed = noticing.done(30)
    hangs = not waiting.done(3)
    return Found(
        noticed and hangs and noticing.told != "success",
        f"{new} had taken over; a client with tcp_user_timeout 3 s was told {noticing.told!r} after "
        f"{noticing.ended - noticing.began:.1f} s, one without still waited after {time.time() - waiting.began:.0f} s",
    )


def nobody_eligible(scene: Scene) -> Found:
    """P22: maximum_lag_on_failover 0: WAL that no commit waited for makes every standby ineligible: no leader."""
    before = patroni.config(scene.blueprint).get("maximum_lag_on_failover")
    patroni.set_sync(scene.blueprint, SyncMode.STRICT, 1)
    patroni.patch_config(scene.blueprint, {"maximum_lag_on_failover": 0})
    try:
        leader = scene.leader
        with scene.held(scene.standbys):
            scene.ask(leader, "SELECT pg_logical_emit_message(false, 'walproof', repeat('x', 4000))")
            scene.ask(leader, "SELECT pg_switch_wal()")
            _published(scene, leader)
            member_faults.kill_member(scene.blueprint, leader)
            _discard(scene)
        began = time.monotonic()
        while time.monotonic() - began < 40 and scene.target.observe().leader is None:
            scene.clock.pause(1.0)
        none_for = time.monotonic() - began
        nobody = scene.target.observe().leader is None
    finally:
        patroni.patch_config(scene.blueprint, {"maximum_lag_on_failover": before})
        scene.target.operations.recover()
        patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 1)
    return Found(
        nobody,
        f"{leader} wrote WAL that no commit waits for and died: no leader for {none_for:.0f} s (ttl 20 s), "
        f"until maximum_lag_on_failover was raised again"
        if nobody
        else f"a leader was there after {none_for:.0f} s",
    )


def _published(scene: Scene, leader: str) -> None:
    """Wait until Patroni has told the DCS the leader's new position (once a loop)."""
    want = int(scene.ask(leader, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def told() -> bool:
        try:
            _, said = patroni.ask(scene.blueprint, scene.standbys[0], "/cluster")
        except OSError:
            return False
        rows = said.get("members", []) if isinstance(said, dict) else []
        return any(_bytes(row.get("lag")) > 0 for row in rows if row.get("role") != "leader") or want == 0

    scene.until(told)


def _bytes(text: object) -> int:
    return int(text) if isinstance(text, int) else 0


def _discard(scene: Scene) -> None:
    """Kill the standbys' PostgreSQL: what waits in their sockets is never read; their managers start it again."""
    for member in scene.blueprint.members:
        if members.postmaster(scene.blueprint, member) is not None:
            member_faults.kill(scene.blueprint, member)
