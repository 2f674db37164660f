"""Where the database's password must not go in clear text: hosts that the cluster names and the user did not."""

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest

from tests.fixtures.fake_patroni import fake_patroni
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.plain_pair import wheel_bin
from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.load.driver import environment
from walproof.load.ledger.task_and_attempt_files import WriterTask, read_writer_task, task_text
from walproof.model.guarantee import Level
from walproof.model.topology import Endpoint
from walproof.salvaging.data_directory import OldServer
from walproof.salvaging.server import Copy
from walproof.targets.cnpg.members import CnpgAccess
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.external.target_file import TargetFile
from walproof.targets.named_hosts import with_named_hosts
from walproof.targets.patroni.target import open_patroni
from walproof.targets.sql.connection import connected, enters, password_file, resolved, session
from walproof.targets.sql.observe import observed

SECRET = "of-the-directory"
STRANGER, NAMED = "127.0.0.2", "127.0.0.1"


CLEAR = struct.pack(">II", 8, 3)  # AuthenticationCleartextPassword
SCRAM = struct.pack(">II", 8 + 15, 10) + b"SCRAM-SHA-256\0\0"


class Thief:
    """A server that asks for the password, on every address of this machine; `heard` is what it got."""

    def __init__(self, listening: socket.socket, asks: bytes = CLEAR) -> None:
        self.asks = asks
        self.port = int(listening.getsockname()[1]) if listening.family == socket.AF_INET else 0
        self.heard: list[bytes] = []
        self.asked = threading.Event()
        self._listening = listening
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client, suppress(OSError, struct.error):  # it went away
                client.settimeout(5)
                self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        while struct.unpack(">I", _message(client)[:4])[0] != 3 << 16:  # SSLRequest, GSSENCRequest
            client.sendall(b"N")
        client.sendall(b"R" + self.asks)
        if client.recv(1) == b"p":
            self.heard.append(_message(client).rstrip(b"\0"))
        self.asked.set()


def _message(client: socket.socket) -> bytes:
    length = struct.unpack(">I", client.recv(4, socket.MSG_WAITALL))[0]
    return client.recv(length - 4, socket.MSG_WAITALL)


@contextmanager
def listening(asks: bytes = CLEAR) -> Iterator[Thief]:
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield Thief(server, asks)


@pytest.fixture
def thief(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thief]:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with listening() as server:
        yield server


def observe(members: Callable[[], dict[str, Endpoint]]) -> None:
    class Clock:
        def now(self) -> float:
            return 0.0

    observed(members(), Clock())  # type: ignore[arg-type]


def test_a_member_that_only_cluster_names_is_told_no_password(thief: Thief, tmp_path: Path) -> None:
    with fake_patroni() as fake:
        fake.members = [fake.listed(STRANGER) | {"port": thief.port}]
        open_patroni(str(fake.file(tmp_path / "cluster.toml"))).observe()
    assert thief.asked.wait(5)
    assert thief.heard == []


@each(["nothing", "PGCHANNELBINDING", "[members]"])
def test_who_has_a_pods_address_is_given_no_login_to_pass_on(user_says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGCHANNELBINDING", raising=False)
    if user_says == "PGCHANNELBINDING":
        monkeypatch.setenv(user_says, "prefer")
    members = {"members": {"pg-1": f"{STRANGER}:1"}} if user_says == "[members]" else {}
    file = CnpgFile.model_validate({"kind": "cnpg", "cluster": "default/pg", "reach": "pods", **members})
    endpoint = CnpgAccess(FakeApi(), file).login
    with listening(SCRAM) as passes_on:
        endpoint = replace(endpoint, named=tuple((host, passes_on.port) for host, port in endpoint.named if port == 1))
        endpoint = endpoint.at((STRANGER, passes_on.port))
        for way in (enters, WAYS["as the application"]):
            passes_on.asked.clear()
            with suppress(psycopg.OperationalError):
                way(endpoint)
            assert passes_on.asked.wait(5)
            assert bool(passes_on.heard) == (user_says != "nothing")
        if not passes_on.heard:
            with pytest.raises(TargetError, match="does not prove to be") as refused, connected(endpoint):
                pass
            assert "PGCHANNELBINDING=prefer" in (refused.value.hint or "")


@pytest.mark.parametrize("place", ["named", "another port", "another host"])
@pytest.mark.parametrize("more", ['dsn = "host={} port={}"', '[members]\nn1 = "{}:{}"', '[routes]\nr = "{}:{}"'])
def test_a_member_that_the_user_named_is_told_it_as_before(thief: Thief, tmp_path: Path, more: str, place: str) -> None:
    """At another port of that host any of its users may listen; a standby that streamed from there had it asked."""
    host, port = NAMED if place == "another host" else STRANGER, 5432 if place == "another port" else thief.port
    with fake_patroni() as fake:
        fake.members = [fake.listed(STRANGER) | {"port": thief.port}]
        open_patroni(str(fake.file(tmp_path / "cluster.toml", more.format(host, port)))).observe()
    assert thief.asked.wait(5)
    assert set(thief.heard) == ({SECRET.encode()} if place == "named" else set())


@pytest.mark.parametrize("client", [False, True], ids=["own session", "as a client"])
@pytest.mark.parametrize("by", ["variables", "service"])
def test_a_server_is_told_its_own_password_and_none_that_is_exported_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, client: bool
) -> None:
    """Nor is another server asked in its place, where PGHOSTADDR is exported."""
    if by == "variables":
        monkeypatch.setenv("PGPASSWORD", "of-another")
        monkeypatch.setenv("PGHOSTADDR", STRANGER)
    else:
        (tmp_path / "services").write_text(f"[other]\npassword=of-another\nhostaddr={STRANGER}\n")
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        monkeypatch.setenv("PGSERVICE", "other")
    with socket.create_server((NAMED, 0)) as server:
        there = Thief(server)
        dsn = f"host={NAMED} port={there.port} password=of-this-one"
        endpoint = with_named_hosts(resolved(dsn), TargetFile(kind="postgres"))
        with pytest.raises(psycopg.OperationalError), session(endpoint, client=client):
            pass
        assert there.asked.wait(5)
        assert there.heard == [b"of-this-one"]


def test_a_standby_of_pg_stat_replication_is_told_no_password(thief: Thief) -> None:
    parameters = with_named_hosts(resolved(f"host={NAMED} port={thief.port}"), TargetFile(kind="postgres"))
    observe(lambda: {"n2": parameters.at((STRANGER, thief.port))})
    assert thief.asked.wait(5)
    assert thief.heard == []
    thief.asked.clear()
    observe(lambda: {"n1": parameters.at((NAMED, thief.port))})
    assert thief.asked.wait(5)
    assert set(thief.heard) == {SECRET.encode()}


def test_one_stranger_among_named_hosts_is_told_nothing_and_who_asks_for_more_gets_that() -> None:
    endpoint = Endpoint(((NAMED, 1), (STRANGER, 1)), named=((NAMED, 1),))
    assert "require_auth='!password'" in endpoint.conninfo()
    assert "require_auth='scram-sha-256'" in endpoint.at((STRANGER, 1), require_auth="scram-sha-256").conninfo()


PSQL = (str(wheel_bin() / "psql"), "-X", "-c", "SELECT 1", "-d")
WAYS: dict[str, Callable[[Endpoint], object]] = {
    "as the application": lambda endpoint: psycopg.connect(endpoint.client_conninfo()),
    "program": lambda endpoint: subprocess.run(endpoint.program(*PSQL), env=os.environ, capture_output=True,
     check=True),
    "driver": lambda endpoint: subprocess.run(PSQL[:-1], env={**os.environ, **environment(endpoint)},
     capture_output=True, check=True),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("named", [(), (STRANGER,), (NAMED,)], ids=["of a lab", "named", "another is named"])
def test_every_client_that_is_started_tells_a_stranger_nothing(thief: Thief, way: str, named: tuple[str, ...]) -> None:
    places = tuple((host, thief.port) for host in named)
    endpoint = Endpoint(((STRANGER, thief.port),), passfile=password_file(SECRET), named=places)
    with pytest.raises((psycopg.OperationalError, subprocess.CalledProcessError)):
        WAYS[way](endpoint)
    assert thief.asked.wait(5)
    assert set(thief.heard) == ({SECRET.encode()} if named == (STRANGER,) else set())


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_has_a_password_of_its_own_is_told_no_other(
    way: str, thief: Thief, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq takes PGPASSWORD before a password file, and PGHOSTADDR for every host."""
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")
    own = password_file("its own")
    with pytest.raises((psycopg.OperationalError, subprocess.CalledProcessError)):
        WAYS[way](Endpoint(((STRANGER, thief.port),), passfile=own, named=((STRANGER, thief.port),)))
    assert thief.asked.wait(5)
    assert set(thief.heard) == {b"its own"}


def test_the_refusal_of_a_clear_password_says_what_to_do(thief: Thief) -> None:
    with (
        pytest.raises(TargetError, match="in clear text") as refused,
        connected(Endpoint(((STRANGER, thief.port),), named=((NAMED, thief.port),))),
    ):
        pass
    assert "name its host" in (refused.value.hint or "")


def test_writers_in_processes_of_their_own_know_it_too(tmp_path: Path) -> None:
    endpoint = Endpoint(((STRANGER, 1),), named=((NAMED, 1),))
    task = WriterTask("", endpoint, Level.ON, 1, 1, 1)
    (tmp_path / "task").write_text(task_text(task))
    assert read_writer_task(tmp_path / "task").endpoint == endpoint


def test_what_answers_in_place_of_a_salvages_copy_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its socket lies in a folder of the copy's user, as whom the catalogs of an old primary can run code."""
    copied = object.__new__(Copy)
    copied.sockets, copied.role, copied.old = tmp_path, "walproof", cast(OldServer, SimpleNamespace(major=15))
    with socket.socket(socket.AF_UNIX) as server, listening() as elsewhere:
        copied.socket.mkdir()
        server.bind(str(copied.socket / ".s.PGSQL.5432"))
        server.listen()
        for name, value in {"PGPASSWORD": SECRET, "PGHOSTADDR": NAMED, "PGPORT": str(elsewhere.port)}.items():
            monkeypatch.setenv(name, value)
        thief = Thief(server)
        with pytest.raises(psycopg.OperationalError):
            copied.connect("app")
        assert thief.asked.wait(5)
        assert thief.heard == elsewhere.heard == []
