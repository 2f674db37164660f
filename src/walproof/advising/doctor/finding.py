"""Severity, check, hit and finding of the doctor; how checks run over facts, and how fixes are written."""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib import resources
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from walproof.machine.quoting import Pasted, pasted
from walproof.model.cnpg_facts import CnpgFacts
from walproof.model.declared import Place
from walproof.model.facts import Facts, MemberFacts, Namer, PatroniFacts, SettingFact

P = TypeVar("P")


class Severity(StrEnum):
    """ERROR: acknowledged commits can be lost or writes hang now. WARNING: after one fault. NOTE: know it."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Hit:
    """One occurrence: the evidence (value), where it is set, the fix to paste, the member concerned."""

    evidence: str
    fix: Pasted
    where: str = ""
    member: str = ""
    severity: Severity | None = None
    """Where this occurrence is more or less severe than its check."""


Rule = Callable[[Facts], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its texts, where they are documented, how to cause it on purpose (`seed`), and its rule."""

    id: str
    severity: Severity
    title: str
    could_cost: str
    source: str
    seed: str
    find: Rule
    files: str = "settings"
    """What files must hold for it to run on them: parts of Declared; or "live: " and what they never tell."""
    shown: str = ""
    """The pitfalls that show what it is about, and after a semicolon a drill's options."""
    keys: str = ""
    """Keys that a finding in files points to, where its evidence names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A check that found something; `member` is "" where it is about the cluster, several names where about several."""

    id: str
    severity: Severity
    title: str
    member: str
    evidence: str
    where: str
    could_cost: str
    fix: str
    source: str
    place: Place | None = None
    """Where a file has it; None of a live cluster."""
    accepted: str = ""
    """Why it is accepted and until when; "" where it is not."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found in one cluster, and which checks did not run (by id, with the reason); none of a live one's."""

    target: str
    findings: tuple[Finding, ...]
    not_checked: Mapping[str, str] = field(default_factory=dict)


_ORDER = list(Severity)


def checks_of(group: str, rules: Mapping[str, Any]) -> tuple[Check, ...]:
    """The checks of checks_GROUP.toml, with the rules in the file beside it: that of level-off is _level_off.

    A rule that compares one value with its least and its most is in the table itself.
    """
    texts = tomllib.loads((resources.files(__package__) / f"checks_{group}.toml").read_text("utf-8"))
    made = []
    for name, its in texts.items():
        own = {"files": group if group in ("patroni", "cnpg") else "settings"} | its
        fields = {key: own[key] for key in Check.__slots__ if key in own} | {"severity": Severity(its["severity"])}
        find = rules.get(f"_{name.replace('-', '_')}") or partial(_compared, its)
        made.append(Check(id=name, find=find, **fields))
    return tuple(made)


def _compared(its: Mapping[str, Any], facts: Facts) -> Iterator[Hit]:
    """Hits as a table has them: `each` that is looked at, its `value`, and what excuses it (`unless`)."""
    each = attrgetter(its["each"])(facts)
    for it in each if isinstance(each, tuple) else [each] if each else []:
        for name, (least, most, good) in its.get("limits", {}).items():
            if (seconds := it.seconds(name)) is not None and not least <= seconds <= most:
                yield Hit(f"{name} = {seconds:g}", pasted(name + " = " + good), "", it.name)
        if "value" not in its:
            continue
        value = attrgetter(its["value"])(it)
        excused = "unless" in its and attrgetter(its["unless"])(it)
        if value is None or excused or its.get("least", -inf) <= value <= its.get("most", inf):
            continue
        words = {key: its.get(key, "").format(it=it, value=value) for key in ("evidence", "where", "member")}
        fix = pasted(its.get("fix", ""), it=it, value=value)
        if facts.cnpg is not None and "patch" in its:
            fix = patch_cluster(facts.cnpg, its["patch"])
        yield Hit(fix=fix, **words)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity, then by id and member."""
    return tuple(sorted(findings, key=lambda f: (_ORDER.index(f.severity), f.id, f.member)))


def finding_of(check: Check, hit: Hit, place: Place | None = None) -> Finding:
    """The check's texts and what was seen."""
    texts = {name: getattr(check, name) for name in ("id", "title", "could_cost", "source")}
    seen = {name: getattr(hit, name) for name in ("member", "evidence", "where", "fix")}
    return Finding(severity=hit.severity or check.severity, place=place, **texts, **seen)


def in_common(hits: Iterable[Hit]) -> Iterator[Hit]:
    """Those that differ in their member alone as one, whose member is all of theirs: "pg-1, pg-2"."""
    members: dict[Hit, list[str]] = {}
    for hit in hits:
        members.setdefault(replace(hit, member=""), []).append(hit.member)
    for hit, names in members.items():
        yield replace(hit, member=", ".join(filter(None, dict.fromkeys(names))))


def given(part: Callable[[Facts], P | None]) -> Callable[[Callable[[Facts, P], Iterator[Hit]]], Rule]:
    """A decorator of rules about one part of the snapshot, which they get; they find nothing where it is missing."""

    def decorated(rule: Callable[[Facts, P], Iterator[Hit]]) -> Rule:
        def find(facts: Facts) -> Iterator[Hit]:
            if (its := part(facts)) is not None:
                yield from rule(facts, its)

        return find

    return decorated


of_leader = given(lambda facts: facts.leader)
of_patroni = given(lambda facts: facts.patroni)
of_cnpg = given(lambda facts: facts.cnpg)


def setting_hit(
    member: MemberFacts, setting: SettingFact, fix: Pasted, *, more: str = "", severity: Severity | None = None
) -> Hit:
    """A hit whose evidence is the value of one setting, with `more` after it."""
    return Hit(f"{setting.name} = {setting.text}{more}", fix, setting.where, member.name, severity)


_KEEPING_NOTHING = frozenset(("true", "false", ":", "cd", "exit", "echo", "printf", "test", "[", "sleep", "return"))


def keeps_archive(member: MemberFacts) -> bool:
    """Whether archiving is on and may keep WAL: by a library, or by a command that is more than a no-op."""
    command = member.value("archive_command", "?").strip()
    first = command.split()[0].strip("'\"").rpartition("/")[2] if command else "true"
    does_more = first not in _KEEPING_NOTHING or any(sign in command for sign in "|&;<>`(")
    return member.value("archive_mode", "off") != "off" and (member.value("archive_library") != "" or does_more)


def bad_setting(
    name: str,
    bad: Callable[[SettingFact], bool],
    good: str,
    *,
    members: Callable[[Facts], Iterable[MemberFacts]] = lambda facts: facts.inspected,
    severity: Callable[[Facts, MemberFacts], Severity | None] = lambda _facts, _member: None,
    restart: bool = False,
) -> Rule:
    """A rule that finds one setting of every member whose value is `bad`; the fix sets `good`."""

    def find(facts: Facts) -> Iterator[Hit]:
        for member in members(facts):
            setting = member.setting(name)
            if setting is not None and bad(setting):
                fix = set_anywhere(facts, name, good, restart=restart)
                yield setting_hit(member, setting, fix, severity=severity(facts, member))

    return find


def set_anywhere(facts: Facts, name: str, value: str, *, restart: bool = False) -> Pasted:
    """The fix as the manager takes it: patronictl or kubectl where one writes the configuration, else ALTER SYSTEM."""
    if facts.cnpg is not None:
        return patch_cluster(facts.cnpg, {"postgresql": {"parameters": {name: value}}})
    if facts.patroni is None or facts.by_alter_system(name):
        then = pasted("restart PostgreSQL" if restart else "SELECT pg_reload_conf();")
        return pasted(
            "ALTER SYSTEM SET {name:words} = {value:sql_text}; {then:composed}", name=name, value=value, then=then
        )
    then = pasted(" && patronictl restart CLUSTER" if restart else "")
    return pasted("patronictl edit-config --pg {pair:shell} --force{then:composed}", pair=f"{name}={value}", then=then)


def patch_cluster(cnpg: CnpgFacts, spec: dict[str, Any]) -> Pasted:
    """The command that merges this into the Cluster's spec."""
    body = json.dumps({"spec": spec}, separators=(",", ":"))
    return pasted(
        "kubectl patch cluster {cnpg.name:argument} --namespace {cnpg.namespace:shell} "
        "--type merge --patch {body:shell}",
        cnpg=cnpg,
        body=body,
    )


def in_pod(cnpg: CnpgFacts, member: str, command: Pasted) -> Pasted:
    """The command that runs another one in an instance's container."""
    return pasted(
        "kubectl exec {member:argument} --namespace {cnpg.namespace:shell} --container postgres -- {command:composed}",
        cnpg=cnpg,
        member=member,
        command=command,
    )


def set_patroni(name: str, value: str) -> Pasted:
    """The command that sets a key of Patroni's dynamic configuration."""
    return pasted("patronictl edit-config --set {pair:shell} --force", pair=f"{name}={value}")


def reset_names(facts: Facts) -> Pasted:
    """How a manager's own standby names come into effect again where ALTER SYSTEM set others; "" where none did."""
    if facts.namer is Namer.OPERATOR or not facts.by_alter_system("synchronous_standby_names"):
        return pasted("")
    if facts.cnpg is None:
        return pasted("ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf();")
    return reset_all(facts, facts.cnpg)


def reset_all(facts: Facts, cnpg: CnpgFacts) -> Pasted:
    """How CloudNativePG's own values come into effect again."""
    patch = patch_cluster(cnpg, {"postgresql": {"enableAlterSystem": False}})
    command = pasted("psql --command 'ALTER SYSTEM RESET ALL' --command 'SELECT pg_reload_conf()'")
    reset = in_pod(cnpg, facts.leader_name, command)
    return pasted("{reset:composed}; then {patch:composed}", reset=reset, patch=patch)


def listed(reasons: Mapping[str, str], before: str = "") -> str:
    """Members and why each is barred, after `before` where there are any.

    >>> listed({"n2": "nosync: true", "n3": "state: stopped"}, "; ")
    '; nosync: true on n2, state: stopped on n3'
    """
    return before * bool(reasons) + ", ".join(f"{why} on {name}" for name, why in reasons.items())


def bring_back(member: str, why: str) -> Pasted:
    """The fix for a member of Patroni's that is barred: the tag that goes, or the member that returns."""
    if why.startswith(("state: ", "behind: ")):
        return pasted("bring {member:words} back (patronictl list)", member=member)
    return pasted(
        "remove {why:shell} from the tags of {member:words} in its patroni.yml, "
        "then patronictl reload CLUSTER {member:argument}",
        why=why,
        member=member,
    )


def best_mode(patroni: PatroniFacts) -> str:
    """The synchronous_mode to set: quorum where every member knows it."""
    return "quorum" if patroni.version >= (4,) else "true"
