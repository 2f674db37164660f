"""Destroys whatever is left of a lab, complete or not, with a readable blueprint or without. Only what is marked."""

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from walproof.errors import Error, MachineError, WaitTimeout
from walproof.lab import cpu_limits, home, inventory, member_links, members, network, rootless
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import volumes
from walproof.lab.privileges import member_uid
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for


def destroy_lab(name: str, clock: Clock) -> bool:
    """Destroy a lab and leave nothing; whether there was anything of it. MachineError names what stays.

    A folder that nothing marks as a lab's is refused and left as it is.
    """
    with home.locked(name):
        return destroy_locked(name, clock)


def destroy_unowned(name: str, clock: Clock) -> bool:
    """As `destroy_lab`, but a lab whose command lives stays: another walproof may have raised it meanwhile."""
    with home.locked(name):
        marked = home.identity(name)
        return False if marked is not None and marked.owner_pid else destroy_locked(name, clock)


def destroy_locked(name: str, clock: Clock) -> bool:
    """As `destroy_lab`, under the caller's lock."""
    folder = home.lab_home(name)
    there = os.path.lexists(folder)
    if there and home.identity(name) is None:
        with suppress(OSError):
            if not folder.is_symlink():
                (folder / f"{home.IDENTITY}.new").unlink(missing_ok=True)
            folder.rmdir()  # empty: creating a lab was interrupted before its mark was in place
            return True
        raise MachineError(
            f"{folder} is not a lab of walproof's: nothing was removed",
            "WALPROOF_STATE names the folder where labs lie",
        )
    blueprint = home.stored(name) if there else None
    if blueprint is None or blueprint.home != folder:
        blueprint = inventory.reconstructed(name)
        if not there and not members.marked(blueprint):
            rootless.end_keeper(name)
            return False
    tear_down(blueprint, clock)
    rootless.end_keeper(name)
    return True


def sweep(clock: Clock, progress: Callable[[str], None]) -> None:
    """Destroy every lab whose command was killed before it could; one that cannot be is named and left."""
    for lab in inventory.labs():
        if lab.left_behind:
            progress(f"removing the lab {lab.name}, left by a walproof {lab.made_by} that was killed")
            try:
                with home.locked(lab.name):
                    marked = home.identity(lab.name)  # again: another walproof may have raised its own meanwhile
                    if marked is not None and marked.left_behind:
                        destroy_locked(lab.name, clock)
            except Error as error:
                progress(f"{error.message}; {error.hint}")


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
        partial(_remove_shared_memory, blueprint),
        partial(network.remove, blueprint),
        # Once more: what was being started when its parent was killed shows the lab's mark only now.
        partial(_kill_marked, blueprint, clock),
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
            f"walproof lab down {blueprint.name}",
        )
    _remove_folder(blueprint, clock)


def _remove_shared_memory(blueprint: Blueprint) -> None:
    """What a PostgreSQL killed while its cluster was made left in /dev/shm; known by the lab's own uid, under root."""
    if os.geteuid() != 0 or not blueprint.number:
        return
    for path in Path("/dev/shm").glob("PostgreSQL.*"):
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == member_uid(blueprint.number):
                path.unlink()


def _kill_marked(blueprint: Blueprint, clock: Clock) -> None:
    def ended() -> bool:
        left = members.marked(blueprint)
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        return not left

    wait_for(Wait.PROGRAM_GONE, ended, clock, pace_s=0.02)


def _remove_folder(blueprint: Blueprint, clock: Clock) -> None:
    """Remove the lab's home, again and again for a while: what was just killed may still be writing its last file.

    Its mark goes last: a removal that is killed halfway leaves a lab, not a folder that nobody may remove.
    """

    def removed() -> bool:
        others = [e for e in blueprint.home.iterdir() if e.name != home.IDENTITY] if blueprint.home.is_dir() else []
        for entry in others:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with suppress(OSError):
                    entry.unlink()
        if not any(os.path.lexists(entry) for entry in others):
            shutil.rmtree(blueprint.home, ignore_errors=True)
        return not blueprint.home.exists()

    try:
        wait_for(Wait.PROGRAM_GONE, removed, clock)
    except WaitTimeout:
        hint = "look for mounts below it: findmnt"
        raise MachineError(f"the folder {blueprint.home} could not be removed", hint) from None
