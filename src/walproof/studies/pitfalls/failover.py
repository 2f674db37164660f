"""Pitfalls of failover and of what is lost by it, or is not: Patroni's modes and lag limits, clients that never notice,
power, partitions, rewinding, quorums that die together, opting out."""

import subprocess
import time

from walproof.lab import configuration, home, members, network_links, patroni
from walproof.lab.faults import catalogue, crashes
from walproof.lab.privileges import access_uid, apart, confined, make_folder
from walproof.model.drill import Drill, Finding, Verdict
from walproof.model.guarantee import Level
from walproof.model.waiting import Wait
from walproof.patroni.config import SyncMode
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.run import Shell, one_drill
from walproof.studies.pitfalls.pitfall_lab import PitfallLab


def names(lab: PitfallLab, leader: str) -> str:
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
            make_folder(folder, owner=access_uid(lab.blueprint.number))
            conninfo = lab.blueprint.member_endpoint(leader).client_conninfo(
                dbname="", passfile="", application_name="a_backup_tool"
            )
            program = str(lab.blueprint.postgres_bin / "pg_receivewal")
            receiver = subprocess.Popen(
                confined(lab.blueprint, [program, "-d", conninfo, "-D", str(folder), "--synchronous"]),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **apart(env=home.environment(lab.blueprint, PGPASSWORD=home.read_secrets(lab.blueprint)["postgres"])),
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
    network_links.isolate(lab.blueprint, old)
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
            crashes.kill_member(lab.blueprint, leader)
            # What waits in the standbys' sockets is never read: their managers start PostgreSQL again.
            for member in lab.blueprint.members:
                if members.postmaster(lab.blueprint, member) is not None:
                    crashes.kill(lab.blueprint, member)
        began = time.monotonic()
        while time.monotonic() - began < 40 and lab.target.observe().leader is None:
            lab.clock.pause(1.0)
        none_for = time.monotonic() - began
        leaderless = lab.target.observe().leader is None
    finally:
        patroni.patch_config(lab.blueprint, {"maximum_lag_on_failover": before})
        lab.recover()
        configuration.set_sync(lab.blueprint, SyncMode.QUORUM, 1)
    return Finding(
        leaderless,
        f"{leader} wrote WAL that no commit waits for and died: no leader for {none_for:.0f} s (ttl 20 s), "
        f"until maximum_lag_on_failover was increased again"
        if leaderless
        else f"a leader was there after {none_for:.0f} s",
    )


def _published(lab: PitfallLab, leader: str) -> None:
    """Wait until Patroni has published the leader's new position in the DCS (once a loop)."""
    want = int(lab.query(leader, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def published() -> bool:
        rows = patroni.member_status(lab.blueprint, lab.standbys[0], "/cluster").get("members", [])
        lags = [row.get("lag") for row in rows if row.get("role") != "leader"]
        return any(isinstance(lag, int) and lag > 0 for lag in lags) or want == 0

    lab.wait_until(published)


def _drill(lab: PitfallLab, fault: str, level: Level, number: int, writers: int = 16) -> Drill:
    """One drill of `walproof prove` on this lab."""
    entry = CATALOGUE[fault]
    planned = PlannedDrill(number, entry, entry.victims[0], level, "multi-host", writers)
    return one_drill(Shell(lab.target, lambda _: None, lambda _, __: None, seed=number), planned)


def _lost_in(lab: PitfallLab, fault: str, level: Level, tries: int, writers: int = 16) -> Finding:
    """Repeat a drill until something is lost, at most `tries` times."""
    results: list[str] = []
    for number in range(1, tries + 1):
        drill = _drill(lab, fault, level, number, writers)
        results.append(f"{drill.findings.lost} of {drill.findings.acknowledged} lost")
        if drill.findings.lost:
            return Finding(True, f"{fault} at {level}, drill {number}: {results[-1]} ({drill.why})")
        if drill.verdict is Verdict.UNDECIDED:
            break
    return Finding(False, f"{fault} at {level}, {tries} drills: {', '.join(results)}; {drill.why}")


def standby_power(lab: PitfallLab) -> Finding:
    """P3: remote_write survives a crash of the standby's PostgreSQL, not its power cut."""
    # Many writers, so that some flush is always under way when the power goes, on a busy machine too.
    power = _lost_in(lab, "double-power", Level.REMOTE_WRITE, 6, writers=64)
    crash = _drill(lab, "double-kill", Level.REMOTE_WRITE, 90)
    return Finding(
        power.reproduced and crash.verdict is Verdict.HELD,
        f"crash of every standby's PostgreSQL: {crash.why}; power cut: {power.evidence}",
    )


def partitioned_leader(lab: PitfallLab) -> Finding:
    """P4: a partitioned leader goes on acknowledging local commits until it demotes; all of them are lost."""
    return _lost_in(lab, "partition", Level.LOCAL, 2)


def quorum_dies_together(lab: PitfallLab) -> Finding:
    """P7: ANY 1 (a, b): the leader and the standby that acknowledged are lost; the survivor lacks acknowledged data."""
    leader, (acknowledging, survivor) = lab.leader, lab.standbys
    network_links.partition(lab.blueprint, survivor)
    lab.insert(leader, "P7", 100)
    for member in (leader, acknowledging):
        crashes.kill_member(lab.blueprint, member)
    held = lab.count(survivor, "P7")
    recovering = lab.query(survivor, "SELECT pg_is_in_recovery()")
    return Finding(
        held < 100 and bool(recovering),
        f"100 commits acknowledged at on under ANY 1; {leader} and {acknowledging} lost: {survivor} holds {held} "
        "of them and, without a majority of the DCS, is rightly not promoted",
    )


def rewound(lab: PitfallLab) -> Finding:
    """P9: pg_rewind erases the old primary's divergent, acknowledged commits without a trace."""
    old = lab.leader
    network_links.partition(lab.blueprint, old)
    lab.insert(old, "P9", 200, "local")
    seen = lab.count(old, "P9")
    new = lab.new_leader(old)
    lab.recover()
    left = {m: lab.count(m, "P9") for m in lab.blueprint.members}
    return Finding(
        seen == 200 and not any(left.values()),
        f"200 commits acknowledged by {old} and visible there; after {new} took over and {old} came back "
        f"the rows are {left}: nothing on {old} shows that they existed",
    )


def divergence_is_not_loss(lab: PitfallLab) -> Finding:
    """P10: commits never acknowledged may be there (recovered) or not: counted apart from loss."""
    leader, standbys = lab.leader, lab.standbys
    with lab.receivers_frozen(standbys):
        there = lab.attempt("P10-there")
        lab.wait_for_syncrep(there)
        lab.query(leader, "SELECT pg_terminate_backend(%s)", there.pid)
        there.answered(10)
    lab.wait_until(lambda: all(lab.count(m, "P10-there") == 1 for m in standbys))
    network_links.partition(lab.blueprint, leader)
    gone = lab.attempt("P10-gone", connection=lab.connect(leader))
    lab.wait_for_syncrep(gone)
    crashes.kill_member(lab.blueprint, leader)
    gone.answered(30)
    successor = lab.new_leader(leader)
    rows = (lab.count(successor, "P10-there"), lab.count(successor, "P10-gone"))
    return Finding(
        rows == (1, 0) and "success" not in (there.answer, gone.answer),
        f"two commits in doubt, neither acknowledged: one is on {successor} (recovered), the other is not; no loss",
    )


def opted_out(lab: PitfallLab) -> Finding:
    """P20: SET LOCAL synchronous_commit leaves one transaction unprotected, in spite of the cluster's promise."""
    leader = lab.leader
    network_links.partition(lab.blueprint, leader)
    waits = lab.attempt("P20-on", connection=lab.connect(leader))
    lab.wait_for_syncrep(waits)
    connection = lab.connect(leader)
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")
        connection.execute("INSERT INTO walproof_pitfall (key) VALUES ('P20-local')")
    default = lab.query(leader, "SHOW synchronous_standby_names")
    crashes.kill_member(lab.blueprint, leader)
    successor = lab.new_leader(leader)
    kept = lab.count(successor, "P20-local")
    return Finding(
        kept == 0 and waits.answer != "success",
        f"{default} was in effect: the ordinary commit waited, the one with SET LOCAL was acknowledged and is "
        f"{'lost' if kept == 0 else 'kept'} on {successor}",
    )


def frozen_leader(lab: PitfallLab) -> Finding:
    """P19: a frozen leader wakes up after a successor was elected, and answers before it notices."""
    old = lab.leader
    connections = [lab.connect(old, "local") for _ in range(8)]
    crashes.freeze(lab.blueprint, old)
    attempts = [lab.attempt(f"P19-{i}", connection=connection) for i, connection in enumerate(connections)]
    new = lab.new_leader(old)
    elected = time.time()
    lab.query(new, "INSERT INTO walproof_pitfall (key) VALUES ('successor')")
    crashes.thaw(lab.blueprint, old)
    late = [a for a in attempts if a.answered(15) and a.answer == "success" and a.ended > elected]
    lab.recover()
    kept = lab.count(new, "P19")
    return Finding(
        bool(late) and kept < len(late),
        f"{len(late)} of {len(attempts)} commits were acknowledged by {old} after {new} had taken over and written; "
        f"{kept} of them exist now",
    )


def lying_disk(lab: PitfallLab) -> Finding:
    """P18: with fsync off, which is what a lying disk comes to, even `on` loses what was acknowledged."""
    leader, standbys = lab.leader, lab.standbys
    configuration.set_parameters(lab.blueprint, {"fsync": "off"})
    for member in lab.blueprint.members:
        lab.query(member, "CHECKPOINT")
        # What is older than the test is made durable, so that only the promise is broken and not the data files.
        subprocess.run(["sync", "-f", str(lab.blueprint.data_dir(member))], check=True)
    lab.insert(leader, "P18", 200)
    for member in (*standbys, leader):
        crashes.cut_power(lab.blueprint, member)
    for member in standbys:
        catalogue.recover_member(lab.blueprint, member)
    new = lab.new_leader(leader)
    kept = lab.count(new, "P18")
    return Finding(
        kept < 200,
        f"200 commits acknowledged at on with fsync off; after every power was cut and the leader lost for good "
        f"{new} holds {kept} of them",
    )
