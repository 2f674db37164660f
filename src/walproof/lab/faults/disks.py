"""A member's disk made slow, failing or full while it works, and well again.

Flushes and writes are hurt by system call injection (Debian's strace, kept attached by a guard process of the lab);
an image disk is filled for real. etcd's flushes are left alone: it is PostgreSQL's disk that is under study.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from walproof.errors import MachineError, UsageError
from walproof.lab import home, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, volumes
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for

SLOW, FAILING, FULL = "slow", "failing", "full"
_FLUSHES = "fdatasync,fsync"
_WRITES = "pwrite64,pwritev,pwritev2,fallocate"
"""How PostgreSQL writes data files and WAL; write(2) is for logs, pipes and sockets, which are not on that disk."""
LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Injection:
    """What strace does to which system calls."""

    calls: str
    what: str

    def argv(self, pids: tuple[int, ...]) -> tuple[str, ...]:
        """Attached to these processes, following what they start; says nothing but its own failures."""
        to = (word for pid in pids for word in ("-p", str(pid)))
        quiet = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "signal=none")
        return (*quiet, "-e", f"trace={self.calls}", "-e", f"inject={self.calls}:{self.what}", *to)


def injection(condition: str, slow_s: float = 0.0) -> Injection:
    """The injection of a condition; UsageError for an unknown one or an impossible delay (seconds)."""
    if condition == SLOW:
        if not 0 < slow_s <= LONGEST_S:
            raise UsageError(f"a flush cannot take {slow_s:g} s longer", f"choose more than 0 and up to {LONGEST_S:g}s")
        return Injection(_FLUSHES, f"delay_enter={round(slow_s * 1e6)}")
    if condition == FAILING:
        return Injection(_FLUSHES, "error=EIO")
    if condition == FULL:
        return Injection(_WRITES, "error=ENOSPC")
    raise UsageError(f"a disk cannot be {condition!r}", "slow, failing or full")


@functools.cache
def unavailable() -> str | None:
    """Why flushes cannot be hurt here, one clause; None where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ("strace", "-qq", "-o", "/dev/null", "true"), capture_output=True, text=True, timeout=30, check=False
    )
    return None if tried.returncode == 0 else "this kernel does not let processes be traced (ptrace)"


def hurt(blueprint: Blueprint, member: str, condition: str, slow_s: float = 0.0) -> None:
    """Apply a condition to every PostgreSQL process of the member and on later ones; replaces the former one."""
    wanted = injection(condition, slow_s)
    active.refuse_nonsense(blueprint, condition, member)
    really = condition == FULL and bool(volumes.volumes(blueprint, member))
    if not really and (why := unavailable()):
        raise MachineError(f"the disk of {member} cannot be made {condition}: {why}", "apt-get install strace")
    detail = f"{condition} {slow_s * 1e3:g} ms" if condition == SLOW else condition
    now = condition_of(blueprint, member)
    if now == detail:
        raise UsageError(f"the disk of {member} is {detail} already", f"walproof lab disk {member} --heal")
    if now:
        heal(blueprint, member)
    with active.noted(blueprint, active.InEffect(active.DISK, member, RealClock().now(), detail)):
        if really:
            _fill(blueprint, member)
        else:
            _guard(blueprint, member, wanted)


def slow(blueprint: Blueprint, member: str, seconds: float) -> None:
    """Each flush takes that many seconds longer before it is issued."""
    hurt(blueprint, member, SLOW, seconds)


def failing(blueprint: Blueprint, member: str) -> None:
    """Flushes fail with an I/O error."""
    hurt(blueprint, member, FAILING)


def full(blueprint: Blueprint, member: str) -> None:
    """No space is left."""
    hurt(blueprint, member, FULL)


def condition_of(blueprint: Blueprint, member: str) -> str:
    """What ails the member's disk, in words; empty when nothing does."""
    return next((f.detail for f in active.in_effect(blueprint) if (f.fault, f.member) == (active.DISK, member)), "")


def heal(blueprint: Blueprint, member: str) -> bool:
    """Take the condition away; False when the disk was well. Works after a kill -9 in the middle of the injection."""
    active.known(blueprint, member)
    was = bool(condition_of(blueprint, member))
    end_guard(blueprint, member)
    for volume in volumes.volumes(blueprint, member):
        _ballast(volume).unlink(missing_ok=True)
    active.strike(blueprint, active.DISK, member)
    return was


def end_guard(blueprint: Blueprint, member: str) -> None:
    """End the guard and with it strace; what it held goes on unhurt."""
    file = pidfile(blueprint, member)
    guard = _running_guard(blueprint, member)
    file.unlink(missing_ok=True)
    if guard is None:
        return
    guard.send_signal(signal.SIGTERM)
    try:
        guard.wait(Wait.PROGRAM_GONE.seconds)
    except psutil.TimeoutExpired:
        guard.kill()


def pidfile(blueprint: Blueprint, member: str) -> Path:
    """Where the guard's pid stands; a guard that is not named there any more ends itself."""
    return blueprint.member_dir(member) / "disk_guard.pid"


def _running_guard(blueprint: Blueprint, member: str) -> psutil.Process | None:
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(pidfile(blueprint, member).read_text(encoding="ascii")))
        # A pid may have been given to somebody else since.
        if process.cmdline()[-4:-2] == [blueprint.name, member]:
            return process
    return None


def _guard(blueprint: Blueprint, member: str, wanted: Injection) -> None:
    log = blueprint.member_dir(member) / "disk_guard.log"
    argv = (
        sys.executable, "-m", "walproof.lab.faults.disk_guard",
        blueprint.name, member, wanted.calls, wanted.what,
    )  # fmt: skip
    with log.open("ab") as out:
        guard = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
            env=home.environment(blueprint),
        )
    pidfile(blueprint, member).write_text(str(guard.pid), encoding="ascii")

    def held() -> bool:
        if guard.poll() is not None:
            raise MachineError(f"the guard of the disk of {member} ended: {_last_line(log)}", f"see {log}")
        return all(members_traced(blueprint, member))

    try:
        wait_for(Wait.SETTING_IN_EFFECT, held, RealClock(), pace_s=0.05)
    except MachineError:
        end_guard(blueprint, member)
        raise


def members_traced(blueprint: Blueprint, member: str) -> list[bool]:
    """For every PostgreSQL process of the member, whether somebody traces it."""
    return [tracer(pid) != 0 for pid in hurtable(members.processes(blueprint, member)) if psutil.pid_exists(pid)]


def hurtable(processes: list[psutil.Process]) -> list[int]:
    """Those whose flushes are PostgreSQL's: postgres and its tools, and Patroni, who starts them; never zombies."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and _is_postgres(words):
                found.append(process.pid)
    return found


def _is_postgres(words: list[str]) -> bool:
    program = Path(words[0].split(":")[0]).name if words else ""
    return program == "postgres" or program.startswith("pg_") or words[1:3] == ["-m", "patroni"]


def tracer(pid: int) -> int:
    """The process that traces this one, 0 for none or when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return 0


def _ballast(volume: volumes.Volume) -> Path:
    return volume.mount_point / "ballast"


def _fill(blueprint: Blueprint, member: str) -> None:
    for volume in volumes.volumes(blueprint, member):
        with _ballast(volume).open("ab") as file:
            step = 64 << 20
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                except OSError:
                    step //= 2


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
