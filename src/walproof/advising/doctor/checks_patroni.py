"""Checks of Patroni: its timeouts, its synchronous modes, its members, and what a version lacks."""

from collections.abc import Iterator

from walproof.advising.doctor.finding import Check, Hit, Severity, patch_cluster, set_patroni
from walproof.model.facts import Facts, PatroniMember
from walproof.patroni.config import DEFAULTS, LEAST, least_ttl

DYNAMIC = "https://patroni.readthedocs.io/en/latest/dynamic_configuration.html"
MODES = "https://patroni.readthedocs.io/en/latest/replication_modes.html"
WHERE = "Patroni dynamic configuration"


def _tagged(member: PatroniMember, tag: str) -> bool:
    return str(member.tags.get(tag, "false")).lower() == "true"


def _paused(facts: Facts) -> Iterator[Hit]:
    if facts.patroni and facts.patroni.paused:
        yield Hit("pause: true", "patronictl resume", WHERE)


def _timing(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) is None:
        return
    ttl, loop, retry = (patroni.number(name, default) for name, default in DEFAULTS.items())
    if ttl < (least := least_ttl(loop, retry)):
        fix = set_patroni("ttl", f"{least:g}")
        yield Hit(f"ttl {ttl:g} < loop_wait {loop:g} + 2 × retry_timeout {retry:g}", fix, WHERE)


def _ttl_long(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) and (ttl := patroni.number("ttl", DEFAULTS["ttl"])) > 60:
        yield Hit(f"ttl = {ttl:g} s", set_patroni("ttl", f"{DEFAULTS['ttl']}"), WHERE)


def _retry_short(facts: Facts) -> Iterator[Hit]:
    name, least = "retry_timeout", LEAST["retry_timeout"]
    if (patroni := facts.patroni) and (retry := patroni.number(name, DEFAULTS[name])) < least:
        yield Hit(f"{name} = {retry:g} s", set_patroni(name, f"{least}"), WHERE)


def _start_long(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) is None:
        return
    name = "primary_start_timeout" if "primary_start_timeout" in patroni.config else "master_start_timeout"
    if patroni.number(name, 300) > 300:
        yield Hit(f"{name} = {patroni.number(name, 300):g} s", set_patroni("primary_start_timeout", "60"), WHERE)


def _lag_async(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) and patroni.synchronous == "off" and patroni.standbys:
        allowed = patroni.number("maximum_lag_on_failover", 1 << 20)
        fix = set_patroni("synchronous_mode", "quorum" if patroni.version >= (4,) else "true")
        if allowed > 0:
            yield Hit(f"synchronous_mode off, maximum_lag_on_failover = {allowed:g} bytes", fix, WHERE)


def _lag_zero(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) and patroni.config.get("maximum_lag_on_failover") == 0:
        yield Hit(
            f"maximum_lag_on_failover = 0{' and strict' if patroni.strict else ''}",
            set_patroni("maximum_lag_on_failover", "1048576"),
            WHERE,
            severity=Severity.ERROR if patroni.strict else Severity.WARNING,
        )


def _strict_alone(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) and patroni.strict and patroni.synchronous == "off":
        yield Hit(
            "synchronous_mode_strict: true, synchronous_mode: off", set_patroni("synchronous_mode", "true"), WHERE
        )


def _strict_star(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) and patroni.strict and patroni.synchronous == "on" and () < patroni.version < (4, 2):
        version = ".".join(map(str, patroni.version))
        fix = "let no backup tool stream from the leader without its own slot and name; prefer synchronous_mode quorum"
        yield Hit(f"strict mode on Patroni {version}: names become '*' when no standby is left", fix, WHERE)


def _not_strict(facts: Facts) -> Iterator[Hit]:
    """Only where no spare is left: with one, losing a standby leaves the guarantee as it was."""
    if (patroni := facts.patroni) is None or patroni.synchronous == "off" or patroni.strict:
        return
    able = [m for m in patroni.standbys if not _tagged(m, "nosync") and not _tagged(m, "nofailover")]
    wanted = int(patroni.number("synchronous_node_count", 1))
    if len(able) <= wanted:
        evidence = f"{len(able)} standbys can be synchronous, {wanted} must be, and the mode is not strict"
        yield Hit(evidence, "add a standby, or " + set_patroni("synchronous_mode_strict", "true"), WHERE)


def _failsafe(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) is None or len(patroni.members) < 2:
        return
    if patroni.version and patroni.version < (3,):
        version = ".".join(map(str, patroni.version))
        evidence = f"Patroni {version} has no failsafe_mode (it came with 3.0)"
        yield Hit(evidence, "upgrade to Patroni 3 or later", "GET /patroni")
    elif str(patroni.config.get("failsafe_mode", False)).lower() not in ("true", "on"):
        yield Hit("failsafe_mode: off", set_patroni("failsafe_mode", "true"), WHERE)


def _mode_by_version(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) and patroni.synchronous == "quorum" and () < patroni.version < (4,):
        version = ".".join(map(str, patroni.version))
        fix = f"upgrade every member to Patroni 4, or {set_patroni('synchronous_mode', 'true')}"
        yield Hit(f"synchronous_mode: quorum, but a member runs Patroni {version}", fix, WHERE)


def _mixed(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) and len({m.version for m in patroni.members if m.version}) > 1:
        listed = ", ".join(f"{m.name} {m.version}" for m in patroni.members)
        yield Hit(listed, "bring every member to one version", "GET /patroni")


def _count(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) is None or patroni.synchronous == "off":
        return
    wanted, there = int(patroni.number("synchronous_node_count", 1)), len(patroni.standbys)
    if wanted > there:
        fix = set_patroni("synchronous_node_count", str(max(1, there)))
        yield Hit(f"synchronous_node_count = {wanted}, {there} standbys", fix, WHERE)


def _nobody_eligible(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) is None:
        return
    standbys = patroni.standbys
    if standbys and all(_tagged(m, "nofailover") for m in standbys):
        fix = "remove `nofailover: true` from the tags of one standby's patroni.yml, then patronictl reload"
        yield Hit(f"nofailover on {', '.join(m.name for m in standbys)}", fix, "tags in patroni.yml")


def _nobody_syncs(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) is None or patroni.synchronous == "off":
        return
    standbys = patroni.standbys
    if standbys and all(_tagged(m, "nosync") for m in standbys):
        fix = "remove `nosync: true` from the tags of one standby's patroni.yml, then patronictl reload"
        yield Hit(f"nosync on {', '.join(m.name for m in standbys)}", fix, "tags in patroni.yml")


def _rewind(facts: Facts) -> Iterator[Hit]:
    if (patroni := facts.patroni) is None or (leader := facts.leader) is None:
        return
    wanted = str((patroni.config.get("postgresql") or {}).get("use_pg_rewind", False)).lower() in ("true", "on")
    able = leader.value("data_checksums") == "on" or leader.value("wal_log_hints") == "on"
    if not wanted:
        fix = set_patroni("postgresql.use_pg_rewind", "true")
        yield Hit("postgresql.use_pg_rewind: false", fix, WHERE)
    elif not able:
        fix = "patronictl edit-config --pg wal_log_hints=on --force && patronictl restart CLUSTER"
        yield Hit("use_pg_rewind, but data_checksums and wal_log_hints are off", fix, WHERE, leader.name)


def _erases(facts: Facts) -> Iterator[Hit]:
    if facts.patroni is None:
        return
    postgresql = facts.patroni.config.get("postgresql") or {}
    for name in ("remove_data_directory_on_rewind_failure", "remove_data_directory_on_diverged_timelines"):
        if str(postgresql.get(name, False)).lower() in ("true", "on"):
            yield Hit(f"postgresql.{name}: true", set_patroni(f"postgresql.{name}", "false"), WHERE)


def _state(facts: Facts) -> Iterator[Hit]:
    for member in facts.patroni.members if facts.patroni else ():
        if member.state not in ("running", "streaming", "in archive recovery"):
            yield Hit(
                f"state: {member.state}", "patronictl list; see the member's Patroni log", "/cluster", member.name
            )


def _no_leader(facts: Facts) -> Iterator[Hit]:
    patroni = facts.patroni
    if patroni and len(patroni.standbys) == len(patroni.members):
        fix = "patronictl list; patronictl failover CLUSTER --candidate MEMBER when you know which has everything"
        yield Hit("no member holds the leader key", fix, "/cluster")


def _no_standby(facts: Facts) -> Iterator[Hit]:
    alone = facts.patroni is not None and len(facts.patroni.members) == 1
    if alone or (facts.patroni is None and facts.leader is not None and not facts.leader.senders):
        fix = "add a standby: pg_basebackup -R, or start a second Patroni member"
        yield Hit("no standby streams", fix if facts.cnpg is None else patch_cluster(facts, {"instances": 3}), "")


CHECKS = (
    Check(
        "patroni-paused",
        Severity.WARNING,
        "Patroni is paused",
        "No failover: a dead leader stays dead.",
        "https://patroni.readthedocs.io/en/latest/pause.html",
        "patronictl pause",
        _paused,
    ),
    Check(
        "patroni-clockwork",
        Severity.ERROR,
        "ttl is less than loop_wait + 2 × retry_timeout",
        "A leader may lose its key while it is healthy, or keep writing after the key is gone.",
        DYNAMIC,
        "ttl: 20, loop_wait: 10, retry_timeout: 10",
        _timing,
    ),
    Check(
        "patroni-ttl-long",
        Severity.WARNING,
        "ttl is over 60 s",
        "A dead leader is detected only after the ttl: no writes until then, local commits on a cut-off leader lost.",
        DYNAMIC,
        "ttl: 120",
        _ttl_long,
    ),
    Check(
        "patroni-retry-short",
        Severity.WARNING,
        "retry_timeout is under 3 s",
        "A short hiccup of DCS or PostgreSQL demotes a healthy leader.",
        DYNAMIC,
        "retry_timeout: 2",
        _retry_short,
    ),
    Check(
        "patroni-start-timeout-long",
        Severity.WARNING,
        "a crashed leader may try to start for over 5 minutes",
        "No writes until it stops trying and a standby takes over.",
        DYNAMIC,
        "primary_start_timeout: 900",
        _start_long,
    ),
    Check(
        "patroni-asynchronous",
        Severity.WARNING,
        "failover to an asynchronous standby",
        "The new leader lacks the last commits: up to maximum_lag_on_failover may be lost, as last reported.",
        f"{MODES}#asynchronous-mode-durability",
        "synchronous_mode: off",
        _lag_async,
    ),
    Check(
        "patroni-lag-zero",
        Severity.WARNING,
        "maximum_lag_on_failover is 0",
        "No standby is ever eligible: internal WAL after the last commit counts as lag (patroni#3703).",
        DYNAMIC,
        "maximum_lag_on_failover: 0",
        _lag_zero,
    ),
    Check(
        "patroni-strict-without-mode",
        Severity.ERROR,
        "strict without synchronous mode",
        "Strict alone does nothing: the cluster is asynchronous.",
        f"{MODES}#synchronous-mode",
        "synchronous_mode: off, synchronous_mode_strict: true",
        _strict_alone,
    ),
    Check(
        "patroni-strict-star",
        Severity.NOTE,
        "strict mode may be satisfied by any receiver",
        "When the last standby disconnects, names become '*': a backup tool then acknowledges commits (patroni#789).",
        f"{MODES}#synchronous-mode",
        "synchronous_mode_strict: true on Patroni 4.1 or older",
        _strict_star,
    ),
    Check(
        "patroni-not-strict",
        Severity.WARNING,
        "without the last standby there is no guarantee",
        "When it disconnects, commits silently become local (patroni#2525).",
        f"{MODES}#synchronous-mode",
        "synchronous_mode on with a single standby",
        _not_strict,
    ),
    Check(
        "patroni-failsafe-off",
        Severity.WARNING,
        "failsafe mode is off",
        "When etcd, Consul or ZooKeeper is unavailable, a healthy leader demotes itself: no writes.",
        "https://patroni.readthedocs.io/en/latest/dcs_failsafe_mode.html",
        "failsafe_mode: false",
        _failsafe,
    ),
    Check(
        "patroni-quorum-needs-4",
        Severity.ERROR,
        "quorum mode on a Patroni that lacks it",
        "Members before 4.0 do not know quorum commit: they may promote a standby that lacks commits.",
        f"{MODES}#quorum-commit-mode",
        "synchronous_mode: quorum with a member of Patroni 3",
        _mode_by_version,
    ),
    Check(
        "patroni-mixed-versions",
        Severity.WARNING,
        "members run different Patroni versions",
        "They may read the configuration differently just when it matters.",
        "https://patroni.readthedocs.io/en/latest/releases.html",
        "one member upgraded",
        _mixed,
    ),
    Check(
        "patroni-node-count",
        Severity.WARNING,
        "more synchronous standbys required than there are",
        "Strict mode stops writes; otherwise the guarantee is weaker than configured.",
        f"{MODES}#synchronous-replication-factor",
        "synchronous_node_count: 3 with two standbys",
        _count,
    ),
    Check(
        "patroni-nobody-eligible",
        Severity.ERROR,
        "every standby is tagged nofailover",
        "When the leader dies no standby takes over.",
        "https://patroni.readthedocs.io/en/latest/yaml_configuration.html#tags",
        "nofailover: true on all standbys",
        _nobody_eligible,
    ),
    Check(
        "patroni-nobody-synchronous",
        Severity.ERROR,
        "every standby is tagged nosync",
        "Synchronous mode finds no standby: commits are local, or hang in strict mode.",
        "https://patroni.readthedocs.io/en/latest/yaml_configuration.html#tags",
        "nosync: true on all standbys",
        _nobody_syncs,
    ),
    Check(
        "patroni-no-rewind",
        Severity.WARNING,
        "an old leader cannot be rewound",
        "After a failover it must be copied anew: hours with one copy less.",
        "https://www.postgresql.org/docs/current/app-pgrewind.html",
        "use_pg_rewind: false",
        _rewind,
    ),
    Check(
        "patroni-erases-divergence",
        Severity.NOTE,
        "a diverged member's data is erased automatically",
        "The only copy of acknowledged commits a failover left behind may be on it.",
        "https://patroni.readthedocs.io/en/latest/yaml_configuration.html#postgresql",
        "remove_data_directory_on_diverged_timelines: true",
        _erases,
    ),
    Check(
        "patroni-member-down",
        Severity.ERROR,
        "a member is not running",
        "There is one copy less than configured.",
        "https://patroni.readthedocs.io/en/latest/rest_api.html",
        "stop a member's PostgreSQL",
        _state,
    ),
    Check(
        "patroni-no-leader",
        Severity.ERROR,
        "the cluster has no leader",
        "No writes at all.",
        "https://patroni.readthedocs.io/en/latest/rest_api.html",
        "stop every member but a nofailover one",
        _no_leader,
    ),
    Check(
        "no-standby",
        Severity.ERROR,
        "there is no standby",
        "Losing this machine loses everything, at every commit level.",
        "https://www.postgresql.org/docs/current/high-availability.html",
        "a single server",
        _no_standby,
    ),
)
