"""Raises a lab from nothing, and sweeps whatever is left of one. The one place that orders the parts of a lab."""

import fcntl
import importlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import psutil

from walproof.errors import MachineTrouble, Trouble
from walproof.lab import access, assembly, home, members, network, ordinary
from walproof.lab.blueprint import Blueprint
from walproof.lab.whole import wait_until_whole
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for

Say = Callable[[str], None]


def part(name: str) -> ModuleType | None:
    """An optional part of the lab (volumes, processors, wire, monitoring); None when this walproof lacks it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as wrong:
        if wrong.name and name.startswith(wrong.name):
            return None
        raise


def needed_part(name: str, what: str) -> ModuleType:
    """The same, for a part that was asked for."""
    found = part(name)
    if found is None:
        raise MachineTrouble(f"this walproof has no {what}")
    return found


@contextmanager
def _numbering() -> Iterator[None]:
    """Labs of one machine take their numbers one after another."""
    folder = Path("/run/lock") if os.access("/run/lock", os.W_OK) else home.open_state()
    with (folder / "walproof-numbers.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_alive(blueprint: Blueprint) -> bool:
    """Whether any process of the lab's members lives."""
    return any(members.processes(blueprint, member) for member in blueprint.members)


def raise_lab(asked: Blueprint, clock: Clock, say: Say) -> Blueprint:
    """Raise the lab (its number is chosen here) and return when it is whole; whatever ends it early sweeps it first."""
    with home.locked(asked.name):
        old = home.stored(asked.name)
        if old is not None and home.is_complete(old) and is_alive(old):
            raise MachineTrouble(f"the lab {asked.name} is up already", "walproof lab status, or walproof lab down")
        if asked.home.exists():
            say("sweeping what an ended walproof left")
            sweep(old or asked, clock)
        access.check_paths(asked)
        access.check_ports(asked)
        with _numbering():
            blueprint = _numbered(asked)
            home.store(blueprint)
            try:
                network.build(blueprint)
            except BaseException:
                sweep(blueprint, clock)
                raise
        try:
            _start(blueprint, clock, say)
        except BaseException:
            _note_why(blueprint)
            sweep(blueprint, clock)
            ordinary.let_go()
            raise
        home.mark_up(blueprint)
        return blueprint


def _numbered(asked: Blueprint) -> Blueprint:
    taken = network.taken_numbers() | home.used_numbers()
    free = next((n for n in range(1, 255) if n not in taken), None)
    if free is None:
        raise MachineTrouble("every subnet 10.77.N.0/24 is taken already", "walproof lab down for labs you do not need")
    return replace(asked, number=free)


def _start(blueprint: Blueprint, clock: Clock, say: Say) -> None:
    home.make_secrets(blueprint)
    if blueprint.disk.kind == "image":
        say("making volumes")
        needed_part("walproof.lab.faults.volumes", "disk images").prepare(blueprint)
    for member in blueprint.members:
        assembly.write_member(blueprint, member)
    if blueprint.cores is not None:
        limits = needed_part("walproof.lab.faults.processors", "processor limits")
        for member in blueprint.members:
            limits.limit(blueprint, member, blueprint.cores)
    say(f"starting {', '.join(blueprint.members)}")
    for member in blueprint.members:
        members.start_member(blueprint, member)
    access.start(blueprint)
    say("waiting until every standby streams and counts")
    wait_until_whole(blueprint, clock, Wait.STANDBYS_STREAMING)
    access.wait_until_routed(blueprint, clock)
    if blueprint.monitoring:
        say("starting the monitoring")
        needed_part("walproof.lab.monitoring", "monitoring").start(blueprint)


def _note_why(blueprint: Blueprint) -> None:
    """Keep the members' last words: the folder is about to go."""
    words = "\n".join(f"##### {m}\n{members.logs(blueprint, m)}" for m in blueprint.members)
    path = home.state_folder() / f"{blueprint.name}-failed.log"
    path.write_text(words)
    path.chmod(0o600)


def lower_lab(name: str, clock: Clock) -> bool:
    """End a lab, complete or not, and leave nothing; whether there was anything of it."""
    with home.locked(name):
        blueprint = home.stored(name)
        folder = home.lab_home(name)
        if blueprint is None:
            there = folder.exists()
            shutil.rmtree(folder, ignore_errors=True)
            return there
        sweep(blueprint, clock)
        ordinary.let_go()
        return True


def sweep(blueprint: Blueprint, clock: Clock) -> None:
    """End every process, mount, loop, control group, device and namespace of the lab, then remove its folder."""
    for name, verb in (
        ("walproof.lab.monitoring", "stop"),
        ("walproof.lab.wiring", "end"),
    ):
        _quietly(name, verb, blueprint)
    _kill_marked(blueprint, clock)
    for member in blueprint.members:
        members.kill_everything(blueprint, member, clock)
    _quietly("walproof.lab.faults.volumes", "release", blueprint)
    _quietly("walproof.lab.faults.processors", "release", blueprint)
    network.remove(blueprint)
    _remove_folder(blueprint)


def _quietly(name: str, verb: str, blueprint: Blueprint) -> None:
    """A part that cannot end itself must not keep the rest of the lab alive."""
    found = part(name)
    if found is not None:
        with suppress(Trouble, OSError, AttributeError):
            getattr(found, verb)(blueprint)


def _kill_marked(blueprint: Blueprint, clock: Clock) -> None:
    def gone() -> bool:
        left = members.marked(blueprint)
        for process in left:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        return not left

    wait_for(Wait.PROGRAM_GONE, gone, clock, pace_s=0.02, patience=home.patience())


def _remove_folder(blueprint: Blueprint) -> None:
    shutil.rmtree(blueprint.home, ignore_errors=True)
    if blueprint.home.exists():
        raise MachineTrouble(f"the folder {blueprint.home} could not be removed", "look for mounts below it: findmnt")
