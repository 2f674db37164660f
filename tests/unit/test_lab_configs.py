"""The lab's configuration files, from settings alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.blueprints import a_blueprint
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.lab import configuration
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.client_access import haproxy_cfg, pgbouncer_ini, pgbouncer_version
from walproof.lab.configuration import read_parameters
from walproof.lab.patroni import health_problem
from walproof.model.guarantee import read_quorum
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.patroni.config import SyncMode, mode_and_number, sync_keys
from walproof.targets.lab.target import LabTarget

PASSWORDS = {"postgres": "pw-a", "replicator": "pw-b", "rewinder": "pw-c", "rest": "pw-d"}
ADDRESSES = {"n1": "10.77.9.11", "n2": "10.77.9.12", "n3": "10.77.9.13"}


def blueprint(**more: Any) -> Blueprint:
    return replace(Blueprint("lab", 9, tuple(ADDRESSES), Path("/state/lab"), Path("/pg/bin"), 18), **more)


def patroni_tree(**more: Any) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(configuration.patroni_yml(blueprint(**more), "n1", PASSWORDS))
    return tree


def test_patroni_listens_on_the_members_own_address_and_admits_only_the_labs_subnet() -> None:
    tree = patroni_tree()
    assert tree["restapi"]["listen"] == "10.77.9.11:8008"
    assert tree["postgresql"]["listen"] == "10.77.9.11:5432"
    assert all("10.77.9.0/24 scram-sha-256" in line for line in tree["postgresql"]["pg_hba"])


def test_timeouts_are_the_least_that_patroni_allows_when_fast_and_its_defaults_otherwise() -> None:
    fast = configuration.dynamic_config(blueprint())
    assert (fast["ttl"], fast["loop_wait"], fast["retry_timeout"], fast["primary_start_timeout"]) == (20, 1, 3, 0)
    default = configuration.dynamic_config(blueprint(timeouts="default"))
    assert (default["ttl"], default["loop_wait"], default["retry_timeout"]) == (30, 10, 10)
    assert "primary_start_timeout" not in default


@each([("off", "off", False), ("on", "on", False), ("quorum", "quorum", False), ("strict", "on", True)])
def test_synchronous_modes_are_patronis(sync: str, mode: str, strict: bool) -> None:
    settings = sync_keys(SyncMode(sync).replication(2))
    count = {} if sync == "off" else {"synchronous_node_count": 2}
    assert settings == {"synchronous_mode": mode, "synchronous_mode_strict": strict, **count}


def test_a_lab_on_images_flushes_what_it_bootstraps() -> None:
    assert "no-sync" in patroni_tree()["bootstrap"]["initdb"]
    durable, wal = patroni_tree(disk=Disk("image", wal_volume=True)), {"waldir": "/state/lab/n1/wal/pg_wal"}
    assert "no-sync" not in durable["bootstrap"]["initdb"]
    assert wal in durable["bootstrap"]["initdb"]
    assert wal in durable["postgresql"]["basebackup"]


def test_etcd_flushes_and_listens_on_its_own_address_only() -> None:
    words = configuration.etcd_argv(ADDRESSES, "n2", Path("/e"), "lab")
    assert not any("no-fsync" in word for word in words)
    assert "--listen-client-urls=http://10.77.9.12:2379" in words
    assert any(word.startswith("--initial-cluster=n1=http://10.77.9.11:2380,") for word in words)


def test_haproxy_binds_the_loopback_only_and_ends_sessions_of_a_leader_that_is_down() -> None:
    text = haproxy_cfg(blueprint())
    binds = [line.split()[1] for line in text.splitlines() if line.strip().startswith("bind")]
    assert binds == ["127.0.0.1:5502", "127.0.0.1:5500", "127.0.0.1:5501"]
    assert text.count("on-marked-down shutdown-sessions") == 6
    assert "uri /primary" in text
    assert "uri /replica" in text


def test_pgbouncer_pools_transactions_and_keeps_prepared_statements_where_it_can() -> None:
    old, new = (pgbouncer_ini(blueprint(), version) for version in ((1, 18), (1, 23)))
    assert "pool_mode = transaction" in old
    assert "max_prepared_statements" not in old
    assert "max_prepared_statements" in new
    assert pgbouncer_version("PgBouncer 1.18.0\nlibevent") == (1, 18)


def test_postgres_never_turns_off_what_a_promise_rests_on() -> None:
    for timeouts in ("fast", "default"):
        parameters = configuration.lab_parameters(blueprint(timeouts=timeouts))
        assert not {"fsync", "full_page_writes", "synchronous_commit"} & set(parameters)
        assert parameters["wal_log_hints"] == "on"


def test_every_member_has_its_own_address_namespace_and_cable() -> None:
    made = blueprint()
    assert [made.address(m) for m in made.members] == list(ADDRESSES.values())
    assert len({made.namespace(m) for m in made.members} | {made.veth(m) for m in made.members}) == 6
    assert all(len(made.veth(m)) <= 15 for m in made.members)


def test_routes_lead_to_the_loopback_or_to_every_member() -> None:
    made = blueprint()
    assert made.endpoint("haproxy").hosts == (("127.0.0.1", 5500),)
    assert len(made.endpoint("multi-host").hosts) == 3
    assert "pw" not in made.endpoint("multi-host").conninfo().replace("pgpass", "")


@each([
    ("any1", None, 3, (SyncMode.QUORUM, 1)),
    ("any 2", None, 4, (SyncMode.QUORUM, 2)),
    ("ANY 2", None, 4, (SyncMode.QUORUM, 2)),
    ("first2", None, 4, (SyncMode.ON, 2)),
    ("FIRST  1", None, 3, (SyncMode.ON, 1)),
    ("all", None, 4, (SyncMode.ON, 3)),
    (None, None, 3, (SyncMode.QUORUM, 1)),
    (None, None, 1, (SyncMode.OFF, 1)),
    ("first1", "strict", 3, (SyncMode.STRICT, 1)),
    ("all", "quorum", 3, (SyncMode.QUORUM, 2)),
])  # fmt: skip
def test_a_lab_takes_the_quorum_that_price_takes(
    quorum: str | None, sync: str | None, members: int, result: tuple[SyncMode, int]
) -> None:
    asked = read_quorum(quorum) if quorum else None
    assert mode_and_number(SyncMode(sync) if sync else None, asked, members) == result


@each([
    ("any3", None, 3),
    ("any1", None, 1),
    ("all", None, 1),
    (None, "on", 1),
    ("any1", "strict", 3),
    ("first1", "quorum", 3),
    ("any1", "off", 3),
])  # fmt: skip
def test_a_quorum_that_members_or_mode_cannot_fill_is_refused(
    quorum: str | None, sync: str | None, members: int
) -> None:
    with pytest.raises(UsageError):
        mode_and_number(SyncMode(sync) if sync else None, read_quorum(quorum) if quorum else None, members)


@each(["0", "2", "-1", "any", "any0", "first 0", "2any", "any1 (n2)", "some1", "", "any²"])
def test_what_is_no_quorum_is_refused_everywhere_alike(text: str) -> None:
    with pytest.raises(UsageError, match="is not a quorum"):
        read_quorum(text)


@each(["work_mem", "=3", ""])
def test_a_parameter_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_parameters((text,))


def member(name: str, role: Role, sync: str = "", state: str = "streaming", timeline: int = 1) -> MemberView:
    return MemberView(name, role, "running" if role is Role.LEADER else state, timeline, sync_state=sync)


def view(*members: MemberView, names: str = "") -> ClusterView:
    leader = next((m.name for m in members if m.role is Role.LEADER), None)
    return ClusterView(0.0, members, leader, names)


LEADER = member("n1", Role.LEADER)
QUORUM = {"synchronous_mode": "quorum", "synchronous_node_count": 1}


@each([
    (view(member("n1", Role.STANDBY)), {}, "no leader"),
    (view(LEADER, member("n2", Role.STANDBY, state="starting")), {}, "not streaming"),
    (view(LEADER, member("n2", Role.STANDBY, timeline=2)), {}, "timeline"),
    (view(LEADER, member("n2", Role.STANDBY, "async")), QUORUM, "no standby is named"),
    (view(LEADER, member("n2", Role.STANDBY, "async"), names='ANY 1 ("n2")'), QUORUM, "not synchronous yet"),
    (view(LEADER, member("n2", Role.STANDBY, "sync"), names="n2"), {}, "still in effect"),
])  # fmt: skip
def test_a_cluster_that_is_not_whole_says_why(seen: ClusterView, config: dict[str, Any], word: str) -> None:
    assert word in health_problem(tuple(m.name for m in seen.members), seen, config)


def test_a_cluster_with_streaming_standbys_all_named_is_whole() -> None:
    standbys = [member(n, Role.STANDBY, "quorum") for n in ("n2", "n3")]
    assert health_problem(("n1", "n2", "n3"), view(LEADER, *standbys, names="ANY 1 (n2,n3)"), QUORUM) == ""
    assert health_problem(("n1", "n2", "n3"), view(LEADER, *standbys, names="ANY 1 (n2)"), QUORUM) != ""
    first = {"synchronous_mode": "on", "synchronous_node_count": 1}
    sync = [member("n2", Role.STANDBY, "sync"), member("n3", Role.STANDBY, "async")]
    assert health_problem(("n1", "n2", "n3"), view(LEADER, *sync, names="n2"), first) == ""


def test_a_route_that_pools_has_an_endpoint_that_says_so(tmp_path: Path) -> None:
    lab = LabTarget(a_blueprint(tmp_path))
    for route in lab.routes():
        if route.name != "direct":
            assert lab.endpoint(route.name).pooled is route.pools, route.name
