"""The stand-in over real PostgreSQL: what its failovers keep and lose, how cuts and configurations are seen by SQL."""

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.fixtures.kubernetes.processes import ProcessPostgres, running_members
from tests.fixtures.kubernetes.stand_in import StandIn, stand_in
from tests.fixtures.kubernetes.state import HEALTHY, Order

pytestmark = pytest.mark.lab
SPEED = 10.0


@pytest.fixture(scope="module")
def behind() -> Iterator[ProcessPostgres]:
    with running_members() as members:
        yield members


@pytest.fixture(scope="module")
def cluster(behind: ProcessPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with stand_in(tmp_path_factory.mktemp("api"), postgres=behind, speed=SPEED) as running:
        until(lambda: behind.psql("pg-1", "SHOW synchronous_standby_names", ()).stdout.startswith(b"ANY 1"))
        yield running


def until(wanted: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def login(cluster: StandIn, behind: ProcessPostgres, **more: str) -> "psycopg.Connection[tuple[object, ...]]":
    secret = cluster.store.find("Secret", "pg-app") or {"data": {}}
    given = {key: base64.b64decode(secret["data"][key]).decode() for key in ("user", "password", "dbname")}
    hosts = ",".join(behind.address(name, behind.generations[name]) for name in behind.names)
    target = {"host": hosts, "port": "5432", "target_session_attrs": "read-write", "connect_timeout": "2"}
    parameters = {**target, **given, **more}
    return psycopg.connect(**parameters, autocommit=True)  # type: ignore[arg-type]


@dataclass
class Writers:
    """Threads that insert numbers and keep those acknowledged, until the block ends."""

    cluster: StandIn
    behind: ProcessPostgres
    level: str
    acknowledged: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, first: int) -> None:
        number, connection = first, None
        while not self.over.is_set():
            number += 1
            try:
                if connection is None:
                    connection = login(self.cluster, self.behind, options=f"-c synchronous_commit={self.level}")
                connection.execute("INSERT INTO kept VALUES (%s)", (number,))
                self.acknowledged.append(number)
            except psycopg.Error:
                connection = None
                time.sleep(0.02)

    def lost(self) -> int:
        with login(self.cluster, self.behind) as connection:
            rows = connection.execute("SELECT n FROM kept").fetchall()
        return len(set(self.acknowledged) - {int(str(row[0])) for row in rows})


@contextlib.contextmanager
def writing(cluster: StandIn, behind: ProcessPostgres, level: str, count: int = 4) -> Iterator[Writers]:
    until(lambda: cluster.cnpg.state.phase == HEALTHY)
    with login(cluster, behind) as connection:
        connection.execute("DROP TABLE IF EXISTS kept")
        connection.execute("CREATE TABLE kept (n int PRIMARY KEY)")
    writers = Writers(cluster, behind, level)
    threads = [threading.Thread(target=writers.run, args=(i * 10_000_000,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: len(writers.acknowledged) > 50)
    yield writers
    before = len(writers.acknowledged)
    until(lambda: len(writers.acknowledged) > before + 20)
    writers.over.set()
    for thread in threads:
        thread.join()


def test_nothing_acknowledged_at_on_is_lost_with_an_isolated_primary(cluster: StandIn, behind: ProcessPostgres) -> None:
    """Drills of the other lab tests kill, delete, freeze and switch over; none of them cuts."""
    with writing(cluster, behind, "on") as writers:
        primary = cluster.cnpg.state.primary
        cluster.cnpg.cut(primary)
        until(lambda: cluster.cnpg.state.primary != primary)
        cluster.cnpg.mend(primary)
        until(lambda: cluster.cnpg.state.phase == HEALTHY)
        behind.streaming(2)
    assert writers.lost() == 0


def test_commits_acknowledged_at_off_are_lost_with_their_primary(cluster: StandIn, behind: ProcessPostgres) -> None:
    losses = []
    for _ in range(5):
        with writing(cluster, behind, "off", count=8) as writers:
            primary = cluster.cnpg.state.primary
            cluster.cnpg.kill(primary)
            until(lambda old=primary: cluster.cnpg.state.primary != old)  # type: ignore[misc]
            until(lambda: cluster.cnpg.state.phase == HEALTHY)
        losses.append(writers.lost())
        if losses[-1]:
            break
    assert losses[-1] > 0


def test_a_standby_that_has_more_than_the_successor_follows_it(cluster: StandIn, behind: ProcessPostgres) -> None:
    """As after a thaw that comes when the successor is chosen: it streamed for moments, and replayed nothing more."""
    until(lambda: cluster.cnpg.state.phase == HEALTHY)
    behind.streaming(2)
    primary = cluster.cnpg.state.primary
    chosen, ahead = (name for name in behind.names if name != primary)
    behind.carry_out(Order("cut-peers", chosen), primary)
    with login(cluster, behind) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS more (n int)")
        connection.execute("INSERT INTO more SELECT generate_series(1, 1000)")
    assert behind.received(ahead) > behind.received(chosen)
    cluster.store.modify("Cluster", "pg", lambda item: item["status"].update(targetPrimary=chosen))
    until(lambda: cluster.cnpg.state.primary == chosen)
    behind.mend(chosen)
    until(lambda: cluster.cnpg.state.phase == HEALTHY)
    behind.streaming(2)


def test_a_cut_member_is_silent_for_clients_and_reachable_by_exec(cluster: StandIn, behind: ProcessPostgres) -> None:
    until(lambda: cluster.cnpg.state.phase == HEALTHY)
    standby = next(m.name for m in cluster.cnpg.state.members if m.name != cluster.cnpg.state.primary)
    address = behind.address(standby, behind.generations[standby])
    behind.cut(standby)
    with pytest.raises(psycopg.OperationalError):
        login(cluster, behind, host=address, target_session_attrs="any")
    assert behind.psql(standby, "SELECT 1", ()).stdout == b"1\n"
    behind.mend(standby)
    behind.streaming(2)
    login(cluster, behind, host=address, target_session_attrs="any").close()


def test_alter_system_is_refused_until_enabled_and_then_overrides(cluster: StandIn, behind: ProcessPostgres) -> None:
    until(lambda: cluster.cnpg.state.phase == HEALTHY)
    primary, alter = cluster.cnpg.state.primary, "ALTER SYSTEM SET synchronous_standby_names = ''"
    assert b"postgresql.auto.conf" in behind.psql(primary, alter, ()).stderr
    allow = {"enableAlterSystem": True}
    cluster.store.modify("Cluster", "pg", lambda item: item["spec"]["postgresql"].update(allow))
    until(lambda: behind.psql(primary, alter, ()).code == 0)
    behind.psql(primary, "SELECT pg_reload_conf()", ())
    until(lambda: behind.psql(primary, "SHOW synchronous_standby_names", ()).stdout == b"\n")
    cluster.store.modify("Cluster", "pg", lambda item: item["spec"]["postgresql"]["synchronous"].update(number=2))
    until(lambda: cluster.cnpg.state.names.startswith("ANY 2"))
    time.sleep(0.5)
    assert behind.psql(primary, "SHOW synchronous_standby_names", ()).stdout == b"\n"
    behind.psql(primary, "ALTER SYSTEM RESET synchronous_standby_names", ())
    cluster.store.modify("Cluster", "pg", lambda item: item["spec"]["postgresql"]["synchronous"].update(number=1))
    until(lambda: behind.psql(primary, "SHOW synchronous_standby_names", ()).stdout.startswith(b"ANY 1"))
