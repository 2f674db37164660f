"""Live and in files the doctor says the same, check by check: of every configuration of the lab, as its own code writes
the files. A check that does not run on them says why."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fixtures.sick import member
from tests.fixtures.tiers import each
from walproof.advising.doctor import checks_path
from walproof.advising.doctor.catalogue import CATALOGUE, diagnosed
from walproof.advising.doctor.finding import Finding, Severity
from walproof.advising.doctor.of_files import examined_files
from walproof.lab import patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.client_access import haproxy_cfg, pgbouncer_ini
from walproof.lab.configuration import dynamic_config, lab_parameters, patroni_yml
from walproof.model.facts import Facts, PatroniFacts, PatroniMember, Sender, SettingFact
from walproof.model.guarantee import Quorum, QuorumKind
from walproof.patroni.config import SyncMode
from walproof.targets.choose import declared_in
from walproof.targets.files.access_path import access_path
from walproof.targets.files.settings import fact_of
from walproof.targets.lab.target import LabTarget
from walproof.targets.sql import doctor_facts

PASSWORDS = {"postgres": "pw-a", "replicator": "pw-b", "rewinder": "pw-c", "rest": "pw-d"}
UNSOUND = {"fsync": "off", "synchronous_commit": "local", "archive_mode": "on", "archive_command": "/bin/true"}
ONLY_IN_A_MEMBERS_FILE = {"patroni-erases-divergence"}
"""The live doctor reads the dynamic configuration alone; the lab has this in each member's own part."""


def blueprint(members: int, **more: Any) -> Blueprint:
    names = tuple(f"n{number}" for number in range(1, members + 1))
    return replace(Blueprint("lab", 9, names, Path("/state/lab"), Path("/pg/bin"), 18), **more)


# Of as many members as labs of the tests have.
EVERY = [
    (members, sync, quorum, timeouts, unsound)
    for members in (1, 2, 3, 5, 8)
    for sync in (SyncMode if members > 1 else (SyncMode.OFF,))
    for quorum in sorted({1, max(1, members - 1)})
    for timeouts in ("fast", "default")
    for unsound in (False, True)
]


def differing() -> Iterator[Blueprint]:
    """Of every way to be synchronous one lab, and of every two values of other factors one that has both."""
    seen: set[object] = set()
    for values in Random(34).sample(EVERY, len(EVERY)):  # in their order more of them would differ in one value alone
        members, sync, quorum, timeouts, unsound = values
        has = {values[:3], *combinations(enumerate(values), 2)}
        if not has <= seen:
            seen |= has
            parameters = UNSOUND if unsound else {}
            yield blueprint(members, sync=sync, quorum=quorum, timeouts=timeouts, parameters=parameters)


LABS = list(differing())


def in_effect(lab: Blueprint, name: str, names: str) -> dict[str, SettingFact]:
    """pg_settings of a member: what Patroni passes on, over PostgreSQL's own of the sound cluster's."""
    given = {n: fact_of(n, value) for n, value in lab_parameters(lab).items()}
    changed = {n: replace(fact, source="configuration file") for n, fact in given.items() if fact is not None}
    named = SettingFact("synchronous_standby_names", names)
    own = {n: replace(fact, source="default") for n, fact in member(name).settings.items()}
    return own | changed | {"synchronous_standby_names": named}


def live(lab: Blueprint) -> Facts:
    """What a live target gathers of this lab, every member well."""
    config = dynamic_config(lab)
    first, *others = lab.members
    names = ""
    if lab.sync is not SyncMode.OFF:
        kind = QuorumKind.ANY if lab.sync is SyncMode.QUORUM else QuorumKind.FIRST
        names = Quorum(kind, lab.quorum, tuple(others)).text
    state = "quorum" if names else "async"
    senders = tuple(Sender(name, sync_state=state, slot=name) for name in others)
    servers = [replace(member(first, leader=True), senders=senders, slots=())]
    servers += [member(name, number=number) for number, name in enumerate(others, 2)]
    roster = [PatroniMember(first, "leader", "running", 1, version="4.1.5")]
    roster += [PatroniMember(name, "replica", "streaming", 1, 0, version="4.1.5") for name in others]
    made = tuple(replace(server, settings=in_effect(lab, server.name, names)) for server in servers)
    access = access_path(haproxy_cfg(lab), pgbouncer_ini(lab, (1, 24)))
    return Facts("lab", made, PatroniFacts(config, tuple(roster)), access=access)


@each(LABS)
def test_live_and_files_agree_on_a_lab(lab: Blueprint, tmp_path: Path) -> None:
    for name in lab.members:
        (tmp_path / f"{name}.yml").write_text(patroni_yml(lab, name, PASSWORDS))
    (tmp_path / "haproxy.cfg").write_text(haproxy_cfg(lab))
    (tmp_path / "pgbouncer.ini").write_text(pgbouncer_ini(lab, (1, 24)))
    (declared,), skipped = declared_in([str(tmp_path)])
    assert skipped == {}
    examined = examined_files(declared)
    assert all(f.place is not None for f in examined.findings)
    in_files, lives = severities(examined.findings), severities(diagnosed(live(lab)))
    for check in CATALOGUE:
        reason = examined.not_checked.get(check.id)
        if check.files.startswith("live: "):
            assert reason == f"only a live cluster tells {check.files.removeprefix('live: ')}"
        if reason is not None:
            assert reason, check.id
            assert check.id not in in_files, check.id
        elif check.id not in ONLY_IN_A_MEMBERS_FILE:
            assert in_files.get(check.id) == lives.get(check.id), check.id
    ran = {check.id for check in CATALOGUE} - examined.not_checked.keys()
    assert {c.id for c in checks_path.CHECKS if "client" not in c.id} <= ran


def severities(findings: Iterable[Finding]) -> dict[str, set[Severity]]:
    """Of each check that found something."""
    by_check: dict[str, set[Severity]] = {}
    for finding in findings:
        by_check.setdefault(finding.id, set()).add(finding.severity)
    return by_check


def test_the_labs_live_doctor_has_its_proxies_and_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = blueprint(3)
    target = LabTarget(lab)
    monkeypatch.setattr(patroni, "rest", lambda lab: None)
    monkeypatch.setattr(doctor_facts, "gathered", lambda *given: live(lab))
    facts = target._inspector().facts()
    assert [(one.name, one.asks, one.lingering) for one in facts.access.proxies] == [
        ("leader", "/primary", ()),
        ("standby", "/replica", ()),
    ]
    assert [one.settings["server_check_delay"] for one in facts.access.pools] == ["5"]
    assert not {f.id for f in diagnosed(facts)} & {c.id for c in checks_path.CHECKS}
