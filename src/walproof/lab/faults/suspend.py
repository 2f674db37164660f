"""Stops every process of a member as at one instant (SIGSTOP), and resumes them (SIGCONT)."""

import contextlib
import os
import signal

from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for


def stop_all(blueprint: Blueprint, member: str) -> None:
    """SIGSTOP to every process, again until no new one is found: they may fork meanwhile.

    A process in the middle of a flush stops when the flush returns; it counts as stopped once it was signalled.
    """
    signalled: set[int] = set()

    def all_signalled() -> bool:
        fresh = [p for p in members.processes(blueprint, member) if p.pid not in signalled]
        for process in fresh:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGSTOP)
            signalled.add(process.pid)
        return not fresh

    wait_for(Wait.PROGRAM_GONE, all_signalled, RealClock(), pace_s=0.001)


def resume_all(blueprint: Blueprint, member: str) -> None:
    """SIGCONT to every process of the member."""
    members.signal_all(blueprint, member, signal.SIGCONT)
