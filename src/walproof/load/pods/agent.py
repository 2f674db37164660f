"""The first process of a load pod: starts pgbench and the ledger's processes as it is asked, gives what they wrote.

`python3 -m walproof.load.pods.agent --listen 127.0.0.1:7447 --secret FOLDER`, reached by port-forward only. It ends
when asked to, on SIGTERM, and after two minutes without a request. Neither side believes the frames of the other."""

import argparse
import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import socket
import socketserver
import stat
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from walproof.errors import Error
from walproof.load.local_runner import LocalProcess, LocalWorkspace, new_work_directory
from walproof.machine.bounded_server import HEAD_S, BoundedMixIn
from walproof.machine.clock import now
from walproof.machine.programs import pgbench, search_path
from walproof.machine.untrusted import from_json

_PACKAGES = ("walproof.load", "walproof.model", "walproof.machine")
_COUNTED = (".py", ".sql", ".txt")


def checksum() -> str:
    """SHA-256 over the names and contents of what is counted, its first 16 digits."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        _add(digest, package, files(package))
    return digest.hexdigest()[:16]


def _add(digest: "hashlib._Hash", path: str, here: Traversable) -> None:
    for one in sorted(here.iterdir(), key=lambda entry: entry.name):
        if one.is_dir():
            _add(digest, f"{path}/{one.name}", one)
        elif one.name.endswith(_COUNTED):
            digest.update(f"{path}/{one.name}\n".encode() + one.read_bytes())


Header = dict[str, Any]
_LENGTHS = struct.Struct(">II")
_MOST_HEADER, _MOST_BODY = 1 << 20, 1 << 26
"""Bytes: files travel in pieces that are far smaller; a script that is put there is one body."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class Malformed(Exception):
    """What no walproof sends."""


def is_file_name(name: str) -> bool:
    """Whether it is one safe component: no folder, no hidden file, nothing but letters, digits, dots and dashes.

    >>> is_file_name("log.7.1"), is_file_name("../log"), is_file_name("/log"), is_file_name(".log"), is_file_name("a b")
    (True, False, False, False, False)
    """
    return _NAME.fullmatch(name) is not None


def file_name(text: object) -> str:
    """The name of a file in one folder; ValueError for anything else."""
    if not isinstance(text, str) or not is_file_name(text):
        raise ValueError(f"{str(text)[:80]!r} is no name of a file")
    return text


def send(connection: socket.socket, header: Header, body: bytes = b"") -> None:
    """Send one; OSError when the connection breaks."""
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)


def receive(
    connection: socket.socket, admit: Callable[[Header], None] = lambda _: None, *, within_s: float | None = None
) -> tuple[Header, bytes]:
    """The next one; OSError when the connection, or `within_s`, ends before it is whole; Malformed for what is none.

    `admit` may raise for a header: then its body is not read.
    """
    until = None if within_s is None else time.monotonic() + within_s
    of_header, of_body = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size, until))
    if of_header > _MOST_HEADER or of_body > _MOST_BODY:
        raise Malformed(f"a header of {of_header} and a body of {of_body} bytes")
    try:
        header = from_json(_exactly(connection, of_header, until))
    except ValueError:
        raise Malformed("a header that is no JSON") from None
    if not isinstance(header, dict):
        raise Malformed("a header that is no object")
    admit(header)
    return header, _exactly(connection, of_body, until)


def _exactly(connection: socket.socket, size: int, until: float | None) -> bytes:
    received = bytearray()
    while len(received) < size:
        # One byte now and then is no silence, so that the connection's own limit would never end it.
        if until is not None and time.monotonic() > until:
            raise TimeoutError("it takes too long")
        piece = connection.recv(min(1 << 16, size - len(received)))
        if not piece:
            raise OSError("the connection ended")
        received += piece
    return bytes(received)


SILENT_S = 120.0
PIECE = 1 << 22
MEMORY_MIB = 512
"""Of a pod's volume: the ledger and pgbench's logs, all together, can be no longer."""
PGPASS, TOKEN = "pgpass", "token"
"""The keys of the password file and of the run's token in the secret."""
_MODULES = "walproof.load.ledger."
_RESOLVED_S = 2.0
Answer = tuple[Header, bytes]


class Agent:
    """What is asked for, done with the runner that load on one machine has too. Asking twice for the same does it once.

    Workspaces and processes have the numbers that the client gives them.
    """

    def __init__(self, secret: Path) -> None:
        self._token = (secret / TOKEN).read_bytes()
        if not self._token:
            raise ValueError(f"{secret / TOKEN} is empty")
        self._own = new_work_directory()
        self._passfile = _private_copy(secret / PGPASS, self._own / PGPASS)
        self._workspaces: dict[int, LocalWorkspace] = {}
        self._processes: dict[int, LocalProcess] = {}
        self._lock = threading.Lock()
        self.asked_at = time.monotonic()
        self.over = threading.Event()
        self._does: dict[str, Callable[[Header, bytes], Answer]] = {
            "hello": self._hello,
            "clock": self._clock,
            "open": self._open,
            "put": self._put,
            "start": self._start,
            "state": self._state,
            "finish": self._finish,
            "kill": self._kill,
            "list": self._list,
            "read": self._read,
            "close": self._close,
            "end": self._end,
        }

    def admit(self, asked: Header) -> None:
        """PermissionError for a request without the run's token; it keeps nothing going."""
        given = str(asked.pop("token", "")).encode(errors="replace")
        if not hmac.compare_digest(given, self._token):
            raise PermissionError("the request does not carry the token of this run")

    def answer(self, asked: Header, body: bytes) -> Answer:
        """The answer to one request; what cannot be done is an answer too, under "error"."""
        self.asked_at = time.monotonic()
        try:
            with self._lock:
                return self._does[str(asked["do"])](asked, body)
        except (Error, OSError, KeyError, TypeError, ValueError) as wrong:
            return {"error": f"{type(wrong).__name__}: {wrong}"}, b""

    def kill_all(self) -> None:
        """End every process and remove every file."""
        for process in self._processes.values():
            process.kill()
        for workspace in self._workspaces.values():
            workspace.close()
        shutil.rmtree(self._own, ignore_errors=True)

    def _hello(self, asked: Header, body: bytes) -> Answer:
        """What this place is: its code, its password file, addresses of the names that are asked for."""
        names = {str(name): _address(str(name)) for name in asked.get("resolve", ())}
        return {"code": checksum(), "passfile": str(self._passfile), "addresses": names}, b""

    def _clock(self, asked: Header, body: bytes) -> Answer:
        return {"monotonic": time.monotonic(), "wall": now()}, b""

    def _open(self, asked: Header, body: bytes) -> Answer:
        made = self._workspaces.setdefault(int(asked["workspace"]), LocalWorkspace())
        return {"directory": made.directory}, b""

    def _workspace(self, asked: Header) -> LocalWorkspace:
        return self._workspaces[int(asked["workspace"])]

    def _path(self, asked: Header, key: str) -> Path:
        """The file of a workspace that is named there; ValueError for a path, a link, and what is no file."""
        path = Path(self._workspace(asked).directory) / file_name(asked[key])
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(path.lstat().st_mode):
                raise ValueError(f"{path.name} is no regular file")
        return path

    def _put(self, asked: Header, body: bytes) -> Answer:
        self._workspace(asked).put(self._path(asked, "name").name, body.decode())
        return {}, b""

    def _start(self, asked: Header, body: bytes) -> Answer:
        number, log = int(asked["process"]), self._path(asked, "log").name
        if number in self._processes:
            return {}, b""
        if "module" in asked:
            module = str(asked["module"])
            if not module.startswith(_MODULES):
                raise ValueError(f"{module} is none of {_MODULES}")
            self._processes[number] = self._workspace(asked).start_module(module, str(asked["argument"]), log)
        else:
            program, *words = (str(word) for word in asked["argv"])
            # The client knows where pgbench is on its own machine only.
            ours = Path(program).name == "pgbench"
            executable = str(pgbench()) if ours else shutil.which(program, path=search_path()) or program
            self._processes[number] = self._workspace(asked).start([executable, *words], log)
        return {}, b""

    def _state(self, asked: Header, body: bytes) -> Answer:
        process = self._processes[int(asked["process"])]
        cpu_s, sockets = process.cpu_s(), process.sockets() if asked.get("sockets") else 0
        return {"exit_code": process.exit_code, "cpu_s": cpu_s, "sockets": sockets}, b""

    def _finish(self, asked: Header, body: bytes) -> Answer:
        self._processes[int(asked["process"])].finish()
        return {}, b""

    def _kill(self, asked: Header, body: bytes) -> Answer:
        self._processes[int(asked["process"])].kill()
        return {}, b""

    def _list(self, asked: Header, body: bytes) -> Answer:
        pattern = str(asked["pattern"])
        file_name(pattern.replace("*", "x"))
        entries = {path.name: path.lstat() for path in self._workspace(asked).fetch(pattern) if is_file_name(path.name)}
        return {"files": {name: of.st_size for name, of in entries.items() if stat.S_ISREG(of.st_mode)}}, b""

    def _read(self, asked: Header, body: bytes) -> Answer:
        """A piece of a file, compressed; with `sum` the checksum of its first so many bytes instead."""
        with self._path(asked, "name").open("rb") as file:
            if "sum" in asked:
                return {"sha256": _sha256(file.read, int(asked["sum"]))}, b""
            file.seek(int(asked["at"]))
            return {}, zlib.compress(file.read(max(0, min(PIECE, int(asked["size"])))), 1)

    def _close(self, asked: Header, body: bytes) -> Answer:
        self._workspace(asked).close()
        return {}, b""

    def _end(self, asked: Header, body: bytes) -> Answer:
        self.over.set()
        return {}, b""


def _sha256(read: Callable[[int], bytes], size: int) -> str:
    digest = hashlib.sha256()
    while size > 0 and (piece := read(min(PIECE, size))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()


def _address(name: str) -> str | None:
    """Of a name of the cluster; None where it is not resolved within two seconds."""
    addresses: list[str] = []

    def ask() -> None:
        with suppress(OSError):
            addresses.append(str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_RESOLVED_S)
    return addresses[0] if addresses else None


def _private_copy(source: Path, path: Path) -> Path:
    """The password file for this user alone, in memory: libpq ignores one that others may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(source.read_bytes())
    return path


class _Connection(socketserver.BaseRequestHandler):
    """Answers one connection's requests, one after the other."""

    def handle(self) -> None:
        """Until it ends."""
        server = self.server
        assert isinstance(server, _Listening)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        within_s: float | None = HEAD_S
        try:
            while True:
                # Whoever has the token may be silent: the agent itself ends when no client asks any more.
                self.request.settimeout(within_s)
                asked = receive(self.request, server.agent.admit, within_s=within_s)
                within_s = None
                self.request.settimeout(None)
                send(self.request, *server.agent.answer(*asked))
        except PermissionError as refused:
            with suppress(OSError):
                send(self.request, {"error": str(refused)})
        except (OSError, Malformed):
            return


class _Listening(BoundedMixIn, socketserver.TCPServer):
    """A thread for each connection."""

    allow_reuse_address = True

    def __init__(self, place: tuple[str, int], agent: Agent) -> None:
        self.agent = agent
        super().__init__(place, _Connection)


def main() -> int:
    """Serve until asked to end (exit 0), until SIGTERM (exit 0), or until no client asks any more (exit 3)."""
    options = argparse.ArgumentParser(prog="walproof load pod")
    options.add_argument("--listen", required=True, metavar="HOST:PORT")
    options.add_argument("--secret", required=True, type=Path, metavar="FOLDER")
    options.add_argument("--silent", type=float, default=SILENT_S, metavar="SECONDS")
    given = options.parse_args()
    host, _, port = str(given.listen).rpartition(":")
    try:
        agent = Agent(given.secret)
    except (OSError, ValueError) as wrong:
        options.error(f"the secret cannot be used: {wrong}")
    signal.signal(signal.SIGTERM, lambda *_: agent.over.set())
    with _Listening((host, int(port)), agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while not agent.over.wait(0.5):
            if time.monotonic() > agent.asked_at + given.silent:
                break
        server.shutdown()
    agent.kill_all()
    return 0 if agent.over.is_set() else 3


if __name__ == "__main__":
    sys.exit(main())
