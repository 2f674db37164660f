"""Checks of what reaches the disk: fsync, page writes, checksums, damaged pages, archiving."""

from collections.abc import Iterator

from walproof.advising.doctor.finding import Check, Hit, Severity, bad_setting, set_anywhere, setting_hit
from walproof.model.facts import Facts
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
