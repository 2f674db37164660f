"""Checks of standbys: replay that waits, receivers that report nothing, settings that keep them from following."""

from collections.abc import Iterator

from walproof.advising.doctor.checks_durability import level_of
from walproof.advising.doctor.checks_quorum import synchronous_of
from walproof.advising.doctor.finding import Check, Hit, Severity, bad_setting, set_anywhere, setting_hit
from walproof.model.facts import Facts
from walproof.model.guarantee import Level

STANDBY = "https://www.postgresql.org/docs/current/hot-standby.html"
REPLICATION = "https://www.postgresql.org/docs/current/runtime-config-replication.html"
_FOLLOW = (
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
)


def _severity(facts: Facts, member: str) -> Severity:
    """An error where commits wait for this standby's replay, else a warning."""
    applies = level_of(facts) is Level.REMOTE_APPLY and member in {m.name for m in synchronous_of(facts)}
    return Severity.ERROR if applies else Severity.WARNING


def _delay(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys:
        setting = member.setting("recovery_min_apply_delay")
        if setting is not None and setting.value != "0":
            fix = "ALTER SYSTEM RESET recovery_min_apply_delay; SELECT pg_reload_conf(); and tag it nofailover if meant"
            if facts.cnpg is not None:
                fix = "CloudNativePG fixes it to 0: replace this instance (kubectl cnpg destroy CLUSTER INSTANCE)"
            yield setting_hit(member, setting, fix, severity=_severity(facts, member.name))


def _paused(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys:
        if member.replay_paused:
            fix, where = "SELECT pg_wal_replay_resume();", "pg_get_wal_replay_pause_state()"
            yield Hit("pg_is_wal_replay_paused() = true", fix, where, member.name, _severity(facts, member.name))


def _slow_query(facts: Facts) -> Iterator[Hit]:
    for member in synchronous_of(facts):
        setting = member.setting("max_standby_streaming_delay")
        patience = float("inf") if setting and setting.value == "-1" else (setting.seconds if setting else 30.0)
        if member.oldest_query_s > 10.0:
            yield Hit(
                f"a query runs for {member.oldest_query_s:.0f} s; it may hold replay back for {patience:g} s",
                "run long queries on an asynchronous standby; hot_standby_feedback = on avoids most conflicts",
                "pg_stat_activity of the standby",
                member.name,
                _severity(facts, member.name),
            )


def _endless_conflict(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys:
        setting = member.setting("max_standby_streaming_delay")
        if setting is not None and setting.value == "-1":
            fix = set_anywhere(facts, "max_standby_streaming_delay", "30s")
            yield setting_hit(member, setting, fix, severity=_severity(facts, member.name))


def _timeline(facts: Facts) -> Iterator[Hit]:
    timeline = facts.leader.timeline if facts.leader else None
    for member in facts.standbys if timeline else ():
        if member.timeline and member.timeline != timeline:
            yield Hit(
                f"timeline {member.timeline}, the leader is on {timeline}",
                _rebuilt(facts, "rewind or rebuild it: pg_rewind --target-pgdata …", member.name),
                "pg_control_checkpoint()",
                member.name,
            )


def _rebuilt(facts: Facts, plain: str, member: str) -> str:
    """How a standby is made anew."""
    if facts.cnpg is not None:
        return f"kubectl cnpg destroy {facts.cnpg.name} {member.rpartition('-')[2]} --namespace {facts.cnpg.namespace}"
    return plain if facts.patroni is None else f"patronictl reinit CLUSTER {member}"


def _other_cluster(facts: Facts) -> Iterator[Hit]:
    known = facts.leader.system_identifier if facts.leader else ""
    for member in facts.standbys:
        if known and member.system_identifier and member.system_identifier != known:
            fix = "this is another cluster's server: remove it from the list, or rebuild it with pg_basebackup"
            yield Hit(f"system identifier {member.system_identifier}, the leader has {known}", fix, "", member.name)


def _receiver(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys:
        if member.receiver_status not in ("streaming", "unseen") and member.monitor:
            yield Hit(
                f"pg_stat_wal_receiver: {member.receiver_status or 'no row'}",
                "see this standby's log; check primary_conninfo, pg_hba.conf and whether its WAL is still kept",
                "pg_stat_wal_receiver",
                member.name,
            )


def _far_behind(facts: Facts) -> Iterator[Hit]:
    for sender in facts.senders:
        if (sender.lag_bytes or 0) > 64 << 20:
            evidence = f"{sender.application_name} is {(sender.lag_bytes or 0) >> 20} MB behind"
            fix = "check its disk, network and replay; it is no candidate while it is behind"
            yield Hit(evidence, fix, "pg_stat_replication", facts.leader_name)


def _cannot_follow(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys if facts.leader else ():
        for name in _FOLLOW:
            here, there = member.setting(name), facts.leader.setting(name) if facts.leader else None
            if here is not None and there is not None and int(here.value) < int(there.value):
                fix = f"ALTER SYSTEM SET {name} = {there.value}; restart this standby"
                if facts.cnpg is not None:
                    fix = set_anywhere(facts, name, there.value)
                yield Hit(f"{name} = {here.value}, the leader has {there.value}", fix, here.where, member.name)


def _no_slot(facts: Facts) -> Iterator[Hit]:
    leader = facts.leader
    if leader is None or leader.value("wal_keep_size", "0") != "0" or leader.value("archive_mode") == "on":
        return
    for sender in leader.senders:
        if not sender.slot and sender.state == "streaming" and sender.application_name != "pg_receivewal":
            slot = sender.application_name.lower().replace("-", "_")
            fix = f"SELECT pg_create_physical_replication_slot('{slot}'); on it: primary_slot_name = '{slot}'"
            evidence = f"{sender.application_name} streams without a slot; wal_keep_size = 0 and no archive"
            yield Hit(evidence, fix, "pg_stat_replication, pg_replication_slots", leader.name)


def _versions(facts: Facts) -> Iterator[Hit]:
    versions = {m.version for m in facts.inspected if m.version}
    if len(versions) > 1:
        listed = ", ".join(f"{m.name} {m.version // 10000}.{m.version % 10000}" for m in facts.inspected)
        major = len({v // 10000 for v in versions}) > 1
        fix = "bring every member to the newest minor release, standbys first"
        yield Hit(listed, fix, "server_version_num", "", Severity.ERROR if major else Severity.WARNING)


def _prepared(facts: Facts) -> Iterator[Hit]:
    leader = facts.leader
    if leader and leader.oldest_prepared_s > 300:
        fix = "SELECT * FROM pg_prepared_xacts; then COMMIT PREPARED or ROLLBACK PREPARED"
        evidence = f"the oldest prepared transaction is {leader.oldest_prepared_s:.0f} s old"
        yield Hit(evidence, fix, "pg_prepared_xacts", leader.name)


def _one_machine(facts: Facts) -> Iterator[Hit]:
    address = facts.leader.address if facts.leader else ""
    host = address.rpartition(":")[0]
    for member in facts.standbys:
        if host and member.address.rpartition(":")[0] == host:
            fix = "move the standby to another machine, power feed and rack"
            yield Hit(f"{member.address} and the leader's {address}", fix, "", member.name)


CHECKS = (
    Check(
        "replay-delayed",
        Severity.WARNING,
        "a standby delays replay on purpose",
        "remote_apply waits that long for every commit; a failover to it takes that long or loses its unreplayed WAL.",
        f"{REPLICATION}#GUC-RECOVERY-MIN-APPLY-DELAY",
        "recovery_min_apply_delay = '5s' on a standby",
        _delay,
    ),
    Check(
        "replay-paused",
        Severity.WARNING,
        "replay is paused",
        "Reads grow stale, remote_apply hangs, promotion has to replay everything first.",
        "https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-RECOVERY-CONTROL",
        "SELECT pg_wal_replay_pause() on a standby",
        _paused,
    ),
    Check(
        "sync-standby-behind-slow-query",
        Severity.WARNING,
        "a synchronous standby sits behind a long query",
        "When replay meets the query, remote_apply freezes every commit until max_standby_streaming_delay.",
        f"{STANDBY}#HOT-STANDBY-CONFLICT",
        "SELECT pg_sleep(60) on the synchronous standby",
        _slow_query,
    ),
    Check(
        "replay-yields-for-ever",
        Severity.WARNING,
        "queries may hold replay back for ever",
        "One forgotten query on the standby freezes remote_apply and makes failover wait for its replay.",
        f"{REPLICATION}#GUC-MAX-STANDBY-STREAMING-DELAY",
        "max_standby_streaming_delay = -1 on a standby",
        _endless_conflict,
    ),
    Check(
        "receiver-reports-nothing",
        Severity.ERROR,
        "the walreceiver reports no progress",
        "Synchronous commits at level on wait for reports that are never sent; lag cannot be seen.",
        f"{REPLICATION}#GUC-WAL-RECEIVER-STATUS-INTERVAL",
        "wal_receiver_status_interval = 0 on a standby",
        bad_setting(
            "wal_receiver_status_interval", lambda s: s.value == "0", "10s", members=lambda facts: facts.standbys
        ),
    ),
    Check(
        "standby-on-other-timeline",
        Severity.ERROR,
        "a standby is on another timeline",
        "It diverged or missed a promotion: it does not have what is committed now.",
        "https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES",
        "promote a standby while the leader runs",
        _timeline,
    ),
    Check(
        "standby-of-other-cluster",
        Severity.ERROR,
        "a member belongs to another cluster",
        "It is no copy of the leader at all.",
        "https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-CONTROL-SYSTEM",
        "name two unrelated servers in one target",
        _other_cluster,
    ),
    Check(
        "standby-does-not-stream",
        Severity.ERROR,
        "a standby does not stream",
        "It falls behind with every commit and cannot take over without loss.",
        "https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-WAL-RECEIVER-VIEW",
        "primary_conninfo with a wrong port on a standby",
        _receiver,
    ),
    Check(
        "standby-far-behind",
        Severity.WARNING,
        "a standby is far behind",
        "If it must take over, what it lacks is lost.",
        "https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-VIEW",
        "stop a standby's walreceiver and write 64 MB",
        _far_behind,
    ),
    Check(
        "standby-cannot-follow",
        Severity.ERROR,
        "a standby has smaller limits than the leader",
        "Replay pauses, or the standby does not start, as soon as the leader's limits matter.",
        f"{STANDBY}#HOT-STANDBY-ADMIN",
        "max_connections larger on the leader than on the standby",
        _cannot_follow,
    ),
    Check(
        "standby-without-slot",
        Severity.WARNING,
        "nothing keeps WAL for a standby",
        "A short break and the WAL it needs is recycled: it must be rebuilt, and meanwhile there is no copy.",
        f"{REPLICATION}#GUC-WAL-KEEP-SIZE",
        "a standby without primary_slot_name, wal_keep_size = 0",
        _no_slot,
    ),
    Check(
        "receiver-timeout-long",
        Severity.WARNING,
        "wal_receiver_timeout is off or long",
        "A standby with a half-open connection does not reconnect and falls behind unseen.",
        f"{REPLICATION}#GUC-WAL-RECEIVER-TIMEOUT",
        "wal_receiver_timeout = 0 on a standby",
        bad_setting(
            "wal_receiver_timeout",
            lambda s: s.value == "0" or s.seconds > 60,
            "30s",
            members=lambda facts: facts.standbys,
        ),
    ),
    Check(
        "hot-standby-off",
        Severity.WARNING,
        "hot_standby is off",
        "Nobody can ask the standby how far it is, and no reads go there.",
        f"{REPLICATION}#GUC-HOT-STANDBY",
        "hot_standby = off on a standby",
        bad_setting("hot_standby", lambda s: not s.on, "on", members=lambda facts: facts.standbys, restart=True),
    ),
    Check(
        "mixed-versions",
        Severity.WARNING,
        "members run different versions",
        "A failover changes the version; bug fixes of the newer one are missing on the older.",
        "https://www.postgresql.org/docs/current/upgrading.html",
        "members of different minor releases",
        _versions,
    ),
    Check(
        "prepared-transaction-forgotten",
        Severity.WARNING,
        "a prepared transaction is old",
        "It holds locks and old rows, survives restarts and failovers, and blocks vacuum.",
        "https://www.postgresql.org/docs/current/sql-prepare-transaction.html",
        "PREPARE TRANSACTION 'x', five minutes ago",
        _prepared,
    ),
    Check(
        "one-machine",
        Severity.WARNING,
        "a standby lives on the leader's machine",
        "One power cut takes both: no level protects against it.",
        "https://www.postgresql.org/docs/current/warm-standby.html",
        "two servers on one address",
        _one_machine,
    ),
)
