"""`lab ls` and `lab down`: which labs there are, from marks and living processes, and destroying what is left of one.

Complete or not, with a readable blueprint or without; only what is marked."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from walproof.errors import Error, MachineError, UsageError, WaitTimeout, failures_of
from walproof.lab import disk_images, home, members, network_links, rootless
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.privileges import member_uid
from walproof.links.devices import NAMESPACES
from walproof.machine import untrusted
from walproof.machine.quoting import pasted
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab: its number (0: unknown), the other machine that made it ("": this one), the command that did,
    that command's pid while it lives, its processes."""

    name: str
    number: int
    elsewhere: str
    made_by: str
    owner_pid: int | None
    left_behind: bool
    complete: bool
    processes: int
    members: tuple[str, ...]
    port: int | None
    """First port on 127.0.0.1; None where the blueprint cannot be read."""

    @property
    def state(self) -> str:
        """One or two words for people."""
        if self.elsewhere:
            return f"made on {self.elsewhere}"
        if self.owner_pid:
            return f"in use by walproof {self.made_by} (pid {self.owner_pid})"
        if self.left_behind:
            return f"left behind by walproof {self.made_by}"
        if not self.complete:
            return "incomplete"
        return "up" if self.processes else "no process runs"


def labs() -> tuple[Lab, ...]:
    """Every lab of this state folder, by name; those of which only processes are left, too."""
    folder = home.state_folder()
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    running = {Path(mark).name for mark in members.marks() if Path(mark).parent == folder}
    return tuple(lab for name in sorted(names | running) if (lab := _lab(name)) is not None)


def _lab(name: str) -> Lab | None:
    try:
        marked, stored = home.identity(name), home.stored(name)
    except (UsageError, MachineError):
        return None
    blueprint = stored or reconstructed(name)
    processes = len(members.marked(blueprint))
    if marked is None and (home.lab_home(name).exists() or not processes):
        return None
    return Lab(
        name,
        blueprint.number,
        marked.elsewhere if marked else "",
        marked.made_by if marked else "?",
        marked.owner_pid if marked else None,
        marked.left_behind if marked else False,
        stored is not None and home.is_complete(stored),
        processes,
        blueprint.members,
        stored.port_base if stored else None,
    )


def reconstructed(name: str) -> Blueprint:
    """As much of a lab's blueprint as ends it, where its own cannot be read: from its mark, namespaces and folders."""
    folder = home.lab_home(name)
    marked = home.identity(name)
    number = marked.number if marked and marked.is_here else 0
    number = number or _number_of_processes(Blueprint(name, 0, (), folder, Path(), 0))
    below = folder.iterdir() if marked and folder.is_dir() else ()
    folders = {path.name for path in below if re.fullmatch(r"n\d+", path.name) and not path.is_symlink()}
    member_names = sorted(folders | (network_links.members_of(number) if number else set()))
    # Volumes are looked for in any case.
    return Blueprint(name, number, tuple(member_names), folder, Path(), 0, disk=Disk("image", wal_volume=True))


def _number_of_processes(blueprint: Blueprint) -> int:
    """The number in the name of the network namespace that one of the lab's processes is in; 0 for none."""
    networks = {members.network_of(Path(f"/proc/{process.pid}/ns/net")) for process in members.marked(blueprint)}
    for path in NAMESPACES.iterdir() if NAMESPACES.is_dir() else ():
        match = re.match(r"wp(\d+)-", path.name)
        if match and members.network_of(path) in networks - {None}:
            return int(match[1])
    return 0


def destroy_lab(name: str, clock: Clock, ended_on: frozenset[str] = frozenset()) -> bool:
    """Destroy a lab and leave nothing; whether there was anything of it. MachineError names what stays.

    A folder that nothing marks as a lab's is refused and left as it is, and so is a lab that was made on another
    machine, but for one of `ended_on`.
    """
    with home.locked(name):
        return destroy_locked(name, clock, ended_on)


def destroy_unowned(name: str, clock: Clock, ended_on: frozenset[str]) -> bool:
    """As `destroy_lab`, but a lab whose command lives stays: another walproof may have raised it meanwhile."""
    with home.locked(name):
        marked = home.identity(name)
        return False if marked is not None and marked.owner_pid else destroy_locked(name, clock, ended_on)


def destroy_locked(name: str, clock: Clock, ended_on: frozenset[str] = frozenset()) -> bool:
    """As `destroy_lab`, under the caller's lock."""
    home.check_here(name, ended_on)
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
        blueprint = reconstructed(name)
        if not there and not members.marked(blueprint):
            rootless.end_keeper(name)
            return False
    tear_down(blueprint, clock)
    rootless.end_keeper(name)
    return True


def sweep(clock: Clock, progress: Callable[[str], None]) -> None:
    """Destroy every lab whose command was killed before it could; one that cannot be is named and left."""
    for lab in labs():
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

    Every part is tried, even when another fails. MachineError names the parts that failed; the folder stays
    then, so that the next command can try again.
    """
    (blueprint.home / "up").unlink(missing_ok=True)
    parts = (
        partial(network_links.end_emulator, blueprint),
        partial(members.kill_marked, blueprint, clock),
        *(partial(members.kill_everything, blueprint, member, clock) for member in blueprint.members),
        partial(disk_images.release, blueprint),
        partial(members.remove_core_limits, blueprint),
        partial(_remove_shared_memory, blueprint),
        partial(network_links.remove, blueprint),
        # Once more: what was being started when its parent was killed shows the lab's mark only now.
        partial(members.kill_marked, blueprint, clock),
    )
    failures = [str(wrong) for wrong in failures_of(parts)]
    if failures:
        raise MachineError(
            f"the lab {blueprint.name} could not be destroyed completely: {'; '.join(failures)}",
            pasted("walproof lab down {name:argument}", name=blueprint.name),
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


def _remove_folder(blueprint: Blueprint, clock: Clock) -> None:
    """Remove the lab's home, again and again for a while: what was just killed may still be writing its last file.

    Its mark goes last: a removal that is killed halfway leaves a lab, not a folder that no command may remove.
    """

    def removed() -> bool:
        others = [e for e in blueprint.home.iterdir() if e.name != home.IDENTITY] if blueprint.home.is_dir() else []
        for entry in others:
            with suppress(OSError):
                if entry.is_dir() and not entry.is_symlink():
                    untrusted.remove_tree(entry)
                else:
                    entry.unlink()
        if not any(os.path.lexists(entry) for entry in others):
            with suppress(OSError):
                untrusted.remove_tree(blueprint.home)
        return not blueprint.home.exists()

    try:
        wait_for(Wait.PROGRAM_GONE, removed, clock)
    except WaitTimeout:
        hint = "look for mounts below it: findmnt"
        raise MachineError(f"the folder {blueprint.home} could not be removed", hint) from None
