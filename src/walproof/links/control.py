"""Controls the link emulator's process: starts it, sets its table, asks for its status, ends it. Carries no packet."""

import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from walproof.errors import Error, MachineError, WaitTimeout
from walproof.links.emulator import REPLY_BYTES
from walproof.links.settings import Direction, LinkSetting
from walproof.machine import pid_files
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for

ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Status:
    """The link emulator's process now: its CPU time, the packets of all directions since each was set."""

    pid: int
    real_time: bool
    processor_s: float
    offered: int


CONFIG, SOCKET, PID, LOG = "wire.json", "wire.sock", "wire.pid", "wire.log"
"""Files in the folder of a lab's link emulator, for their owner only. The process ends when CONFIG is removed."""
Table = Mapping[Direction, LinkSetting]


def rows(table: Table) -> list[list[Any]]:
    """A table of addresses as the link emulator reads it."""
    return [[source, destination, asdict(setting)] for (source, destination), setting in table.items()]


def launch(
    folder: Path, devices: Mapping[str, str], table: Table, clock: Clock, *, environment: Mapping[str, str]
) -> Status:
    """Start the process for {namespace: address} and wait until it answers; MachineError says why not."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = {
        "devices": [{"namespace": n, "address": a} for n, a in devices.items()],
        "control": str(folder / SOCKET),
        "table": rows(table),
        "seed": random.SystemRandom().getrandbits(32),
    }
    for name in (SOCKET, LOG):
        (folder / name).unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(folder / CONFIG, flags, 0o600), "w") as file:
        json.dump(config, file)
    argv = [sys.executable, "-P", "-m", "walproof.links.emulator", str(folder / CONFIG)]
    process = pid_files.start(argv, folder / PID, folder / LOG, environment, "/")
    try:
        wait_for(
            Wait.PROGRAM_READY, lambda: process.poll() is not None or status(folder) is not None, clock, pace_s=0.02
        )
    except WaitTimeout:
        process.kill()
        process.wait()
        raise
    now = status(folder)
    if now is None:
        logged = (folder / LOG).read_text(errors="replace").strip().splitlines() or ["it logged nothing"]
        raise MachineError(
            f"the link emulator did not start: {logged[-2] if len(logged) > 1 else logged[0]}", logged[-1]
        )
    return now


def status(folder: Path) -> Status | None:
    """The process as it is now, None when it is dead or does not answer."""
    return _ask(folder, {"do": "status"})


def set_table(folder: Path, table: Table) -> Status:
    """Put a whole table in effect; MachineError when the link emulator is dead."""
    answer = _ask(folder, {"do": "set", "table": rows(table)})
    if answer is None:
        raise MachineError("the link emulator is dead", "`walproof lab fault clear` starts it again")
    return answer


def end(folder: Path, clock: Clock) -> None:
    """End the process and remove its files; safe when it is dead."""
    _ask(folder, {"do": "end"})
    pid = running(folder)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        try:
            wait_for(Wait.PROGRAM_GONE, lambda: running(folder) is None, clock, pace_s=0.02)
        except Error:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for name in (CONFIG, SOCKET, PID, LOG):
        (folder / name).unlink(missing_ok=True)


def running(folder: Path) -> int | None:
    """Its process id while it runs; None when that id now belongs to another process."""
    pid = pid_files.living(folder / PID)
    if pid is not None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # ours to reap when it was started by this very process
    return pid


def _ask(folder: Path, request: dict[str, Any]) -> Status | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(folder / SOCKET))
            connection.send(json.dumps(request).encode())
            data = json.loads(connection.recv(REPLY_BYTES))
        except (OSError, ValueError):
            return None
    return Status(data["pid"], data["real_time"], data["processor_s"], data["offered"])
