"""The list of faults in effect in a lab, kept in its folder so that it outlives a killed walproof; injects nothing.

A fault is added before it is injected: one that was interrupted is cleared like one that was completed.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from walproof.errors import Error, UsageError
from walproof.lab.blueprint import Blueprint
from walproof.lab.home import exclusively
from walproof.links.settings import check_members
from walproof.machine.clock import now

FREEZE, POWER_CUT, KILL_MEMBER, DCS_LOSS = "freeze", "power-cut", "kill-member", "dcs-loss"
DISK = ("slow-disk", "failing-disk", "full-disk")
_DOWN = (POWER_CUT, KILL_MEMBER)
CLEAR = "walproof lab fault clear"


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """One fault in effect: its name, the member ("" for all), since when (seconds since the epoch; None
    where that is not kept), and details."""

    fault: str
    member: str
    since: float | None = None
    detail: str = ""


def in_effect(blueprint: Blueprint) -> tuple[ActiveFault, ...]:
    """What is in effect now, oldest first."""
    try:
        listed = json.loads(_file(blueprint).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(ActiveFault(**entry) for entry in listed)


def add(blueprint: Blueprint, fault: ActiveFault) -> None:
    with exclusively(blueprint.home / "faults.lock"):
        _store(blueprint, (*in_effect(blueprint), fault))


def remove(blueprint: Blueprint, fault: str, member: str | None = None) -> None:
    """Remove one from the list; all members' when none is named."""
    with exclusively(blueprint.home / "faults.lock"):
        left = tuple(f for f in in_effect(blueprint) if f.fault != fault or member not in (None, f.member))
        _store(blueprint, left)


@contextlib.contextmanager
def added(blueprint: Blueprint, fault: str, member: str, detail: str = "") -> Iterator[None]:
    """Add a fault, inject it in the block; removed again when the injection fails."""
    add(blueprint, ActiveFault(fault, member, now(), detail))
    try:
        yield
    except (Error, OSError):
        remove(blueprint, fault, member)
        raise


def why_refused(faults: tuple[ActiveFault, ...], fault: str, member: str) -> str | None:
    """Why a fault of that member makes no sense while these are in effect, one sentence; None where it does."""
    for other in faults:
        if other.member != member:
            continue
        if other.fault == fault:
            return f"{fault} is already in effect" + (f" on {member}" if member else "")
        if other.fault in _DOWN:
            return f"{member} is already down ({other.fault})"
        if other.fault == FREEZE and fault not in _DOWN:
            return f"{member} is frozen and cannot notice {fault}"
    return None


def check_possible(blueprint: Blueprint, fault: str, member: str) -> None:
    """UsageError with that sentence, or for an unknown member; nothing has changed then."""
    check_members((member,) if member else (), blueprint.members)
    if why := why_refused(in_effect(blueprint), fault, member):
        raise UsageError(why, CLEAR)


def _file(blueprint: Blueprint) -> Path:
    return blueprint.home / "faults.json"


def _store(blueprint: Blueprint, faults: tuple[ActiveFault, ...]) -> None:
    # Renamed into place: a reader, or the next walproof after a kill -9, sees the old list or the new one.
    new = _file(blueprint).with_suffix(".new")
    new.write_text(json.dumps([asdict(f) for f in faults]), encoding="utf-8")
    os.replace(new, _file(blueprint))
