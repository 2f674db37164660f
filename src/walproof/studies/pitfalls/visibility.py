"""Pitfalls of what can be seen: stale reads, order of visibility, replay that blocks, slow disks, lag that misleads."""

import time
from statistics import median

from walproof.lab import member_links, patroni
from walproof.lab.faults import disks
from walproof.lab.faults import processes as member_faults
from walproof.model.guarantee import SyncMode
from walproof.studies.pitfalls.scene import Found, Scene


def _paused(scene: Scene, member: str) -> None:
    """Pause replay on a standby, and wait until it is paused."""
    scene.ask(member, "SELECT pg_wal_replay_pause()")
    scene.until(lambda: scene.ask(member, "SELECT pg_get_wal_replay_pause_state()") == "paused")


def stale(scene: Scene) -> Found:
    """P11: at `on` a standby's reads are stale; at quorum remote_apply some standby is fresh, not every one."""
    leader, (slow, other) = scene.leader, scene.standbys
    with scene.managers_still((slow, other)):
        try:
            _paused(scene, slow)
            applied = scene.attempt("P11-apply", "remote_apply", link=scene.link(leader, "remote_apply"))
            applied.done(20)
            somewhere, not_there = scene.count(other, "P11-apply"), scene.count(slow, "P11-apply")
            _paused(scene, other)
            flushed = scene.attempt("P11-on", link=scene.link(leader))
            flushed.done(20)
            nowhere = scene.count(slow, "P11-on") + scene.count(other, "P11-on")
        finally:
            for member in (slow, other):
                scene.ask(member, "SELECT pg_wal_replay_resume()")
    return Found(
        applied.told == flushed.told == "success" and (somewhere, not_there, nowhere) == (1, 0, 0),
        f"remote_apply acknowledged by {leader}: visible on {other}, not on {slow}; "
        f"on acknowledged: visible on {nowhere} of 2 standbys",
    )


def long_fork(scene: Scene) -> Found:
    """P12: two readers see two commits in opposite orders on a healthy cluster (a long fork)."""
    patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 2)
    try:
        leader, (quick, slow) = scene.leader, scene.standbys
        with scene.held([slow]):
            first = scene.attempt("P12-first", "on")
            scene.waits_for_standby(first)
            scene.until(lambda: scene.count(quick, "P12-first") == 1)
            standby_sees = (scene.count(quick, "P12-first"), scene.count(quick, "P12-second"))
            second = scene.attempt("P12-second", "local")
            second.done(20)
            leader_sees = (scene.count(leader, "P12-first"), scene.count(leader, "P12-second"))
        first.done(20)
    finally:
        patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 1)
    return Found(
        standby_sees == (1, 0) and leader_sees == (0, 1) and first.told == "success",
        f"{quick} showed the first commit and not the second, then {leader} the second and not the first; "
        "both were acknowledged",
    )


def replay_blocked(scene: Scene) -> Found:
    """P14: at remote_apply a long query on the standbys that conflicts with replay freezes every commit."""
    leader, standbys = scene.leader, scene.standbys
    scene.attempt("P14", "remote_apply").done(20)
    readers = [scene.link(member) for member in standbys]
    for reader in readers:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM walproof_pitfall")
    alter = scene.attempt("alter", "on", statement="ALTER TABLE walproof_pitfall ADD COLUMN more int")
    corrupted = alter.done(20)
    scene.ask(leader, "CREATE TABLE IF NOT EXISTS walproof_pitfall_other (n int)")
    other = "INSERT INTO walproof_pitfall_other VALUES (1)"
    frozen = scene.attempt("other", "remote_apply", statement=other)
    stood_still = not frozen.done(4)
    at_on = scene.attempt("other-on", "on", statement=other)
    went_on = at_on.done(10) and at_on.told == "success"
    for reader in readers:
        reader.execute("ROLLBACK")
    frozen.done(20)
    delay = scene.ask(standbys[0], "SHOW max_standby_streaming_delay")
    scene.ask(leader, "DROP TABLE walproof_pitfall_other")
    return Found(
        corrupted and stood_still and went_on and frozen.told == "success",
        f"with a reader on each standby, a commit to another table at remote_apply took "
        f"{frozen.ended - frozen.began:.1f} s, until the readers left (max_standby_streaming_delay {delay}); "
        f"at on {at_on.ended - at_on.began:.2f} s",
    )


def slow_disk(scene: Scene) -> Found:
    """P16: one standby with a slow disk slows every commit under ALL; ANY 1 hides it."""
    slow_s = 0.08

    def commits(prefix: str) -> float:
        link = scene.link(scene.leader, "on")
        lengths = []
        for i in range(15):
            began = time.monotonic()
            link.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"{prefix}{i}",))
            lengths.append(time.monotonic() - began)
        return median(lengths) * 1000

    slow = scene.standbys[-1]
    before = commits("P16-before")
    disks.slow(scene.blueprint, slow, slow_s)
    try:
        any_ms = commits("P16-any")
        patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 2)
        all_ms = commits("P16-all")
    finally:
        disks.heal(scene.blueprint, slow)
        patroni.set_sync(scene.blueprint, SyncMode.QUORUM, 1)
    return Found(
        all_ms >= 1000 * slow_s and any_ms < all_ms / 2,
        f"median commit at on: {before:.1f} ms; with a flush {1000 * slow_s:.0f} ms slower on {slow}: "
        f"{any_ms:.1f} ms under ANY 1, {all_ms:.1f} ms when both must answer",
    )


def misleading_lag(scene: Scene) -> Found:
    """P21: lag columns say what was last reported, not what would be lost."""
    leader, standbys = scene.leader, scene.standbys
    warm = scene.link(leader, "on")
    for i in range(50):
        warm.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"warm-{i}",))
    member_links.cut(scene.blueprint, leader)
    link = scene.link(leader, "local")
    for i in range(300):
        link.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"P21-{i}",))
    lags = scene.ask(
        leader,
        "SELECT string_agg(coalesce(extract(epoch FROM replay_lag)::numeric(8,4)::text, 'null'), ', ')"
        " FROM pg_stat_replication WHERE state = 'streaming'",
    )
    listed = _listed_lag(scene, standbys)
    member_faults.kill_member(scene.blueprint, leader)
    successor = scene.new_leader(leader)
    kept = scene.count(successor, "P21")
    worst = max((float(x) for x in str(lags).split(", ") if x not in ("null", "None")), default=0.0)
    return Found(
        kept == 0 and worst < 1.0,
        f"pg_stat_replication.replay_lag said {lags} s and Patroni's list {listed} bytes, while 300 commits "
        f"acknowledged at local were on {leader} only; the successor {successor} holds {kept} of them",
    )


def _listed_lag(scene: Scene, standbys: tuple[str, ...]) -> str:
    """What /cluster lists as lag, which is what patronictl list prints, as a standby's Patroni says it."""
    try:
        _, said = patroni.ask(scene.blueprint, standbys[0], "/cluster")
    except OSError:
        return "unknown"
    rows = said.get("members", []) if isinstance(said, dict) else []
    return ", ".join(str(row.get("lag", "-")) for row in rows if row.get("role") not in ("leader", "primary"))
