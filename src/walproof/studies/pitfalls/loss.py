"""Pitfalls of what is lost, or is not: power, partitions, rewinding, quorums that die together, opting out."""

import subprocess
import time

import psycopg

from walproof.lab import configuration, member_links
from walproof.lab.faults import power, recover
from walproof.lab.faults import processes as member_faults
from walproof.model.guarantee import Level
from walproof.model.verdict import Drill, Verdict
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.run import Shell, one_drill
from walproof.studies.pitfalls.pitfall_lab import Finding, PitfallLab


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
    member_links.partition(lab.blueprint, survivor)
    connection = lab.connect(leader, "on")
    for i in range(100):
        connection.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"P7-{i}",))
    for member in (leader, acknowledging):
        member_faults.kill_member(lab.blueprint, member)
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
    member_links.partition(lab.blueprint, old)
    connection = lab.connect(old, "local")
    acknowledged = 0
    for i in range(200):
        connection.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"P9-{i}",))
        acknowledged += 1
    seen = lab.count(old, "P9")
    new = lab.new_leader(old)
    lab.target.operations.recover()
    left = {m: lab.count(m, "P9") for m in lab.blueprint.members}
    return Finding(
        acknowledged == seen == 200 and not any(left.values()),
        f"{acknowledged} commits acknowledged by {old} and visible there; after {new} took over and {old} came back "
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
    member_links.partition(lab.blueprint, leader)
    gone = lab.attempt("P10-gone", connection=lab.connect(leader))
    lab.wait_for_syncrep(gone)
    member_faults.kill_member(lab.blueprint, leader)
    gone.answered(30)
    successor = lab.new_leader(leader)
    rows = (lab.count(successor, "P10-there"), lab.count(successor, "P10-gone"))
    return Finding(
        rows == (1, 0) and "success" not in (there.answer, gone.answer),
        f"two commits in doubt, neither acknowledged: one is on {successor} (recovered), the other is not; no loss",
    )


def opted_out(lab: PitfallLab) -> Finding:
    """P20: SET LOCAL synchronous_commit leaves one transaction unprotected, whatever the cluster promises."""
    leader = lab.leader
    member_links.partition(lab.blueprint, leader)
    waits = lab.attempt("P20-on", connection=lab.connect(leader))
    lab.wait_for_syncrep(waits)
    connection = lab.connect(leader)
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")
        connection.execute("INSERT INTO walproof_pitfall (key) VALUES ('P20-local')")
    default = lab.query(leader, "SHOW synchronous_standby_names")
    member_faults.kill_member(lab.blueprint, leader)
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
    member_faults.freeze(lab.blueprint, old)
    attempts = [lab.attempt(f"P19-{i}", connection=connection) for i, connection in enumerate(connections)]
    new = lab.new_leader(old)
    elected = time.time()
    with psycopg.connect(lab.blueprint.member_endpoint(new).conninfo(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute("INSERT INTO walproof_pitfall (key) VALUES ('successor')")
    member_faults.thaw(lab.blueprint, old)
    late = [a for a in attempts if a.answered(15) and a.answer == "success" and a.ended > elected]
    lab.target.operations.recover()
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
    connection = lab.connect(leader)
    for i in range(200):
        connection.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"P18-{i}",))
    for member in (*standbys, leader):
        power.cut_power(lab.blueprint, member)
    for member in standbys:
        recover.recover_member(lab.blueprint, member)
    new = lab.new_leader(leader)
    kept = lab.count(new, "P18")
    return Finding(
        kept < 200,
        f"200 commits acknowledged at on with fsync off; after every power was cut and the leader lost for good "
        f"{new} holds {kept} of them",
    )
