"""Checks of durability: the commit level that is set, in effect and overridden, and what reaches the disk.

fsync, page writes, checksums, damaged pages, archiving."""

from collections.abc import Iterator

from walproof.advising.doctor.finding import (
    Hit,
    Rule,
    Severity,
    bad_setting,
    best_mode,
    checks_of,
    keeps_archive,
    of_leader,
    patch_cluster,
    reset_names,
    set_anywhere,
    set_patroni,
    setting_hit,
)
from walproof.machine.quoting import Pasted, pasted
from walproof.model.facts import Facts, MemberFacts, Namer, Override
from walproof.model.guarantee import Level, Quorum, QuorumKind, read_standby_names
from walproof.model.standby_names import NO_STANDBYS, folded, why_no_name


def _checksums_off(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        if member.value("data_checksums") == "off":
            fix = pasted("stop PostgreSQL, then: pg_checksums --enable -D $PGDATA (standbys first, one at a time)")
            if facts.cnpg is not None:
                fix = pasted(
                    "only a new Cluster has them: spec.bootstrap.initdb.dataChecksums: true; import the data there"
                )
            yield Hit("data_checksums = off", fix, "initdb", member.name)


def _archive_keeps_nothing(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        setting = member.setting("archive_command")
        if setting is not None and member.value("archive_mode", "off") != "off" and not keeps_archive(member):
            fix = pasted("archive_command: what copies %p to where backups find it; or archive_mode = off, and restart")
            yield setting_hit(member, setting, fix)


def _commit_delay(facts: Facts) -> Iterator[Hit]:
    for member in facts.inspected:
        setting = member.setting("commit_delay")
        if setting is not None and float(setting.value) >= 10_000:
            yield setting_hit(member, setting, set_anywhere(facts, "commit_delay", "0"), more=" µs")


@of_leader
def _wide_window_of_off(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    setting = leader.setting("wal_writer_delay")
    used = leader.value("synchronous_commit") == "off" or any(
        o.value == "off" and o.what != "function" for o in leader.overrides
    )
    if setting is not None and setting.seconds > 0.2 and used:
        loss = f": level off loses up to {3 * setting.seconds:g} s"
        yield setting_hit(leader, setting, set_anywhere(facts, setting.name, "200ms"), more=loss)


def names_of(facts: Facts) -> str:
    """synchronous_standby_names in effect on the leader."""
    return facts.leader.value("synchronous_standby_names") if facts.leader else ""


def names_there(leader: MemberFacts) -> tuple[str, ...]:
    """Names to list, each once: of what streams from the leader, but of programs that are no standby."""
    names = {folded(s.application_name): s.application_name for s in leader.senders}
    return tuple(n for n in names.values() if not why_no_name(n) and n not in NO_STANDBYS) or ("standby1",)


def level_of(facts: Facts) -> Level | None:
    """synchronous_commit in effect on the leader; boolean spellings are already normalised by PostgreSQL."""
    value = facts.leader.value("synchronous_commit") if facts.leader else ""
    return Level(value) if value in set(Level) else None


@of_leader
def _remote_level_no_names(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    level = level_of(facts)
    if level is None or not level.remote or read_standby_names(names_of(facts)) is not None:
        return
    setting, patroni = leader.settings["synchronous_commit"], facts.patroni
    explicit = level is not Level.ON or setting.source != "default"
    if not explicit and not leader.senders and patroni is None:
        return
    if overridden := reset_names(facts):
        fix = overridden
    elif facts.cnpg is not None:
        fix = patch_cluster(facts.cnpg, {"postgresql": {"synchronous": {"method": "any", "number": 1}}})
    elif facts.namer is Namer.PATRONI:
        fix = pasted("bring a standby back: Patroni emptied the names because none is left (see patronictl list)")
    elif patroni is not None:
        fix = set_patroni("synchronous_mode", best_mode(patroni))
    else:
        fix = set_anywhere(facts, "synchronous_standby_names", Quorum(QuorumKind.ANY, 1, names_there(leader)).text)
    evidence = f"synchronous_commit = {level} and synchronous_standby_names = ''"
    yield Hit(evidence, fix, setting.where, leader.name, Severity.ERROR if explicit else Severity.WARNING)


def _level(bad: Level) -> Rule:
    @of_leader
    def find(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
        named = read_standby_names(names_of(facts)) is not None
        if level_of(facts) is bad and (named or bad is Level.OFF):
            fix = set_anywhere(facts, "synchronous_commit", "on")
            yield setting_hit(leader, leader.settings["synchronous_commit"], fix)

    return find


def _taken_back(override: Override) -> Pasted:
    if override.what == "source":
        return pasted("take it out of {name:words}: CREATE OR REPLACE …", name=override.name)
    return pasted("{reset:statement}", reset=override.reset)


def _override(kind: str) -> Rule:
    @of_leader
    def find(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
        level = level_of(facts)
        for override in leader.overrides:
            if override.what != kind or level is None:
                continue
            known = override.value in set(Level)
            weaker = not known or Level(override.value).strength < level.strength
            who = "function" if kind == "source" else kind
            database = f" in database {override.database}" if override.database else ""
            verb = "sets" if kind == "source" else "has"
            yield Hit(
                f"{who} {override.name}{database} {verb} synchronous_commit = {override.value}",
                _taken_back(override),
                {"function": "pg_proc.proconfig", "source": "pg_proc.prosrc"}.get(kind, "pg_db_role_setting"),
                leader.name,
                # PostgreSQL takes a clause's setting back when the function returns, before the transaction commits.
                Severity.WARNING if weaker and kind != "function" else Severity.NOTE,
            )

    return find


@of_leader
def _levels_differ(facts: Facts, leader: MemberFacts) -> Iterator[Hit]:
    level = leader.value("synchronous_commit")
    for member in facts.standbys:
        setting = member.setting("synchronous_commit")
        if setting is not None and setting.value != level:
            fix = set_anywhere(facts, "synchronous_commit", level)
            yield Hit(f"here {setting.value}, on the leader {level}", fix, setting.where, member.name)


_fsync_off = bad_setting("fsync", lambda s: not s.on, "on")
_full_page_writes_off = bad_setting("full_page_writes", lambda s: not s.on, "on")
_data_sync_retry = bad_setting("data_sync_retry", lambda s: s.on, "off", restart=True)
_zero_damaged_pages = bad_setting("zero_damaged_pages", lambda s: s.on, "off")
_ignore_checksum_failure = bad_setting("ignore_checksum_failure", lambda s: s.on, "off")
_wal_level_minimal = bad_setting("wal_level", lambda s: s.value == "minimal", "replica", restart=True)

CHECKS = checks_of("durability", globals())

_level_off = _level(Level.OFF)
_level_local = _level(Level.LOCAL)
_level_remote_write = _level(Level.REMOTE_WRITE)
_role_overrides_level = _override("role")
_database_overrides_level = _override("database")
_function_overrides_level = _override("function")
_function_sets_level = _override("source")

LEVEL_CHECKS = checks_of("level", globals())
