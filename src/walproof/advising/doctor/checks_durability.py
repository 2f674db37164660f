"""Checks of durability: the commit level that is set, in effect and overridden, and what reaches the disk.

fsync, page writes, checksums, damaged pages, archiving."""

from collections.abc import Callable, Iterator

from walproof.advising.doctor.finding import (
    Check,
    Hit,
    Severity,
    bad_setting,
    patch_cluster,
    set_anywhere,
    set_patroni,
    setting_hit,
)
from walproof.model.facts import Facts, Override
from walproof.model.guarantee import Level, read_standby_names
from walproof.model.units import counted

WAL = "https://www.postgresql.org/docs/current/runtime-config-wal.html"
DEVELOPER = "https://www.postgresql.org/docs/current/runtime-config-developer.html"


def _checksums(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        if member.value("data_checksums") == "off":
            fix = "stop PostgreSQL, then: pg_checksums --enable -D $PGDATA (standbys first, one at a time)"
            if facts.cnpg is not None:
                fix = "only a new Cluster has them: spec.bootstrap.initdb.dataChecksums: true; import the data there"
            yield Hit("data_checksums = off", fix, "initdb", member.name)


def _checksum_failures(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        if member.checksum_failures:
            yield Hit(
                f"pg_stat_database.checksum_failures = {member.checksum_failures}",
                "SELECT datname, checksum_failures, checksum_last_failure FROM pg_stat_database; "
                "rebuild this member from a sound one",
                "pg_stat_database",
                member.name,
            )


def _archive(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        if member.archive_failing:
            evidence = "pg_stat_archiver: the last attempt failed and nothing was archived since"
            fix = "SELECT * FROM pg_stat_archiver; repair archive_command or archive_library"
            yield Hit(evidence, fix, "pg_stat_archiver", member.name)


def _commit_delay(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        setting = member.setting("commit_delay")
        if setting is not None and float(setting.value) >= 10_000:
            yield setting_hit(member, setting, set_anywhere(facts, "commit_delay", "0"), more=" µs")


def _window_of_off(facts: Facts) -> Iterator[Hit]:
    leader = facts.leader
    setting = leader.setting("wal_writer_delay") if leader else None
    if leader is None or setting is None or setting.seconds <= 0.2:
        return
    if leader.value("synchronous_commit") == "off" or any(o.value == "off" for o in leader.overrides):
        loss = f": level off loses up to {3 * setting.seconds:g} s"
        yield setting_hit(leader, setting, set_anywhere(facts, "wal_writer_delay", "200ms"), more=loss)


def _unlogged(facts: Facts) -> Iterator[Hit]:
    leader = facts.leader
    if leader is not None and leader.unlogged_tables:
        yield Hit(
            f"{counted(leader.unlogged_tables, 'unlogged table')} in the database inspected",
            "SELECT oid::regclass FROM pg_class WHERE relpersistence = 'u'; ALTER TABLE … SET LOGGED",
            "pg_class",
            leader.name,
        )


CHECKS = (
    Check(
        "fsync-off",
        Severity.ERROR,
        "fsync is off",
        "A power or operating system failure loses acknowledged commits at every level, or the whole data directory.",
        f"{WAL}#GUC-FSYNC",
        "ALTER SYSTEM SET fsync = off",
        bad_setting("fsync", lambda s: not s.on, "on"),
    ),
    Check(
        "full-page-writes-off",
        Severity.ERROR,
        "full_page_writes is off",
        "A page half written at a power cut cannot be repaired from WAL: silent damage.",
        f"{WAL}#GUC-FULL-PAGE-WRITES",
        "ALTER SYSTEM SET full_page_writes = off",
        bad_setting("full_page_writes", lambda s: not s.on, "on"),
    ),
    Check(
        "data-sync-retry",
        Severity.ERROR,
        "data_sync_retry is on",
        "A failed fsync is tried again although the kernel may have dropped the pages: a checkpoint may lack them.",
        "https://www.postgresql.org/docs/current/runtime-config-error-handling.html#GUC-DATA-SYNC-RETRY",
        "data_sync_retry = on, restart",
        bad_setting("data_sync_retry", lambda s: s.on, "off", restart=True),
    ),
    Check(
        "zero-damaged-pages",
        Severity.ERROR,
        "zero_damaged_pages is on",
        "Damaged pages are emptied and their rows are gone, with a warning only.",
        f"{DEVELOPER}#GUC-ZERO-DAMAGED-PAGES",
        "ALTER SYSTEM SET zero_damaged_pages = on",
        bad_setting("zero_damaged_pages", lambda s: s.on, "off"),
    ),
    Check(
        "ignore-checksum-failure",
        Severity.ERROR,
        "ignore_checksum_failure is on",
        "Damage is read, copied and written again as if it were sound.",
        f"{DEVELOPER}#GUC-IGNORE-CHECKSUM-FAILURE",
        "ALTER SYSTEM SET ignore_checksum_failure = on",
        bad_setting("ignore_checksum_failure", lambda s: s.on, "off"),
    ),
    Check(
        "checksums-off",
        Severity.WARNING,
        "data checksums are off",
        "A disk that returns wrong pages is not detected; a damaged leader can go on being copied.",
        "https://www.postgresql.org/docs/current/checksums.html",
        "initdb --no-data-checksums",
        _checksums,
    ),
    Check(
        "checksum-failures",
        Severity.ERROR,
        "checksum failures were counted",
        "Data on this member is damaged.",
        "https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-DATABASE-VIEW",
        "overwrite a page of a table's file, then read it",
        _checksum_failures,
    ),
    Check(
        "wal-level-minimal",
        Severity.ERROR,
        "wal_level is minimal",
        "No standby and no archive can be fed: the disk is the only copy.",
        f"{WAL}#GUC-WAL-LEVEL",
        "wal_level = minimal, max_wal_senders = 0, restart",
        bad_setting("wal_level", lambda s: s.value == "minimal", "replica", restart=True),
    ),
    Check(
        "archive-failing",
        Severity.WARNING,
        "WAL archiving fails",
        "Point-in-time recovery ends where the archive does, and pg_wal fills the disk until the server stops.",
        "https://www.postgresql.org/docs/current/continuous-archiving.html",
        "archive_mode = on, archive_command = 'false', SELECT pg_switch_wal()",
        _archive,
    ),
    Check(
        "commit-delay",
        Severity.WARNING,
        "commit_delay is 10 ms or more",
        "Every commit waits this long before its flush whenever commit_siblings others are active.",
        f"{WAL}#GUC-COMMIT-DELAY",
        "ALTER SYSTEM SET commit_delay = 20000",
        _commit_delay,
    ),
    Check(
        "wide-window-of-off",
        Severity.WARNING,
        "level off is in use and wal_writer_delay is long",
        "A crash of PostgreSQL loses up to three times wal_writer_delay of acknowledged commits.",
        "https://www.postgresql.org/docs/current/wal-async-commit.html",
        "ALTER SYSTEM SET synchronous_commit = off; ALTER SYSTEM SET wal_writer_delay = '2s'",
        _window_of_off,
    ),
    Check(
        "unlogged-tables",
        Severity.NOTE,
        "there are unlogged tables",
        "They are emptied by a crash and do not exist on standbys.",
        "https://www.postgresql.org/docs/current/sql-createtable.html#SQL-CREATETABLE-UNLOGGED",
        "CREATE UNLOGGED TABLE t ()",
        _unlogged,
    ),
)


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

LEVEL_CHECKS = (
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
