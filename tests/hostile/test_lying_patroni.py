"""A Patroni whose /cluster lies: it chooses no machine for a command, and no number of members to ask."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from walproof.errors import TargetError
from walproof.model.drill import Capability
from walproof.patroni.rest import MOST_MEMBERS, PatroniRest, RestAccess
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.patroni.target import open_patroni


@pytest.fixture
def fake() -> Iterator[FakePatroni]:
    with fake_patroni() as patroni:
        yield patroni


def opened(fake: FakePatroni, folder: Path, host: str, more: str = "") -> ExternalCluster:
    """A cluster whose kill would leave a mark; it lists one member, at that host."""
    fake.members = [fake.listed(host)]
    commands = f'kill = "echo {{host}} >> {folder}/ran"\nstop = "echo {{member}} >> {folder}/ran"\n'
    return open_patroni(str(fake.file(folder / "t.toml", f"[faults]\n{commands}{more}")))


def test_no_command_goes_to_a_host_that_only_the_cluster_names(fake: FakePatroni, tmp_path: Path) -> None:
    cluster = opened(fake, tmp_path, "production-db.example")
    able = cluster.capabilities()
    assert set(able.faults) == {Capability.STOP}
    reason = able.why_not(Capability.KILL)
    assert reason and "production-db.example" in reason
    assert '[members] n1 = "production-db.example:9"' in reason
    assert not (tmp_path / "ran").exists()


def test_a_host_that_changes_later_gets_no_command(fake: FakePatroni, tmp_path: Path) -> None:
    cluster = opened(fake, tmp_path, "127.0.0.1")
    kill = cluster.capabilities().faults[Capability.KILL]
    fake.members = [fake.listed("production-db.example")]
    cluster.members.renew()
    with pytest.raises(TargetError, match="does not name") as refused:
        kill.inject("n1")
    assert '[members] n1 = "production-db.example:9"' in refused.value.hint
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("host", "more"), [
    ("127.0.0.1", ""),
    ("DB1.example", '[members]\nn1 = "db1.example:5432"\n'),
    ("fd00::1", '[members]\nn1 = "[fd00::1]:5432"\n'),
])  # fmt: skip
def test_a_host_of_the_target_file_gets_its_command(host: str, more: str, fake: FakePatroni, tmp_path: Path) -> None:
    opened(fake, tmp_path, host, more).capabilities().faults[Capability.KILL].inject("n1")
    assert (tmp_path / "ran").read_text() == f"{host}\n"


@pytest.mark.parametrize(
    ("config", "ttl_s"), [({"ttl": 45}, 45), ({}, 30), ({"ttl": "soon"}, None), ({"ttl": []}, None)]
)
def test_the_ttl_is_described_as_a_number(
    config: dict[str, Any], ttl_s: int | None, fake: FakePatroni, tmp_path: Path
) -> None:
    cluster = opened(fake, tmp_path, "127.0.0.1")
    fake.config = config
    assert cluster.describe().ttl_s == ttl_s


def test_a_cluster_of_too_many_members_is_refused(fake: FakePatroni, tmp_path: Path) -> None:
    opened(fake, tmp_path, "127.0.0.1")
    fake.members = [fake.listed(name=f"n{i}") for i in range(MOST_MEMBERS + 1)]
    with pytest.raises(TargetError, match="lists 101 members"):
        open_patroni(str(tmp_path / "t.toml"))


@pytest.mark.parametrize(
    "lie", ["/drop?all=", "/drop#", "/patroni/../drop", "/patroni?drop", "/drop?x=/patroni", "/drop/patroni"]
)
def test_a_members_url_asks_nothing_of_another_server(lie: str, fake: FakePatroni) -> None:
    with fake_patroni("127.0.0.2") as bystander:
        fake.members = [fake.listed(), fake.listed(name="n2") | {"api_url": f"{bystander.url}{lie}"}]
        rest = PatroniRest(RestAccess((fake.url,)))
        assert rest.versions()["n2"] == "?"
        fake.texts = dict.fromkeys(("/cluster", "/config"), "no JSON")
        with pytest.raises(TargetError):
            rest.config()
        assert bystander.asked == []
