"""Raises a lab from nothing, and sweeps whatever is left of one. The one place that orders the parts of a lab."""

import fcntl
import importlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TextIO

import psutil

from walproof.errors import Error, MachineError, WaitTimeout
from walproof.lab import access, assembly, home, members, network, rootless
from walproof.lab.blueprint import Blueprint
from walproof.lab.health import wait_until_healthy
from walproof.lab.observe import look
from walproof.lab.privileges import write_private
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
        raise MachineError(f"this walproof has no {what}")
    return found


@contextmanager
def _numbering() -> Iterator[TextIO]:
    """Labs of one machine take their numbers one after another; the file holds the last one taken."""
    folder = Path("/run/lock") if os.access("/run/lock", os.W_OK) else home.open_state()
    with (folder / "walproof-numbers.lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_alive(blueprint: Blueprint) -> bool:
    """Whether any process of the lab's members lives."""
    return any(members.processes(blueprint, member) for member in blueprint.members)


def create_lab(asked: Blueprint, clock: Clock, say: Say) -> Blueprint:
    """Raise the lab (its number is chosen here) and return when it is whole; whatever ends it early sweeps it first."""
    with home.locked(asked.name):
        old = home.stored(asked.name)
        if old is not None and home.is_complete(old) and is_alive(old):
            raise MachineError(f"the lab {asked.name} is up already", "walproof lab status, or walproof lab down")
        if asked.home.exists():
            say("sweeping what an ended walproof left")
            sweep(old or asked, clock)
        access.check_paths(asked)
        access.check_ports(asked)
        with _numbering() as last:
            blueprint = _numbered(asked, last)
            home.store(blueprint)
            try:
                network.build(blueprint)
            except BaseException:
                sweep(blueprint, clock)
                raise
        try:
            _start(blueprint, clock, say)
        except BaseException as wrong:
            _note_why(blueprint, wrong)
            sweep(blueprint, clock)
            rootless.let_go()
            raise
        home.mark_up(blueprint)
        return blueprint


@contextmanager
def temporary_lab(asked: Blueprint, clock: Clock, say: Say) -> Iterator[Blueprint]:
    """A lab for as long as the block lasts, ended with it, also after an error or Ctrl-C."""
    blueprint = create_lab(asked, clock, say)
    try:
        yield blueprint
    finally:
        # Whoever listened may be gone (a closed terminal, a broken pipe): the lab is ended all the same.
        with suppress(OSError):
            say(f"ending the lab {blueprint.name}")
        destroy_lab(blueprint.name, clock)


def _numbered(asked: Blueprint, last: TextIO) -> Blueprint:
    """The next free number after the last one: a name of a namespace is not soon another lab's."""
    last.seek(0)
    said = last.read().strip()
    begin = int(said) if said.isdigit() else 0
    taken = network.taken_numbers() | home.used_numbers()
    free = next((n for i in range(254) if (n := (begin + i) % 254 + 1) not in taken), None)
    if free is None:
        raise MachineError("every subnet 10.77.N.0/24 is taken already", "walproof lab down for labs you do not need")
    last.truncate(0)
    last.write(str(free))
    return replace(asked, number=free)


def _start(blueprint: Blueprint, clock: Clock, say: Say) -> None:
    home.make_secrets(blueprint)
    if blueprint.disk.kind == "image":
        say("making volumes")
        needed_part("walproof.lab.faults.volumes", "disk images").prepare(blueprint)
    for member in blueprint.members:
        assembly.write_member(blueprint, member)
    if blueprint.cores is not None:
        limits = needed_part("walproof.lab.cpu_limits", "processor limits")
        for member in blueprint.members:
            limits.limit(blueprint, member, blueprint.cores)
    say(f"starting {', '.join(blueprint.members)}")
    for member in blueprint.members:
        members.start_member(blueprint, member)
    access.start(blueprint)
    say("waiting until every standby streams and counts")
    _await_leader(blueprint, clock)
    wait_until_healthy(blueprint, clock)
    access.wait_until_routed(blueprint, clock)
    if blueprint.monitoring:
        say("starting the monitoring")
        needed_part("walproof.lab.monitoring", "monitoring").start(blueprint)


def _await_leader(blueprint: Blueprint, clock: Clock) -> None:
    """Wait for a first leader; MachineError with PostgreSQL's own words when every Patroni gave up."""
    lived = [False]

    def led() -> bool:
        if look(blueprint).leader is not None:
            return True
        alive = any(members.program_pid(blueprint, m, "patroni") is not None for m in blueprint.members)
        if lived[0] and not alive:
            raise MachineError(f"PostgreSQL does not start: {_last_words(blueprint)}", "look at your --param values")
        lived[0] = lived[0] or alive
        return False

    wait_for(Wait.FIRST_LEADER, led, clock, pace_s=0.25)


def _last_words(blueprint: Blueprint) -> str:
    said = "\n".join(members.logs(blueprint, m, 400) for m in blueprint.members)
    fatal = re.findall(r"(?:FATAL|PANIC):\s*(.*)", said)
    telling = [line for line in fatal if "starting up" not in line and "shutting down" not in line]
    return telling[-1] if telling else "no reason in its log"


def _note_why(blueprint: Blueprint, wrong: BaseException) -> None:
    """Keep the members' last words, for the folder is about to go, and say where they are."""
    words = "\n".join(f"##### {m}\n{members.logs(blueprint, m)}" for m in blueprint.members)
    path = home.state_folder() / f"{blueprint.name}-failed.log"
    write_private(path, words, given=False)
    if isinstance(wrong, Error):
        wrong.hint = f"{wrong.hint}; the members' logs are kept in {path}"


def destroy_lab(name: str, clock: Clock) -> bool:
    """End a lab, complete or not, and leave nothing; whether there was anything of it."""
    with home.locked(name):
        blueprint = home.stored(name)
        folder = home.lab_home(name)
        if blueprint is None:
            there = folder.exists()
            shutil.rmtree(folder, ignore_errors=True)
            return there
        sweep(blueprint, clock)
        rootless.let_go()
        return True


def sweep(blueprint: Blueprint, clock: Clock) -> None:
    """End every process, mount, loop, control group, device and namespace of the lab, then remove its folder."""
    (blueprint.home / "up").unlink(missing_ok=True)
    for name, verb in (
        ("walproof.lab.monitoring", "stop"),
        ("walproof.lab.member_links", "end"),
    ):
        _quietly(name, verb, blueprint)
    _kill_marked(blueprint, clock)
    for member in blueprint.members:
        members.kill_everything(blueprint, member, clock)
    _quietly("walproof.lab.faults.volumes", "release", blueprint)
    _quietly("walproof.lab.cpu_limits", "release", blueprint)
    network.remove(blueprint)
    _remove_folder(blueprint, clock)


def _quietly(name: str, verb: str, blueprint: Blueprint) -> None:
    """A part that cannot end itself must not keep the rest of the lab alive."""
    found = part(name)
    if found is not None:
        with suppress(Error, OSError, AttributeError):
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

    wait_for(Wait.PROGRAM_GONE, gone, clock, pace_s=0.02)


def _remove_folder(blueprint: Blueprint, clock: Clock) -> None:
    """Remove the lab's home, again and again for a while: what was just killed may still be writing its last file."""

    def gone() -> bool:
        shutil.rmtree(blueprint.home, ignore_errors=True)
        return not blueprint.home.exists()

    try:
        wait_for(Wait.PROGRAM_GONE, gone, clock)
    except WaitTimeout:
        hint = "look for mounts below it: findmnt"
        raise MachineError(f"the folder {blueprint.home} could not be removed", hint) from None
