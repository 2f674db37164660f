"""A load pod that lies, and an agent that is asked by a stranger: neither gets anything written, unpacked or done."""

import hashlib
import os
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.tiers import each
from walproof.load.pods import remote
from walproof.load.pods.agent import PIECE, Agent, Header, _Listening, receive, send
from walproof.load.pods.remote import Hello, LoadLost, RemotePod, RemoteWorkspace
from walproof.machine.clock import RealClock

TOKEN = "a-token-of-this-run"
BAD_NAMES = [
    "../../stolen", "..", ".", ".bashrc", "", "a/b", "a b", "a\n", "-rf", "n" * 300, "\u202eevil", "a\0b", "heads/x",
]  # fmt: skip
NUL_BYTES = 512 << 20


@dataclass
class Liar:
    """A load pod of a stranger: answers what its `says` holds, and is asked over a pair of sockets."""

    says: dict[str, tuple[Any, bytes]]
    raw: bytes = b""
    asked: list[Header] = field(default_factory=list)

    def connect(self) -> socket.socket:
        here, there = socket.socketpair()
        threading.Thread(target=self._serve, args=(there,), daemon=True).start()
        return here

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                header, _ = receive(connection)
                self.asked.append(header)
                if self.raw:
                    connection.sendall(self.raw)
                    return
                send(connection, *self.says.get(header["do"], ({}, b"")))
        except OSError:
            return

    def pod(self) -> RemotePod:
        return RemotePod("liar", TOKEN, self.connect, lambda: "", RealClock())

    def place(self) -> RemoteWorkspace:
        self.says.setdefault("open", ({"directory": "/tmp/there"}, b""))
        return RemoteWorkspace(self.pod(), RealClock(), lambda endpoint: endpoint)


def below(folder: Path) -> set[Path]:
    """Every file there, of any depth."""
    return {path for path in folder.rglob("*") if not path.is_dir()}


@each([(head, name) for head in [None, 100] for name in BAD_NAMES])
def test_a_file_that_a_pod_lists_under_a_name_that_is_a_path_is_not_written(
    head: int | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walproof.load.local_runner._parent", lambda: tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    body = zlib.compress(b"ssh-rsa mine")
    place = Liar({"list": ({"files": {name: 12, "good": 12}}, b""), "read": ({"sha256": "0" * 64}, body)}).place()
    assert place.fetch("*", head=head) == ()
    assert place.lost.startswith("the load pod liar answers list") and "is no name of a file" in place.lost
    assert place.lost.isprintable() and below(tmp_path) == set()
    place.close()


@each([None, 100])
def test_nor_is_one_under_an_absolute_name(head: int | None, tmp_path: Path) -> None:
    stolen = tmp_path / "authorized_keys"
    body = zlib.compress(b"ssh-rsa mine")
    place = Liar({"list": ({"files": {str(stolen): 12}}, b""), "read": ({"sha256": "0" * 64}, body)}).place()
    assert place.fetch("*", head=head) == () and not stolen.exists()
    assert f"'{str(stolen)[:20]}" in place.lost
    with pytest.raises(LoadLost, match="is no name of a file"):
        place.put("more", "")
    place.close()


def test_names_that_were_not_asked_for_are_refused() -> None:
    place = Liar({"list": ({"files": {"report": 0, "attempts-1": 0}}, b"")}).place()
    assert place.fetch("attempts-*") == ()
    assert place.lost == "the load pod liar names report where attempts-* was asked for"
    place.close()


@each([None, 100])
def test_other_names_at_each_question_come_to_an_end(head: int | None) -> None:
    body, none = zlib.compress(b""), hashlib.sha256(b"").hexdigest()
    liar = Liar({"read": ({"sha256": none}, body)})
    place = liar.place()
    for number in range(9):
        liar.says["list"] = ({"files": {f"attempts-{number}": 256 << 20}}, b"")
        place._damaged = ""
        if not place.fetch("attempts-*", head=head) and place._pod.lost:
            break
    assert place.lost == "the load pod liar names ever other files, and its memory has 512 MiB"
    assert number == 4
    place.close()


@each(
    [
        (one,)
        for one in [
            {"a": (512 << 20) + 1},
            {"a": -1},
            {"a": "many"},
            {"a": float("nan")},
            {"a": None},
            ["a"],
            None,
            7,
        ]
    ]
)
def test_sizes_that_no_pod_has_are_refused(files: Any) -> None:
    place = Liar({"list": ({"files": files}, b"")}).place()
    assert place.fetch("*") == () and place.lost.startswith("the load pod liar answers list with what no load pod")
    place.close()


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Half a megabyte that unpacks to 512 MiB."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 24)) for _ in range(NUL_BYTES >> 24)) + packer.flush()
    assert len(packed) < 600_000
    return packed


@each([None, 100])
def test_what_is_packed_is_unpacked_to_what_was_asked_for_and_no_more(head: int | None, bomb: bytes) -> None:
    place = Liar({"list": ({"files": {"log.1": 2 * PIECE}}, b""), "read": ({"sha256": "0" * 64}, bomb)}).place()
    tracemalloc.start()
    try:
        assert place.fetch("log.*", head=head) == ()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * PIECE, peak
    assert place.lost.startswith("the load pod liar packed more into a piece of log.1 than the")
    place.close()


@each(
    [
        (one,)
        for one in [
            b"\xff\xff\xff\xff\x00\x00\x00\x00",
            b"\x00\x00\x00\x02\xff\xff\xff\xff{}",
            b"\x00\x03\x0d\x40\x00\x00\x00\x00" + b"[" * 200_000,
            b"\x00\x00\x00\x03\x00\x00\x00\x00[1]",
            b"\x00\x00\x00\x02\x00\x00\x00\x00{{",
        ]
    ]
)
def test_a_frame_that_no_walproof_sends_is_one_sentence_at_once(raw: bytes) -> None:
    with pytest.raises(LoadLost, match="the load pod liar sends what no load pod sends: "):
        Liar({}, raw).place()


def test_an_answer_of_one_byte_now_and_then_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LOST_AFTER_S", 0.5)
    over = threading.Event()

    class Drip(Liar):
        def _serve(self, connection: socket.socket) -> None:
            with suppress(OSError):
                connection.sendall(b"\x00\x00\x03\xe8\x00\x00\x00\x00")
                while not over.wait(0.02):
                    connection.sendall(b" ")

    began = time.monotonic()
    with pytest.raises(LoadLost, match="the load pod liar did not answer for"):
        Drip({}).place()
    over.set()
    assert time.monotonic() - began < 10


@each([{"monotonic": float("inf"), "wall": 1.0}, {"wall": 1.0}, {"monotonic": "x"}])
def test_a_clock_that_is_none_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(LoadLost, match="answers clock with what no load pod answers"):
        Liar({"clock": (answer, b"")}).pod().clock()


def test_what_a_pod_says_went_wrong_is_one_line_that_no_terminal_obeys() -> None:
    pod = Liar({"kill": ({"error": "\x1b[2J\n" + "x" * 100_000}, b"")}).pod()
    with pytest.raises(OSError, match=r"in the load pod liar: \?\[2J x+$") as wrong:
        pod.ask("kill", process=1)
    assert len(str(wrong.value)) < 400


@contextmanager
def listening(folder: Path, token: str = TOKEN) -> Iterator[tuple[Agent, Callable[[], socket.socket]]]:
    (folder / "pgpass").write_text("*:*:*:*:x\n")
    (folder / "token").write_text(token)
    agent = Agent(folder)
    with _Listening(("127.0.0.1", 0), agent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield agent, lambda: socket.create_connection(server.server_address[:2], timeout=10)  # type: ignore[arg-type]
        finally:
            server.shutdown()
            thread.join()
            agent.kill_all()


@each([None, "", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9", "\ud800", 7, [TOKEN], {}])
def test_the_agent_does_nothing_for_a_stranger(token: Any, tmp_path: Path) -> None:
    with listening(tmp_path) as (agent, connect), connect() as connection:
        agent.asked_at = began = -1.0
        words = {} if token is None else {"token": token}
        send(connection, {"do": "start", "workspace": 1, "process": 1, "argv": ["touch", "x"], "log": "l", **words})
        header, body = receive(connection)
        assert header == {"error": "the request does not carry the token of this run"} and body == b""
        with pytest.raises(OSError, match="the connection ended"):
            receive(connection)
        assert agent.asked_at == began and not agent._processes and not agent.over.is_set()


def test_the_body_of_a_stranger_is_not_even_read(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, connect), connect() as connection:
        connection.sendall(b"\x00\x00\x00\x02\x04\x00\x00\x00{}")
        assert receive(connection)[0] == {"error": "the request does not carry the token of this run"}


def test_the_token_is_asked_for_again_with_every_request(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, connect), connect() as connection:
        send(connection, {"do": "hello", "token": TOKEN})
        assert "code" in receive(connection)[0]
        send(connection, {"do": "end"})
        assert "error" in receive(connection)[0]


def test_an_agent_without_a_token_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "pgpass").write_text("")
    with pytest.raises(FileNotFoundError):
        Agent(tmp_path)
    (tmp_path / "token").write_text("")
    with pytest.raises(ValueError, match="token is empty"):
        Agent(tmp_path)


def test_whoever_has_the_token_is_answered(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, connect):
        pod = RemotePod("own", TOKEN, connect, lambda: "", RealClock())
        assert pod.checked(Hello, "hello").addresses == {}
        place = RemoteWorkspace(pod, RealClock(), lambda endpoint: endpoint)
        place.put("script.sql", "SELECT 1")
        assert [path.read_text() for path in place.fetch("*.sql")] == ["SELECT 1"]
        place.close()


@each([(name, do) for name in [*BAD_NAMES, "/etc/passwd"] for do in ["put", "read", "start", "list"]])
def test_the_agent_takes_no_path_for_a_name(name: str, do: str, tmp_path: Path) -> None:
    with listening(tmp_path) as (agent, _):
        agent.answer({"do": "open", "workspace": 1}, b"")
        words = {"name": name, "log": name, "pattern": name, "at": 0, "size": 9, "process": 1, "argv": ["true"]}
        answer, body = agent.answer({"do": do, "workspace": 1, **words}, b"text")
        assert "is no name of a file" in answer["error"] and body == b"" and not agent._processes


@each(["put", "read", "start"])
def test_the_agent_follows_no_link_and_waits_for_no_pipe(do: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("as it was")
    with listening(tmp_path) as (agent, _):
        place = Path(agent.answer({"do": "open", "workspace": 1}, b"")[0]["directory"])
        (place / "link").symlink_to(own)
        os.mkfifo(place / "pipe")
        for name in ("link", "pipe"):
            words = {"name": name, "log": name, "at": 0, "size": 9, "process": 1, "argv": ["echo", "gone"]}
            answer, body = agent.answer({"do": do, "workspace": 1, **words}, b"gone")
            assert answer["error"] == f"ValueError: {name} is no regular file" and body == b""
        (place / "plain").write_text("plain")
        assert agent.answer({"do": "list", "workspace": 1, "pattern": "*"}, b"")[0] == {"files": {"plain": 5}}
        assert own.read_text() == "as it was" and not agent._processes
