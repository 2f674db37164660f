"""Checks of the quorum: which standbys are named, which are connected, which answer, which commits wait."""

from collections import Counter
from collections.abc import Iterator

from walproof.advising.doctor.checks_durability import REPLICATION, names_of
from walproof.advising.doctor.finding import Check, Hit, Severity, patch_cluster, set_patroni
from walproof.model.facts import Facts, MemberFacts, Sender
from walproof.model.guarantee import Quorum, QuorumKind, read_standby_names

MANUAL = "https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION"
PATRONI = "https://patroni.readthedocs.io/en/latest/replication_modes.html"
_FOREIGN = "it is no instance of this Cluster (those stream under their pod's name): rename it, or stop it"
TOOLS = ("pg_receivewal", "pg_basebackup", "pg_recvlogical", "barman_receive_wal", "walproof")


def _configured(facts: Facts) -> tuple[MemberFacts, Quorum] | None:
    """The leader and its quorum, None where no standby is named."""
    leader, quorum = facts.leader, read_standby_names(names_of(facts))
    return None if leader is None or quorum is None else (leader, quorum)


def _matches(quorum: Quorum, sender: Sender) -> bool:
    return "*" in quorum.names or sender.application_name.lower() in {n.lower() for n in quorum.names}


def _where(leader: MemberFacts) -> str:
    return leader.settings["synchronous_standby_names"].where


def synchronous_of(facts: Facts) -> tuple[MemberFacts, ...]:
    """Inspected standbys that count for the quorum now, matched by the name they stream under."""
    counting = {s.application_name for s in facts.senders if s.sync_state in ("sync", "quorum")}
    return tuple(m for m in facts.standbys if counting & {m.name, m.receiver_name})


def _fix_names(facts: Facts, leader: MemberFacts, quorum: Quorum) -> str:
    if facts.cnpg is not None:
        return f"bring the missing instance back; CloudNativePG names it again (kubectl cnpg status {facts.cnpg.name})"
    if facts.patroni is not None:
        return "bring the missing standby back; Patroni names it again (patronictl list)"
    there = tuple(dict.fromkeys(s.application_name for s in leader.senders)) or ("standby1",)
    better = Quorum(quorum.kind, min(quorum.k, len(there)), there)
    return f"ALTER SYSTEM SET synchronous_standby_names = '{better.text}'; SELECT pg_reload_conf();"


def _unmatched(facts: Facts) -> Iterator[Hit]:
    if (configured := _configured(facts)) is None:
        return
    leader, quorum = configured
    here = {s.application_name.lower() for s in leader.senders}
    upstream = {s.application_name.lower(): m.name for m in facts.standbys for s in m.senders if s.state != "backup"}
    for name in quorum.names:
        if name == "*" or name.lower() in here or name == leader.name:
            continue
        cascades = upstream.get(name.lower())
        why = f"it streams from {cascades}, not from the leader" if cascades else "no standby streams under that name"
        yield Hit(f"{quorum.text}: {name}: {why}", _fix_names(facts, leader, quorum), _where(leader), leader.name)


def _star(facts: Facts) -> Iterator[Hit]:
    if (configured := _configured(facts)) is not None and "*" in configured[1].names:
        leader, quorum = configured
        fix = _fix_names(facts, leader, quorum)
        if facts.patroni is not None:
            fix = "no standby is named now: bring one back before anything else connects (patronictl list)"
        yield Hit(f"synchronous_standby_names = '{quorum.text}'", fix, _where(leader), leader.name)


def _too_large(facts: Facts) -> Iterator[Hit]:
    if (configured := _configured(facts)) is None:
        return
    leader, quorum = configured
    connected = sum(_matches(quorum, s) and s.state == "streaming" for s in leader.senders)
    if connected < quorum.k:
        yield Hit(
            f"{quorum.text} asks for {quorum.k}, {connected} stream",
            _fix_names(facts, leader, quorum),
            _where(leader),
            leader.name,
        )


def _no_spare(facts: Facts) -> Iterator[Hit]:
    if (configured := _configured(facts)) is None or facts.managed:
        return
    leader, quorum = configured
    able = sum(_matches(quorum, s) for s in leader.senders)
    if 0 < able <= quorum.k:
        yield Hit(
            f"{quorum.text}: {able} can answer and {quorum.k} must",
            "add one more standby to synchronous_standby_names than the number that must answer",
            _where(leader),
            leader.name,
        )


def _first_of_many(facts: Facts) -> Iterator[Hit]:
    """FIRST follows the listed order: the slowest of the first k sets the pace (docs: priority-based)."""
    if (configured := _configured(facts)) is None or facts.patroni is not None:
        return
    leader, quorum = configured
    if quorum.kind is QuorumKind.FIRST and len(quorum.names) > quorum.k:
        better = Quorum(QuorumKind.ANY, quorum.k, quorum.names).text
        fix = f"ALTER SYSTEM SET synchronous_standby_names = '{better}'; SELECT pg_reload_conf();"
        if facts.cnpg is not None:
            fix = patch_cluster(facts, {"postgresql": {"synchronous": {"method": "any"}}})
        yield Hit(f"synchronous_standby_names = '{quorum.text}'", fix, _where(leader), leader.name)


def _same_name(facts: Facts) -> Iterator[Hit]:
    for name, count in Counter(s.application_name for s in facts.senders).items():
        if count > 1 and name not in TOOLS:
            fix = "ALTER SYSTEM SET cluster_name on each standby (or application_name in primary_conninfo), restart"
            fix = fix if facts.cnpg is None else _FOREIGN
            yield Hit(f"{count} standbys stream as {name}", fix, "pg_stat_replication", facts.leader_name)


def _default_name(facts: Facts) -> Iterator[Hit]:
    for sender in facts.senders:
        if sender.application_name in ("walreceiver", ""):
            evidence = f"a standby at {sender.address or 'a local socket'} streams as {sender.application_name!r}"
            fix = "on that standby: ALTER SYSTEM SET cluster_name = 'standby1'; restart PostgreSQL"
            fix = fix if facts.cnpg is None else _FOREIGN
            yield Hit(evidence, fix, "primary_conninfo of the standby", facts.leader_name)


def _tool_counts(facts: Facts) -> Iterator[Hit]:
    for sender in facts.senders:
        if sender.sync_state in ("sync", "quorum") and sender.application_name in TOOLS:
            evidence = f"{sender.application_name} from {sender.address or 'a local socket'} is {sender.sync_state}"
            fix = "list standbys by name in synchronous_standby_names, never '*' or a tool's name"
            yield Hit(evidence, fix, "pg_stat_replication", facts.leader_name)


def _cascades(facts: Facts) -> Iterator[Hit]:
    for member in synchronous_of(facts):
        if member.senders:
            fed = ", ".join(s.application_name for s in member.senders)
            fix = f"let {fed} stream from the leader or from an asynchronous standby (primary_conninfo)"
            yield Hit(f"it feeds {fed}", fix, "pg_stat_replication", member.name)


def _catching_up(facts: Facts) -> Iterator[Hit]:
    for sender in facts.senders:
        if sender.sync_state in ("sync", "quorum") and sender.state != "streaming":
            evidence = f"{sender.application_name} is {sender.sync_state} and its state is {sender.state}"
            fix = "wait until it streams; see its log and wal_keep_size"
            yield Hit(evidence, fix, "pg_stat_replication", facts.leader_name)


def _slow(facts: Facts) -> Iterator[Hit]:
    for sender in facts.senders:
        lag = sender.flush_lag_s or 0.0
        if sender.sync_state in ("sync", "quorum") and lag > 1.0:
            evidence = f"{sender.application_name}: flush_lag = {lag:.1f} s"
            fix = "check that standby's disk and network; ANY k of n with a spare hides one slow standby"
            yield Hit(evidence, fix, "pg_stat_replication", facts.leader_name)


def _waiting(facts: Facts) -> Iterator[Hit]:
    leader = facts.leader
    late = [w for w in leader.waiters if w.seconds > 1.0] if leader else []
    if leader and late:
        pids = ", ".join(str(w.pid) for w in late[:5])
        yield Hit(
            f"{len(late)} backends wait in SyncRep, the longest for {max(w.seconds for w in late):.0f} s (pid {pids})",
            "bring a synchronous standby back; never pg_cancel_backend: it turns the wait into an unreplicated success",
            "pg_stat_activity",
            leader.name,
        )


def _two_and_strict(facts: Facts) -> Iterator[Hit]:
    patroni = facts.patroni
    if patroni is not None and patroni.strict and patroni.synchronous != "off" and len(patroni.members) <= 2:
        yield Hit(
            f"synchronous_mode_strict with {len(patroni.members)} members",
            "add a third member, or " + set_patroni("synchronous_mode_strict", "false"),
            "Patroni dynamic configuration",
            facts.leader_name,
        )


def _names_differ(facts: Facts) -> Iterator[Hit]:
    if facts.managed or _configured(facts) is None:
        return
    for member in facts.standbys:
        if not member.value("synchronous_standby_names"):
            yield Hit(
                "synchronous_standby_names = '' here, set on the leader",
                "set it here too, with the names of the others, so that a promotion keeps the guarantee",
                "postgresql.conf of the standby",
                member.name,
            )


CHECKS = (
    Check(
        "names-match-nobody",
        Severity.WARNING,
        "a synchronous standby is named that does not stream here",
        "The quorum is smaller than configured, or commits wait for ever.",
        REPLICATION,
        "synchronous_standby_names = 'ANY 1 (standby1, ghost)'",
        _unmatched,
    ),
    Check(
        "names-star",
        Severity.WARNING,
        "standby names are '*'",
        "Any walreceiver satisfies a commit, a backup tool too: possibly no standby that can be promoted has it.",
        REPLICATION,
        "synchronous_standby_names = '*'",
        _star,
    ),
    Check(
        "quorum-larger-than-connected",
        Severity.ERROR,
        "the quorum is larger than the standbys that stream",
        "Every commit at a remote level hangs, without a timeout, until a standby connects.",
        MANUAL,
        "synchronous_standby_names = 'ANY 2 (standby1, ghost)'",
        _too_large,
    ),
    Check(
        "quorum-without-spare",
        Severity.WARNING,
        "every named standby must answer",
        "One standby restarted, slow or gone stalls all commits (wal_sender_timeout, then for ever).",
        MANUAL,
        "synchronous_standby_names = 'FIRST 1 (standby1)' with one standby",
        _no_spare,
    ),
    Check(
        "first-where-any-would-do",
        Severity.NOTE,
        "FIRST waits for the first listed",
        "The slowest of the first k sets everybody's pace; ANY takes the k fastest and hides one slow disk.",
        MANUAL,
        "synchronous_standby_names = 'FIRST 1 (standby1, standby2)'",
        _first_of_many,
    ),
    Check(
        "same-name-twice",
        Severity.WARNING,
        "two standbys stream under one name",
        "Which of them counts for the quorum is arbitrary, and counts once.",
        MANUAL,
        "two standbys with the same cluster_name",
        _same_name,
    ),
    Check(
        "default-name",
        Severity.WARNING,
        "a standby streams under the default name",
        "It cannot be named in synchronous_standby_names apart from any other receiver.",
        "https://www.postgresql.org/docs/current/runtime-config-logging.html#GUC-CLUSTER-NAME",
        "a standby without cluster_name and application_name",
        _default_name,
    ),
    Check(
        "tool-counts-as-standby",
        Severity.ERROR,
        "a tool counts as synchronous standby",
        "Commits are acknowledged because a backup has them; after failover no member does (patroni#789).",
        MANUAL,
        "synchronous_standby_names = '*' and pg_receivewal --synchronous",
        _tool_counts,
    ),
    Check(
        "sync-standby-cascades",
        Severity.WARNING,
        "a synchronous standby feeds others",
        "Its network and disk serve those others while commits wait for it; they never count for the quorum.",
        "https://www.postgresql.org/docs/current/warm-standby.html#CASCADING-REPLICATION",
        "a standby whose primary_conninfo names the synchronous standby",
        _cascades,
    ),
    Check(
        "sync-standby-not-streaming",
        Severity.WARNING,
        "a synchronous standby does not stream yet",
        "Commits wait until it caught up.",
        MANUAL,
        "name a standby synchronous while it catches up",
        _catching_up,
    ),
    Check(
        "sync-standby-slow",
        Severity.WARNING,
        "a synchronous standby flushes late",
        "Each commit at level on waits that long.",
        "https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-REPLICATION-VIEW",
        "slow the standby's disk (strace delay of fdatasync)",
        _slow,
    ),
    Check(
        "commits-wait-now",
        Severity.ERROR,
        "commits wait for standbys now",
        "They are durable here, invisible, unreplicated; a cancel or a restart makes them visible and unprotected.",
        MANUAL,
        "synchronous_standby_names = 'ghost', then commit",
        _waiting,
    ),
    Check(
        "two-members-strict",
        Severity.WARNING,
        "two members and strict mode",
        "Any loss of the standby stops all writes, in every maintenance window too.",
        f"{PATRONI}#synchronous-mode",
        "synchronous_mode_strict: true with two members",
        _two_and_strict,
    ),
    Check(
        "names-lost-at-promotion",
        Severity.WARNING,
        "standby names are not set on the standby",
        "After a promotion remote levels silently mean local.",
        REPLICATION,
        "set synchronous_standby_names on the primary only",
        _names_differ,
    ),
)
