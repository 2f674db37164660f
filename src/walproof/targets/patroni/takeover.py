"""A Patroni cluster as a guard sees it: its lock in etcd and its signs of life, from the target's file.

Also the guard as a process of its own, as drills start, ask and end it."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import httpx2
from pydantic import TypeAdapter

from walproof.errors import MachineError, UsageError
from walproof.guarding.etcd import EtcdAccess
from walproof.guarding.leader_lock import EtcdLeaderLock
from walproof.guarding.signs_of_life import Addresses, PatroniSignsOfLife
from walproof.machine import pid_files
from walproof.machine.programs import program
from walproof.model.ports import Clock
from walproof.model.takeover import GuardStatus, LeaderLock, SignsOfLife
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.rest import PatroniRest, is_this_machine
from walproof.targets.patroni.target_file import Etcd3Part, PatroniFile, secret

DRILLED = ("--at-most-every", "1s")
"""Options of a guard whose takeovers are meant, drill after drill: without them the time between two would double."""
_STATUS = TypeAdapter(GuardStatus)


@dataclass(frozen=True, slots=True)
class GuardProcess:
    """folder: where its log and pid file lie; port: on 127.0.0.1; options: of `walproof guard`, with the target.

    under: the beginning of its command line, for a program that runs it.
    """

    folder: Path
    port: int
    options: Sequence[str]
    clock: Clock
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    name: str = "guard"
    under: Sequence[str] = ()

    @property
    def _pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    @property
    def _log_file(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        if pid_files.living(self._pid_file) is not None:
            return
        guard = [sys.executable, "-P", "-m", "walproof", "guard", *self.options]
        guard += ["--listen", f"127.0.0.1:{self.port}"]
        process = pid_files.start([*self.under, *guard], self._pid_file, self._log_file, self.environment)

        def answers() -> bool:
            if process.poll() is not None:
                words = self.log().strip().splitlines()
                raise MachineError(f"the guard does not start: {' '.join(words[-2:])}", "walproof guard --help")
            return self.status() is not None

        wait_for(Wait.PROGRAM_READY, answers, self.clock, pace_s=0.05)

    def stop(self) -> None:
        pid = pid_files.living(self._pid_file)
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        wait_for(Wait.PROGRAM_GONE, lambda: _ended(pid, self._pid_file), self.clock, pace_s=0.02)

    def status(self) -> GuardStatus | None:
        try:
            answer = httpx2.get(f"http://127.0.0.1:{self.port}/state", timeout=1, trust_env=False, verify=False)
            return _STATUS.validate_json(answer.content)
        except (httpx2.HTTPError, ValueError, OSError):
            return None

    def log(self) -> str:
        try:
            return self._log_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""


def _ended(pid: int, pid_file: Path) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # where it is our own child
    return pid_files.living(pid_file) is None


@dataclass(slots=True)
class GuardOfDrills:
    """target: the path of the target file, which names etcd."""

    target: str
    clock: Clock
    _folder: "TemporaryDirectory[str] | None" = None
    _process: GuardProcess | None = None

    def start(self) -> None:
        if self._process is None:
            self._folder = TemporaryDirectory(prefix="walproof-guard-")
            self._process = GuardProcess(
                Path(self._folder.name),
                _free_port(),
                ["--target", self.target, "--allow", "takeover", *DRILLED],
                self.clock,
                under=(str(program("setpriv")), "--pdeathsig", "TERM", "--"),
            )
        self._process.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def status(self) -> GuardStatus | None:
        return self._process.status() if self._process is not None else None

    def log(self) -> str:
        return self._process.log() if self._process is not None else ""


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


_EXAMPLE = '[etcd3] hosts = ["10.0.0.21:2379"] in the target file'


@dataclass(frozen=True, slots=True)
class PatroniTakeover:
    """members: who Patroni lists, with connection parameters."""

    rest: PatroniRest
    file: PatroniFile
    members: Callable[[], Mapping[str, Endpoint]]
    clock: Clock

    def lock(self) -> LeaderLock:
        """The leader lock; UsageError where the target file names no etcd 3."""
        part = self._etcd3()
        if not part.scope:
            raise UsageError(
                "a guard takes the leader lock of the scope that the target file names, and of no other",
                f"below [etcd3]: scope = {json.dumps(self._scope(), ensure_ascii=False)}",
            )
        return EtcdLeaderLock(_access(part), f"/{part.namespace.strip('/')}/{part.scope}/", self.clock.now)

    def signs_of_life(self) -> SignsOfLife:
        return PatroniSignsOfLife(self._addresses, self.rest.plain_get(), self.clock)

    def _etcd3(self) -> Etcd3Part:
        if self.file.other_dcs:
            raise UsageError(
                f"a guard cannot use {self.file.other_dcs} as the DCS: it knows etcd 3 only (Patroni's etcd3)", _EXAMPLE
            )
        if self.file.etcd3 is None:
            raise UsageError("a guard needs Patroni's etcd, which the target file does not name", _EXAMPLE)
        return self.file.etcd3

    def _scope(self) -> str:
        """The scope as Patroni's REST gives it, which may be a lie: to be shown, never to be obeyed."""
        for member in self.rest.cluster()["members"]:
            patroni = self.rest.status(str(member.get("api_url", ""))).get("patroni") or {}
            if patroni.get("scope"):
                return str(patroni["scope"])
        return "…"

    def _addresses(self) -> Mapping[str, Addresses]:
        listed = {str(m["name"]): m for m in self.rest.cluster()["members"]}
        addresses = {}
        for name, endpoint in self.members().items():
            member = listed.get(name, {})
            url = str(member.get("api_url", "")).removesuffix("/patroni")
            if url:
                addresses[name] = Addresses(endpoint, url, f"{member.get('host', '')}:{member.get('port') or 5432}")
        return addresses


def _access(part: Etcd3Part) -> EtcdAccess:
    for url in part.urls if part.username and not part.plain_http else ():
        if urlsplit(url).scheme != "https" and not is_this_machine(urlsplit(url).hostname or ""):
            raise UsageError(
                f"the password of etcd is not sent to {urlsplit(url).hostname} over plain HTTP",
                'protocol = "https" below [etcd3] in the target file, or plain_http = true',
            )
    password = secret(part.password_file, "etcd3.password_file")
    return EtcdAccess(part.urls, part.username, password, part.cacert, part.cert, part.key)
