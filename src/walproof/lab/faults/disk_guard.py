"""The process that keeps strace attached to a member's PostgreSQL, whoever starts or ends there; ends with the lab.

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
from walproof.machine.clock import RealClock

_PACE_S = 0.2
_DIE_WITH_GUARD = ("setpriv", "--pdeathsig", "TERM", "--")
"""SIGTERM makes strace let go of everything it holds; without this a killed guard would leave the disk hurt."""


def _prefix() -> tuple[str, ...]:
    """strace stops at every system call: on a busy machine its own turns would be the delay, so they come first."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return _DIE_WITH_GUARD
    return ("chrt", "--rr", "1", *_DIE_WITH_GUARD)


def _stop(*_: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Attach to what is there, then to what comes, until the pid file no longer names us."""
    name, member, calls, what = sys.argv[1:5]
    blueprint = home.load(name)
    wanted = disks.Injection(calls, what)
    own = disks.pidfile(blueprint, member)
    signal.signal(signal.SIGTERM, _stop)
    held: list[subprocess.Popen[bytes]] = []
    clock = RealClock()
    begun = clock.now()
    prefix = _prefix()
    try:
        while _is_ours(own) or clock.now() - begun < 1.0:
            unheld = [p for p in disks.hurtable(members.processes(blueprint, member)) if disks.tracer(p) == 0]
            held = [s for s in held if s.poll() is None]
            if unheld:
                held.append(subprocess.Popen((*prefix, *wanted.argv(tuple(unheld)))))
            clock.pause(_PACE_S)
    finally:
        for strace in held:
            strace.terminate()
        for strace in held:
            with contextlib.suppress(subprocess.TimeoutExpired):
                strace.wait(10)


def _is_ours(file: Path) -> bool:
    try:
        return file.read_text(encoding="ascii").strip() == str(os.getpid())
    except OSError:
        return False


if __name__ == "__main__":
    main()
