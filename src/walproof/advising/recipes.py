"""A choice as text to apply, by where it goes: PostgreSQL, Patroni, CloudNativePG, PgBouncer, HAProxy, clients.

What a choice sets is first written as plain names and values with the reason for each. Writes nothing, connects
nowhere."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from walproof.errors import UsageError
from walproof.machine.quoting import comment, pasted
from walproof.machine.text_templates import filled
from walproof.model.advice import Choice, ClusterProfile
from walproof.model.cnpg_facts import CNPG_MANAGER, ends_dead_replication
from walproof.model.guarantee import PARAMETERS, ConfigChange, Quorum, QuorumKind, SyncReplication
from walproof.model.patroni_values import LEAST
from walproof.model.standby_names import is_host_and_port
from walproof.patroni.config import sync_keys, version_of

_VALUE = re.compile(r"[A-Za-z0-9.]{1,32}")
_NAME = re.compile(r"[A-Za-z0-9._:-]{0,128}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One rendered recipe: a short name, the file it belongs in, the text."""

    name: str
    file: str
    text: str


def _title(choice: Choice) -> str:
    return comment(f"walproof: {choice.text}{f'; not proven: {choice.undecided}' if choice.undecided else ''}")


def _recipe(name: str, file: str, lines: Iterable[str]) -> Recipe:
    return Recipe(name, file, "\n".join(lines) + "\n")


@dataclass(frozen=True, slots=True)
class Set:
    """One parameter of PostgreSQL and why."""

    name: str
    value: str
    why: str


def postgres_settings(choice: Choice, cluster: ClusterProfile) -> tuple[Set, ...]:
    """Parameters on every member, without synchronous_standby_names: PostgreSQL 14 to 18 know them all.

    TCP's own timeouts are left alone where the doctor calls them fine: where the manager ends dead connections sooner.
    """
    _refuse_foreign(choice)
    seconds = choice.timeouts.network_s
    stall = "stalls commits this long" if choice.level.remote else "is dropped then"
    tcp = (
        Set("tcp_user_timeout", f"{seconds}s", "unanswered data ends the connection, instead of TCP's 15 minutes"),
        Set("tcp_keepalives_idle", str(max(5, seconds // 2)), "an idle peer that is gone is detected"),
        Set("tcp_keepalives_interval", "3", "seconds between probes"),
        Set("tcp_keepalives_count", "3", "probes that may stay unanswered"),
    )
    return (
        Set("synchronous_commit", str(choice.level), "what a commit guarantees; classes may differ with SET LOCAL"),
        Set("wal_sender_timeout", f"{seconds}s", f"an unreachable standby {stall}"),
        Set("wal_receiver_timeout", f"{seconds}s", "a standby reconnects to the new leader then"),
        *(() if ends_dead_replication(cluster.manager, seconds, seconds) else tcp),
        *(Set(name, value, "as priced") for name, value in choice.parameters),
    )


def _refuse_foreign(choice: Choice) -> None:
    """UsageError for a parameter that walproof never sets: records and advice may be a stranger's."""
    for name, value in choice.parameters:
        if name not in PARAMETERS or not _VALUE.fullmatch(value):
            raise UsageError(
                f"the advice sets {name} = {value!r}, which walproof never sets", "it comes from its records: ask whose"
            )


def check_names(cluster: ClusterProfile) -> None:
    """UsageError for a member or a version that would be more than one word of a configuration file."""
    for name in (*cluster.members, cluster.patroni):
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name to write into a recipe", "letters, digits, . _ : and - make one")


def _replication(choice: Choice, cluster: ClusterProfile) -> SyncReplication:
    """Synchronous replication of the choice, as far as the manager has it."""
    if choice.quorum == 0:
        return SyncReplication(None, 0)
    method = choice.quorum_kind or QuorumKind.ANY
    if cluster.manager == "patroni" and _version(cluster) < (4,):
        method = QuorumKind.FIRST
    # Without a manager nothing degrades: every commit waits.
    return SyncReplication(method, choice.quorum, choice.strict if cluster.manager != "none" else None)


def _version(cluster: ClusterProfile) -> tuple[int, ...]:
    return version_of(cluster.patroni) or (4, 1)


def _timing(choice: Choice, cluster: ClusterProfile) -> dict[str, object]:
    """Patroni's dynamic configuration of failover; keys its version lacks are left out."""
    three, times = _version(cluster) >= (3,), choice.timeouts
    timing = {
        "ttl": times.ttl,
        "loop_wait": times.loop_wait,
        "retry_timeout": times.retry_timeout,
        "primary_start_timeout" if three else "master_start_timeout": times.primary_start_timeout,
    }
    return {**(timing if times.rto_required else {}), **({"failsafe_mode": True} if three else {})}


def patroni_settings(choice: Choice, cluster: ClusterProfile) -> dict[str, object]:
    """Patroni's dynamic configuration without postgresql.parameters; keys its version lacks are left out."""
    cluster = replace(cluster, manager="patroni")
    return {**_timing(choice, cluster), **sync_keys(_replication(choice, cluster), _version(cluster))}


def config_change(choice: Choice, cluster: ClusterProfile) -> ConfigChange:
    """The choice as a change of a cluster's configuration: all that `apply` sets, and the recipes write."""
    parameters = {s.name: s.value for s in postgres_settings(choice, cluster)}
    timing = _timing(choice, cluster) if cluster.manager == "patroni" else {}
    return ConfigChange(parameters, _replication(choice, cluster), timing)


def settings(choice: Choice, cluster: ClusterProfile) -> tuple[Set, ...]:
    """Every parameter, standby names among them: each member's, so that they are right after a promotion too."""
    names = ""
    if choice.quorum:
        members = tuple(sorted(n for n in cluster.members if not is_host_and_port(n))) or ("standby1", "standby2")
        names = Quorum(choice.quorum_kind or QuorumKind.ANY, choice.quorum, members).text
    why = "who must have a commit before it is acknowledged" if names else "no standby is waited for"
    return (*postgres_settings(choice, cluster), Set("synchronous_standby_names", names, why))


def quoted(value: str) -> str:
    """As a string literal of SQL and of postgresql.conf."""
    return "'" + value.replace("'", "''") + "'"


def _notes(choice: Choice, cluster: ClusterProfile) -> list[str]:
    notes = [
        f"{_title(choice)}; PostgreSQL {cluster.postgres}",
        "run on every member, standbys too:",
        "after a promotion the guarantee must be the same.",
    ]
    if choice.quorum and (nameless := [name for name in cluster.members if is_host_and_port(name)]):
        notes.append(f"{', '.join(nameless)}: no name of its own. Set cluster_name there, and list that name too.")
    if choice.quorum and choice.quorum < cluster.standbys:
        notes.append("ANY: promote the standby with the highest pg_last_wal_receive_lsn(), never another one.")
    if cluster.postgres < 17:
        notes.append(f"PostgreSQL {cluster.postgres} lacks sync_replication_slots: logical slots stay behind.")
    if cluster.postgres >= 18:
        notes.append("PostgreSQL 18 may drop idle slots itself: see idle_replication_slot_timeout.")
    return notes


def alter_system(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """Statements to paste into psql as superuser."""
    lines = [f"-- {note}" for note in _notes(choice, cluster)]
    lines += [f"ALTER SYSTEM SET {s.name} = {quoted(s.value)};  -- {s.why}" for s in settings(choice, cluster)]
    lines += [
        "SELECT pg_reload_conf();",
        "-- in effect? SHOW synchronous_standby_names; SELECT * FROM pg_stat_replication;",
    ]
    return _recipe("plain", "walproof.sql", lines)


def postgresql_conf(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """The same for postgresql.conf or a file in its conf.d."""
    lines = [f"# {note}" for note in _notes(choice, cluster)]
    lines += [f"{s.name} = {quoted(s.value)}  # {s.why}" for s in settings(choice, cluster)]
    return _recipe("postgresql.conf", "walproof.conf", lines)


_WHY = {
    "ttl": f"a failed leader is replaced after this; Patroni refuses less than {LEAST['ttl']}",
    "loop_wait": "how often every member checks",
    "retry_timeout": "DCS and PostgreSQL may be unreachable this long; loop_wait + 2 × this must not exceed ttl",
    "primary_start_timeout": "a crashed leader is replaced instead of waited for",
    "master_start_timeout": "a crashed leader is replaced instead of waited for (primary_start_timeout since 3.0)",
    "failsafe_mode": "a DCS outage does not stop a leader whose members all answer",
    "synchronous_mode": "Patroni itself names the standbys and promotes only one that has every commit",
    "synchronous_mode_strict": "true: no writes instead of writes on the leader alone",
    "synchronous_node_count": "how many standbys must answer",
}


def _filled(name: str, file: str, choice: Choice, cluster: ClusterProfile, **words: object) -> Recipe:
    """The template of that file, with what more than one of them says and with these words."""
    seconds = choice.timeouts.network_s
    shared = {
        "title": _title(choice),
        "choice": choice,
        "has_members": bool(cluster.members),
        "members": cluster.members or ("n1", "n2", "n3"),
        "network_s": seconds,
        "idle_s": max(5, seconds // 2),
        "most_clients": max(1000, 10 * choice.clients),
    }
    return Recipe(name, file, filled("walproof.advising", f"recipe_templates/{file}.j2", **shared, **words))


def patroni(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """The dynamic configuration with a comment on every line."""
    version = version_of(cluster.patroni)
    dynamic = patroni_settings(choice, cluster).items()
    words = {
        "version": cluster.patroni,
        "lacks_quorum": version and version < (4,) and choice.quorum_kind is QuorumKind.ANY and choice.quorum,
        "lacks_failsafe": version and version < (3,),
        "dynamic": [Set(name, pasted("{value:yaml}", value=value), _WHY[name]) for name, value in dynamic],
        "parameters": postgres_settings(choice, cluster),
    }
    return _filled("patroni", "walproof-patroni.yaml", choice, cluster, **words)


def cnpg_cluster(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """A Cluster to merge into an existing one; the operator writes synchronous_standby_names itself."""
    instances = max(len(cluster.members), choice.quorum + 2 if choice.strict else choice.quorum + 1, 1)
    method = "first" if choice.quorum_kind is QuorumKind.FIRST else "any"
    parameters = postgres_settings(choice, replace(cluster, manager=CNPG_MANAGER))
    words = {"instances": instances, "method": method, "parameters": parameters}
    return _filled("cnpg", "walproof-cnpg.yaml", choice, cluster, **words)


def recipes(choice: Choice, cluster: ClusterProfile) -> dict[str, Recipe]:
    """All of them, that of the cluster's manager first; UsageError for what walproof never writes."""
    check_names(cluster)
    made = (
        patroni(choice, cluster),
        alter_system(choice, cluster),
        postgresql_conf(choice, cluster),
        cnpg_cluster(choice, cluster),
        _filled("cnpg-pooler", "walproof-pooler.yaml", choice, cluster),
        _filled("pgbouncer", "walproof-pgbouncer.ini", choice, cluster),
        _filled("haproxy", "walproof-haproxy.cfg", choice, cluster),
        _filled("application", "walproof-application.sql", choice, cluster),
    )
    first = "patroni" if cluster.manager == "patroni" else "plain"
    return {r.name: r for r in sorted(made, key=lambda r: r.name != first)}


def recipe(choice: Choice, cluster: ClusterProfile, name: str) -> Recipe:
    """The recipe of that name; UsageError lists them."""
    known = recipes(choice, cluster)
    if name not in known:
        raise UsageError(f"there is no recipe {name!r}", "choose " + ", ".join(known))
    return known[name]
