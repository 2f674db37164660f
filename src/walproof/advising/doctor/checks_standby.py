"""Checks of standbys: replay that waits, receivers that report nothing, settings that keep them from following."""

import re
from collections.abc import Iterator
from functools import partial

from walproof.advising.doctor.checks_durability import level_of
from walproof.advising.doctor.checks_quorum import synchronous_of
from walproof.advising.doctor.finding import (
    Hit,
    Severity,
    bad_setting,
    checks_of,
    keeps_archive,
    of_leader,
    set_anywhere,
    setting_hit,
)
from walproof.machine.quoting import Pasted, pasted
from walproof.model.facts import Facts, MemberFacts
from walproof.model.guarantee import Level

_FOLLOW = (
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
)


_bad_on_standbys = partial(bad_setting, members=lambda facts: facts.standbys)


def _severity(facts: Facts, member: MemberFacts) -> Severity:
    """An error where commits wait for this standby's replay, else a warning."""
    applies = level_of(facts) is Level.REMOTE_APPLY and member in synchronous_of(facts)
    return Severity.ERROR if applies else Severity.WARNING


def _replay_delayed(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys:
        setting = member.setting("recovery_min_apply_delay")
        if setting is not None and setting.value != "0":
            fix = pasted(
                "ALTER SYSTEM RESET recovery_min_apply_delay; SELECT pg_reload_conf(); and tag it nofailover if meant"
            )
            if facts.cnpg is not None:
                fix = pasted(
                    "CloudNativePG fixes it to 0: replace this instance (kubectl cnpg destroy CLUSTER INSTANCE)"
                )
            yield setting_hit(member, setting, fix, severity=_severity(facts, member))


def _replay_paused(facts: Facts) -> Iterator[Hit]:
    for member in facts.standbys:
        if member.replay_paused:
            fix, where = pasted("SELECT pg_wal_replay_resume();"), "pg_get_wal_replay_pause_state()"
            yield Hit("pg_is_wal_replay_paused() = true", fix, where, member.name, _severity(facts, member))


def _sync_standby_behind_slow_query(facts: Facts) -> Iterator[Hit]:
    for member in synchronous_of(facts):
        setting = member.setting("max_standby_streaming_delay")
        patience = float("inf") if setting and setting.value == "-1" else (setting.seconds if setting else 30.0)
        if member.oldest_query_s > 10.0:
            evidence = f"a query runs for {member.oldest_query_s:.0f} s; it may hold replay back for {patience:g} s"
            fix = pasted("run long queries on an asynchronous standby; hot_standby_feedback = on avoids most conflicts")
            yield Hit(evidence, fix, "pg_stat_activity of the standby", member.name, _severity(facts, member))


@of_leader
def _standby_on_other_timeline(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    for member in facts.standbys if leader.timeline else ():
        if member.timeline and member.timeline != leader.timeline:
            evidence = f"timeline {member.timeline}, the leader is on {leader.timeline}"
            yield Hit(evidence, _rebuilt(facts, member.name), "pg_control_checkpoint()", member.name)


def _rebuilt(facts: Facts, member: str) -> Pasted:
    """How a standby is made anew."""
    if facts.cnpg is not None:
        return pasted(
            "kubectl cnpg destroy {cnpg.name:argument} {instance:shell} --namespace {cnpg.namespace:shell}",
            cnpg=facts.cnpg,
            instance=member.rpartition("-")[2],
        )
    if facts.patroni is not None:
        return pasted("patronictl reinit CLUSTER {member:argument}", member=member)
    return pasted("rewind or rebuild it: pg_rewind --target-pgdata …")


@of_leader
def _standby_of_other_cluster(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    known = leader.system_identifier
    for member in facts.standbys:
        if known and member.system_identifier and member.system_identifier != known:
            fix = pasted("this is another cluster's server: remove it from the list, or rebuild it with pg_basebackup")
            yield Hit(f"system identifier {member.system_identifier}, the leader has {known}", fix, "", member.name)


def _standby_does_not_stream(facts: Facts) -> Iterator[Hit]:
    """A replica cluster's designated primary may follow an archive alone."""
    designated = facts.cnpg.current_primary if facts.cnpg and facts.cnpg.replica else None
    for member in facts.standbys:
        if member.name == designated:
            continue
        if member.receiver_status not in ("streaming", "unseen") and member.monitor:
            evidence = f"pg_stat_wal_receiver: {member.receiver_status or 'no row'}"
            fix = pasted(
                "see this standby's log; check primary_conninfo, pg_hba.conf and whether its WAL is still kept"
            )
            yield Hit(evidence, fix, "pg_stat_wal_receiver", member.name)


def _standby_far_behind(facts: Facts) -> Iterator[Hit]:
    for sender in facts.senders:
        if (lag := sender.lag_bytes or 0) > 64 << 20:
            fix = pasted("check its disk, network and replay; it is no candidate while it is behind")
            evidence = f"{sender.application_name} is {lag >> 20} MB behind"
            yield Hit(evidence, fix, "pg_stat_replication", facts.leader_name)


@of_leader
def _standby_cannot_follow(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    for member in facts.standbys:
        for name in _FOLLOW:
            here, there = member.setting(name), leader.setting(name)
            if here is not None and there is not None and int(here.value) < int(there.value):
                fix = pasted(
                    "ALTER SYSTEM SET {name:words} = {value:sql_text}; restart this standby",
                    name=name,
                    value=there.value,
                )
                if facts.cnpg is not None:
                    fix = set_anywhere(facts, name, there.value)
                yield Hit(f"{name} = {here.value}, the leader has {there.value}", fix, here.where, member.name)


@of_leader
def _standby_without_slot(_facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    if leader.value("wal_keep_size", "0") != "0" or keeps_archive(leader):
        return
    for sender in leader.senders:
        if not sender.slot and sender.state == "streaming" and sender.application_name != "pg_receivewal":
            slot = re.sub("[^a-z0-9_]", "_", sender.application_name.lower())
            fix = pasted(
                "SELECT pg_create_physical_replication_slot({slot:sql_text}); on it: primary_slot_name = {slot:conf}",
                slot=slot,
            )
            evidence = f"{sender.application_name} streams without a slot; wal_keep_size = 0 and no archive"
            yield Hit(evidence, fix, "pg_stat_replication, pg_replication_slots", leader.name)


def _mixed_versions(facts: Facts) -> Iterator[Hit]:
    versions = {m.version for m in facts.inspected if m.version}
    if len(versions) > 1:
        listed = ", ".join(f"{m.name} {m.version // 10000}.{m.version % 10000}" for m in facts.inspected)
        major = len({v // 10000 for v in versions}) > 1
        fix = pasted("bring every member to the newest minor release, standbys first")
        yield Hit(listed, fix, "server_version_num", "", Severity.ERROR if major else Severity.WARNING)


@of_leader
def _one_machine(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    host = leader.address.rpartition(":")[0]
    for member in facts.standbys:
        if host and member.address.rpartition(":")[0] == host:
            fix = pasted("move the standby to another machine, power feed and rack")
            yield Hit(f"{member.address} and the leader's {leader.address}", fix, "", member.name)


_replay_yields_for_ever = _bad_on_standbys(
    "max_standby_streaming_delay", lambda s: s.value == "-1", "30s", severity=_severity
)
_receiver_reports_nothing = _bad_on_standbys("wal_receiver_status_interval", lambda s: s.value == "0", "10s")
_receiver_timeout_long = _bad_on_standbys("wal_receiver_timeout", lambda s: s.value == "0" or s.seconds > 60, "30s")
_hot_standby_off = _bad_on_standbys("hot_standby", lambda s: not s.on, "on", restart=True)

CHECKS = checks_of("standby", globals())
