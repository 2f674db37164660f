"""Makes a member's disk slow, failing or full while it works, and clears that; etcd's flushes are left alone.

strace injects into PostgreSQL's system calls; `python -m walproof.lab.faults.disks LAB MEMBER CALLS WHAT` is the
process that keeps it attached while processes start and end there. An image disk is filled for real."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from walproof.errors import MachineError, UsageError
from walproof.lab import disk_images, home, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active
from walproof.links.settings import check_members
from walproof.machine import pid_files, untrusted
from walproof.machine.clock import RealClock
from walproof.machine.programs import lookup, program
from walproof.model.waiting import Wait, wait_for

SLOW, FAILING, FULL = "slow", "failing", "full"
_FLUSHES = "fdatasync,fsync"
_WRITES = "pwrite64,pwritev,pwritev2,fallocate"
"""How PostgreSQL writes data files and WAL; write(2) is for logs, pipes and sockets, which are not on that disk."""
LONGEST_S = 60.0
_BALLAST = "ballast"


def injection(condition: str, slow_s: float = 0.0) -> tuple[str, str]:
    """The system calls of a condition and what is injected; UsageError where it is unknown or slow_s (s) impossible."""
    if condition == SLOW:
        if not 0 < slow_s <= LONGEST_S:
            raise UsageError(f"a flush cannot take {slow_s:g} s longer", f"choose more than 0 and up to {LONGEST_S:g}s")
        return _FLUSHES, f"delay_enter={round(slow_s * 1e6)}"
    if condition == FAILING:
        return _FLUSHES, "error=EIO"
    if condition == FULL:
        return _WRITES, "error=ENOSPC"
    raise UsageError(f"a disk cannot be {condition!r}", "slow, failing or full")


def strace_argv(calls: str, what: str, pids: Iterable[int]) -> tuple[str, ...]:
    """Attached to these processes, following what they start; prints nothing but its own failures."""
    attach = (argument for pid in pids for argument in ("-p", str(pid)))
    silent = (str(program("strace")), "-f", "-qq", "-o", "/dev/null", "-e", "signal=none")
    return (*silent, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}", *attach)


@functools.cache
def unavailable() -> str | None:
    """Why no fault can be injected into flushes here, one clause; None where it can."""
    if lookup("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        (program("strace"), "-qq", "-o", "/dev/null", program("true")),
        capture_output=True,
        timeout=30,
        check=False,
    )
    return None if tried.returncode == 0 else "this kernel does not let processes be traced (ptrace)"


def inject(blueprint: Blueprint, member: str, condition: str, slow_s: float = 0.0) -> None:
    """Make the disk slow, failing or full for every PostgreSQL process of the member, later ones too.

    Replaces the condition in effect. UsageError for one that is in effect already or not valid.
    """
    wanted = injection(condition, slow_s)
    active.check_possible(blueprint, f"{condition}-disk", member)
    fill = condition == FULL and bool(disk_images.volumes(blueprint, member))
    if not fill and (why := unavailable()):
        raise MachineError(f"the disk of {member} cannot be made {condition}: {why}", "apt-get install strace")
    detail = f"{slow_s * 1e3:g} ms" if condition == SLOW else ""
    now = fault_of(blueprint, member)
    if now and (now.fault, now.detail) == (f"{condition}-disk", detail):
        raise UsageError(f"the disk of {member} is {condition} already", f"{active.CLEAR} {member}")
    if now:
        clear(blueprint, member)
    with active.added(blueprint, f"{condition}-disk", member, detail):
        if fill:
            _fill(blueprint, member)
        else:
            _guard(blueprint, member, wanted)


def slow(blueprint: Blueprint, member: str, seconds: float) -> None:
    """Each flush takes that many seconds longer before it is issued."""
    inject(blueprint, member, SLOW, seconds)


def fault_of(blueprint: Blueprint, member: str) -> active.ActiveFault | None:
    return next((f for f in active.in_effect(blueprint) if f.member == member and f.fault in active.DISK), None)


def clear(blueprint: Blueprint, member: str) -> bool:
    """Clear the fault of the disk; False when there was none. Works after a kill -9 in the middle of the injection."""
    check_members((member,), blueprint.members)
    fault = fault_of(blueprint, member)
    end_guard(blueprint, member)
    for volume in disk_images.volumes(blueprint, member):
        untrusted.remove(volume.mount_point, volume.mount_point / _BALLAST)
    for name in active.DISK:
        active.remove(blueprint, name, member)
    return fault is not None


def end_guard(blueprint: Blueprint, member: str) -> None:
    """End the guard and with it strace; what it traced goes on normally."""
    file = guard_pidfile(blueprint, member)
    pid = pid_files.living(file)
    file.unlink(missing_ok=True)
    if pid is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        guard = psutil.Process(pid)
        guard.send_signal(signal.SIGTERM)
        try:
            guard.wait(Wait.PROGRAM_GONE.seconds)
        except psutil.TimeoutExpired:
            guard.kill()


def guard_pidfile(blueprint: Blueprint, member: str) -> Path:
    """The guard's pid file; a guard that is not named there any more ends itself."""
    return blueprint.member_dir(member) / "disk_guard.pid"


def _guard(blueprint: Blueprint, member: str, wanted: tuple[str, str]) -> None:
    log = blueprint.member_dir(member) / "disk_guard.log"
    argv = [sys.executable, "-P", "-m", "walproof.lab.faults.disks"]
    argv += [blueprint.name, member, *wanted]
    guard = pid_files.start(argv, guard_pidfile(blueprint, member), log, home.environment(blueprint), "/")

    def traced() -> bool:
        if guard.poll() is not None:
            raise MachineError(f"the guard of the disk of {member} ended: {_last_line(log)}", f"see {log}")
        return all(are_traced(blueprint, member))

    try:
        wait_for(Wait.SETTING_IN_EFFECT, traced, RealClock(), pace_s=0.05)
    except MachineError:
        end_guard(blueprint, member)
        raise


def are_traced(blueprint: Blueprint, member: str) -> list[bool]:
    """For every process of the member that flushes for PostgreSQL, whether it is traced."""
    return [tracer(pid) != 0 for pid in flushing_pids(members.processes(blueprint, member)) if psutil.pid_exists(pid)]


def flushing_pids(processes: list[psutil.Process]) -> list[int]:
    """Processes whose flushes are PostgreSQL's: postgres and its tools, and Patroni, which starts them; no zombies."""
    pids = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            argv = untrusted.of_process(process.pid, "cmdline")
            if process.status() != psutil.STATUS_ZOMBIE and _is_postgres(argv):
                pids.append(process.pid)
    return pids


def _is_postgres(argv: list[str]) -> bool:
    program = Path(argv[0].split(":")[0]).name
    return program == "postgres" or program.startswith("pg_") or argv[1:3] == ["-m", "patroni"]


def tracer(pid: int) -> int:
    """The process that traces this one, 0 for none or when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return 0


def _fill(blueprint: Blueprint, member: str) -> None:
    with disk_images.opened(blueprint, member) as opened:
        for place in (Path(f"/proc/self/fd/{folder}") for folder in opened):
            try:
                made = untrusted.create(place, place / _BALLAST)
            except OSError as wrong:  # the folder is the lab's user's
                why = f"the disk of {member} cannot be filled: {wrong.strerror}"
                raise MachineError(why, "ls -la its folder") from None
            with os.fdopen(made, "ab") as file:
                step = 64 << 20
                while step >= 4096:
                    try:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                    except OSError:
                        step //= 2


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it logged nothing"


_PACE_S = 0.2
_DIE_WITH_GUARD = ("--pdeathsig", "TERM", "--")
"""SIGTERM makes strace detach from what it traces; without this a killed guard would leave the fault in effect."""


def _prefix() -> tuple[str, ...]:
    """strace stops at every system call: on a busy machine its own scheduling would add delay, so it gets priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return (str(program("setpriv")), *_DIE_WITH_GUARD)
    return (str(program("chrt")), "--rr", "1", str(program("setpriv")), *_DIE_WITH_GUARD)


def main() -> None:
    """Attach to the processes there are, then to new ones, until the pid file no longer names this process."""
    name, member, calls, what = sys.argv[1:5]
    blueprint = home.load(name)
    pidfile = guard_pidfile(blueprint, member)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    tracers: list[subprocess.Popen[bytes]] = []
    clock = RealClock()
    started = clock.now()
    prefix = _prefix()
    try:
        while pid_files.living(pidfile) == os.getpid() or clock.now() - started < 1.0:
            untraced = [p for p in flushing_pids(members.processes(blueprint, member)) if tracer(p) == 0]
            tracers = [strace for strace in tracers if strace.poll() is None]
            if untraced:
                tracers.append(subprocess.Popen((*prefix, *strace_argv(calls, what, untraced))))
            clock.pause(_PACE_S)
    finally:
        for strace in tracers:
            strace.terminate()
        for strace in tracers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                strace.wait(10)


if __name__ == "__main__":
    main()
