"""The process that keeps strace attached to a member's PostgreSQL, whatever starts or ends there; ends with the lab.

Run as `python -m walproof.lab.faults.disk_guard LAB MEMBER CALLS WHAT`; touches nothing but its own strace processes.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from walproof.lab import home, members
from walproof.lab.faults import disks
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.machine.programs import program

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


def _stop(*_: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Attach to the processes there are, then to new ones, until the pid file no longer names this process."""
    name, member, calls, what = sys.argv[1:5]
    blueprint = home.load(name)
    wanted = disks.Injection(calls, what)
    pidfile = disks.pidfile(blueprint, member)
    signal.signal(signal.SIGTERM, _stop)
    tracers: list[subprocess.Popen[bytes]] = []
    clock = RealClock()
    started = clock.now()
    prefix = _prefix()
    try:
        while _names_us(pidfile) or clock.now() - started < 1.0:
            untraced = [p for p in disks.flushing_pids(members.processes(blueprint, member)) if disks.tracer(p) == 0]
            tracers = [strace for strace in tracers if strace.poll() is None]
            if untraced:
                tracers.append(subprocess.Popen((*prefix, *wanted.argv(tuple(untraced)))))
            clock.pause(_PACE_S)
    finally:
        for strace in tracers:
            strace.terminate()
        for strace in tracers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                strace.wait(10)


def _names_us(file: Path) -> bool:
    return pid_files.living(file) == os.getpid()


if __name__ == "__main__":
    main()
