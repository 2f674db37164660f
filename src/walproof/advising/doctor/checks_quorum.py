"""Checks of the quorum: which standbys are named, which are connected, which answer, which commits wait."""

from collections import Counter
from collections.abc import Iterator

from walproof.advising.doctor.checks_durability import level_of, names_of, names_there
from walproof.advising.doctor.finding import (
    Hit,
    bring_back,
    checks_of,
    given,
    listed,
    of_leader,
    of_patroni,
    patch_cluster,
    reset_names,
    set_anywhere,
    set_patroni,
)
from walproof.machine.quoting import Pasted, pasted
from walproof.model.facts import Facts, MemberFacts, Namer, PatroniFacts, Sender
from walproof.model.guarantee import Level, Quorum, QuorumKind, read_standby_names
from walproof.model.patroni_values import refused
from walproof.model.standby_names import NO_STANDBYS, folded

_FOREIGN = pasted("it is no instance of this Cluster (those stream under their pod's name): rename it, or stop it")
Named = tuple[MemberFacts, Quorum]
"""The leader, and the quorum of its standby names."""


def _named(facts: Facts) -> Named | None:
    """None where no standby is named."""
    leader, quorum = facts.leader, read_standby_names(names_of(facts))
    return None if leader is None or quorum is None else (leader, quorum)


of_quorum = given(_named)


def _of_names(leader: MemberFacts, evidence: str, fix: Pasted) -> Hit:
    return Hit(evidence, fix, leader.settings["synchronous_standby_names"].where, leader.name)


def _of_senders(facts: Facts, evidence: str, fix: Pasted) -> Hit:
    return Hit(evidence, fix, "pg_stat_replication", facts.leader_name)


def _synchronous(facts: Facts) -> list[Sender]:
    """Walsenders that count for the quorum now."""
    return [s for s in facts.senders if s.sync_state in ("sync", "quorum")]


def synchronous_of(facts: Facts) -> tuple[MemberFacts, ...]:
    """Inspected standbys that count for the quorum now, matched by the name they stream under."""
    counting = {folded(s.application_name) for s in _synchronous(facts)}
    return tuple(m for m in facts.standbys if counting & {folded(m.name), folded(m.receiver_name)})


def _fix_names(facts: Facts, named: Named) -> Pasted:
    if overridden := reset_names(facts):
        return overridden
    if facts.cnpg is not None:
        return pasted(
            "bring the missing instance back; CloudNativePG names it again (kubectl cnpg status {name:argument})",
            name=facts.cnpg.name,
        )
    if facts.namer is Namer.PATRONI:
        return pasted("bring the missing standby back; Patroni names it again (patronictl list)")
    leader, quorum = named
    there = names_there(leader)
    text, name = Quorum(quorum.kind, min(quorum.k, len(there)), there).text, "synchronous_standby_names"
    config = facts.patroni.config if facts.patroni and not refused(facts.patroni.config) else {}
    section = (config.get("postgresql") or {}).get("parameters") or {}
    if facts.patroni is not None and leader.settings[name].file.endswith("/postgresql.conf") and name not in section:
        # Patroni wrote it and its dynamic configuration lacks it: patroni.yml has it, which goes over that.
        return pasted(
            "synchronous_standby_names: {text:yaml} below postgresql.parameters in each patroni.yml, "
            "then patronictl reload CLUSTER",
            text=text,
        )
    return set_anywhere(facts, name, text)


@of_quorum
def _names_match_nobody(facts: Facts, named: Named) -> Iterator[Hit]:
    leader, quorum = named
    here = {folded(name) for name in (leader.name, *(s.application_name for s in leader.senders))}
    upstream = {folded(s.application_name): m.name for m in facts.standbys for s in m.senders if s.state != "backup"}
    for name in quorum.names:
        if name == "*" or folded(name) in here:
            continue
        cascades = upstream.get(folded(name))
        why = f"it streams from {cascades}, not from the leader" if cascades else "no standby streams under that name"
        yield _of_names(leader, f"{quorum.text}: {name}: {why}", _fix_names(facts, named))


@of_quorum
def _names_star(facts: Facts, named: Named) -> Iterator[Hit]:
    leader, quorum = named
    if quorum.open:
        fix = _fix_names(facts, named)
        if facts.namer is Namer.PATRONI and not reset_names(facts):
            fix = pasted(
                "Patroni finds no standby to name: bring one back before anything else connects (patronictl list)"
            )
        yield _of_names(leader, f"synchronous_standby_names = '{quorum.text}'", fix)


@of_quorum
def _quorum_larger_than_connected(facts: Facts, named: Named) -> Iterator[Hit]:
    leader, quorum = named
    connected = sum(quorum.counts(s.application_name) and s.state == "streaming" for s in leader.senders)
    if connected < quorum.k:
        evidence = f"{quorum.text} asks for {quorum.k}, {connected} stream"
        yield _of_names(leader, evidence, _fix_names(facts, named))


@of_quorum
def _quorum_without_spare(facts: Facts, named: Named) -> Iterator[Hit]:
    leader, quorum = named
    applies = level_of(facts) is Level.REMOTE_APPLY
    paused = {name for m in facts.standbys if applies and m.replay_paused for name in (m.name, m.receiver_name)}
    away = {folded(name) for name in (*NO_STANDBYS, *paused)}
    streaming = [s for s in leader.senders if s.state == "streaming" and folded(s.application_name) not in away]
    able = sum(quorum.counts(s.application_name) for s in streaming)
    by_hand = facts.namer is Namer.OPERATOR or reset_names(facts)
    if by_hand and 0 < able <= quorum.k:
        fix = pasted("add one more standby to synchronous_standby_names than the number that must answer")
        yield _of_names(leader, f"{quorum.text}: {able} can answer and {quorum.k} must", fix)


@of_quorum
def _first_where_any_would_do(facts: Facts, named: Named) -> Iterator[Hit]:
    """FIRST follows the listed order: the slowest of the first k sets the pace (docs: priority-based)."""
    leader, quorum = named
    if facts.namer is not Namer.PATRONI and quorum.kind is QuorumKind.FIRST and len(quorum.distinct) > quorum.k:
        fix = set_anywhere(facts, "synchronous_standby_names", Quorum(QuorumKind.ANY, quorum.k, quorum.names).text)
        if facts.cnpg is not None:
            fix = patch_cluster(facts.cnpg, {"postgresql": {"synchronous": {"method": "any"}}})
        yield _of_names(leader, f"synchronous_standby_names = '{quorum.text}'", fix)


def _same_name_twice(facts: Facts) -> Iterator[Hit]:
    for name, count in Counter(folded(s.application_name) for s in facts.senders).items():
        if count > 1 and name not in NO_STANDBYS:
            fix = pasted(
                "ALTER SYSTEM SET cluster_name on each standby (or application_name in primary_conninfo), restart"
            )
            yield _of_senders(facts, f"{count} standbys stream as {name}", fix if facts.cnpg is None else _FOREIGN)


def _default_name(facts: Facts) -> Iterator[Hit]:
    for sender in facts.senders:
        if sender.application_name in ("walreceiver", ""):
            evidence = f"a standby at {sender.address or 'a local socket'} streams as {sender.application_name!r}"
            fix = pasted("on that standby: ALTER SYSTEM SET cluster_name = 'standby1'; restart PostgreSQL")
            fix = fix if facts.cnpg is None else _FOREIGN
            yield Hit(evidence, fix, "primary_conninfo of the standby", facts.leader_name)


def _tool_counts_as_standby(facts: Facts) -> Iterator[Hit]:
    for sender in _synchronous(facts):
        if sender.application_name in NO_STANDBYS:
            evidence = f"{sender.application_name} from {sender.address or 'a local socket'} is {sender.sync_state}"
            fix = pasted("list standbys by name in synchronous_standby_names, never '*' or a tool's name")
            yield _of_senders(facts, evidence, fix)


def _sync_standby_cascades(facts: Facts) -> Iterator[Hit]:
    for member in synchronous_of(facts):
        if member.senders:
            fed = ", ".join(s.application_name for s in member.senders)
            fix = pasted(
                "let {fed:words} stream from the leader or from an asynchronous standby (primary_conninfo)", fed=fed
            )
            yield Hit(f"it feeds {fed}", fix, "pg_stat_replication", member.name)


def _sync_standby_not_streaming(facts: Facts) -> Iterator[Hit]:
    for sender in _synchronous(facts):
        if sender.state != "streaming":
            evidence = f"{sender.application_name} is {sender.sync_state} and its state is {sender.state}"
            yield _of_senders(facts, evidence, pasted("wait until it streams; see its log and wal_keep_size"))


def _sync_standby_slow(facts: Facts) -> Iterator[Hit]:
    for sender in _synchronous(facts):
        if (lag := sender.flush_lag_s or 0.0) > 1.0:
            fix = pasted("check that standby's disk and network; ANY k of n with a spare hides one slow standby")
            yield _of_senders(facts, f"{sender.application_name}: flush_lag = {lag:.1f} s", fix)


@of_leader
def _commits_wait_now(_facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    late = [w for w in leader.waiters if w.seconds > 1.0]
    if late:
        pids, longest = ", ".join(str(w.pid) for w in late[:5]), max(w.seconds for w in late)
        evidence = f"{len(late)} backends wait in SyncRep, the longest for {longest:.0f} s (pid {pids})"
        fix = pasted(
            "bring a synchronous standby back; never pg_cancel_backend: it turns the wait into an unreplicated success"
        )
        yield Hit(evidence, fix, "pg_stat_activity", leader.name)


@of_patroni
def _two_members_strict(facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    """With one standby that Patroni may name, whatever synchronous_node_count is; with none another check is about."""
    if not patroni.strict or patroni.synchronous == "off" or len(patroni.able) != 1:
        return
    may = f"{patroni.able[0].name} alone may be synchronous{listed(patroni.barred, '; ')}"
    evidence = f"synchronous_mode_strict with {len(patroni.members)} members, and {may}"
    spare = next((bring_back(*one) for one in patroni.barred.items()), pasted("add a third member"))
    off = set_patroni("synchronous_mode_strict", "false")
    fix = pasted("{spare:composed}; or {off:composed}", spare=spare, off=off)
    yield Hit(evidence, fix, "Patroni dynamic configuration", facts.leader_name)


@of_quorum
def _names_lost_at_promotion(facts: Facts, _named: Named) -> Iterator[Hit]:
    for member in facts.standbys if facts.namer is Namer.OPERATOR else ():
        if not member.value("synchronous_standby_names"):
            evidence = "synchronous_standby_names = '' here, set on the leader"
            fix = pasted("set it here too, with the names of the others, so that a promotion keeps the guarantee")
            yield Hit(evidence, fix, "postgresql.conf of the standby", member.name)


CHECKS = checks_of("quorum", globals())
