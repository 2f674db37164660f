"""Which faults are in effect in a lab, kept beside it so that a killed walproof leaves the list; injects nothing.

A fault is noted before it is injected: what was begun and cut short is healed like what was finished.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from walproof.errors import Error, UsageError
from walproof.lab.blueprint import Blueprint

FREEZE, POWER, KILL_MEMBER, DCS = "freeze", "power-cut", "kill-member", "dcs-loss"
DISK = "disk"
_DOWN = (POWER, KILL_MEMBER)


@dataclass(frozen=True, slots=True)
class InEffect:
    """One fault in effect: which, on whom, since when (seconds since the epoch), and its particulars in words."""

    fault: str
    member: str
    since: float
    detail: str = ""


def in_effect(blueprint: Blueprint) -> tuple[InEffect, ...]:
    """What is in effect now, oldest first; nothing for a lab never hurt."""
    try:
        noted = json.loads(_file(blueprint).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(InEffect(**entry) for entry in noted)


def note(blueprint: Blueprint, fault: InEffect) -> None:
    """Add one to the list."""
    with _alone(blueprint):
        _store(blueprint, (*in_effect(blueprint), fault))


def strike(blueprint: Blueprint, fault: str, member: str | None = None) -> None:
    """Take one off the list; all members' when none is named."""
    with _alone(blueprint):
        left = tuple(f for f in in_effect(blueprint) if f.fault != fault or member not in (None, f.member))
        _store(blueprint, left)


@contextlib.contextmanager
def noted(blueprint: Blueprint, fault: InEffect) -> Iterator[None]:
    """Note a fault, inject it inside; struck again when the injection refuses."""
    note(blueprint, fault)
    try:
        yield
    except (Error, OSError):
        strike(blueprint, fault.fault, fault.member)
        raise


def known(blueprint: Blueprint, member: str) -> None:
    """UsageError unless the lab has that member."""
    if member not in blueprint.members:
        raise UsageError(f"there is no member {member}", f"members: {', '.join(blueprint.members)}")


def refusal(faults: tuple[InEffect, ...], fault: str, member: str) -> str | None:
    """Why a fault of that member makes no sense while these are in effect, one sentence; None where it does."""
    for now in faults:
        if now.member != member and now.fault != DCS:
            continue
        if now.fault == fault and (fault == DCS or now.member == member):
            return f"{fault} is already in effect" + (f" on {member}" if member else "")
        if now.member == member and now.fault in _DOWN:
            return f"{member} is already down ({now.fault})"
        if now.member == member and now.fault == FREEZE and fault not in _DOWN:
            return f"{member} is frozen and cannot notice {fault}"
    return None


def refuse_nonsense(blueprint: Blueprint, fault: str, member: str) -> None:
    """UsageError with that sentence; nothing has changed then."""
    if member:
        known(blueprint, member)
    if why := refusal(in_effect(blueprint), fault, member):
        raise UsageError(why, f"walproof lab fault --heal --name {blueprint.name}")


def _file(blueprint: Blueprint) -> Path:
    return blueprint.home / "faults.json"


def _store(blueprint: Blueprint, faults: tuple[InEffect, ...]) -> None:
    # Renamed into place: a reader, or the next walproof after a kill -9, sees the old list or the new one.
    beside = _file(blueprint).with_suffix(".new")
    beside.write_text(json.dumps([asdict(f) for f in faults]), encoding="utf-8")
    os.replace(beside, _file(blueprint))


@contextlib.contextmanager
def _alone(blueprint: Blueprint) -> Iterator[None]:
    with (blueprint.home / "faults.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
