"""Pitfalls of what is lost, or is not: power, partitions, rewinding, quorums that die together, opting out."""

import subprocess
import time

import psycopg

from walproof.lab import member_links, patroni
from walproof.lab.faults import power, recover
from walproof.lab.faults import processes as member_faults
from walproof.model.guarantee import Level
from walproof.model.verdict import Drill, Verdict
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.run import Shell, one_drill
from walproof.studies.pitfalls.scene import Found, Scene


def _drill(scene: Scene, fault: str, level: Level, number: int, writers: int = 16) -> Drill:
    """One drill of the prover on this lab."""
    entry = CATALOGUE[fault]
    planned = PlannedDrill(number, entry, entry.victims[0], level, "multi-host", writers)
    return one_drill(Shell(scene.target, lambda _: None, lambda _, __: None, seed=number), planned)


def _lost_in(scene: Scene, fault: str, level: Level, tries: int, writers: int = 16) -> Found:
    """Drill until something is lost."""
    said: list[str] = []
    for number in range(1, tries + 1):
        drill = _drill(scene, fault, level, number, writers)
        said.append(f"{drill.findings.lost} of {drill.findings.acknowledged} lost")
        if drill.findings.lost:
            return Found(True, f"{fault} at {level}, drill {number}: {said[-1]} ({drill.why})")
        if drill.verdict is Verdict.UNDECIDED:
            break
    return Found(False, f"{fault} at {level}, {tries} drills: {', '.join(said)}; {drill.why}")


def standby_power(scene: Scene) -> Found:
    """P3: remote_write survives a crash of the standby's PostgreSQL, not its power cut."""
    # Many writers, so that some flush is always under way when the power goes, on a busy machine too.
    power = _lost_in(scene, "double-power", Level.REMOTE_WRITE, 6, writers=64)
    crash = _drill(scene, "double-kill", Level.REMOTE_WRITE, 90)
    return Found(
        power.reproduced and crash.verdict is Verdict.HELD,
        f"crash of every standby's PostgreSQL: {crash.why}; power cut: {power.evidence}",
    )


def partitioned_leader(scene: Scene) -> Found:
    """P4: a partitioned leader goes on acknowledging local commits until it demotes; all of them are lost."""
    return _lost_in(scene, "partition", Level.LOCAL, 2)


def quorum_dies_together(scene: Scene) -> Found:
    """P7: ANY 1 (a, b): the leader and the standby that acknowledged are lost; the survivor lacks acknowledged data."""
    leader, (acknowledging, survivor) = scene.leader, scene.standbys
    member_links.cut(scene.blueprint, survivor)
    link = scene.link(leader, "on")
    for i in range(100):
        link.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"P7-{i}",))
    for member in (leader, acknowledging):
        member_faults.kill_member(scene.blueprint, member)
    held = scene.count(survivor, "P7")
    recovering = scene.ask(survivor, "SELECT pg_is_in_recovery()")
    return Found(
        held < 100 and bool(recovering),
        f"100 commits acknowledged at on under ANY 1; {leader} and {acknowledging} gone: {survivor} holds {held} "
        "of them and, without a majority of the DCS, is rightly not promoted",
    )


def rewound(scene: Scene) -> Found:
    """P9: pg_rewind erases the old primary's divergent, acknowledged commits without a trace."""
    old = scene.leader
    member_links.cut(scene.blueprint, old)
    link = scene.link(old, "local")
    acknowledged = 0
    for i in range(200):
        link.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"P9-{i}",))
        acknowledged += 1
    seen = scene.count(old, "P9")
    new = scene.new_leader(old)
    scene.target.operations.recover()
    left = {m: scene.count(m, "P9") for m in scene.blueprint.members}
    return Found(
        acknowledged == seen == 200 and not any(left.values()),
        f"{acknowledged} commits acknowledged by {old} and visible there; after {new} took over and {old} came back "
        f"the rows are {left}: nothing on {old} tells that they existed",
    )


def divergence_is_not_loss(scene: Scene) -> Found:
    """P10: commits never acknowledged may be there (recovered) or not: counted apart from loss."""
    leader, standbys = scene.leader, scene.standbys
    with scene.held(standbys):
        there = scene.attempt("P10-there")
        scene.waits_for_standby(there)
        scene.ask(leader, "SELECT pg_terminate_backend(%s)", there.pid)
        there.done(10)
    scene.until(lambda: all(scene.count(m, "P10-there") == 1 for m in standbys))
    member_links.cut(scene.blueprint, leader)
    gone = scene.attempt("P10-gone", link=scene.link(leader))
    scene.waits_for_standby(gone)
    member_faults.kill_member(scene.blueprint, leader)
    gone.done(30)
    successor = scene.new_leader(leader)
    rows = (scene.count(successor, "P10-there"), scene.count(successor, "P10-gone"))
    return Found(
        rows == (1, 0) and "success" not in (there.told, gone.told),
        f"two commits in doubt, neither acknowledged: one is on {successor} (recovered), the other is not; no loss",
    )


def opted_out(scene: Scene) -> Found:
    """P20: SET LOCAL synchronous_commit leaves one transaction unprotected, whatever the cluster promises."""
    leader = scene.leader
    member_links.cut(scene.blueprint, leader)
    waits = scene.attempt("P20-on", link=scene.link(leader))
    scene.waits_for_standby(waits)
    link = scene.link(leader)
    with link.transaction():
        link.execute("SET LOCAL synchronous_commit = local")
        link.execute("INSERT INTO walproof_pitfall (key) VALUES ('P20-local')")
    default = scene.ask(leader, "SHOW synchronous_standby_names")
    member_faults.kill_member(scene.blueprint, leader)
    successor = scene.new_leader(leader)
    kept = scene.count(successor, "P20-local")
    return Found(
        kept == 0 and waits.told != "success",
        f"{default} was in effect: the ordinary commit waited, the one with SET LOCAL was acknowledged and is "
        f"{'lost' if kept == 0 else 'kept'} on {successor}",
    )


def frozen_leader(scene: Scene) -> Found:
    """P19: a frozen leader wakes up after a successor was elected, and answers before it notices."""
    old = scene.leader
    links = [scene.link(old, "local") for _ in range(8)]
    member_faults.freeze(scene.blueprint, old)
    attempts = [scene.attempt(f"P19-{i}", link=link) for i, link in enumerate(links)]
    new = scene.new_leader(old)
    elected = time.time()
    with psycopg.connect(scene.blueprint.member_endpoint(new).conninfo(), autocommit=True) as link:
        link.execute("SET synchronous_commit = local")
        link.execute("INSERT INTO walproof_pitfall (key) VALUES ('successor')")
    member_faults.thaw(scene.blueprint, old)
    late = [a for a in attempts if a.done(15) and a.told == "success" and a.ended > elected]
    scene.target.operations.recover()
    kept = scene.count(new, "P19")
    return Found(
        bool(late) and kept < len(late),
        f"{len(late)} of {len(attempts)} commits were acknowledged by {old} after {new} had taken over and written; "
        f"{kept} of them exist now",
    )


def lying_disk(scene: Scene) -> Found:
    """P18: with fsync off, which is what a lying disk comes to, even `on` loses what was acknowledged."""
    leader, standbys = scene.leader, scene.standbys
    patroni.set_parameters(scene.blueprint, {"fsync": "off"})
    for member in scene.blueprint.members:
        scene.ask(member, "CHECKPOINT")
        # What is older than the test is made durable, so that only the promise is broken and not the data files.
        subprocess.run(["sync", "-f", str(scene.blueprint.data_dir(member))], check=True)
    link = scene.link(leader)
    for i in range(200):
        link.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"P18-{i}",))
    for member in (*standbys, leader):
        power.cut_power(scene.blueprint, member)
    for member in standbys:
        recover.revive(scene.blueprint, member)
    new = scene.new_leader(leader)
    kept = scene.count(new, "P18")
    return Found(
        kept < 200,
        f"200 commits acknowledged at on with fsync off; after every power was cut and the leader gone for good "
        f"{new} holds {kept} of them",
    )
