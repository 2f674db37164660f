"""The rights of the guard of a frozen primary, and the Clusters that it refuses."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.kubernetes.access import Question, Rule, applied
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.virtual_guard import QUORUM, world
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.targets.cnpg.kubernetes_api import ApiError
from walproof.targets.cnpg.rbac import CnpgRights
from walproof.targets.cnpg.target_file import CnpgFile

RIGHTS = (
    ("get", "Cluster"), ("patch", "Cluster"), ("get", "Pod"), ("delete", "Pod"), ("get", "Lease"), ("patch", "Lease"),
)  # fmt: skip


@each(RIGHTS)
def test_each_right_that_is_printed_is_needed_and_its_lack_is_named(verb: str, kind: str) -> None:
    with world() as w:
        of = named(kind)
        w.account = replace(w.account, without=(Rule((verb,), (of.plural,)),))
        with pytest.raises(ApiError, match=f"may not {verb} {of.plural}"):
            w.guard()
        if verb != "get":
            w.guard(dry_run=True)


NOT_GRANTED = (
    ("update", "Cluster", "pg", ""), ("patch", "Cluster", "pg", "status"), ("patch", "Cluster", "other", ""),
    ("delete", "Lease", "pg", ""), ("patch", "Lease", "other", ""), ("delete", "Pod", "other-1", ""),
    ("get", "Node", "node1", ""), ("watch", "Pod", "", ""), ("get", "Pod", "other-1", ""),
    ("create", "Pod", "pg-1", "exec"), ("get", "Secret", "pg-superuser", ""),
)  # fmt: skip


@each(NOT_GRANTED)
def test_no_more_is_granted(verb: str, kind: str, name: str, subresource: str) -> None:
    account = applied(CnpgRights(CnpgFile(kind="cnpg", cluster="default/pg"), None).role(["guard"]))
    assert not account.allows(Question(verb, named(kind), subresource, name, "default"))


SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "asynchronous": ({"postgresql": {"parameters": {}}}, "dataDurability"),
    "preferred": ({"postgresql": {"parameters": {}, "synchronous": {**QUORUM, "dataDurability": "preferred"}}},
     "dataD"),
    "no quorum": ({"postgresql": {"parameters": {}, "synchronous": {**QUORUM, "failoverQuorum": False}}}, "failoverQ"),
    "not said": ({"postgresql": {"parameters": {}, "synchronous": {"method": "any", "number": 1}}}, "failoverQuorum"),
    "failoverDelay": ({"failoverDelay": 300}, "failoverDelay"),
}  # fmt: skip


@each(SPECS.values())
def test_what_the_operator_would_not_fail_over_safely_is_never_guarded(spec: dict[str, Any], why: str) -> None:
    with world(**spec) as w, pytest.raises(UsageError, match=f"nothing to guard: {why}"):
        w.guard()
