"""Processor time and disk bytes from /proc: of chosen processes and of the machine. Linux only."""

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Used:
    """Processor seconds of processes up to now, and bytes that they read from and wrote to storage, by pid."""

    cpu_s: dict[int, float]
    read: dict[int, int]
    written: dict[int, int]


@dataclass(frozen=True, slots=True)
class Machine:
    """/proc/stat up to now, seconds over all processors: all time, time of processes, all busy time, stolen."""

    total: float
    processes: float
    busy: float
    stolen: float


def used(pids: Iterable[int], *, disk: bool = True) -> Used:
    """What these processes used so far; processes that ended or cannot be read are left out."""
    cpu: dict[int, float] = {}
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    for pid in pids:
        try:
            columns = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            cpu[pid] = (int(columns[11]) + int(columns[12])) / _TICKS
            if disk:
                lines = dict(line.split(b": ") for line in Path(f"/proc/{pid}/io").read_bytes().splitlines())
                read[pid], written[pid] = int(lines[b"read_bytes"]), int(lines[b"write_bytes"])
        except (OSError, IndexError, KeyError):
            continue
    return Used(cpu, read, written)


def ended_children_s() -> float:
    """Processor seconds of all programs that this process started and that ended, with those they started in turn."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def machine() -> Machine:
    """The machine's counters (proc(5), /proc/stat: user nice system idle iowait irq softirq steal …)."""
    with open("/proc/stat", "rb") as file:
        ticks = [int(word) / _TICKS for word in file.readline().split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = (*ticks, *([0.0] * 8))[:8]
    busy = user + nice + system + irq + softirq
    return Machine(busy + idle + iowait + steal, user + nice + system, busy, steal)


def cpu_between(before: Used, after: Used) -> float:
    """Processor seconds between two readings; all of a process that started in between, nothing of one that ended.

    >>> cpu_between(Used({1: 2.0}, {}, {}), Used({1: 2.5, 7: 0.25}, {}, {}))
    0.75
    """
    return sum(now - before.cpu_s.get(pid, 0.0) for pid, now in after.cpu_s.items())


def bytes_between(before: dict[int, int], after: dict[int, int]) -> int:
    """Bytes between two readings, counted like cpu_between."""
    return sum(now - before.get(pid, 0) for pid, now in after.items())
