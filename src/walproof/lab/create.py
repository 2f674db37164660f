"""Creates a lab from nothing: the one place that orders the parts of a lab."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from walproof.errors import Error, MachineError
from walproof.lab import access, assembly, cpu_limits, home, members, monitoring, network, rootless
from walproof.lab.blueprint import Blueprint
from walproof.lab.confinement import write_passwd
from walproof.lab.destroy import destroy_lab, destroy_locked, sweep, tear_down
from walproof.lab.faults import volumes
from walproof.lab.health import wait_until_healthy
from walproof.lab.monitoring import Monitoring
from walproof.lab.observe import observe
from walproof.lab.privileges import numbers_of_accounts, write_private
from walproof.machine import pid_files, signals
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for

Progress = Callable[[str], None]
"""Is given a line for every step of creating a lab."""


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
    planned: Blueprint,
    clock: Clock,
    progress: Progress,
    *,
    monitored: Monitoring | None = None,
    made_by: str = "lab up",
    owner: str = "",
) -> Blueprint:
    """Create the lab (its number is chosen here) and return when it is healthy; destroyed when anything fails.

    made_by, owner: as in `home.Identity`.
    """
    with home.locked(planned.name):
        _clear_place(planned.name, clock, progress)
        access.check_paths(planned)
        access.check_ports(planned)
        with _numbering() as last:
            blueprint = _numbered(planned, last)
            home.store(blueprint, made_by, owner)
            try:
                network.build(blueprint)
            except BaseException:
                with signals.shielded():
                    tear_down(blueprint, clock)
                raise
        try:
            _start(blueprint, clock, progress)
            if monitored is not None:
                progress("starting the monitoring")
                monitoring.start(blueprint, monitored)
        except BaseException as error:
            with signals.shielded():
                # The state folder may be gone or full: the lab is destroyed all the same.
                with suppress(OSError):
                    if isinstance(error, Exception):  # not where the user ended it
                        _keep_logs(blueprint, error)
                tear_down(blueprint, clock)
                rootless.end_keeper(blueprint.name)
            raise
        home.mark_up(blueprint)
        return blueprint


@contextmanager
def temporary_lab(planned: Blueprint, clock: Clock, progress: Progress, made_by: str) -> Iterator[Blueprint]:
    """A lab for as long as the block lasts, destroyed with it, also after an error or a signal.

    Labs that a killed command left behind (kill -9) are removed first.
    """
    owner = pid_files.identity(os.getpid()) or ""
    sweep(clock, progress)
    try:
        yield create_lab(planned, clock, progress, made_by=made_by, owner=owner)
    finally:
        marked = home.identity(planned.name)
        if marked is not None and marked.owner == owner:
            with signals.shielded():
                # Nobody may read the progress any more (a closed terminal): the lab is destroyed all the same.
                with suppress(OSError):
                    progress(f"destroying the lab {planned.name}")
                destroy_lab(planned.name, clock)


def _clear_place(name: str, clock: Clock, progress: Progress) -> None:
    """Remove what an interrupted walproof left under that name; MachineError where a lab lives or nothing marks one."""
    marked, old = home.identity(name), home.stored(name)
    if marked is not None and marked.owner_pid:
        raise MachineError(
            f"the lab {name} is in use by `walproof {marked.made_by}` (pid {marked.owner_pid})",
            "wait for it, or name another lab with --lab",
        )
    if marked is not None and not marked.owner and old is not None and home.is_complete(old) and is_alive(old):
        raise MachineError(
            f"the lab {name} is up already", f"walproof lab status --lab {name}, or walproof lab down {name}"
        )
    if os.path.lexists(home.lab_home(name)):
        progress("destroying what an interrupted walproof left")
        destroy_locked(name, clock)


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
