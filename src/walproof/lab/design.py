"""From what was asked on the command line to a blueprint, with every refusal in words. Starts nothing."""

from dataclasses import dataclass, field

from walproof.errors import MachineError, UsageError
from walproof.lab import home
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.faults import volumes
from walproof.lab.privileges import member_user
from walproof.machine import software
from walproof.model.guarantee import SyncMode

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
    timing: str = "quick"
    monitoring: bool = False


def read_parameters(texts: tuple[str, ...]) -> dict[str, str]:
    """Parameters by name of "name=value" texts; UsageError for anything else.

    >>> read_parameters(("work_mem=64MB",))
    {'work_mem': '64MB'}
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is not a parameter", "write it like --param work_mem=64MB")
        found[name.strip().lower()] = value.strip()
    return found


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
    """The blueprint of an order (number 0 until it is raised); UsageError or MachineError says what is wrong."""
    if not 1 <= order.members <= MOST_MEMBERS:
        raise UsageError(f"{order.members} members is not valid", f"a lab has 1 to {MOST_MEMBERS} members")
    if not 1024 <= order.port <= 65000:
        raise UsageError(f"port {order.port} cannot be the lab's first", "give one between 1024 and 65000")
    if order.timing not in ("quick", "stock"):
        raise UsageError(f"{order.timing!r} is not a timing", "the timings are quick and stock")
    if order.cores is not None and order.cores <= 0:
        raise UsageError(f"{order.cores} processors is not valid", "give a number like 0.5")
    volumes.check(order.disk)
    sync, quorum = quorum_of(order)
    software.check_programs()
    bin_dir = software.postgres_bin(order.postgres)
    version = software.postgres_version(bin_dir)
    if version < OLDEST_POSTGRES:
        raise MachineError(f"PostgreSQL {version} is too old for the lab", f"give {OLDEST_POSTGRES} or newer")
    software.check_parameters(bin_dir, order.parameters)
    name = order.name or home.lab_name()
    if not name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"{name!r} cannot name a lab", "use letters, digits, - and _")
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
        timing=order.timing,
        monitoring=order.monitoring,
        user=member_user(),
    )
