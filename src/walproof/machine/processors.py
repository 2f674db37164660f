"""Processors of this machine: limited for others by control groups (v1 or v2), and all of them used by one `map`."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from walproof.errors import MachineError
from walproof.machine.clock import RealClock

PARENT = "walproof"
"""Our own group, which holds one for each member with a limit."""
_PERIOD_US, _LEAST_QUOTA_US = 10_000, 1_000
"""The kernel's own period, 100 ms, stops a busy member for tens of ms at a time; it refuses quotas below 1 ms."""
_PR_SET_PDEATHSIG = 1
_TRIES = 100
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The folder where groups are created, and the version of its interface."""

    root: Path
    version: int


def hierarchy() -> Hierarchy | None:
    """The hierarchy that can limit processors here, v2 first; None where there is none."""
    if "cpu" in _read(_V2 / "cgroup.controllers").split():
        return Hierarchy(_V2, 2)
    return Hierarchy(_V1, 1) if (_V1 / "cpu.cfs_quota_us").exists() or (_V1 / "cgroup.procs").exists() else None


def control_groups_unavailable() -> str | None:
    """Why processors cannot be limited here, one clause; None where they can."""
    cgroups = hierarchy()
    if cgroups is None:
        return "this kernel offers no control group for processors"
    if os.geteuid() != 0 or not os.access(cgroups.root, os.W_OK):
        return f"needs root: {cgroups.root} is not writable"
    return None


def group_folder(where: Hierarchy, name: str) -> Path:
    """Where the group of that name lies, whether it exists or not: below walproof's own group."""
    return where.root / PARENT / name


def group(name: str) -> Path | None:
    cgroups = hierarchy()
    return group_folder(cgroups, name) if cgroups and group_folder(cgroups, name).exists() else None


def create_group(where: Hierarchy, group: Path, cores: float) -> None:
    """Create the group with that limit, or change the limit of the one that is there; MachineError when refused."""
    period = max(_PERIOD_US, round(_LEAST_QUOTA_US / cores))
    quota = round(cores * period)
    try:
        if where.version == 2:
            for above in (where.root, group.parent):
                above.mkdir(exist_ok=True)
                if "cpu" not in _read(above / "cgroup.subtree_control").split():
                    _write(above / "cgroup.subtree_control", "+cpu")
            group.mkdir(exist_ok=True)
            _write(group / "cpu.max", f"{quota} {period}")
        else:
            group.parent.mkdir(exist_ok=True)
            group.mkdir(exist_ok=True)
            _write(group / "cpu.cfs_period_us", str(period))
            _write(group / "cpu.cfs_quota_us", str(quota))
    except OSError as wrong:
        delete_group(group)
        raise MachineError(
            f"the kernel refused the processor limit: {wrong.strerror}", "run on the machine itself, not in a container"
        ) from None


def join_group(group: Path | None, pid: int) -> None:
    """Move a process into the group, if there is one; what the process starts later inherits the limit."""
    if group is not None:
        with contextlib.suppress(OSError):
            _write(group / "cgroup.procs", str(pid))


def cores(where: Hierarchy, group: Path) -> float | None:
    """The limit in effect, in cores; None when there is none."""
    if where.version == 2:
        quota, _, period = _read(group / "cpu.max").partition(" ")
    else:
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return None if quota.strip() in ("max", "-1", "") else int(quota) / int(period)


def delete_group(group: Path) -> None:
    """Move the processes of a group to the hierarchy's root and remove it, walproof's own group after the last one.

    Nothing happens when it is not there.
    """
    for _ in range(_TRIES):
        for pid in _read(group / "cgroup.procs").split():
            join_group(group.parents[1], int(pid))
        try:
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()
            with contextlib.suppress(OSError):
                group.parent.rmdir()  # refused while other members have a group there
            return
        except OSError:
            # Busy: a process forked meanwhile, or has not quite ended.
            RealClock().pause(0.02)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)


A = TypeVar("A")
B = TypeVar("B")


class Shared(Protocol):
    """As the built-in `map`, for one iterable."""

    def __call__(self, work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
        """The results in order."""


@contextmanager
def several_processes() -> Iterator[Shared]:
    """One process a processor, ended with the block. Function, items and results are pickled.

    They are forked, while no thread runs: a new interpreter imports numpy longer than most forecasts take.
    Raises: MachineError where one was killed, for instance because memory ran out.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), context, _end_with, (os.getpid(),)) as pool:

        def shared(work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
            return pool.map(work, items)

        try:
            yield shared
        except BrokenProcessPool:
            raise MachineError("a process of the simulation was killed", "look for memory that ran out") from None
        except BaseException:
            # What is interrupted waits for the items in work, not for all that were handed out.
            pool.shutdown(cancel_futures=True)
            raise


def _end_with(parent: int) -> None:
    """Be killed with the parent, and leave signals to it: each end of a pool's pipes is held by every process of it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
