"""Which labs there are in the state folder, from their marks and from living processes. Changes nothing."""

import re
from dataclasses import dataclass
from pathlib import Path

from walproof.errors import MachineError, UsageError
from walproof.lab import home, members, network
from walproof.lab.blueprint import Blueprint, Disk
from walproof.links.namespaces import NAMESPACES


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab: its number (0: unknown), the command that made it, that command's pid while it lives, its processes."""

    name: str
    number: int
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
    number = (marked.number if marked else 0) or _number_of_processes(Blueprint(name, 0, (), folder, Path(), 0))
    below = folder.iterdir() if marked and folder.is_dir() else ()
    folders = {path.name for path in below if re.fullmatch(r"n\d+", path.name) and not path.is_symlink()}
    found = sorted(folders | (network.members_of(number) if number else set()))
    # Volumes are looked for in any case.
    return Blueprint(name, number, tuple(found), folder, Path(), 0, disk=Disk("image", wal_volume=True))


def _number_of_processes(blueprint: Blueprint) -> int:
    """The number in the name of the network namespace that one of the lab's processes is in; 0 for none."""
    spaces = {_process_space(process.pid) for process in members.marked(blueprint)} - {None}
    for path in NAMESPACES.iterdir() if NAMESPACES.is_dir() else ():
        match = re.match(r"wp(\d+)-", path.name)
        if match and path.stat().st_ino in spaces:
            return int(match[1])
    return 0


def _process_space(pid: int) -> int | None:
    """The inode of a process's network namespace; None once it is gone."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None
