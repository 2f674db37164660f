"""Checks of the commit level: what is set, what is in effect, and who overrides it."""

from collections.abc import Callable, Iterator

from walproof.advising.doctor.finding import Check, Hit, Severity, patch_cluster, set_anywhere, set_patroni, setting_hit
from walproof.model.facts import Facts, Override
from walproof.model.guarantee import Level, read_standby_names

REPLICATION = "https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES"
LEVEL = "https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-SYNCHRONOUS-COMMIT"


def names_of(facts: Facts) -> str:
    """synchronous_standby_names in effect on the leader."""
    return facts.leader.value("synchronous_standby_names") if facts.leader else ""


def level_of(facts: Facts) -> Level | None:
    """synchronous_commit in effect on the leader; boolean spellings are already normalised by PostgreSQL."""
    value = facts.leader.value("synchronous_commit") if facts.leader else ""
    return Level(value) if value in set(Level) else None


def _remote_without_names(facts: Facts) -> Iterator[Hit]:
    leader, level = facts.leader, level_of(facts)
    if leader is None or level is None or not level.remote or read_standby_names(names_of(facts)) is not None:
        return
    explicit = level is not Level.ON or leader.settings["synchronous_commit"].source != "default"
    patroni = facts.patroni
    if not explicit and not leader.senders and patroni is None:
        return
    if facts.cnpg is not None:
        fix = patch_cluster(facts, {"postgresql": {"synchronous": {"method": "any", "number": 1}}})
    elif patroni is not None and patroni.synchronous != "off":
        fix = "bring a standby back: Patroni emptied the names because none is left (see patronictl list)"
    elif patroni is not None:
        fix = set_patroni("synchronous_mode", "quorum" if patroni.version >= (4,) else "true")
    else:
        listed = ", ".join(f'"{s.application_name}"' for s in leader.senders) or '"standby1"'
        fix = f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({listed})'; SELECT pg_reload_conf();"
    yield Hit(
        f"synchronous_commit = {level} and synchronous_standby_names = ''",
        fix,
        leader.settings["synchronous_commit"].where,
        leader.name,
        Severity.ERROR if explicit else Severity.WARNING,
    )


def _level(bad: Level) -> Callable[[Facts], Iterator[Hit]]:
    def find(facts: Facts) -> Iterator[Hit]:
        leader = facts.leader
        if leader is None or level_of(facts) is not bad:
            return
        if bad is not Level.OFF and read_standby_names(names_of(facts)) is None:
            return
        fix = set_anywhere(facts, "synchronous_commit", "on")
        yield setting_hit(leader, leader.settings["synchronous_commit"], fix)

    return find


def _override(kind: str) -> Callable[[Facts], Iterator[Hit]]:
    def find(facts: Facts) -> Iterator[Hit]:
        leader, level = facts.leader, level_of(facts)
        for override in leader.overrides if leader is not None else ():
            if override.what != kind or level is None:
                continue
            weaker = override.value in set(Level) and Level(override.value).strength < level.strength
            yield Hit(
                f"{override.what} {_named(override)} has synchronous_commit = {override.value}",
                override.reset,
                "pg_proc.proconfig" if kind == "function" else "pg_db_role_setting",
                facts.leader_name,
                Severity.WARNING if weaker else Severity.NOTE,
            )

    return find


def _named(override: Override) -> str:
    return f"{override.name} in database {override.database}" if override.database else override.name


def _levels_differ(facts: Facts) -> Iterator[Hit]:
    if facts.leader is None:
        return
    level = facts.leader.value("synchronous_commit")
    for member in facts.standbys:
        setting = member.setting("synchronous_commit")
        if setting is not None and setting.value != level:
            fix = set_anywhere(facts, "synchronous_commit", level)
            yield Hit(f"here {setting.value}, on the leader {level}", fix, setting.where, member.name)


_DIFFERENT = "Its commits have another guarantee than the cluster's, and nothing shows it at the commit."

CHECKS = (
    Check(
        "remote-level-no-names",
        Severity.ERROR,
        "a remote level with empty standby names",
        "remote_write, on and remote_apply silently mean local: losing the leader loses acknowledged commits.",
        REPLICATION,
        "synchronous_commit = remote_apply and synchronous_standby_names = ''",
        _remote_without_names,
    ),
    Check(
        "level-off",
        Severity.WARNING,
        "synchronous_commit is off for everybody",
        "A crash of PostgreSQL alone already loses acknowledged commits.",
        LEVEL,
        "ALTER SYSTEM SET synchronous_commit = off",
        _level(Level.OFF),
    ),
    Check(
        "level-local",
        Severity.WARNING,
        "standby names are set and the level is local",
        "Commits do not wait for the standbys that are named: losing the leader loses acknowledged commits.",
        LEVEL,
        "ALTER SYSTEM SET synchronous_commit = local, with standby names set",
        _level(Level.LOCAL),
    ),
    Check(
        "level-remote-write",
        Severity.WARNING,
        "the level is remote_write",
        "Leader gone and the standby's power cut together lose acknowledged commits: they were not yet on its disk.",
        LEVEL,
        "ALTER SYSTEM SET synchronous_commit = remote_write, with standby names set",
        _level(Level.REMOTE_WRITE),
    ),
    Check(
        "role-overrides-level",
        Severity.WARNING,
        "a role overrides synchronous_commit",
        _DIFFERENT,
        "https://www.postgresql.org/docs/current/sql-alterrole.html",
        "ALTER ROLE app SET synchronous_commit = off",
        _override("role"),
    ),
    Check(
        "database-overrides-level",
        Severity.WARNING,
        "a database overrides synchronous_commit",
        _DIFFERENT,
        "https://www.postgresql.org/docs/current/sql-alterdatabase.html",
        "ALTER DATABASE app SET synchronous_commit = local",
        _override("database"),
    ),
    Check(
        "function-overrides-level",
        Severity.WARNING,
        "a function overrides synchronous_commit",
        "A transaction that commits while it is set is unprotected at failover (SET LOCAL does the same, unseen).",
        "https://www.postgresql.org/docs/current/sql-createfunction.html",
        "CREATE FUNCTION f() … SET synchronous_commit = off",
        _override("function"),
    ),
    Check(
        "levels-differ",
        Severity.WARNING,
        "members have different synchronous_commit",
        "The guarantee changes silently at the next failover.",
        LEVEL,
        "ALTER SYSTEM SET synchronous_commit = local on a standby",
        _levels_differ,
    ),
)
