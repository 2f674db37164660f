"""A member as processes in its network namespace: started, found, signalled, ended, limited to some cores.

And its newest WAL, put aside before Patroni rewinds or clones it again, shown by pg_waldump."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from walproof.errors import MachineError, UsageError
from walproof.lab import home, member_init
from walproof.lab.blueprint import Blueprint
from walproof.lab.privileges import (
    apart,
    confined,
    is_in_container,
    is_over,
    is_user_of_labs,
    isolated_python,
    let_read,
    make_folder,
    member_uid,
    users_of_lab,
)
from walproof.links.devices import NAMESPACES
from walproof.links.settings import check_members
from walproof.machine import pid_files, processors, untrusted
from walproof.model.ports import Clock
from walproof.model.units import lsn_text
from walproof.model.waiting import Wait, wait_for


def network_of(path: Path) -> tuple[int, int] | None:
    """What identifies the network namespace of that file (below /run/netns, or a process's ns/net); None without."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def processes(blueprint: Blueprint, member: str) -> list[psutil.Process]:
    """Every process of the lab inside the member's network namespace, oldest first; zombies left out.

    Under root another's are not the lab's, whoever put them there (`ip netns exec`).
    """
    network, inside = network_of(NAMESPACES / blueprint.namespace(member)), []
    for pid in sorted(psutil.pids()) if network else ():
        if network_of(Path(f"/proc/{pid}/ns/net")) == network:
            with suppress(OSError, psutil.Error):
                process = psutil.Process(pid)
                if process.uids().real == member_uid(blueprint.number) or _mark(pid) == str(blueprint.home):
                    inside.append(process)
    return inside


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
    argv = confined(blueprint, isolated_python(member_init.__file__, str(folder)), member=member)
    environment = home.environment(blueprint, HOME=str(blueprint.run_dir(member)))
    first = pid_files.start(argv, folder / "init.pid", folder / "init.log", environment, folder)
    processors.join_group(processors.group(blueprint.control_group(member)), first.pid)


def kill_everything(blueprint: Blueprint, member: str, clock: Clock) -> None:
    kill_all(partial(processes, blueprint, member), clock)


_KILL_S = 20.0
KILL_ALL = """
import os, signal, sys
owner = int(sys.argv[1])
os.setgroups([])
os.setresgid(owner, owner, owner)
os.setresuid(owner, owner, owner)
os.kill(-1, signal.SIGKILL)
"""
"""All that this user may signal, which is what runs as this user: kill(2) holds up every fork meanwhile."""


def kill_all(find: Callable[[], list[psutil.Process]], clock: Clock) -> None:
    """Kill what is found with -9, again and again until none is left (they may fork meanwhile)."""

    def ended() -> bool:
        left = find()
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        return all(is_over(process.pid) for process in left)

    wait_for(Wait.PROGRAM_GONE, ended, clock, pace_s=0.02)


def kill_marked(blueprint: Blueprint, clock: Clock) -> None:
    """Kill every process of the lab with -9: all of a user of its own by one kill(2), which no fork gets away from.

    One by one where a container's lab has the same user: that kill(2) would reach into it.
    """

    def found() -> list[psutil.Process]:
        for owner in users_of_lab(blueprint.number) - {user for _, user, elsewhere in _seen() if elsewhere}:
            with suppress(subprocess.TimeoutExpired):
                argv = isolated_python("-c", KILL_ALL, str(owner))
                subprocess.run(argv, check=False, capture_output=True, timeout=_KILL_S)
        return marked(blueprint)

    kill_all(found, clock)


def postmaster(blueprint: Blueprint, member: str) -> int | None:
    """Pid of the member's postmaster, None when PostgreSQL does not run there."""
    try:
        pid = int(untrusted.read_line(blueprint.member_dir(member), blueprint.data_dir(member) / "postmaster.pid"))
        alive = not is_over(pid) and untrusted.of_process(pid, "comm")[0].startswith("postgres")
    except (OSError, ValueError, IndexError):
        return None
    network = network_of(Path(f"/proc/{pid}/ns/net"))
    own = network_of(NAMESPACES / blueprint.namespace(member))
    return pid if alive and network is not None and network == own else None


def program_pid(blueprint: Blueprint, member: str, name: str) -> int | None:
    """Pid of "etcd" or "patroni" of that member, None when it does not run."""
    for process in processes(blueprint, member):
        try:
            argv = untrusted.of_process(process.pid, "cmdline")
        except OSError:
            continue
        if (name == "etcd" and Path(argv[0]).name == "etcd") or (name == "patroni" and argv[1:3] == ["-m", "patroni"]):
            return process.pid
    return None


def marked(blueprint: Blueprint) -> list[psutil.Process]:
    """Every process of the lab, in any namespace, this one left out: it carries the lab's mark in its environment.

    Under root all that run as a user of its own too, for who runs there may take the mark off and leave the namespace.
    """
    own = users_of_lab(blueprint.number)
    return [process for process, user, mark in _carriers() if mark == str(blueprint.home) or user in own]


def marks() -> set[str]:
    """The homes of all labs that have a living process on this machine, as far as we may see."""
    return {mark for _, _, mark in _carriers() if mark}


def _carriers() -> Iterator[tuple[psutil.Process, int, str]]:
    """(process, its user, its mark, "" for none) of every other process that is ours or of a user of labs.

    What others write into their environment is theirs: root neither ends them nor waits for their end. Nor is it ours
    what a container runs.
    """
    return ((process, user, _mark(process.pid)) for process, user, elsewhere in _seen() if not elsewhere)


def _seen() -> Iterator[tuple[psutil.Process, int, bool]]:
    """(process, its user, whether it is a container's) of every other process of our user, or of a user of labs."""
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        with suppress(OSError, psutil.Error):
            process = psutil.Process(pid)
            user = process.uids().real
            if (user == os.geteuid() or is_user_of_labs(user)) and not is_over(pid):
                yield process, user, is_in_container(pid, user)


def _mark(pid: int) -> str:
    start, variables = f"{home.MARK}=", list[str]()
    with suppress(OSError):  # it has ended, or its first thread has
        variables = untrusted.of_process(pid, "environ")
    return next((v.removeprefix(start) for v in variables if v.startswith(start)), "")


_MOST_LOG = 4 << 20


def logs(blueprint: Blueprint, member: str, lines: int = 50) -> str:
    """The last lines of each log of the member, of at most a few MiB: its programs write there what they like."""
    parts = []
    for path in sorted(blueprint.member_dir(member).glob("*.log")):
        tail = untrusted.tail(blueprint.home, path, _MOST_LOG).splitlines()[-lines:]
        parts.append("\n".join([f"==> {path.name} <==", *tail, ""]))
    return "\n".join(parts)


_LEAST_CORES = 0.05
"""The kernel refuses a quota under 1 ms; below this a member cannot keep its leader key."""


def check_cores(cores: float | None) -> None:
    """Refuse a limit this machine cannot give: MachineError without control groups, UsageError beyond its cores."""
    if why := processors.control_groups_unavailable():
        raise MachineError(f"processors cannot be limited: {why}", "run as root, or leave --cpu out")
    if cores is not None and not _LEAST_CORES <= cores <= (os.cpu_count() or 1):
        raise UsageError(
            f"{cores:g} cores cannot be given", f"choose between {_LEAST_CORES:g} and {os.cpu_count()}, or --clear"
        )


def limit_cores(blueprint: Blueprint, member: str | None, cores: float | None) -> None:
    """Give a member (None: each one) that many cores (None: no limit), now; MachineError where it cannot be done."""
    check_cores(cores)
    names = blueprint.members if member is None else (member,)
    check_members(names, blueprint.members)
    cgroups = processors.hierarchy()
    assert cgroups is not None
    for name in names:
        group = processors.group_folder(cgroups, blueprint.control_group(name))
        if cores is None:
            processors.delete_group(group)
        else:
            processors.create_group(cgroups, group, cores)
            _join_all(blueprint, name)


def _join_all(blueprint: Blueprint, member: str) -> None:
    group = processors.group(blueprint.control_group(member))
    moved: set[int] = set()
    # Again until no new process is found: one forked while we moved its parent is still outside.
    while fresh := [p.pid for p in processes(blueprint, member) if p.pid not in moved]:
        for pid in fresh:
            processors.join_group(group, pid)
            moved.add(pid)


def cores_of(blueprint: Blueprint, member: str) -> float | None:
    """The limit in effect, in cores; None when there is none."""
    cgroups = processors.hierarchy()
    group = processors.group(blueprint.control_group(member))
    return None if cgroups is None or group is None else processors.cores(cgroups, group)


def remove_core_limits(blueprint: Blueprint) -> None:
    """Delete the groups of every member; their processes go on without a limit."""
    cgroups = processors.hierarchy()
    for group in processors.group_folder(cgroups, "").glob(blueprint.control_group("*")) if cgroups else ():
        processors.delete_group(group)


_SEGMENT = re.compile(r"[0-9A-F]{24}")
_SEGMENTS, _SEGMENT_BYTES = 2, 16 << 20
_MOST_BYTES = 200_000
_DUMP_S = 20.0


@dataclass(frozen=True, slots=True)
class LabTraces:
    """WAL put aside in the lab's own folder, which only its owner reads; it goes with the lab at the latest."""

    blueprint: Blueprint

    def _folder(self, member: str) -> Path:
        return self.blueprint.home / "traces" / member

    def save(self, member: str) -> None:
        """Copy its newest two segments; MachineError when its WAL cannot be read."""
        blueprint, folder = self.blueprint, self._folder(member)
        shutil.rmtree(folder, ignore_errors=True)
        for made in (folder.parent, folder):
            make_folder(made)
            let_read(made, member_uid(blueprint.number))
        separate = blueprint.wal_dir(member)
        wal = blueprint.data_dir(member) / "pg_wal" if separate is None else separate
        try:
            segments = [name for name in untrusted.names(blueprint.member_dir(member), wal) if _SEGMENT.fullmatch(name)]
            for name in _newest(blueprint.member_dir(member), wal, segments):
                untrusted.copy(blueprint.member_dir(member), wal / name, folder / name, _SEGMENT_BYTES)
                let_read(folder / name, member_uid(blueprint.number))
        except OSError as wrong:
            raise MachineError(
                f"the WAL of {member} cannot be put aside: {wrong.strerror}", "is its disk there?"
            ) from None

    def describe(self, member: str, *, timeline: int, since: int) -> str:
        """Records from that position on, as pg_waldump prints them, the first 200 kB; MachineError without any.

        It has the rights and the network of the member, which wrote them: it believes the counts in a record.
        """
        folder = self._folder(member)
        names = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
        if not names:
            raise MachineError(f"no WAL of {member} was put aside", "")
        argv = [str(self.blueprint.postgres_bin / "pg_waldump"), "--path", str(folder), "--timeline", str(timeline)]
        first = int(names[0][8:16], 16) * 0x100000000 + int(names[0][16:], 16) * _SEGMENT_BYTES
        argv += ["--start", lsn_text(max(since, first))]
        argv = confined(self.blueprint, argv, member=member)
        dumped: subprocess.CompletedProcess[str] = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_DUMP_S, errors="replace", **apart()
        )
        return (dumped.stdout + dumped.stderr)[:_MOST_BYTES]

    def discard(self) -> None:
        shutil.rmtree(self.blueprint.home / "traces", ignore_errors=True)


def _newest(trusted: Path, wal: Path, segments: list[str]) -> list[str]:
    """The segments written last: recycled ones have later names and older contents."""
    written = {name: untrusted.modified(trusted, wal / name) for name in segments}
    return sorted(sorted(segments, key=lambda name: written[name])[-_SEGMENTS:])
