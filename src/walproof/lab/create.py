"""`lab up`: turns its options into a blueprint, or refuses them, and creates the lab.

The one place that orders the parts of a lab."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from walproof.errors import Error, MachineError, UsageError
from walproof.lab import client_access, configuration, disk_images, home, members, monitoring, network_links, rootless
from walproof.lab.blueprint import Blueprint, Disk, Timeouts
from walproof.lab.configuration import check_parameters
from walproof.lab.list_and_destroy import destroy_lab, destroy_locked, sweep, tear_down
from walproof.lab.machine_probes import check_machine
from walproof.lab.monitoring import Monitoring
from walproof.lab.patroni import observe, wait_until_healthy
from walproof.lab.privileges import MOST_LABS, WHOSE_UID, check_readable, unused, write_passwd, write_private
from walproof.machine import pid_files, signals
from walproof.machine.programs import postgres_bin, postgres_version
from walproof.machine.quoting import pasted
from walproof.model.guarantee import AskedQuorum
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import SyncMode, mode_and_number

MOST_MEMBERS = 7
OLDEST_POSTGRES = 14
"""track_wal_io_timing came with 14: pricing reads what it measures."""


@dataclass(frozen=True, slots=True)
class LabOrder:
    """What `lab up` was asked for; None where the lab decides."""

    name: str = ""
    members: int = 3
    sync: SyncMode | None = None
    quorum: AskedQuorum | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    postgres: str | None = None
    port: int = 5500
    disk: Disk = field(default_factory=Disk)
    cores: float | None = None
    timeouts: Timeouts = "fast"


def design(order: LabOrder) -> Blueprint:
    """The blueprint of an order (number 0 until it is created); UsageError or MachineError when it cannot be."""
    if not 1 <= order.members <= MOST_MEMBERS:
        raise UsageError(f"{order.members} members is not valid", f"a lab has 1 to {MOST_MEMBERS} members")
    if not 1024 <= order.port <= 65000:
        raise UsageError(f"port {order.port} cannot be the lab's first", "give one between 1024 and 65000")
    if order.cores is not None and order.cores <= 0:
        raise UsageError(f"{order.cores} processors is not valid", "give a number like 0.5")
    disk_images.check(order.disk)
    sync, quorum = mode_and_number(order.sync, order.quorum, order.members)
    check_machine(postgres_of_wheel=order.postgres is None)
    bin_dir = postgres_bin(order.postgres)
    version = postgres_version(bin_dir)
    if version < OLDEST_POSTGRES:
        raise MachineError(f"PostgreSQL {version} is too old for the lab", f"give {OLDEST_POSTGRES} or newer")
    check_readable(bin_dir)
    check_parameters(bin_dir, order.parameters)
    name = order.name or home.lab_name()
    return Blueprint(
        name=name,
        number=0,
        members=tuple(f"n{i + 1}" for i in range(order.members)),
        home=home.lab_home(name),
        postgres_bin=bin_dir,
        postgres_version=version,
        port_base=order.port,
        sync=sync,
        quorum=quorum,
        parameters=order.parameters,
        disk=order.disk,
        cores=order.cores,
        timeouts=order.timeouts,
    )


Progress = Callable[[str], None]
"""Is given a line for every step of creating a lab."""


@contextmanager
def _numbering() -> Iterator[TextIO]:
    """Labs of one machine take their numbers one after another; the file holds the last one taken."""
    # Not /run/lock: every user may write there, and a link in the place of the file would be followed.
    folder = Path("/run") if os.access("/run", os.W_OK) else home.open_state()
    # For its owner alone: who may read a file may lock it, and keep every lab of the machine waiting.
    opened = os.open(folder / "walproof-numbers.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "r+") as file:
        os.fchmod(opened, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_alive(blueprint: Blueprint) -> bool:
    """Whether any process of the lab lives, by its user or its mark: root may not see namespaces of members where it
    has no CAP_SYS_PTRACE."""
    return bool(members.marked(blueprint))


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
        client_access.check_paths(planned)
        client_access.check_ports(planned)
        with _numbering() as last:
            blueprint = _numbered(planned, last)
            home.store(blueprint, made_by, owner)
            try:
                network_links.build(blueprint)
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
        (blueprint.home / "up").touch()
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
                # Where progress cannot be written (a closed terminal), the lab is destroyed all the same.
                with suppress(OSError):
                    progress(f"destroying the lab {planned.name}")
                destroy_lab(planned.name, clock)


def _clear_place(name: str, clock: Clock, progress: Progress) -> None:
    """Remove what an interrupted walproof left under that name; MachineError where a lab lives or nothing marks one."""
    home.check_here(name)
    marked, old = home.identity(name), home.stored(name)
    if marked is not None and marked.owner_pid:
        raise MachineError(
            f"the lab {name} is in use by `walproof {marked.made_by}` (pid {marked.owner_pid})",
            "wait for it, or name another lab with --lab",
        )
    if marked is not None and not marked.owner and old is not None and home.is_complete(old) and is_alive(old):
        raise MachineError(
            f"the lab {name} is up already",
            pasted("walproof lab status --lab {name:shell}, or walproof lab down {name:argument}", name=name),
        )
    if os.path.lexists(home.lab_home(name)):
        progress("destroying what an interrupted walproof left")
        destroy_locked(name, clock)


def _numbered(planned: Blueprint, last: TextIO) -> Blueprint:
    """The next free number after the last one: a name of a namespace is not soon another lab's."""
    last.seek(0)
    text = last.read().strip()
    # Root's labs count from 1, an ordinary user's from the middle: names of root's namespaces reach into theirs.
    first = int(text) if text.isdigit() else 0 if os.geteuid() == 0 else MOST_LABS // 2
    taken = network_links.taken_numbers() | home.used_numbers()
    free = next(unused(n for i in range(MOST_LABS) if (n := (first + i) % MOST_LABS + 1) not in taken), None)
    if free is None:
        says = "no N is free for a lab's subnet 10.77.N.0/24 and, under root, its uids 60600 + N and 60854 + N"
        raise MachineError(says, f"walproof lab down for labs you do not need; {WHOSE_UID}")
    last.seek(0)
    last.truncate()
    last.write(str(free))
    return replace(planned, number=free)


def _start(blueprint: Blueprint, clock: Clock, progress: Progress) -> None:
    home.make_secrets(blueprint)
    write_passwd(blueprint)
    if blueprint.disk.kind == "image":
        progress("creating volumes")
        disk_images.prepare(blueprint)
    for member in blueprint.members:
        configuration.write_member(blueprint, member)
    if blueprint.cores is not None:
        members.limit_cores(blueprint, None, blueprint.cores)
    progress(f"starting {', '.join(blueprint.members)}")
    for member in blueprint.members:
        members.start_member(blueprint, member)
    client_access.start(blueprint)
    progress("waiting until every standby is streaming and synchronous")
    _wait_for_leader(blueprint, clock)
    wait_until_healthy(blueprint, clock)
    wait_for(Wait.PROGRAM_READY, lambda: client_access.routed_leader(blueprint) is not None, clock, pace_s=0.05)


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
