"""Checks of how soon an error is detected, and of what fills up until then: timeouts, slots, senders, checkpoints."""

from collections.abc import Iterator

from walproof.advising.doctor.checks_durability import names_of
from walproof.advising.doctor.finding import Check, Hit, Severity, bad_setting, set_anywhere, setting_hit
from walproof.model.facts import Facts, MemberFacts

REPLICATION = "https://www.postgresql.org/docs/current/runtime-config-replication.html"
CONNECTION = "https://www.postgresql.org/docs/current/runtime-config-connection.html"
SLOTS = "https://www.postgresql.org/docs/current/view-pg-replication-slots.html"


def _leader(facts: Facts) -> tuple[MemberFacts, ...]:
    return (facts.leader,) if facts.leader else ()


def _synchronous_leader(facts: Facts) -> tuple[MemberFacts, ...]:
    """The leader where standby names are set: pitfall P15, commits wait for an unreachable standby's walsender."""
    return _leader(facts) if names_of(facts) else ()


def _keepalives(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        found = [member.setting(f"tcp_keepalives_{part}") for part in ("idle", "interval", "count")]
        if any(s is None for s in found):
            continue
        if facts.cnpg and all(s and s.source == "default" for s in found) and _ends_replication_itself(member):
            continue
        # 0 means the operating system's: 7200 s, 75 s, 9 on Linux (tcp(7)).
        idle, interval, count = (
            float(s.value) or system for s, system in zip((s for s in found if s), (7200, 75, 9), strict=True)
        )
        detected = idle + interval * count
        if detected > 120:
            evidence = f"tcp_keepalives: {idle:g} s + {count:g} × {interval:g} s = {detected:g} s until detected"
            fix = " ".join(
                set_anywhere(facts, f"tcp_keepalives_{part}", value)
                for part, value in (("idle", "10"), ("interval", "5"), ("count", "3"))
            )
            yield Hit(evidence, fix, found[0].where if found[0] else "", member.name)


def _ends_replication_itself(member: MemberFacts) -> bool:
    """Whether PostgreSQL notices a dead peer of replication within a minute, as CloudNativePG's own 5 s do."""
    timeouts = [member.setting(f"wal_{part}_timeout") for part in ("sender", "receiver")]
    return all(one is not None and 0 < one.seconds <= 60 for one in timeouts)


def _user_timeout(facts: Facts) -> Iterator[Hit]:
    """CloudNativePG ends half-open replication after 5 s itself: defaults are no finding while it does."""
    ends = {member.name for member in facts.inspected if facts.cnpg and _ends_replication_itself(member)}
    for hit in bad_setting("tcp_user_timeout", lambda s: s.value == "0", "15s")(facts):
        if hit.member not in ends or hit.where != "default":
            yield hit


def _slot_inactive(facts: Facts) -> Iterator[Hit]:
    """A slot of a disconnected standby, or of none; on standbys Patroni keeps inactive copies on purpose."""
    leader = facts.leader
    if leader is None or leader.value("max_slot_wal_keep_size", "-1") != "-1":
        return
    for slot in leader.slots:
        kept = not slot.active and not slot.temporary and slot.wal_status not in ("lost", "unreserved")
        if kept and slot.retained_bytes > 32 << 20:
            evidence = f"slot {slot.name} is inactive, keeps {slot.retained_bytes >> 20} MB, without a limit"
            limit = set_anywhere(facts, "max_slot_wal_keep_size", "10GB")
            fix = f"SELECT pg_drop_replication_slot('{slot.name}'); or {limit}"
            yield Hit(evidence, fix, "pg_replication_slots", leader.name)


def _slot_lost(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        for slot in member.slots:
            if slot.wal_status in ("lost", "unreserved"):
                evidence = f"slot {slot.name}: wal_status = {slot.wal_status}"
                anew = "" if facts.cnpg is not None else " (Patroni: patronictl reinit)"
                fix = f"rebuild the standby behind it{anew}, increase max_slot_wal_keep_size"
                yield Hit(evidence, fix, "pg_replication_slots", member.name)


def _senders_full(facts: Facts) -> Iterator[Hit]:
    leader = facts.leader
    setting = leader.setting("max_wal_senders") if leader else None
    if leader and setting and 0 < int(setting.value) <= len(leader.senders) + 1:
        evidence = f"{len(leader.senders)} of {setting.value} walsenders in use"
        fix = set_anywhere(facts, "max_wal_senders", str(len(leader.senders) + 8), restart=True)
        yield Hit(evidence, fix, setting.where, leader.name)


def _slots_full(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        setting = member.setting("max_replication_slots")
        if setting is not None and member.slots and len(member.slots) >= int(setting.value):
            evidence = f"{len(member.slots)} of {setting.value} replication slots in use"
            fix = set_anywhere(facts, "max_replication_slots", str(len(member.slots) + 8), restart=True)
            yield Hit(evidence, fix, setting.where, member.name)


def _slots_fewer(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys if facts.leader else ():
        for name in ("max_replication_slots", "wal_level"):
            here, there = member.value(name), facts.leader.value(name) if facts.leader else ""
            if (name == "wal_level" and here == "replica" and there == "logical") or (
                name != "wal_level" and here and there and int(here) < int(there)
            ):
                fix = set_anywhere(facts, name, there, restart=True)
                yield Hit(f"{name} = {here} here, {there} on the leader", fix, "", member.name)


def _pending(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        waiting = sorted(s.name for s in member.settings.values() if s.pending_restart)
        if waiting:
            fix = "patronictl restart CLUSTER --pending" if facts.patroni else "restart PostgreSQL on this member"
            if facts.cnpg is not None:
                fix = f"kubectl cnpg restart {facts.cnpg.name} {member.name} --namespace {facts.cnpg.namespace}"
            yield Hit(f"{', '.join(waiting)} changed but not in effect", fix, "pg_settings", member.name)


def _gone_clients(facts: Facts) -> Iterator[Hit]:
    for leader in _synchronous_leader(facts):
        setting = leader.setting("client_connection_check_interval")
        if setting is not None and setting.value == "0" and leader.waiters:
            more = f"; {len(leader.waiters)} backends wait in SyncRep"
            yield setting_hit(leader, setting, set_anywhere(facts, setting.name, "10s"), more=more)


CHECKS = (
    Check(
        "sender-timeout-off",
        Severity.WARNING,
        "wal_sender_timeout is off",
        "A standby that becomes unreachable is never dropped: commits wait for TCP, minutes to hours.",
        f"{REPLICATION}#GUC-WAL-SENDER-TIMEOUT",
        "ALTER SYSTEM SET wal_sender_timeout = 0",
        bad_setting("wal_sender_timeout", lambda s: s.value == "0", "15s"),
    ),
    Check(
        "sender-timeout-long",
        Severity.WARNING,
        "wal_sender_timeout is long for a synchronous cluster",
        "A synchronous standby that becomes unreachable stalls commits this long.",
        f"{REPLICATION}#GUC-WAL-SENDER-TIMEOUT",
        "ALTER SYSTEM SET wal_sender_timeout = '60s', with names set",
        bad_setting("wal_sender_timeout", lambda s: s.seconds > 30, "15s", members=_synchronous_leader),
    ),
    Check(
        "sender-timeout-short",
        Severity.WARNING,
        "wal_sender_timeout is under 2 s",
        "A busy standby is dropped and reconnects again and again; commits stall each time.",
        f"{REPLICATION}#GUC-WAL-SENDER-TIMEOUT",
        "ALTER SYSTEM SET wal_sender_timeout = '1s'",
        bad_setting("wal_sender_timeout", lambda s: 0 < s.seconds < 2, "15s", members=_leader),
    ),
    Check(
        "keepalives-long",
        Severity.WARNING,
        "TCP keepalives detect a dead peer after minutes",
        "Sessions of disconnected clients keep their locks; standbys' half-open connections linger.",
        f"{CONNECTION}#GUC-TCP-KEEPALIVES-IDLE",
        "tcp_keepalives_idle = 0 (the system's 7200 s)",
        _keepalives,
    ),
    Check(
        "user-timeout-off",
        Severity.WARNING,
        "tcp_user_timeout is off",
        "Data sent to an unreachable peer is retransmitted for about 15 minutes before the connection ends.",
        f"{CONNECTION}#GUC-TCP-USER-TIMEOUT",
        "tcp_user_timeout = 0",
        _user_timeout,
    ),
    Check(
        "recovery-long",
        Severity.WARNING,
        "checkpoints are more than 30 minutes apart",
        "After a crash everything since the last checkpoint is replayed before the first commit.",
        "https://www.postgresql.org/docs/current/wal-configuration.html",
        "ALTER SYSTEM SET checkpoint_timeout = '2h'",
        bad_setting("checkpoint_timeout", lambda s: s.seconds > 1800, "15min"),
    ),
    Check(
        "slot-without-limit",
        Severity.WARNING,
        "an inactive slot keeps WAL without a limit",
        "pg_wal grows until the disk is full and the leader stops.",
        f"{REPLICATION}#GUC-MAX-SLOT-WAL-KEEP-SIZE",
        "SELECT pg_create_physical_replication_slot('ghost', true), then write 64 MB",
        _slot_inactive,
    ),
    Check(
        "slot-lost",
        Severity.ERROR,
        "a slot lost its WAL",
        "The standby behind it cannot follow any more: there is one copy less than configured.",
        SLOTS,
        "max_slot_wal_keep_size = '1MB', a stopped standby, and writes",
        _slot_lost,
    ),
    Check(
        "senders-exhausted",
        Severity.WARNING,
        "walsenders are nearly exhausted",
        "A standby that comes back, or a base backup, is refused.",
        f"{REPLICATION}#GUC-MAX-WAL-SENDERS",
        "max_wal_senders = 1 with one standby",
        _senders_full,
    ),
    Check(
        "slots-exhausted",
        Severity.WARNING,
        "replication slots are exhausted",
        "A new or promoted member cannot create its slots.",
        f"{REPLICATION}#GUC-MAX-REPLICATION-SLOTS",
        "max_replication_slots = 1 and one slot",
        _slots_full,
    ),
    Check(
        "slots-fewer-on-standby",
        Severity.WARNING,
        "a standby has fewer slots or less WAL than the leader",
        "After a failover slots are missing and their consumers stop.",
        f"{REPLICATION}#GUC-MAX-REPLICATION-SLOTS",
        "max_replication_slots smaller on the standby",
        _slots_fewer,
    ),
    Check(
        "settings-pending",
        Severity.WARNING,
        "settings are changed but not in effect",
        "What the file sets is not in effect; a restart at failover changes behaviour.",
        "https://www.postgresql.org/docs/current/view-pg-settings.html",
        "ALTER SYSTEM SET max_connections = 77, no restart",
        _pending,
    ),
    Check(
        "gone-clients-still-wait",
        Severity.NOTE,
        "commits wait and disconnected clients are not detected",
        "A commit whose client disconnected keeps waiting and becomes visible later (in doubt).",
        f"{CONNECTION}#GUC-CLIENT-CONNECTION-CHECK-INTERVAL",
        "a commit waiting for a standby that is away",
        _gone_clients,
    ),
)
