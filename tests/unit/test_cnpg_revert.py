"""What revert leaves alone: journals of another Cluster of that name, what names no machine or may not be read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import Run, walproof  # noqa: F401
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.port import FakeApi, view
from tests.fixtures.kubernetes.stand_in import StandIn, stand_in
from tests.fixtures.tiers import each
from tests.unit.test_cnpg_role_and_revert import NAME as FAKE
from tests.unit.test_cnpg_role_and_revert import made, made_by, reverted, roles
from walproof.cli.runs import APPLIED, applied_folder, journal_of_apply, keep_journal, runs_folder
from walproof.errors import TargetError
from walproof.machine.pid_files import here, machine
from walproof.model.topology import ClusterView, Endpoint
from walproof.records.journal import Journal
from walproof.records.own_journals import registered
from walproof.targets.choose import choose
from walproof.targets.cnpg import created_objects
from walproof.targets.cnpg.configuration import SPEC
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, SECRETS
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.external import own_database
from walproof.targets.simulated.clock import VirtualClock

BOOT = here().partition(" ")[2]

NAME = "cnpg:default/pg?context=stand-in"
SECRET = "pg-walproof"


def test_a_database_is_dropped_on_the_successor_too_where_the_primary_just_thawed_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, journal, told = FakeApi(), Journal(tmp_path / "journal.jsonl"), list[tuple[str, str]]()
    role = made(api, journal).user
    journal.note(0.0, FAKE, "database", "walproof_" + "0" * 32, before=None, after=role)
    cluster = CnpgCluster(FAKE, CnpgFile(kind="cnpg", cluster="default/pg", reach="pods"), api)
    cluster.clock = VirtualClock()
    names = {member.hosts: name for name, member in cluster.members().items()}
    leads, logins, there = iter(["pg-1", "pg-1", "", "pg-2", "pg-2"]), iter([False, False]), set(names.values())

    def observe() -> ClusterView:
        leader = next(leads, "pg-2")
        status = {"currentPrimary": leader or "pg-2", "targetPrimary": leader or "pg-2"}
        api.change(CLUSTERS, "pg", {"status": status})
        return view(leader) if leader else replace(view("pg-1"), leader=None)

    def remove(leader: Endpoint, name: str, after: str | None, system: str) -> tuple[list[str], list[str]]:
        told.append((leader.user, place := names[leader.hosts]))
        if len(told) == 2:
            raise TargetError("the server is shutting down")
        # The old primary's drop reaches nobody, its successor's everybody.
        there.difference_update({place} if place == "pg-1" else names.values())
        return [name], []

    monkeypatch.setattr(cluster, "observe", observe)
    monkeypatch.setattr(cluster, "_usable", lambda credential: next(logins, True))
    monkeypatch.setattr(cluster, "_gone", lambda name: name not in [r["name"] for r in roles(api) if "login" in r])
    monkeypatch.setattr(own_database, "remove", remove)
    monkeypatch.setattr(own_database, "left", lambda member, name: [name] if names[member.hosts] in there else [])
    cluster.revert(journal)
    assert not there and {user for user, _ in told} == {role} and told[-1][1] == "pg-2"
    assert journal.pending() == () and roles(api) == []


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[StandIn, StandIn]]:
    """A and B."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with stand_in(tmp_path / "a", speed=40) as a, stand_in(tmp_path / "b", speed=40) as b:
        yield a, b


def kubeconfig(here: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(here.serving.kubeconfig()))


def cluster_of(here: StandIn) -> dict[str, Any]:
    (cluster,) = here.serving.api.store.listed(named("Cluster"))[0]
    return cluster


def secrets_of(here: StandIn) -> list[str]:
    return [one["metadata"]["name"] for one in here.serving.api.store.listed(named("Secret"))[0]]


def killed_on(here: StandIn) -> None:
    """A run that was killed there: its journal, and the load's secret."""
    target = choose("cnpg:default/pg")
    assert target.name == NAME
    keep_journal(target, None)
    target.journal.note(1.0, NAME, "load pods", SECRET, before=None, after="0a1b2c3d")
    meta = created_objects.metadata(SECRET, cluster_of(here), {created_objects.RUN: "0a1b2c3d"})
    meta |= {"namespace": "default", "annotations": {created_objects.MADE_BY: f"{machine()} 999999999 1 {BOOT}"}}
    here.serving.api.store.create(named("Secret"), created_objects.secret(meta, "Opaque", {}))


@pytest.mark.parametrize("words", [(), ("--target", "cnpg:default/pg")])
def test_a_journal_of_another_cluster_is_kept_and_nothing_is_undone(
    two: tuple[StandIn, StandIn],
    walproof: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    a, b = two
    kubeconfig(a, monkeypatch)
    killed_on(a)
    (journal,) = registered(runs_folder())
    kubeconfig(b, monkeypatch)
    code, _, err = walproof("revert", *words)
    assert code == 3 and "another cluster answers under this name" in err
    assert cluster_of(a)["metadata"]["uid"] in err and f"rm {journal.registration}" in err and "KUBECONFIG" in err
    assert f"made anew: walproof revert --target '{NAME}', which undoes what it finds" in err
    assert [one.name for one in journal.pending()] == [SECRET] and SECRET in secrets_of(a)
    kubeconfig(a, monkeypatch)
    code, out, err = walproof("revert", *words)
    assert (code, f"secret {SECRET}" in out) == (0, True), err
    assert SECRET not in secrets_of(a) and registered(runs_folder()) == []


def test_what_was_applied_to_another_cluster_is_neither_undone_here_nor_applied_over(
    two: tuple[StandIn, StandIn],
    walproof: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = two
    kubeconfig(a, monkeypatch)
    identity = choose("cnpg:default/pg").identity
    journal = journal_of_apply(NAME, identity)
    asked = '[[["postgresql", "parameters", "work_mem"], "8MB"]]'
    before = f'{{"spec": {asked.replace("8MB", "4MB")}, "shown": {{}}}}'
    journal.note(1.0, NAME, SPEC, "spec", before=before, after=asked)
    kubeconfig(b, monkeypatch)
    spec = cluster_of(b)["spec"]
    for words in (
        ("revert",),
        ("revert", "--target", NAME),
        ("apply", "--undo", "--target", NAME, "--allow", "config"),
    ):
        code, _, err = walproof(*words)
        assert code == 3 and "another cluster answers" in err and f"rm {journal.path}" in err, words
    journal.note(2.0, NAME, APPLIED, "on", before=None, after=None)
    assert walproof("apply", "--undo", "--target", NAME, "--allow", "config")[0] == 3
    assert len(journal.pending()) == 2 and cluster_of(b)["spec"] == spec
    assert list(applied_folder().glob("*.jsonl")) == [journal.path]


def test_a_run_that_is_continued_on_another_cluster_is_refused(
    two: tuple[StandIn, StandIn],
    walproof: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    a, b = two
    kubeconfig(a, monkeypatch)
    target = choose("cnpg:default/pg")
    keep_journal(target, tmp_path / "r")
    target.journal.note(1.0, NAME, "database", "own", before=None, after=None)
    kubeconfig(b, monkeypatch)
    with pytest.raises(TargetError, match="another cluster answers"):
        keep_journal(choose("cnpg:default/pg"), tmp_path / "r")


def test_what_names_no_machine_is_removed_by_hand_and_keeps_no_ended_run_s_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    name = made(api, Journal(tmp_path / "journal.jsonl")).user
    made_by(api, f"{machine()} 999999999 1 {BOOT}")
    load = created_objects.secret(created_objects.metadata("pg-walproof", api.cluster), "Opaque", {})
    del load["metadata"]["annotations"]
    api.put(SECRETS, load)
    first, *removed = reverted(api, Journal(tmp_path / "lost.jsonl"), monkeypatch)
    assert "on an unknown machine" in first and "(kubectl delete secret/pg-walproof -n default where" in first
    assert removed == [f"database {name}", f"role {name}", "secret pg-walproof-role"]


@each([False, True])
def test_what_may_not_be_read_is_said_in_one_sentence(
    chaos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    api.forbidden = {("get", "jobs"), ("list", "iochaos")}
    api.api.chaos_mesh = chaos
    said: list[str] = []
    assert reverted(api, Journal(tmp_path / "journal.jsonl"), monkeypatch, warn=said.append) == []
    kinds = "iochaos, jobs" if chaos else "jobs"
    assert said == [f"this user may not read {kinds}: what is left of these was not looked for"]
