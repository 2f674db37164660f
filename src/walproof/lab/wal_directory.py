"""Where each member's WAL lives: in its data folder or on a volume of its own. Moves it, one member after another."""

import shutil
import signal
from pathlib import Path

from walproof.errors import UsageError
from walproof.lab import members, switchover
from walproof.lab.blueprint import Blueprint
from walproof.lab.health import wait_until_healthy
from walproof.lab.observe import look
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for


def is_apart(blueprint: Blueprint, member: str) -> bool:
    """Whether the member's pg_wal points at a volume of its own."""
    return (blueprint.data_dir(member) / "pg_wal").is_symlink()


def place(blueprint: Blueprint, *, apart: bool, clock: Clock) -> None:
    """Bring the WAL of every member where it is wanted; standbys first, the leader after handing over.

    UsageError where the lab was raised without a volume for it.
    """
    if all(is_apart(blueprint, m) == apart for m in blueprint.members):
        return
    if not blueprint.disk.wal_volume:
        raise UsageError("this lab has no volume for the WAL", "walproof lab down; walproof lab up --wal-volume")
    leader = look(blueprint).leader
    for member in sorted(blueprint.members, key=lambda m: m == leader):
        if is_apart(blueprint, member) == apart:
            continue
        if member == look(blueprint).leader and len(blueprint.members) > 1:
            switchover.switch_over(blueprint, member, None, clock, hold=False)
            wait_until_healthy(blueprint, clock)
        _move(blueprint, member, apart=apart, clock=clock)
        wait_until_healthy(blueprint, clock)


def _move(blueprint: Blueprint, member: str, *, apart: bool, clock: Clock) -> None:
    """Patroni ends in an orderly way (PostgreSQL with it), the folder moves, the member starts again."""
    patroni = members.program_pid(blueprint, member, "patroni")
    if patroni is not None:
        for process in members.processes(blueprint, member):
            if process.pid == patroni:
                process.send_signal(signal.SIGTERM)
    wait_for(
        Wait.PROGRAM_GONE,
        lambda: (
            members.program_pid(blueprint, member, "patroni") is None and members.postmaster(blueprint, member) is None
        ),
        clock,
        times=2,
    )
    inside = blueprint.data_dir(member) / "pg_wal"
    outside = blueprint.member_dir(member) / "wal" / "pg_wal"
    if apart:
        _swap(inside, outside)
        inside.symlink_to(outside)
    else:
        inside.unlink()
        _swap(outside, inside)
    members.start_member(blueprint, member)


def _swap(source: Path, destination: Path) -> None:
    """Move a folder across file systems with its owner; a half-made copy never takes the source's place."""
    if destination.exists():
        shutil.rmtree(destination)
    shutil.copytree(source, destination, symlinks=True)
    owner = source.stat()
    for path in (destination, *destination.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    shutil.rmtree(source)
