"""Checks of how soon an error is detected, and of what fills up until then: timeouts, slots, senders, checkpoints."""

from collections.abc import Iterator

from walproof.advising.doctor.checks_durability import names_of
from walproof.advising.doctor.finding import Hit, bad_setting, checks_of, of_leader, set_anywhere, setting_hit
from walproof.machine.quoting import pasted
from walproof.model.cnpg_facts import CNPG_MANAGER, ends_dead_replication
from walproof.model.facts import Facts, MemberFacts


def _leader(facts: Facts) -> tuple[MemberFacts, ...]:
    return (facts.leader,) if facts.leader else ()


def _synchronous_leader(facts: Facts) -> tuple[MemberFacts, ...]:
    """The leader where standby names are set: pitfall P15, commits wait for an unreachable standby's walsender."""
    return _leader(facts) if names_of(facts) else ()


_KEEPALIVES = {"idle": ("10", 7200), "interval": ("5", 75), "count": ("3", 9)}
"""The value to set, and what 0 means: the operating system's, on Linux 7200 s, 75 s and 9 (tcp(7))."""


def _keepalives_long(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        probes = [s for part in _KEEPALIVES if (s := member.setting(f"tcp_keepalives_{part}")) is not None]
        if len(probes) < len(_KEEPALIVES):
            continue
        if all(s.source == "default" for s in probes) and _ends_replication_itself(facts, member):
            continue
        values = zip(probes, _KEEPALIVES.values(), strict=True)
        idle, interval, count = (float(s.value) or system for s, (_, system) in values)
        detected = idle + interval * count
        if detected > 120:
            evidence = f"tcp_keepalives: {idle:g} s + {count:g} × {interval:g} s = {detected:g} s until detected"
            fixes = (set_anywhere(facts, f"tcp_keepalives_{part}", good) for part, (good, _) in _KEEPALIVES.items())
            first, second, third = fixes
            fix = pasted("{a:composed} {b:composed} {c:composed}", a=first, b=second, c=third)
            yield Hit(evidence, fix, probes[0].where, member.name)


def _ends_replication_itself(facts: Facts, member: MemberFacts) -> bool:
    timeouts = [member.setting(f"wal_{part}_timeout") for part in ("sender", "receiver")]
    manager = CNPG_MANAGER if facts.cnpg else ""
    return ends_dead_replication(manager, *(0.0 if one is None else one.seconds for one in timeouts))


def _user_timeout_off(facts: Facts) -> Iterator[Hit]:
    """CloudNativePG ends half-open replication after 5 s itself: defaults are no finding while it does."""
    ends = {member.name for member in facts.inspected if _ends_replication_itself(facts, member)}
    for hit in bad_setting("tcp_user_timeout", lambda s: s.value == "0", "15s")(facts):
        if hit.member not in ends or hit.where != "default":
            yield hit


def _slot_without_limit(facts: Facts) -> Iterator[Hit]:
    """A slot of a disconnected standby, or of none; on standbys Patroni keeps inactive copies and advances them."""
    for member in facts.inspected:
        if member.value("max_slot_wal_keep_size", "-1") != "-1":
            continue
        for slot in member.slots:
            kept = not slot.active and not slot.temporary and slot.wal_status not in ("lost", "unreserved")
            if kept and slot.retained_bytes > (32 << 20 if member.leader else 1 << 30):
                evidence = f"slot {slot.name} is inactive, keeps {slot.retained_bytes >> 20} MB, without a limit"
                limit = set_anywhere(facts, "max_slot_wal_keep_size", "10GB")
                drop = "SELECT pg_drop_replication_slot({slot.name:sql_text}); or {limit:composed}"
                fix = pasted(drop, slot=slot, limit=limit)
                yield Hit(evidence, fix, "pg_replication_slots", member.name)


def _slot_lost(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        for slot in member.slots:
            if slot.wal_status in ("lost", "unreserved"):
                evidence = f"slot {slot.name}: wal_status = {slot.wal_status}"
                anew = "" if facts.cnpg is not None else " (Patroni: patronictl reinit)"
                fix = pasted("rebuild the standby behind it" + anew + ", increase max_slot_wal_keep_size")
                yield Hit(evidence, fix, "pg_replication_slots", member.name)


@of_leader
def _senders_exhausted(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    setting = leader.setting("max_wal_senders")
    if setting and 0 < int(setting.value) <= len(leader.senders) + 1:
        evidence = f"{len(leader.senders)} of {setting.value} walsenders in use"
        fix = set_anywhere(facts, "max_wal_senders", str(len(leader.senders) + 8), restart=True)
        yield Hit(evidence, fix, setting.where, leader.name)


def _slots_exhausted(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        setting = member.setting("max_replication_slots")
        if setting is not None and member.slots and len(member.slots) >= int(setting.value):
            evidence = f"{len(member.slots)} of {setting.value} replication slots in use"
            fix = set_anywhere(facts, "max_replication_slots", str(len(member.slots) + 8), restart=True)
            yield Hit(evidence, fix, setting.where, member.name)


@of_leader
def _slots_fewer_on_standby(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    for member in facts.standbys:
        for name in ("max_replication_slots", "wal_level"):
            here, there = member.value(name), leader.value(name)
            if (name == "wal_level" and here == "replica" and there == "logical") or (
                name != "wal_level" and here and there and int(here) < int(there)
            ):
                fix = set_anywhere(facts, name, there, restart=True)
                yield Hit(f"{name} = {here} here, {there} on the leader", fix, "", member.name)


def _settings_pending(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        waiting = sorted(s.name for s in member.settings.values() if s.pending_restart)
        if waiting:
            restart = "patronictl restart CLUSTER --pending" if facts.patroni else "restart PostgreSQL on this member"
            if facts.cnpg is not None:
                restart = "kubectl cnpg restart {cnpg.name:argument} {name:argument} --namespace {cnpg.namespace:shell}"
            fix = pasted(restart, cnpg=facts.cnpg, name=member.name)
            yield Hit(f"{', '.join(waiting)} changed but not in effect", fix, "pg_settings", member.name)


def _gone_clients_still_wait(facts: Facts) -> Iterator[Hit]:
    for leader in _synchronous_leader(facts):
        setting = leader.setting("client_connection_check_interval")
        if setting is not None and setting.value == "0" and leader.waiters:
            more = f"; {len(leader.waiters)} backends wait in SyncRep"
            yield setting_hit(leader, setting, set_anywhere(facts, setting.name, "10s"), more=more)


_sender_timeout_off = bad_setting("wal_sender_timeout", lambda s: s.value == "0", "15s")
_sender_timeout_long = bad_setting("wal_sender_timeout", lambda s: s.seconds > 30, "15s", members=_synchronous_leader)
_sender_timeout_short = bad_setting("wal_sender_timeout", lambda s: 0 < s.seconds < 2, "15s", members=_leader)
_recovery_long = bad_setting("checkpoint_timeout", lambda s: s.seconds > 1800, "15min")

CHECKS = checks_of("timeouts", globals())
