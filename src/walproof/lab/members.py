"""A member as processes: everything inside its network namespace. Starts, finds, signals and ends them."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from walproof.lab import home, member_init
from walproof.lab.blueprint import Blueprint
from walproof.lab.confinement import confined, member_init_argv
from walproof.lab.privileges import make_log
from walproof.links.namespaces import NAMESPACES
from walproof.machine import control_groups, pid_files, untrusted
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for


def _namespace_id(blueprint: Blueprint, member: str) -> tuple[int, int] | None:
    try:
        found = os.stat(NAMESPACES / blueprint.namespace(member))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def processes(blueprint: Blueprint, member: str) -> list[psutil.Process]:
    """Every process inside the member's network namespace, oldest first; zombies left out."""
    wanted = _namespace_id(blueprint, member)
    if wanted is None:
        return []
    found = []
    for pid in psutil.pids():
        try:
            space = os.stat(f"/proc/{pid}/ns/net")
            if (space.st_dev, space.st_ino) == wanted:
                found.append(psutil.Process(pid))
        except (OSError, psutil.Error):
            continue
    return sorted(found, key=lambda p: p.pid)


def run_inside(
    blueprint: Blueprint, member: str, argv: Sequence[str], *, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a command inside the member as its user; its output and exit code, whatever it is."""
    return subprocess.run(
        confined(blueprint, argv, member=member),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env=home.environment(blueprint),
        cwd=blueprint.member_dir(member),
    )


def listens(pid: int) -> bool:
    """Whether the member's first process handles SIGHUP already; before that it starts every program anyway."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)
    return False


def start_member(blueprint: Blueprint, member: str) -> None:
    """Start the member's programs that do not run, and its init process when that has ended."""
    folder = blueprint.member_dir(member)
    pid = pid_files.living(folder / "init.pid")
    if pid is not None:
        if listens(pid):
            os.kill(pid, signal.SIGHUP)
        return
    make_log(folder / "init.log")
    with (folder / "init.log").open("ab") as log:
        first = subprocess.Popen(
            confined(blueprint, member_init_argv(member_init.__file__, folder), member=member),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=home.environment(blueprint, HOME=str(blueprint.run_dir(member))),
            start_new_session=True,
        )
    pid_files.write(folder / "init.pid", first.pid)
    control_groups.join(control_groups.group(blueprint.control_group(member)), first.pid)


def signal_all(blueprint: Blueprint, member: str, number: int) -> None:
    """Send a signal to every process of the member; those that end meanwhile are no error."""
    for process in processes(blueprint, member):
        _send(process, number)


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)


def kill_everything(blueprint: Blueprint, member: str, clock: Clock) -> None:
    """Kill every process of the member with -9, again and again until none is left (they may fork meanwhile)."""

    def ended() -> bool:
        left = processes(blueprint, member)
        for process in left:
            _send(process, signal.SIGKILL)
        return all(_is_over(process) for process in left)

    wait_for(Wait.PROGRAM_GONE, ended, clock, pace_s=0.02)


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def postmaster(blueprint: Blueprint, member: str) -> int | None:
    """Pid of the member's postmaster, None when PostgreSQL does not run there."""
    try:
        pid = int(untrusted.read_line(blueprint.member_dir(member), blueprint.data_dir(member) / "postmaster.pid"))
        process = psutil.Process(pid)
        alive = process.status() != psutil.STATUS_ZOMBIE and process.name().startswith("postgres")
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    space = Path(f"/proc/{pid}/ns/net")
    try:
        found = os.stat(space)
    except OSError:
        return None
    return pid if alive and (found.st_dev, found.st_ino) == _namespace_id(blueprint, member) else None


def program_pid(blueprint: Blueprint, member: str, name: str) -> int | None:
    """Pid of "etcd" or "patroni" of that member, None when it does not run."""
    for process in processes(blueprint, member):
        try:
            argv = process.cmdline()
        except psutil.Error:
            continue
        if (name == "etcd" and argv and Path(argv[0]).name == "etcd") or (
            name == "patroni" and argv[1:3] == ["-m", "patroni"]
        ):
            return process.pid
    return None


def marked(blueprint: Blueprint) -> list[psutil.Process]:
    """Every process that carries the lab's mark in its environment, in whatever namespace; this process left out."""
    mark = f"{home.MARK}={blueprint.home}".encode()
    found = []
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(psutil.Process(pid))
        except (OSError, psutil.Error):
            continue
    return found


def logs(blueprint: Blueprint, member: str, lines: int = 50) -> str:
    """The last lines of every log of the member."""
    parts = []
    for path in sorted(blueprint.member_dir(member).glob("*.log")):
        tail = path.read_text(errors="replace").splitlines()[-lines:]
        parts.append("\n".join([f"==> {path.name} <==", *tail, ""]))
    return "\n".join(parts)
