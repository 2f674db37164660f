"""Checks of Patroni: its timeouts, its synchronous modes, its members, and what a version lacks."""

from collections.abc import Callable, Iterator, Mapping

from walproof.advising.doctor.checks_durability import names_of
from walproof.advising.doctor.finding import (
    Hit,
    Rule,
    Severity,
    best_mode,
    bring_back,
    checks_of,
    listed,
    of_patroni,
    patch_cluster,
    set_patroni,
)
from walproof.machine.quoting import Pasted, pasted
from walproof.model.facts import Facts, PatroniFacts
from walproof.model.patroni_values import (
    ADJUSTS,
    DEFAULTS,
    LEAST,
    NUMBERS,
    ignored,
    is_on,
    misread,
    nofailover,
    number,
    primary_start_timeout,
    refused,
    stated,
    synchronous_node_count,
    times,
)
from walproof.model.units import counted

WHERE = "Patroni dynamic configuration"
_LAG = "maximum_lag_on_failover"
_WAL_PAGE = 8192
"""bytes: PostgreSQL's own records after the last commit, of a checkpoint or of running transactions, fill as much."""


def _set(evidence: str, name: str, value: object, severity: Severity | None = None) -> Hit:
    """What a key of the dynamic configuration cures."""
    return Hit(evidence, set_patroni(name, str(value)), WHERE, severity=severity)


def _of_postgresql(patroni: PatroniFacts, name: str) -> bool:
    """A key that Patroni takes for on whenever it holds anything: "off" too (postgresql/rewind.py)."""
    section = patroni.config.get("postgresql")
    return isinstance(section, dict) and bool(section.get(name))


def _version(patroni: PatroniFacts) -> str:
    return ".".join(map(str, patroni.version))


def _written(patroni: PatroniFacts) -> dict[str, int]:
    """The timeouts as they are written, s; Patroni's defaults where one is not, and none where it refuses them all."""
    if refused(patroni.config):
        return {}
    return {name: int(patroni.config.get(name, default)) for name, default in DEFAULTS.items()}


def _adjusts(patroni: PatroniFacts) -> bool:
    """Whether its Patroni makes its timeouts fit one another."""
    return not patroni.version or patroni.version >= ADJUSTS


@of_patroni
def _patroni_value_ignored(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    config, former = patroni.config, "Patroni refuses its timeouts and PostgreSQL's section and keeps the former ones"
    for name in refused(config):
        if name in DEFAULTS:
            fix = pasted(
                "{set:composed}, or another whole number of seconds", set=set_patroni(name, str(DEFAULTS[name]))
            )
            yield Hit(f"{stated(name, config[name])} is no whole number: {former}", fix, WHERE, "", Severity.ERROR)
        else:
            fix = pasted("patronictl edit-config: write names and values under {name:words}", name=name)
            yield Hit(f"{name} holds no names and values: {former}", fix, WHERE, "", Severity.ERROR)
    for name, used in ignored(config).items():
        other = "another number without a unit" if name in NUMBERS else "true"
        fix = pasted("{set:composed}, or " + other, set=set_patroni(name, used))
        yield Hit(f"{stated(name, config[name])} is none that Patroni reads: it uses {used}", fix, WHERE)
    for name, seconds in _written(patroni).items():
        if seconds < LEAST[name] and _adjusts(patroni) and name != "retry_timeout":
            yield _set(f"{name} = {seconds} s: Patroni uses {LEAST[name]} s", name, LEAST[name])
    if patroni.synchronous != "off" and (count := synchronous_node_count(config)) < 1:
        yield _set(f"synchronous_node_count = {count}, less than Patroni's least", "synchronous_node_count", 1)


@of_patroni
def _patroni_tag_misread(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    fix = pasted(
        "patroni.yml of that member: true or false, or a whole number, unquoted; then patronictl reload CLUSTER"
    )
    for member in patroni.members:
        if clauses := misread(member.tags):
            yield Hit("to Patroni " + ", and ".join(clauses), fix, "tags in patroni.yml", member.name)


@of_patroni
def _patroni_clockwork(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if (given := _written(patroni)) and given["ttl"] < (least := given["loop_wait"] + 2 * given["retry_timeout"]):
        evidence = "ttl {ttl} < loop_wait {loop_wait} + 2 × retry_timeout {retry_timeout}".format_map(given)
        if _adjusts(patroni):
            used = "ttl {}, loop_wait {}, retry_timeout {}".format(*times(patroni.config))
            yield _set(f"{evidence}: Patroni uses {used}", "ttl", least, Severity.WARNING)
        else:
            yield _set(evidence, "ttl", least)


@of_patroni
def _patroni_ttl_long(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if (ttl := _written(patroni).get("ttl", 0)) > 60:
        yield _set(f"ttl = {ttl} s", "ttl", DEFAULTS["ttl"])


@of_patroni
def _patroni_retry_short(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    name = "retry_timeout"
    if (retry := _written(patroni).get(name, LEAST[name])) < LEAST[name]:
        used = f": Patroni uses {LEAST[name]} s" if _adjusts(patroni) else ""
        yield _set(f"{name} = {retry} s{used}", name, LEAST[name])


@of_patroni
def _patroni_start_timeout_long(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if (start := primary_start_timeout(patroni.config)) > 300:
        yield _set(f"primary_start_timeout = {start} s", "primary_start_timeout", 60)


@of_patroni
def _patroni_asynchronous(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if patroni.synchronous != "off" or not patroni.standbys:
        return
    if (allowed := number(patroni.config, _LAG)) > 0:
        evidence = f"synchronous_mode off, {_LAG} = {allowed} bytes"
        yield _set(evidence, "synchronous_mode", best_mode(patroni))


@of_patroni
def _patroni_lag_zero(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if (allowed := number(patroni.config, _LAG)) < _WAL_PAGE:
        severity = Severity.ERROR if patroni.strict else Severity.WARNING
        yield _set(f"{_LAG} = {allowed} bytes{' and strict' if patroni.strict else ''}", _LAG, NUMBERS[_LAG], severity)


@of_patroni
def _patroni_strict_without_mode(facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if patroni.strict and patroni.synchronous == "off":
        named = Severity.WARNING if names_of(facts) else None
        yield _set("synchronous_mode_strict: true, synchronous_mode: off", "synchronous_mode", "true", named)


@of_patroni
def _patroni_strict_star(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if patroni.strict and patroni.synchronous == "on" and () < patroni.version < (4, 2):
        evidence = f"strict mode on Patroni {_version(patroni)}: names become '*' when no standby is left"
        fix = pasted(
            "let no backup tool stream from the leader without its own slot and name; prefer synchronous_mode quorum"
        )
        yield Hit(evidence, fix, WHERE)


@of_patroni
def _patroni_not_strict(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    """Only where no spare is left: with one, losing a standby leaves the guarantee as it was."""
    if patroni.synchronous == "off" or patroni.strict or _none_named(patroni):
        return
    able = [m for m in patroni.able if not nofailover(m.tags)]
    wanted = synchronous_node_count(patroni.config)
    if len(able) <= wanted:
        evidence = f"{len(able)} standbys can be synchronous, {wanted} must be, and the mode is not strict"
        yield Hit(evidence + listed(patroni.barred, "; "), _or_set(patroni, "synchronous_mode_strict", "true"), WHERE)


@of_patroni
def _patroni_failsafe_off(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if len(patroni.members) < 2:
        return
    if () < patroni.version < (3,):
        evidence = f"Patroni {_version(patroni)} has no failsafe_mode (it came with 3.0)"
        yield Hit(evidence, pasted("upgrade to Patroni 3 or later"), "GET /patroni")
    elif not is_on(patroni.config, "failsafe_mode"):
        yield _set("failsafe_mode: off", "failsafe_mode", "true")


@of_patroni
def _patroni_quorum_needs_4(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if patroni.synchronous == "quorum" and () < patroni.version < (4,):
        fix = pasted(
            "upgrade every member to Patroni 4, or {set:composed}", set=set_patroni("synchronous_mode", "true")
        )
        yield Hit(f"synchronous_mode: quorum, but a member runs Patroni {_version(patroni)}", fix, WHERE)


@of_patroni
def _patroni_mixed_versions(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if len({m.version for m in patroni.members if m.version}) > 1:
        listed = ", ".join(f"{m.name} {m.version}" for m in patroni.members)
        yield Hit(listed, pasted("bring every member to one version"), "GET /patroni")


@of_patroni
def _patroni_node_count(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if patroni.synchronous == "off" or _none_named(patroni):
        return
    name, there = "synchronous_node_count", len(patroni.able)
    if (wanted := synchronous_node_count(patroni.config)) > there:
        evidence = f"{name} = {wanted}, {counted(there, 'standby')} that may be synchronous"
        yield Hit(evidence + listed(patroni.barred, "; "), _or_set(patroni, name, str(max(1, there))), WHERE)


def _or_set(patroni: PatroniFacts, name: str, value: str) -> Pasted:
    """Let one more standby be named, or set that key."""
    spare = next((bring_back(*one) for one in patroni.barred.items()), pasted("add a standby"))
    return pasted("{spare:composed}; or {set:composed}", spare=spare, set=set_patroni(name, value))


def _none_named(patroni: PatroniFacts) -> Mapping[str, str]:
    """Why Patroni names none of the standbys in a synchronous mode: one finding, whatever else follows of it."""
    all_barred = patroni.synchronous != "off" and len(patroni.barred) == len(patroni.standbys)
    return patroni.barred if all_barred else {}


def _none_left(barred: Callable[[PatroniFacts], Mapping[str, str]]) -> Rule:
    """A rule that finds that every standby is barred, and says by what."""

    @of_patroni
    def find(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
        reasons = barred(patroni)
        if reasons and len(reasons) == len(patroni.standbys):
            passing = Severity.WARNING if any(why.startswith("behind") for why in reasons.values()) else None
            yield Hit(listed(reasons), bring_back(*next(iter(reasons.items()))), "/cluster", severity=passing)

    return find


def _barred_from_lead(patroni: PatroniFacts) -> Mapping[str, str]:
    """With a mode, the tags and what is not named; without one, how far each is behind, too."""
    unnamed, most = _none_named(patroni), number(patroni.config, _LAG)
    reasons = {name: why for name, why in patroni.ineligible.items() if unnamed.get(name) != why}
    for member in patroni.standbys if patroni.synchronous == "off" and most >= _WAL_PAGE else ():
        if (lag := member.lag_bytes or 0) > most:
            reasons.setdefault(member.name, f"behind: {lag} bytes, over {_LAG}")
    return reasons


@of_patroni
def _patroni_no_rewind(facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if (leader := facts.leader) is None:
        return
    name, section = "postgresql.use_pg_rewind", patroni.config.get("postgresql")
    if not isinstance(section, dict) or "use_pg_rewind" not in section:
        yield _set(f"{name} is not set here; a member's patroni.yml may set it", name, "true", Severity.NOTE)
    elif not _of_postgresql(patroni, "use_pg_rewind"):
        yield _set(f"{name}: false", name, "true")
    elif "on" not in (leader.value("data_checksums"), leader.value("wal_log_hints")):
        fix = pasted("patronictl edit-config --pg wal_log_hints=on --force && patronictl restart CLUSTER")
        yield Hit("use_pg_rewind, but data_checksums and wal_log_hints are off", fix, WHERE, leader.name)


@of_patroni
def _patroni_erases_divergence(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    for name in ("remove_data_directory_on_rewind_failure", "remove_data_directory_on_diverged_timelines"):
        if _of_postgresql(patroni, name):
            yield _set(f"postgresql.{name}: true", f"postgresql.{name}", "false")


@of_patroni
def _patroni_member_down(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    for member in patroni.members:
        if member.state not in ("running", "streaming", "in archive recovery"):
            fix = pasted("patronictl list; see the member's Patroni log")
            yield Hit(f"state: {member.state}", fix, "/cluster", member.name)


@of_patroni
def _patroni_no_leader(_facts: Facts, patroni: PatroniFacts) -> Iterator[Hit]:
    if len(patroni.standbys) == len(patroni.members):
        fix = pasted(
            "patronictl list; patronictl failover CLUSTER --candidate MEMBER when you know which has everything"
        )
        yield Hit("no member holds the leader key", fix, "/cluster")


def _no_standby(facts: Facts) -> Iterator[Hit]:
    alone = facts.patroni is not None and len(facts.patroni.members) == 1
    if alone or (facts.patroni is None and facts.leader is not None and not facts.leader.senders):
        fix = pasted("add a standby: pg_basebackup -R, or start a second Patroni member")
        yield Hit("no standby streams", fix if facts.cnpg is None else patch_cluster(facts.cnpg, {"instances": 3}), "")


_patroni_nobody_eligible = _none_left(_barred_from_lead)
_patroni_nobody_synchronous = _none_left(_none_named)

CHECKS = checks_of("patroni", globals())
