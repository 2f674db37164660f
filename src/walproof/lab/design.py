"""Turns the options of `lab up` into a blueprint, or refuses them. Starts nothing."""

from dataclasses import dataclass, field

from walproof.errors import MachineError, UsageError
from walproof.lab import home
from walproof.lab.blueprint import Blueprint, Disk, Timeouts
from walproof.lab.confinement import check_readable
from walproof.lab.faults import volumes
from walproof.lab.parameters import check_parameters
from walproof.lab.requirements.check import check_machine
from walproof.machine.programs import postgres_bin, postgres_version
from walproof.patroni.config import SyncMode

MOST_MEMBERS = 7
OLDEST_POSTGRES = 14
"""track_wal_io_timing came with 14: pricing reads what it measures."""


@dataclass(frozen=True, slots=True)
class LabOrder:
    """What `lab up` was asked for; None where the lab decides."""

    name: str = ""
    members: int = 3
    sync: SyncMode | None = None
    quorum: int | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    postgres: str | None = None
    port: int = 5500
    disk: Disk = field(default_factory=Disk)
    cores: float | None = None
    timeouts: Timeouts = "fast"


def quorum_of(order: LabOrder) -> tuple[SyncMode, int]:
    """Synchronous mode and quorum of an order; UsageError when there are not enough standbys."""
    standbys = order.members - 1
    default = SyncMode.QUORUM if standbys else SyncMode.OFF
    sync = default if order.sync is None else order.sync
    quorum = 1 if order.quorum is None else order.quorum
    if quorum < 1:
        raise UsageError(f"a quorum of {quorum} waits for nobody", "the quorum is at least 1; --sync off for none")
    if sync is not SyncMode.OFF and quorum > standbys:
        raise UsageError(
            f"a quorum of {quorum} needs as many standbys; {order.members} members have {standbys}",
            f"--members {quorum + 1}, or a smaller --quorum",
        )
    return sync, quorum


def design(order: LabOrder) -> Blueprint:
    """The blueprint of an order (number 0 until it is created); UsageError or MachineError when it cannot be."""
    if not 1 <= order.members <= MOST_MEMBERS:
        raise UsageError(f"{order.members} members is not valid", f"a lab has 1 to {MOST_MEMBERS} members")
    if not 1024 <= order.port <= 65000:
        raise UsageError(f"port {order.port} cannot be the lab's first", "give one between 1024 and 65000")
    if order.cores is not None and order.cores <= 0:
        raise UsageError(f"{order.cores} processors is not valid", "give a number like 0.5")
    volumes.check(order.disk)
    sync, quorum = quorum_of(order)
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
