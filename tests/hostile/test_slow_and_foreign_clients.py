"""Every server of walproof's own: what Host and Origin it answers, and what slow, broken or greedy clients cost it.

Servers are found in the source: one that is not in the table here fails the first test.
"""

import ast
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

import walproof
from tests.fixtures.served_sockets import running
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.load.pods import agent as agent_module
from walproof.load.pods.agent import Agent, _Listening
from walproof.machine import bounded_server
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.targets.simulated.target import simulated
from walproof.watching import bounded_http
from walproof.watching.collector import Collector
from walproof.watching.http_server import MetricsServer
from walproof.watching.page import Page

SOURCE = Path(walproof.__file__).parent
LISTENS = {"listen", "create_server", "start_server", "start_unix_server"}
SERVES = {"socketserver", "wsgiref.simple_server", "http.server", "uvicorn"}
CAP, WITHIN_S = 8, 0.6
PATIENCE_S = 20.0


@contextmanager
def metrics(_: Path) -> Iterator[int]:
    """`watch --exporter`, and `guard --listen` with its state."""
    registry = CollectorRegistry()
    Gauge("walproof_big", "Labels of a megabyte", ["label"], registry=registry).labels("x" * 4_000_000).set(1)
    server = MetricsServer(registry, ("127.0.0.1", 0), state=lambda: {"leader": "n1"})
    try:
        yield server.port
    finally:
        server.close()


@contextmanager
def page(_: Path) -> Iterator[int]:
    """`watch`."""
    with closing(Collector(simulated("sim"), record=None)) as collector, running(Page(collector, None)) as address:
        yield int(address.split(":")[2].split("/")[0])


@contextmanager
def agent(folder: Path) -> Iterator[int]:
    """The first process of a load pod: no HTTP; each request carries the run's token."""
    (folder / "pgpass").write_text("")
    (folder / "token").write_text("of-this-run")
    made = Agent(folder)
    with _Listening(("127.0.0.1", 0), made) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        yield int(server.server_address[1])
        server.shutdown()
        serving.join()
    made.kill_all()


SERVERS = {
    "watching/http_server.py": metrics,
    "watching/page.py": page,
    "load/pods/agent.py": agent,
}
PARTS = {"machine/bounded_server.py", "watching/bounded_http.py"}
"""Classes of those servers."""
NO_SERVERS_OF_OURS = {
    "lab/rootless.py": "forwards the lab's ports, whose servers ask for passwords of their own",
    "lab/namespace_keeper.py": "forwards the lab's ports, whose servers ask for passwords of their own",
    "targets/cnpg/members.py": "forwards to one instance, whose PostgreSQL asks for a password",
    "links/emulator.py": "a UNIX socket in a folder of its user's alone",
}


def listens(path: Path) -> bool:
    """Whether the file opens a listener, or uses a library of servers."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LISTENS:
            return True
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name == library or name.startswith(f"{library}.") for name in names for library in SERVES):
            return True
    return False


def test_every_server_in_the_source_is_known_here() -> None:
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if listens(path)}
    assert found == set(SERVERS) | PARTS | set(NO_SERVERS_OF_OURS)


@pytest.fixture(params=sorted(SERVERS))
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int]]:
    """The name of its file and its port; deadlines and the cap are small."""
    for module in (bounded_server, bounded_http, agent_module):
        monkeypatch.setattr(module, "HEAD_S", WITHIN_S)
        monkeypatch.setattr(module, "CONNECTIONS", CAP, raising=False)
    with SERVERS[request.param](tmp_path) as port:
        yield request.param, port


@pytest.fixture(scope="module", params=sorted(set(SERVERS) - {"load/pods/agent.py"}))
def http(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with SERVERS[request.param](tmp_path_factory.mktemp("server")) as port:
        yield port


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def all_of(connection: socket.socket) -> bytes:
    """What it sends until it ends the connection; TimeoutError where it never does."""
    received = bytearray()
    with suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            received += piece
    return bytes(received)


def status(port: int, head: str) -> int:
    """The status of the first response to this head; 0 for none."""
    with connected(port) as connection:
        connection.sendall(f"{head}\r\n\r\n".replace("PORT", str(port)).encode("latin-1"))
        answer = connection.recv(1 << 12)
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    return int(found[1]) if found else 0


@cache
def paths(port: int) -> tuple[str, ...]:
    """Those that are answered at all."""
    mine = ("/", "/events", "/state", "/metrics")
    return tuple(path for path in mine if status(port, f"GET {path} HTTP/1.1\r\nHost: localhost:PORT") == 200)


@each(["Host: evil.example", "Host: evil.example:PORT", "Host: 127.0.0.1.evil.example", "Host: 0.0.0.0:PORT",
     "Host: localhost:PORT@evil.example", "Host: localhost, evil.example", "Host: [::1", "Host: localhost:PORT:PORT",
     "Host:", "X: y", "Host: localhost:PORT\r\nHost: evil.example", "Host: evil.example\r\nHost: localhost:PORT",
     "Host: localhost:PORT\r\nOrigin: http://evil.example", "Host: localhost:PORT\r\nOrigin: null",
     "Host: localhost:PORT\r\nOrigin: http://localhost",
     "Host: localhost:PORT\r\nOrigin: http://localhost:PORT@evil"])  # fmt: skip
def test_a_foreign_host_or_origin_reads_nothing_on_loopback(head: str, http: int) -> None:
    for path in paths(http):
        assert 400 <= status(http, f"GET {path} HTTP/1.1\r\n{head}") < 500, path
        assert status(http, f"GET {path} HTTP/1.0\r\n{head}") in range(400, 500), path
    assert status(http, f"GET /state HTTP/1.1\r\n{head}\r\nUpgrade: websocket\r\nConnection: Upgrade") != 101


@each(["localhost", "localhost:PORT", "LocalHost:1", "127.0.0.1", "127.0.0.1:PORT", "[::1]"])
def test_loopback_names_are_answered_with_and_without_a_port(host: str, http: int) -> None:
    assert len(paths(http)) >= 2
    for path in paths(http):
        assert status(http, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nReferer: https://chat.example/") == 200
        assert status(http, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}") == 200


def test_an_action_from_another_page_is_refused_by_its_referer(tmp_path: Path) -> None:
    with page(tmp_path) as port:
        head = "POST /act HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Length: 0\r\nConnection: close\r\nReferer: "
        with connected(port) as connection:
            connection.sendall(f"{head}http://evil.example/\r\n\r\n".replace("PORT", str(port)).encode())
            assert b"another origin" in all_of(connection)


def test_metrics_beyond_loopback_without_a_token_are_refused() -> None:
    with pytest.raises(UsageError, match="without a token"):
        MetricsServer(CollectorRegistry(), ("0.0.0.0", 0))


GREETING = b"GET /state HTTP/1.1\r\nHost: localhost\r\n"


def drip(connection: socket.socket) -> None:
    """A byte now and then, until the server ends it."""
    until = time.monotonic() + PATIENCE_S
    with suppress(ConnectionError):
        for at in range(10_000):
            assert time.monotonic() < until, "the server never ends it"
            connection.sendall(GREETING[at : at + 1] or b"x")
            time.sleep(0.05)


def half(connection: socket.socket) -> None:
    connection.sendall(GREETING)
    all_of(connection)


def silent(connection: socket.socket) -> None:
    all_of(connection)


def reset(connection: socket.socket) -> None:
    connection.sendall(GREETING + b"\r\n")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def megabyte(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.sendall(GREETING + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(1000)))
        connection.shutdown(socket.SHUT_WR)
    all_of(connection)


def http_0_9(connection: socket.socket) -> None:
    connection.sendall(b"GET /metrics\r\n\r\n")
    assert b"walproof_big" not in all_of(connection)


def pipelined(connection: socket.socket) -> None:
    with suppress(ConnectionError):
        connection.sendall((GREETING + b"\r\n") * 200 + GREETING)
    all_of(connection)


def garbage(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.sendall(bytes(range(256)) * 4 + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
    all_of(connection)


def reads_nothing(connection: socket.socket) -> None:
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(2 * WITHIN_S)


def endless_body(connection: socket.socket) -> None:
    head = b"POST /act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with suppress(ConnectionError):
        connection.sendall(head)
        until = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < until, "the server never ends it"
            connection.sendall(b"1\r\nx\r\n")
            time.sleep(0.05)


CLIENTS = (drip, half, silent, reset, megabyte, http_0_9, pipelined, garbage, reads_nothing, endless_body)


@pytest.mark.parametrize("client", CLIENTS)
def test_no_client_costs_a_traceback_or_a_thread(
    client: Callable[[socket.socket], None], server: tuple[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    _, port = server
    before = threading.active_count()
    for _ in range(2):
        with connected(port) as connection:
            client(connection)
    wait_for(Wait.PROGRAM_READY, lambda: threading.active_count() <= before, RealClock(), pace_s=0.02)
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def test_a_connection_above_the_cap_is_ended_and_places_come_back(server: tuple[str, int]) -> None:
    name, port = server
    before = threading.active_count()
    held = [connected(port) for _ in range(3 * CAP)]
    try:
        assert threading.active_count() <= before + CAP
        assert all(all_of(connection) == b"" for connection in held)
    finally:
        for connection in held:
            connection.close()
    if name != "load/pods/agent.py":
        answered = lambda: status(port, "GET /metrics HTTP/1.1\r\nHost: localhost") in (200, 404)  # noqa: E731
        wait_for(Wait.PROGRAM_READY, answered, RealClock(), pace_s=0.05)
