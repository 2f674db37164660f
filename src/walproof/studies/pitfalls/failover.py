"""Pitfalls of the manager's modes and of clients: non-strict, strict, lag limits, and connections that never notice."""

import subprocess
import time

from walproof.lab import configuration, home, member_links, members, patroni
from walproof.lab.faults import processes as member_faults
from walproof.model.waiting import Wait
from walproof.patroni.config import SyncMode
from walproof.studies.pitfalls.pitfall_lab import Finding, PitfallLab


def names(lab: PitfallLab, leader: str) -> str:
    """synchronous_standby_names in effect on the leader."""
    return str(lab.query(leader, "SHOW synchronous_standby_names"))


def silently_local(lab: PitfallLab) -> Finding:
    """P5: non-strict synchronous mode: the last standby goes and commits silently become local."""
    leader = lab.leader
    before = names(lab, leader)
    with lab.standbys_down(lab.standbys):
        took = lab.wait_until(lambda: names(lab, leader) == "", Wait.NEW_LEADER)
        commit = lab.attempt("P5", connection=lab.connect(leader))
        commit.answered(20)
    return Finding(
        commit.answer == "success" and not commit.notices and bool(before),
        f"{before} was emptied {took:.0f} s after the last standby went; a commit at on was then answered "
        f"{commit.answer!r} with {len(commit.notices)} warnings and is on {leader} alone",
    )


def anybody(lab: PitfallLab) -> Finding:
    """P6: strict mode without standbys is '*': any WAL receiver, a backup tool too, satisfies it."""
    configuration.set_sync(lab.blueprint, SyncMode.STRICT, 1)
    receiver: subprocess.Popen[bytes] | None = None
    try:
        leader = lab.leader
        with lab.standbys_down(lab.standbys):
            lab.wait_until(lambda: names(lab, leader) == "*", Wait.NEW_LEADER)
            commit = lab.attempt("P6", connection=lab.connect(leader))
            waited = not commit.answered(3)
            folder = lab.blueprint.access_dir / "received"
            folder.mkdir(exist_ok=True)
            conninfo = lab.blueprint.member_endpoint(leader).conninfo(dbname="", application_name="a_backup_tool")
            receiver = subprocess.Popen(
                [str(lab.blueprint.postgres_bin / "pg_receivewal"), "-d", conninfo, "-D", str(folder), "--synchronous"],
                env=home.environment(lab.blueprint),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            commit.answered(20)
            who = lab.query(
                leader, "SELECT string_agg(application_name || ' ' || sync_state, ', ') FROM pg_stat_replication"
            )
    finally:
        if receiver is not None:
            receiver.kill()
            receiver.wait()
        lab.recover()
        configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 1)
    return Finding(
        waited and commit.answer == "success",
        f"with no standby left the names were '*', a commit waited; pg_receivewal connected ({who}) and it got "
        f"{commit.answer!r}: no standby holds it",
    )


def unnoticed(lab: PitfallLab) -> Finding:
    """P17: a client never notices a dead leader without tcp_user_timeout or keepalives."""
    old = lab.leader
    plain = lab.connect(old, keepalives="0", tcp_user_timeout="0")
    careful = lab.connect(old, tcp_user_timeout="3000")
    member_links.isolate(lab.blueprint, old)
    waiting, noticing = lab.attempt("P17-plain", connection=plain), lab.attempt("P17-careful", connection=careful)
    new = lab.new_leader(old)
    noticed = noticing.answered(30)
    hangs = not waiting.answered(3)
    return Finding(
        noticed and hangs and noticing.answer != "success",
        f"{new} had taken over; a client with tcp_user_timeout 3 s got {noticing.answer!r} after "
        f"{noticing.ended - noticing.began:.1f} s, one without still waited after {time.time() - waiting.began:.0f} s",
    )


def nobody_eligible(lab: PitfallLab) -> Finding:
    """P22: maximum_lag_on_failover 0: WAL that no commit waited for makes every standby ineligible: no leader."""
    before = patroni.config(lab.blueprint).get("maximum_lag_on_failover")
    configuration.set_sync(lab.blueprint, SyncMode.STRICT, 1)
    patroni.patch_config(lab.blueprint, {"maximum_lag_on_failover": 0})
    try:
        leader = lab.leader
        with lab.receivers_frozen(lab.standbys):
            lab.query(leader, "SELECT pg_logical_emit_message(false, 'walproof', repeat('x', 4000))")
            lab.query(leader, "SELECT pg_switch_wal()")
            _published(lab, leader)
            member_faults.kill_member(lab.blueprint, leader)
            _discard(lab)
        began = time.monotonic()
        while time.monotonic() - began < 40 and lab.target.observe().leader is None:
            lab.clock.pause(1.0)
        none_for = time.monotonic() - began
        nobody = lab.target.observe().leader is None
    finally:
        patroni.patch_config(lab.blueprint, {"maximum_lag_on_failover": before})
        lab.recover()
        configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 1)
    return Finding(
        nobody,
        f"{leader} wrote WAL that no commit waits for and died: no leader for {none_for:.0f} s (ttl 20 s), "
        f"until maximum_lag_on_failover was increased again"
        if nobody
        else f"a leader was there after {none_for:.0f} s",
    )


def _published(lab: PitfallLab, leader: str) -> None:
    """Wait until Patroni has published the leader's new position in the DCS (once a loop)."""
    want = int(lab.query(leader, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def published() -> bool:
        rows = patroni.status(lab.blueprint, lab.standbys[0], "/cluster").get("members", [])
        return any(_bytes(row.get("lag")) > 0 for row in rows if row.get("role") != "leader") or want == 0

    lab.wait_until(published)


def _bytes(text: object) -> int:
    return int(text) if isinstance(text, int) else 0


def _discard(lab: PitfallLab) -> None:
    """Kill the standbys' PostgreSQL: what waits in their sockets is never read; their managers start it again."""
    for member in lab.blueprint.members:
        if members.postmaster(lab.blueprint, member) is not None:
            member_faults.kill(lab.blueprint, member)
