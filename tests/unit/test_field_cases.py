"""Configurations of Patroni and CloudNativePG from the field, given to the doctor's command line."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures import field_cases
from tests.fixtures.cnpg.seeds import apart, seen
from tests.fixtures.command_line import Run, walproof  # noqa: F401
from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.field_cases import Case
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.sick import patroni, well, with_member, with_settings
from walproof.cli import doctor
from walproof.model.facts import Facts, MemberFacts, Sender, Slot
from walproof.model.ports import Capabilities
from walproof.model.topology import Endpoint
from walproof.targets.cnpg.kubernetes_api import CLUSTERS
from walproof.targets.sql import doctor_facts

by_id = pytest.mark.parametrize


class Told:
    """A target whose doctor is given its facts."""

    name = "cnpg:default/pg"

    def __init__(self, facts: Callable[[], Facts]) -> None:
        self.facts = facts

    def capabilities(self) -> Capabilities:
        return Capabilities(inspection=self)


def required(done: tuple[int, str, str], case: Case) -> None:
    """The exit code and findings of the case, and no traceback."""
    code, out, err = done
    assert "Traceback" not in err
    found = [f["id"] for f in json.loads(out)["findings"]] if out else []
    assert (code, sorted(found)) == (case["exit"], sorted(case["finds"])), out or err
    assert case.get("says", "") in err


def _sql(case: Case) -> Facts:
    """A sound cluster, with what the case says of its members."""
    facts = well()
    for name, words in case.get("settings", {}).items():
        facts = with_settings(facts, name, **words)
    for name, fields in case.get("facts", {}).items():
        kinds = {"slots": Slot, "senders": Sender}
        made = {f: tuple(kinds[f](**row) for row in v) if f in kinds else v for f, v in fields.items()}
        facts = with_member(facts, name, **made)
    return facts


def _listed(fake: FakePatroni, case: Case) -> list[dict[str, Any]]:
    """The members as /cluster has them."""
    rows = []
    for number, member in enumerate(patroni().members, 1):
        row = {
            "name": member.name, "role": member.role, "state": member.state, "timeline": 1,
            "host": f"10.0.0.{number}", "port": 5432, "api_url": f"{fake.url}/patroni",
            **({} if member.role == "leader" else {"lag": 0}), **case.get("members", {}).get(member.name, {}),
        }  # fmt: skip
        if member.name not in case.get("absent", ()):
            rows.append({key: value for key, value in row.items() if value != ""})
    return rows


@by_id("case", field_cases.cases("patroni"), ids=lambda case: case["id"])
def test_patroni(case: Case, walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    members = {m.name: m for m in _sql(case).members}

    def inspected(name: str, _endpoint: Endpoint) -> tuple[MemberFacts, tuple[str, ...]]:
        return members[name], ()

    monkeypatch.setattr(doctor_facts, "_member", inspected)
    with fake_patroni() as fake:
        fake.config = {k: v for k, v in patroni().config.items() if k not in case.get("without", ())}
        fake.config |= case.get("config", {})
        fake.members = _listed(fake, case)
        fake.texts["/patroni"] = json.dumps({"patroni": {"version": case.get("version", "4.1.3"), "scope": "x"}})
        required(walproof("doctor", "--json", "--target", fake.url), case)


@by_id("case", field_cases.cases("cnpg"), ids=lambda case: case["id"])
def test_cloudnativepg(case: Case, walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def facts() -> Facts:
        api: FakeApi = apart()
        api.change(CLUSTERS, "pg", {"spec": _with_nulls(case.get("spec", {}))})
        found = with_settings(seen(api), "*", **case.get("settings", {}))
        if "names" in case:
            found = with_settings(found, "*", synchronous_standby_names=case["names"])
        if case.get("following"):
            members = [replace(m, leader=False, senders=(), slots=()) for m in found.members]
            found = replace(found, members=tuple(members))
        return found

    monkeypatch.setattr(doctor, "choose", lambda target: Told(facts))
    required(walproof("doctor", "--json", "--target", "cnpg:default/pg"), case)


def _with_nulls(tree: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: "" removes a key."""
    made = copy.deepcopy(tree)
    for key, value in made.items():
        if isinstance(value, dict):
            made[key] = _with_nulls(value)
        elif value == "":
            made[key] = None
    return made


def test_the_page_shows_the_cases_as_they_are() -> None:
    text = field_cases.PAGE.read_text("utf-8")
    assert text.split(field_cases.BEGIN)[1] == field_cases.table(), "run: python -m tests.fixtures.field_cases"


def test_at_least_forty_public_sources_were_tried() -> None:
    tried = {case["source"] for kind in field_cases.TITLES for case in field_cases.cases(kind) if "source" in case}
    assert len(tried) >= 40
