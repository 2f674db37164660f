"""Creates a lab from nothing, and destroys whatever is left of one. The one place that orders the parts of a lab."""

import fcntl
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import psutil

from walproof.errors import Error, MachineError, WaitTimeout
from walproof.lab import access, assembly, cpu_limits, home, member_links, members, monitoring, network, rootless
from walproof.lab.blueprint import Blueprint
from walproof.lab.confinement import write_passwd
from walproof.lab.faults import volumes
from walproof.lab.health import wait_until_healthy
from walproof.lab.monitoring import Monitoring
from walproof.lab.observe import observe
from walproof.lab.privileges import numbers_of_accounts, write_private
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for

Progress = Callable[[str], None]
"""Is given a line for every step of creating or destroying a lab."""


@contextmanager
def _numbering() -> Iterator[TextIO]:
    """Labs of one machine take their numbers one after another; the file holds the last one taken."""
    # Not /run/lock: everybody may write there, and a link in the place of the file would be followed.
    folder = Path("/run") if os.access("/run", os.W_OK) else home.open_state()
    with (folder / "walproof-numbers.lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_alive(blueprint: Blueprint) -> bool:
    """Whether any process of the lab's members lives."""
    return any(members.processes(blueprint, member) for member in blueprint.members)


def create_lab(
    planned: Blueprint, clock: Clock, progress: Progress, *, monitored: Monitoring | None = None
) -> Blueprint:
    """Create the lab (its number is chosen here) and return when it is healthy; destroyed when anything fails."""
    with home.locked(planned.name):
        old = home.stored(planned.name)
        if old is not None and home.is_complete(old) and is_alive(old):
            raise MachineError(f"the lab {planned.name} is up already", "walproof lab status, or walproof lab down")
        if planned.home.exists():
            progress("destroying what an interrupted walproof left")
            tear_down(old or planned, clock)
        access.check_paths(planned)
        access.check_ports(planned)
        with _numbering() as last:
            blueprint = _numbered(planned, last)
            home.store(blueprint)
            try:
                network.build(blueprint)
            except BaseException:
                tear_down(blueprint, clock)
                raise
        try:
            _start(blueprint, clock, progress)
            if monitored is not None:
                progress("starting the monitoring")
                monitoring.start(blueprint, monitored)
        except BaseException as error:
            # The state folder may be gone or full: the lab is destroyed all the same.
            with suppress(OSError):
                _keep_logs(blueprint, error)
            tear_down(blueprint, clock)
            rootless.end_keeper()
            raise
        home.mark_up(blueprint)
        return blueprint


@contextmanager
def temporary_lab(planned: Blueprint, clock: Clock, progress: Progress) -> Iterator[Blueprint]:
    """A lab for as long as the block lasts, destroyed with it, also after an error or Ctrl-C."""
    blueprint = create_lab(planned, clock, progress)
    try:
        yield blueprint
    finally:
        # The reader of progress may have ended (a closed terminal, a broken pipe): the lab is destroyed all the same.
        with suppress(OSError):
            progress(f"destroying the lab {blueprint.name}")
        destroy_lab(blueprint.name, clock)


def _numbered(planned: Blueprint, last: TextIO) -> Blueprint:
    """The next free number after the last one: a name of a namespace is not soon another lab's."""
    last.seek(0)
    text = last.read().strip()
    first = int(text) if text.isdigit() else 0
    taken = network.taken_numbers() | home.used_numbers() | numbers_of_accounts()
    free = next((n for i in range(254) if (n := (first + i) % 254 + 1) not in taken), None)
    if free is None:
        raise MachineError("every subnet 10.77.N.0/24 is taken already", "walproof lab down for labs you do not need")
    last.truncate(0)
    last.write(str(free))
    return replace(planned, number=free)


def _start(blueprint: Blueprint, clock: Clock, progress: Progress) -> None:
    home.make_secrets(blueprint)
    write_passwd(blueprint)
    if blueprint.disk.kind == "image":
        progress("creating volumes")
        volumes.prepare(blueprint)
    for member in blueprint.members:
        assembly.write_member(blueprint, member)
    if blueprint.cores is not None:
        cpu_limits.limit(blueprint, None, blueprint.cores)
    progress(f"starting {', '.join(blueprint.members)}")
    for member in blueprint.members:
        members.start_member(blueprint, member)
    access.start(blueprint)
    progress("waiting until every standby is streaming and synchronous")
    _wait_for_leader(blueprint, clock)
    wait_until_healthy(blueprint, clock)
    access.wait_until_routed(blueprint, clock)


def _wait_for_leader(blueprint: Blueprint, clock: Clock) -> None:
    """Wait for a first leader; MachineError with PostgreSQL's own error when every Patroni has ended."""
    started = [False]

    def elected() -> bool:
        if observe(blueprint).leader is not None:
            return True
        alive = any(members.program_pid(blueprint, m, "patroni") is not None for m in blueprint.members)
        if started[0] and not alive:
            raise MachineError(f"PostgreSQL does not start: {_last_error(blueprint)}", "check your --param values")
        started[0] = started[0] or alive
        return False

    wait_for(Wait.FIRST_LEADER, elected, clock, pace_s=0.25)


def _last_error(blueprint: Blueprint) -> str:
    logs = "\n".join(members.logs(blueprint, m, 400) for m in blueprint.members)
    fatal = re.findall(r"(?:FATAL|PANIC):\s*(.*)", logs)
    reasons = [line for line in fatal if "starting up" not in line and "shutting down" not in line]
    return reasons[-1] if reasons else "no reason in its log"


def _keep_logs(blueprint: Blueprint, error: BaseException) -> None:
    """Keep the end of the members' logs, for the folder is about to be removed, and name the file in the hint."""
    logs = "\n".join(f"##### {m}\n{members.logs(blueprint, m)}" for m in blueprint.members)
    path = home.state_folder() / f"{blueprint.name}-failed.log"
    write_private(path, logs)
    if isinstance(error, Error):
        error.hint = f"{error.hint}; the members' logs are kept in {path}"


def destroy_lab(name: str, clock: Clock) -> bool:
    """Destroy a lab, complete or not, and leave nothing; whether there was anything of it."""
    with home.locked(name):
        blueprint = home.stored(name)
        folder = home.lab_home(name)
        if blueprint is None:
            there = folder.exists()
            shutil.rmtree(folder, ignore_errors=True)
            return there
        tear_down(blueprint, clock)
        rootless.end_keeper()
        return True


def tear_down(blueprint: Blueprint, clock: Clock) -> None:
    """End every process, mount, loop device, control group, device and namespace of the lab, then remove its folder.

    Every part is tried, whatever becomes of the others. MachineError names the parts that failed; the folder stays
    then, so that the next command can try again.
    """
    (blueprint.home / "up").unlink(missing_ok=True)
    parts = (
        partial(member_links.end, blueprint),
        partial(_kill_marked, blueprint, clock),
        *(partial(members.kill_everything, blueprint, member, clock) for member in blueprint.members),
        partial(volumes.release, blueprint),
        partial(cpu_limits.remove, blueprint),
        partial(network.remove, blueprint),
    )
    failures = []
    for end in parts:
        try:
            end()
        except (Error, OSError) as error:
            failures.append(str(error))
    if failures:
        raise MachineError(
            f"the lab {blueprint.name} could not be destroyed completely: {'; '.join(failures)}",
            f"WALPROOF_LAB={blueprint.name} walproof lab down",
        )
    _remove_folder(blueprint, clock)


def _kill_marked(blueprint: Blueprint, clock: Clock) -> None:
    def ended() -> bool:
        left = members.marked(blueprint)
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        return not left

    wait_for(Wait.PROGRAM_GONE, ended, clock, pace_s=0.02)


def _remove_folder(blueprint: Blueprint, clock: Clock) -> None:
    """Remove the lab's home, again and again for a while: what was just killed may still be writing its last file."""

    def removed() -> bool:
        shutil.rmtree(blueprint.home, ignore_errors=True)
        return not blueprint.home.exists()

    try:
        wait_for(Wait.PROGRAM_GONE, removed, clock)
    except WaitTimeout:
        hint = "look for mounts below it: findmnt"
        raise MachineError(f"the folder {blueprint.home} could not be removed", hint) from None
