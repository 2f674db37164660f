"""Every process of a member stopped as at one instant, and let go on. Kills nothing, decides nothing."""

import contextlib
import os
import signal

from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for


def stop_all(blueprint: Blueprint, member: str) -> None:
    """SIGSTOP to every process, again until a look finds nobody who runs: they may fork meanwhile.

    A process in the middle of a flush stops when the flush returns; it is counted as stopped once it was told.
    """
    told: set[int] = set()

    def quiet() -> bool:
        fresh = [p for p in members.processes(blueprint, member) if p.pid not in told]
        for process in fresh:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGSTOP)
            told.add(process.pid)
        return not fresh

    wait_for(Wait.PROGRAM_GONE, quiet, RealClock(), pace_s=0.001)


def go_on(blueprint: Blueprint, member: str) -> None:
    """SIGCONT to every process of the member."""
    members.signal_all(blueprint, member, signal.SIGCONT)
