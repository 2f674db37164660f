"""A standby that was promoted beside a living primary: what is its own, what is not, and what is noted as undone."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair, plain_pair, promote
from tests.fixtures.tiers import each
from walproof.machine.clock import RealClock
from walproof.model.topology import Endpoint, Role
from walproof.model.waiting import Wait, wait_for
from walproof.records.journal import Journal
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.external.target_file import TargetFile
from walproof.targets.postgres import target as postgres
from walproof.targets.sql.observe import Known, combined

PLACES = {name: Endpoint(((name, 5432),)) for name in ("n1", "n3")}


def row(name: str, *, standby: bool = False, timeline: int = 1) -> dict[str, Any]:
    return {
        "standby": standby, "lsn": 500, "timeline": timeline, "names": "", "commits": 7, "waiting": 0,
        "longest_wait_s": 0.0, "standbys": [], "receiver_conninfo": None, "cluster_name": name,
    }  # fmt: skip


def test_a_member_that_nobody_named_leads_only_where_no_named_one_does() -> None:
    """Whoever may replicate has a copy of the cluster, and may promote it."""
    rows = {"n1": row("n1"), "n3": row("n3", timeline=2)}
    seen = combined(1.0, PLACES, rows, Known(frozenset({"n3"}))).view
    assert (seen.leader, [m.state for m in seen.members]) == ("n1", ["running", "leads too (split brain)"])
    assert combined(1.0, PLACES, rows).view.leader == "n3", "of named ones the newest timeline"
    assert combined(1.0, PLACES, {"n3": rows["n3"]}, Known(frozenset({"n3"}))).view.leader == "n3", "after a failover"
    assert combined(1.0, PLACES, {**rows, "n1": row("n1", standby=True)}, Known(frozenset({"n3"}))).view.leader == "n3"


def test_who_is_of_another_cluster_leads_nothing_whenever_it_answers() -> None:
    """It was silent while the target was opened; then database, load and kill went to it, for its higher timeline."""
    rows = {"n1": {**row("n1"), "system": "7"}, "n3": {**row("n3", timeline=2), "system": "8"}}
    seen = combined(1.0, PLACES, rows, Known(system="7")).view
    assert (seen.leader, [m.state for m in seen.members]) == ("n1", ["running", "a server of another cluster"])
    assert combined(1.0, PLACES, {"n3": rows["n3"]}, Known(system="7")).view.leader is None


def test_only_members_that_were_discovered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = {"application_name": "n3", "address": "10.0.0.3/32"}

    def asked(endpoint: Endpoint) -> Any:
        leads = endpoint.hosts[0][0] != "10.0.0.3"
        name = "" if leads else "n3"
        self_said = {"leader": leads, "timeline": 1, "system_identifier": "7"}
        return SimpleNamespace(endpoint=endpoint, name=name, row=self_said, senders=[sender], upstream="")

    monkeypatch.setattr(postgres, "_asked", asked)
    servers = postgres.Servers(TargetFile(kind="postgres", dsn="host=10.0.0.1"), Endpoint((("10.0.0.1", 5432),)))
    assert list(servers.members()) == ["10.0.0.1:5432", "n3"] and servers.known.found == {"n3"}


@each([("7", True), ("8", False)])
def test_a_host_that_was_silent_is_loaded_only_once_it_says_whose_it_is(
    system: str, asked_then: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster's, it stood in libpq's list: the canary's commits went there while the own leader was down."""
    there: dict[str, str] = {"10.0.0.1": "7"}

    def asked(endpoint: Endpoint) -> Any:
        host = endpoint.hosts[0][0]
        if host not in there:
            raise psycopg.OperationalError("silent")
        self_said = {"leader": True, "timeline": 1, "system_identifier": there[host]}
        return SimpleNamespace(endpoint=endpoint, name="", row=self_said, senders=[], upstream="")

    monkeypatch.setattr(postgres, "_asked", asked)
    file, parameters = TargetFile(kind="postgres", dsn="x"), Endpoint((("10.0.0.1", 5432), ("10.0.0.2", 5432)))
    servers = postgres.Servers(file, parameters)
    cluster = postgres.PostgresCluster("t", file, parameters, servers)
    servers.need_leader()
    assert [len(cluster.members()), *cluster.endpoint("multi-host").hosts] == [2, ("10.0.0.1", 5432)]
    there["10.0.0.2"] = system
    servers.members.renew()
    assert (("10.0.0.2", 5432) in cluster.endpoint("multi-host").hosts) is asked_then


@pytest.fixture
def split(tmp_path: Path) -> Iterator[tuple[PlainPair, ExternalCluster, Journal]]:
    """walproof's own database is on both members, of which n2 was promoted while n1 goes on."""
    with plain_pair() as pair, opened(pair_dsn(pair, "n1", "n2")) as target:
        target.journal = Journal(tmp_path / "journal.jsonl")
        target.open_database()
        promote(pair)
        both = [Role.LEADER, Role.LEADER]
        wait_for(Wait.NEW_LEADER, lambda: [m.role for m in target.observe().members] == both, RealClock())
        yield pair, target, target.journal


def left(pair: PlainPair, member: str) -> int:
    return len(pair.sql(member, "SELECT datname FROM pg_database WHERE datname LIKE 'walproof%'"))


own_state = pytest.mark.usefixtures("own_state")


@pytest.mark.lab
@pytest.mark.nightly
@own_state
@pytest.mark.parametrize("reverted", [False, True])
def test_own_database_is_dropped_wherever_there_is_a_leader(
    reverted: bool, split: tuple[PlainPair, ExternalCluster, Journal]
) -> None:
    """It stayed on the one that served the application, and the journal said undone."""
    pair, target, journal = split
    assert (left(pair, "n1"), left(pair, "n2")) == (1, 1)
    if reverted:
        assert target.revert(journal) == []
    else:
        target.close()
    assert (left(pair, "n1"), left(pair, "n2"), journal.pending()) == (0, 0, ())


@pytest.mark.lab
@pytest.mark.nightly
@own_state
@pytest.mark.parametrize("manager", ["none", "patroni"])
def test_nothing_is_noted_as_undone_while_another_leader_has_it(
    manager: str, split: tuple[PlainPair, ExternalCluster, Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another role owns it there, or a manager will make that member follow, where writing would be in its way."""
    pair, target, journal = split
    leader = target.leader()
    first, other = ("n2", "n1") if leader == "n2" else ("n1", "n2")
    if manager == "none":
        ((name,),) = pair.sql(other, "SELECT datname FROM pg_database WHERE datname LIKE 'walproof%'")
        pair.sql(other, "CREATE ROLE another")
        pair.sql(other, f"ALTER DATABASE {name} OWNER TO another")
    monkeypatch.setattr(target, "manager", manager)
    target.close()
    assert (left(pair, first), left(pair, other), len(journal.pending())) == (0, 1, 1)
