"""Talking to the wire's process: start it, set its table, look at its counters, end it. Carries no packet itself."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from walproof.errors import Error, MachineError, WaitTimeout
from walproof.links.emulator import REPLY_BYTES
from walproof.links.settings import Direction, LinkSetting
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for

ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Counters:
    """One direction since its setting was set: packets offered, lost as asked, refused by a cut or a full queue."""

    offered: int
    octets: int
    lost: int
    refused: int


@dataclass(frozen=True, slots=True)
class Look:
    """The wire's process as it describes itself; counters by direction of addresses. `processor_s` is its own time."""

    pid: int
    since: float
    real_time: bool
    processor_s: float
    undelivered: int
    counters: dict[Direction, Counters]


@dataclass(frozen=True, slots=True)
class WireFiles:
    """Where one lab's wire keeps what it needs; all readable by its owner only."""

    folder: Path

    @property
    def config(self) -> Path:
        """Devices and first table; the process ends when it goes away."""
        return self.folder / "wire.json"

    @property
    def control(self) -> Path:
        """The control socket."""
        return self.folder / "wire.sock"

    @property
    def pidfile(self) -> Path:
        """The process, for the day it does not answer."""
        return self.folder / "wire.pid"

    @property
    def log(self) -> Path:
        """What it said on its way out."""
        return self.folder / "wire.log"


Table = Mapping[Direction, LinkSetting]


def rows(table: Table) -> list[list[Any]]:
    """A table of addresses as the wire's process reads it."""
    return [[source, destination, asdict(setting)] for (source, destination), setting in table.items()]


def launch(
    files: WireFiles, devices: Mapping[str, str], table: Table, clock: Clock, *, environment: Mapping[str, str]
) -> Look:
    """Start the process for {namespace: address} and wait until it answers; MachineError says why not."""
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = {
        "devices": [{"namespace": n, "address": a} for n, a in devices.items()],
        "control": str(files.control),
        "table": rows(table),
        "seed": random.SystemRandom().getrandbits(32),
    }
    files.control.unlink(missing_ok=True)
    with _private(files.config) as config_fd:
        os.write(config_fd, json.dumps(config).encode())
    with _private(files.log) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "walproof.links.emulator", str(files.config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=dict(environment),
        )
    with _private(files.pidfile) as pid_fd:
        os.write(pid_fd, str(process.pid).encode())
    try:
        wait_for(Wait.PROGRAM_READY, lambda: process.poll() is not None or look(files) is not None, clock, pace_s=0.02)
    except WaitTimeout:
        process.kill()
        process.wait()
        raise
    now = look(files)
    if now is None:
        said = files.log.read_text().strip().splitlines() or ["it said nothing"]
        raise MachineError(f"the wire did not start: {said[-2] if len(said) > 1 else said[0]}", said[-1])
    return now


@contextlib.contextmanager
def _private(path: Path) -> Any:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def look(files: WireFiles) -> Look | None:
    """The process as it is now, None when it is dead or does not answer."""
    return _ask(files, {"do": "look"})


def set_table(files: WireFiles, table: Table) -> Look:
    """Put a whole table in effect; MachineError when the wire is dead."""
    answer = _ask(files, {"do": "set", "table": rows(table)})
    if answer is None:
        raise MachineError("the wire is dead", "`walproof lab heal` starts it again")
    return answer


def end(files: WireFiles, clock: Clock) -> None:
    """End the process and remove its files; safe when it is dead."""
    _ask(files, {"do": "end"})
    pid = running(files)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        try:
            wait_for(Wait.PROGRAM_GONE, lambda: running(files) is None, clock, pace_s=0.02)
        except Error:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for path in (files.config, files.control, files.pidfile, files.log):
        path.unlink(missing_ok=True)


def running(files: WireFiles) -> int | None:
    """Its process number while it runs; a number that now belongs to somebody else is not it."""
    try:
        pid = int(files.pidfile.read_text())
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # ours to reap when it was started by this very process
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, ValueError):
        return None
    return pid if str(files.config).encode() in argv and state != "Z" else None


def _ask(files: WireFiles, request: dict[str, Any]) -> Look | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(ANSWER_S)
        try:
            asking.connect(str(files.control))
            asking.send(json.dumps(request).encode())
            data = json.loads(asking.recv(REPLY_BYTES))
        except (OSError, ValueError):
            return None
    counters = {
        (row["from"], row["to"]): Counters(row["offered"], row["bytes"], row["lost"], row["refused"])
        for row in data["lanes"]
    }
    return Look(data["pid"], data["since"], data["real_time"], data["processor_s"], data["undelivered"], counters)
