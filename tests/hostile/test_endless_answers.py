"""Servers whose answers never end, or unpack to any size: one sentence, soon, and the memory of a bounded answer."""

import gzip
import json
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from kubernetes.client import Configuration

from tests.fixtures.kubernetes.server import accept_key
from tests.fixtures.served_sockets import serving
from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.targets.cnpg import client as client_module
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, PODS, ApiError

MIB = 1 << 20
PACKED = gzip.compress(gzip.compress(bytes(256 * MIB)))
"""Packed once more, so that the module holds little; what is sent unpacks to 256 MiB."""
DEEP = b"[" * 100_000
Says = Callable[[socket.socket, str], None]


@contextmanager
def server(says: Says) -> Iterator[str]:
    """A server that reads a request and lets `says` answer it; the connection ends after that."""

    def serve(connection: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += connection.recv(1 << 16)
        says(connection, asked.decode())

    with serving(serve) as port:
        yield f"http://127.0.0.1:{port}"


def api(url: str) -> Client:
    configuration = Configuration()
    configuration.host, configuration.retries = url, False
    return Client(configuration, "default", "")


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak / MIB:.0f} MiB"


def whole(body: bytes, status: str = "200 OK", header: str = "") -> Says:
    """An answer of that body."""
    head = f"HTTP/1.1 {status}\r\n{header}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return lambda connection, asked: connection.sendall(head.encode() + body)


def packed(connection: socket.socket, asked: str) -> None:
    whole(gzip.decompress(PACKED), header="Content-Encoding: gzip\r\n")(connection, asked)


def endless(connection: socket.socket, asked: str) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def endless_without_length(connection: socket.socket, asked: str) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        connection.sendall(b" " * 65536)


deep, deep_refusal = whole(DEEP), whole(DEEP, "500 No")
pages = whole(json.dumps({"items": [{"x": "y" * 900_000}], "metadata": {"continue": "more"}}).encode())


@each([
    (packed, "packs its answer, which was not asked for"),
    (endless, "its answer is longer than 16 MiB"),
    (endless_without_length, "its answer is longer than 16 MiB"),
    (deep, "answers, but is no Kubernetes API"),
    (deep_refusal, "failed to get"),
])  # fmt: skip
def test_an_answer_of_a_false_api_server_has_an_end(says: Says, words: str) -> None:
    with server(says) as url, little_memory(128 * MIB), pytest.raises(ApiError, match=words):
        api(url).get(CLUSTERS, "pg")
    if says is not deep and says is not deep_refusal:
        with server(says) as url, little_memory(128 * MIB), pytest.raises(ApiError, match=words):
            api(url).log("pg-1")


def test_a_list_of_ever_more_pages_has_an_end() -> None:
    with server(pages) as url, pytest.raises(ApiError, match=r"the list of pods is longer than 16 MiB") as wrong:
        api(url).list(PODS)
    assert wrong.value.hint == "is it the right one? kubectl cluster-info"


def upgraded(connection: socket.socket, asked: str) -> None:
    key = next(line.split(": ")[1] for line in asked.splitlines() if line.lower().startswith("sec-websocket-key"))
    head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += f"Sec-WebSocket-Accept: {accept_key(key)}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    connection.sendall(head.encode())


def frame(data: bytes, first: int = 0x82, claimed: int | None = None) -> bytes:
    return bytes([first, 127]) + struct.pack(">Q", len(data) if claimed is None else claimed) + data


def frames_without_end(connection: socket.socket, asked: str) -> None:
    upgraded(connection, asked)
    while True:
        connection.sendall(frame(b"\1" + b"x" * 60_000))


def one_frame_without_end(connection: socket.socket, asked: str) -> None:
    upgraded(connection, asked)
    connection.sendall(frame(b"\1", claimed=1 << 40))
    while True:
        connection.sendall(b"x" * 65536)


def one_message_without_end(connection: socket.socket, asked: str) -> None:
    upgraded(connection, asked)
    connection.sendall(frame(b"\1" + b"x" * 60_000, first=0x02))
    while True:
        connection.sendall(frame(b"x" * 60_000, first=0x00))


FLOODS = [frames_without_end, one_frame_without_end, one_message_without_end]


@each(FLOODS, whole=True)
def test_what_a_command_prints_has_an_end(says: Says) -> None:
    cut_off = r"the command in pg-1 was cut off: more than 16 MiB came"
    with server(says) as url, little_memory(160 * MIB), pytest.raises(ApiError, match=cut_off):
        api(url).exec("pg-1", ["true"])


@each([b"x" * 70_000, b"{" * 20_000, b"&a [*a", b"- 1\n:"])
def test_how_a_command_ended_is_short_and_plain(status: bytes) -> None:
    def says(connection: socket.socket, asked: str) -> None:
        upgraded(connection, asked)
        connection.sendall(frame(b"\3" + status) + frame(struct.pack(">H", 1000), first=0x88))

    with server(says) as url, pytest.raises(ApiError, match="the command in pg-1 was cut off"):
        api(url).exec("pg-1", ["true"])


@each(FLOODS)
def test_what_waits_in_a_forward_has_an_end(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_MOST_WAITING", 8 * MIB)

    def forwarding(connection: socket.socket, asked: str) -> None:
        send, ports = connection.sendall, struct.pack("<H", 5432)

        class Opened:
            """The first frames of both channels say the port; then as `says`, on the first channel."""

            def sendall(self, data: bytes) -> None:
                if data.startswith(b"HTTP"):
                    send(data + frame(b"\0" + ports) + frame(b"\1" + ports))
                else:
                    send(data[:10] + b"\0" + data[11:] if data[10:11] == b"\1" else data)

        says(Opened(), asked)  # type: ignore[arg-type]

    proxies, start = list[threading.Thread](), threading.Thread.start

    def started(thread: threading.Thread) -> None:
        """It may have ended before anybody looks for it among those that run."""
        if thread.name.startswith("Kubernetes port forward proxy"):
            proxies.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    with server(forwarding) as url, little_memory(96 * MIB):
        opened = api(url).forward("pg-1", 5432)
        opened.settimeout(20)
        with closing(opened):
            (proxy,) = proxies
            proxy.join(60)
            assert not proxy.is_alive()


@each([
    (packed, "the answer is packed, which was not asked for"),
    (endless, "the answer is longer than 16 MiB"),
    (endless_without_length, "the answer is longer than 16 MiB"),
    (deep, "answers, but is not Patroni"),
])  # fmt: skip
def test_an_answer_of_a_false_patroni_has_an_end(says: Says, words: str) -> None:
    with server(says) as url, little_memory(128 * MIB):
        rest = PatroniRest(RestAccess((url,)))
        with pytest.raises(TargetError, match=words):
            rest.cluster()
        assert rest.status(url) == {}
        if says is not deep:
            with pytest.raises(TargetError, match=words):
                rest.send("PATCH", "/config", {})
        rest.close()


def test_an_honest_answer_comes_through_whole() -> None:
    with server(whole(json.dumps({"members": [], "text": "é" * MIB}).encode())) as url:
        rest = PatroniRest(RestAccess((url,)))
        assert len(rest.cluster()["text"]) == MIB and len(api(url).get(CLUSTERS, "pg")["text"]) == MIB
        rest.close()
