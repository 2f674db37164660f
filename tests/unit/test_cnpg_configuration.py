"""Configuration of a CloudNativePG cluster: patches onto the version that was read, reverted key by key."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.priced_records import price_record, prove_record
from walproof.advising.advise import advise, choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.recipes import config_change
from walproof.cli.advise import with_settings
from walproof.errors import TargetError, UsageError, WaitTimeout
from walproof.model.advice import ClusterProfile, Requirements
from walproof.model.cnpg_facts import CNPG_MANAGER
from walproof.model.guarantee import ConfigChange, Level, QuorumKind, SyncReplication
from walproof.model.ports import SILENT, UNTOLD
from walproof.model.topology import ClusterView, Endpoint, MemberView, Role
from walproof.records.journal import Journal
from walproof.targets.cnpg.configuration import FIXED, CnpgConfiguration
from walproof.targets.cnpg.kubernetes_api import CLUSTERS
from walproof.targets.simulated.clock import VirtualClock

NAME = "cnpg:default/pg"


class Instances:
    """What SQL shows: each parameter as the spec has it, unless `deaf`; names as the operator writes them."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.deaf = api, False
        self.defaults = {"synchronous_commit": "on", "work_mem": "4096", "wal_sender_timeout": "60000"}
        self.defaults["wal_receiver_timeout"] = "60000"
        self.units = {"work_mem": "kB", "wal_sender_timeout": "ms", "wal_receiver_timeout": "ms"}

    def rows(self, _member: str, names: list[str]) -> Mapping[str, Mapping[str, Any]]:
        spec = {} if self.deaf else self.api.cluster["spec"]["postgresql"]["parameters"]
        known = [*self.defaults, "shared_buffers"]
        return {
            n: {
                "name": n,
                "setting": spec.get(n, self.defaults.get(n)),
                "unit": self.units.get(n, ""),
                "context": "postmaster" if n == "shared_buffers" else "user",
            }
            for n in names
            if n in known
        }

    def observe(self) -> ClusterView:
        spec = self.api.cluster["spec"]
        sync, former = (None if self.deaf else spec["postgresql"].get("synchronous")), spec.get("maxSyncReplicas")
        names = f'ANY {former} ("pg-2","pg-3")' if former and not self.deaf else ""
        elsewhere = tuple((sync or {}).get("standbyNamesPre") or ())
        if sync:
            here = ("pg-2", "pg-3", "pg-1")[: sync.get("maxStandbyNamesFromCluster")]
            listed = ",".join(json.dumps(name) for name in (*elsewhere, *here))
            names = f"{sync['method'].upper()} {sync['number']} ({listed})"
        state = "quorum" if '"pg-2"' in names else "async"
        standbys = tuple(MemberView(n, Role.STANDBY, "streaming", sync_state=state) for n in ("pg-2", "pg-3"))
        return ClusterView(0.0, (MemberView("pg-1", Role.LEADER, "running"), *standbys), "pg-1", names)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def instances(api: FakeApi) -> Instances:
    return Instances(api)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def configuration(api: FakeApi, instances: Instances, monkeypatch: pytest.MonkeyPatch) -> CnpgConfiguration:
    members = dict.fromkeys(("pg-1", "pg-2", "pg-3"), Endpoint((("nowhere", 1),)))
    made = CnpgConfiguration(NAME, VirtualClock(), (api, "pg"), lambda: members, instances.observe)
    monkeypatch.setattr(made._settings, "rows", instances.rows)
    return made


def done(configuration: CnpgConfiguration, change: ConfigChange, journal: Journal) -> list[str]:
    plan = configuration.plan(change)
    configuration.apply(plan, journal)
    configuration.wait(plan)
    return [f"{d.where}: {d.name}: {d.before} → {d.after}" for d in plan.differences]


STRICT_2 = SyncReplication(QuorumKind.ANY, 2, strict=True)
LEVEL = ConfigChange({"synchronous_commit": "remote_apply"})


def test_a_change_is_patched_awaited_and_reverted(
    api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    before = dict(api.cluster["spec"])
    text = done(configuration, replace(LEVEL, replication=STRICT_2), journal)
    assert text[0] == "cluster: postgresql.parameters.synchronous_commit: None → remote_apply"
    sync = api.cluster["spec"]["postgresql"]["synchronous"]
    assert sync == {"method": "any", "number": 2, "dataDurability": "required", "failoverQuorum": False}
    assert configuration.plan(replace(LEVEL, replication=STRICT_2)).differences == ()
    assert configuration.undo(journal) == [] and journal.pending() == ()
    assert api.cluster["spec"] == before


@pytest.mark.parametrize("required", [Requirements(0.0), Requirements(0.0, 30.0), Requirements(level=Level.LOCAL)])
def test_what_advice_lists_is_what_is_patched_and_tcp_is_left_alone(
    required: Requirements, api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    cluster = ClusterProfile(CNPG_MANAGER, members=("pg-1", "pg-2", "pg-3"))
    evidence = replace(evidence_of([("p", price_record()), ("d", prove_record(Level.ON))]), cluster=cluster)
    (first, *_) = advise(evidence, required, choose_environment(evidence, None, None)).choices
    before = json.loads(json.dumps(api.cluster["spec"]["postgresql"]))
    plan = configuration.plan(config_change(first, cluster))
    assert plan.settings == with_settings(first, cluster, None).settings
    configuration.apply(plan, journal)
    now = api.cluster["spec"]["postgresql"]
    listed = {one.name.removeprefix("postgresql."): one.value for one in plan.settings}
    changed = {f"parameters.{n}": v for n, v in now["parameters"].items() if v != before["parameters"].get(n)}
    assert changed == {name: listed[name] for name in changed}
    assert (listed["synchronous"] is None) is ("synchronous" not in now)
    assert not any("tcp" in name for name in listed)
    api.change(CLUSTERS, "pg", {"spec": {"maxSyncReplicas": 1}})
    more = {one.name for one in configuration.plan(plan.change).settings} - {one.name for one in plan.settings}
    assert more == {"maxSyncReplicas"}, "the list says that the former keys go"


def test_nothing_is_left_of_synchronous_replication_that_was_not_there(
    api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": None}}})
    done(configuration, ConfigChange(replication=STRICT_2), journal)
    # The API adds its defaults to what we wrote: they go with it.
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": {"failoverQuorum": False}}}})
    configuration.undo(journal)
    assert "synchronous" not in api.cluster["spec"]["postgresql"]


def test_asynchronous_and_the_former_keys(api: FakeApi, configuration: CnpgConfiguration, journal: Journal) -> None:
    done(configuration, ConfigChange(replication=SyncReplication(None, 0)), journal)
    assert "synchronous" not in api.cluster["spec"]["postgresql"]
    configuration.undo(journal)
    assert api.cluster["spec"]["postgresql"]["synchronous"]["number"] == 1
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": None}, "maxSyncReplicas": 1}})
    done(configuration, ConfigChange(replication=SyncReplication(QuorumKind.FIRST, 1, strict=False)), journal)
    assert api.cluster["spec"]["maxSyncReplicas"] == 0
    assert api.cluster["spec"]["postgresql"]["synchronous"]["dataDurability"] == "preferred"
    configuration.undo(journal)
    assert api.cluster["spec"]["maxSyncReplicas"] == 1


def test_the_former_keys_are_awaited_when_they_come_back(
    api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    """The operator makes names of them again: waiting for none ran out."""
    former = {"minSyncReplicas": 1, "maxSyncReplicas": 2}
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": None}, **former}})
    done(configuration, ConfigChange(replication=SyncReplication(QuorumKind.ANY, 1)), journal)
    assert configuration.undo(journal) == []
    assert {name: api.cluster["spec"][name] for name in former} == former


@pytest.mark.parametrize("own", [0, 1, None])
def test_standbys_elsewhere_need_not_be_members(
    own: int | None, api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    elsewhere = {"standbyNamesPre": ["dr-1", "dr-2"], "maxStandbyNamesFromCluster": own}
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": elsewhere}}})
    done(configuration, ConfigChange(replication=SyncReplication(QuorumKind.ANY, 2)), journal)
    assert api.cluster["spec"]["postgresql"]["synchronous"]["standbyNamesPre"] == ["dr-1", "dr-2"]


def test_a_quorum_is_required_unless_it_may_degrade(
    api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    """`preferred` would price a promise that ends with the last standby (K2)."""
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": {"dataDurability": "preferred"}}}})
    done(configuration, ConfigChange(replication=SyncReplication(QuorumKind.ANY, 1)), journal)
    assert api.cluster["spec"]["postgresql"]["synchronous"]["dataDurability"] == "required"
    configuration.undo(journal)
    assert api.cluster["spec"]["postgresql"]["synchronous"]["dataDurability"] == "preferred"


def test_a_status_written_meanwhile_is_no_conflict_a_spec_is(
    api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    writes = [3]

    def status() -> None:
        if writes[0]:
            writes[0] -= 1
            api.change(CLUSTERS, "pg", {"status": {"phase": f"busy {writes[0]}"}})

    api.before_patch = status
    done(configuration, LEVEL, journal)
    assert api.cluster["spec"]["postgresql"]["parameters"]["synchronous_commit"] == "remote_apply"
    configuration.undo(journal)
    api.before_patch = lambda: api.change(CLUSTERS, "pg", {"spec": {"instances": api.cluster["spec"]["instances"] + 1}})
    with pytest.raises(TargetError, match="was changed by another user meanwhile"):
        done(configuration, LEVEL, journal)
    assert "synchronous_commit" not in api.cluster["spec"]["postgresql"]["parameters"]


def test_a_plan_of_an_older_spec_is_not_applied(
    api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    plan = configuration.plan(LEVEL)
    api.change(CLUSTERS, "pg", {"spec": {"instances": 5}})
    with pytest.raises(TargetError, match="another user"):
        configuration.apply(plan, journal)
    assert journal.changes() == ()


def test_what_others_set_since_is_left_alone(api: FakeApi, configuration: CnpgConfiguration, journal: Journal) -> None:
    done(configuration, ConfigChange({"synchronous_commit": "local", "work_mem": "8MB"}), journal)
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"parameters": {"work_mem": "16MB"}}}})
    said = "cluster: postgresql.parameters.work_mem is 16MB now, changed by another user since: left alone"
    for reverting, noted in ((UNTOLD, 1), (SILENT, 0)):
        assert (configuration.undo(journal, reverting), len(journal.pending())) == ([said], noted)
    parameters = api.cluster["spec"]["postgresql"]["parameters"]
    assert parameters["work_mem"] == "16MB" and "synchronous_commit" not in parameters


@pytest.mark.parametrize("there_before", [True, False])
def test_keys_that_others_set_beside_ours_since_stay_and_are_named(
    there_before: bool, api: FakeApi, configuration: CnpgConfiguration, journal: Journal
) -> None:
    """`synchronous` is one value to walproof: what a DBA adds to it is another user's all the same."""
    if not there_before:
        api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": None}}})
    before = dict(api.cluster["spec"]["postgresql"].get("synchronous") or {})
    done(configuration, replace(LEVEL, replication=STRICT_2), journal)
    ours = dict(api.cluster["spec"]["postgresql"]["synchronous"])
    api.change(CLUSTERS, "pg", {"spec": {"postgresql": {"synchronous": {"failoverQuorum": True}}}})
    left = configuration.undo(journal)
    key = "cluster: postgresql.synchronous.failoverQuorum is true now, changed by another user since: left alone"
    assert left[0] == key and ("cluster: postgresql.synchronous stays with it" in left[-1]) is not there_before
    stays = before if there_before else ours
    assert api.cluster["spec"]["postgresql"]["synchronous"] == {**stays, "failoverQuorum": True}
    assert "synchronous_commit" not in api.cluster["spec"]["postgresql"]["parameters"] and journal.pending() == ()


def test_a_parameter_that_never_takes_effect_times_out(
    instances: Instances, configuration: CnpgConfiguration, journal: Journal
) -> None:
    """The liar: the API takes it, PostgreSQL goes on as before (ALTER SYSTEM overrides the operator)."""
    plan = configuration.plan(LEVEL)
    configuration.apply(plan, journal)
    instances.deaf = True
    with pytest.raises(WaitTimeout, match="SETTING_IN_EFFECT"):
        configuration.wait(plan)
    plan = configuration.plan(ConfigChange(replication=STRICT_2))
    configuration.apply(plan, journal)
    with pytest.raises(WaitTimeout, match="QUORUM_NAMED"):
        configuration.wait(plan)


@pytest.mark.parametrize(("name", "words"), [
    ("ssl", "ssl is fixed by CloudNativePG"),
    ("restart_after_crash", "restart_after_crash is fixed"),
    ("synchronous_standby_names", "writes synchronous_standby_names itself"),
    ("shared_buffers", "CloudNativePG would restart every instance"),
    ("nonsense_parameter", "PostgreSQL has no parameter nonsense_parameter"),
])  # fmt: skip
def test_what_cannot_be_set_is_refused_by_name(
    name: str, words: str, api: FakeApi, configuration: CnpgConfiguration
) -> None:
    with pytest.raises(UsageError, match=words):
        configuration.plan(ConfigChange({name: "1"}))
    assert not [asked for asked in api.asked if asked[0] == "patch"]


def test_every_parameter_that_admission_was_seen_to_refuse_is_known() -> None:
    refused = "hot_standby ssl listen_addresses log_destination primary_conninfo restart_after_crash cluster_name port"
    more = "unix_socket_directories recovery_min_apply_delay shared_preload_libraries synchronous_standby_names"
    assert {*refused.split(), *more.split()} <= FIXED
    taken = "fsync full_page_writes wal_sender_timeout synchronous_commit archive_mode wal_keep_size max_connections"
    assert not set(taken.split()) & FIXED


def test_without_the_right_the_verb_is_named(api: FakeApi, configuration: CnpgConfiguration, journal: Journal) -> None:
    api.forbidden = {("patch", "clusters")}
    with pytest.raises(TargetError, match="may not patch clusters"):
        done(configuration, LEVEL, journal)
