"""Whether a server, or pg_rewind, works in a data directory: what Linux says of this machine's processes. Reads only.

Its user may be a container's: on a mount with mapped ids a process has another uid than its files have on disk."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from walproof.machine.untrusted import of_process
from walproof.salvaging.refusals import refused

_TARGET = re.compile(r"\0(?:-\w*D\0?|--target-pg\w*[=\0])([^\0]+)")
"""The directory that a command line of pg_rewind names."""


def check_unused(directory: Path) -> None:
    """A refusal when a server works in it, its working directory, or pg_rewind, which names it, or either in what it
    leads to, by a link of its own: a copy's links lead to the folders of the server that was copied, or that has come
    back since. A refusal, too, when we may not see where a process of its user works (root without CAP_SYS_PTRACE)."""
    try:
        folders = {found: one for one in (directory, *_elsewhere(directory)) if (found := _inode(one))}
    except PermissionError as wrong:
        raise refused("unreadable", file=wrong.filename, why=wrong.strerror) from None
    owner = directory.stat().st_uid
    for process in Path("/proc").glob("[0-9]*"):
        users, used = set[int](), None
        try:
            users.add(process.stat().st_uid)
            program = (process / "comm").read_bytes()
            if program.startswith((b"post", b"pg_rewind")):
                users |= {_in_its_namespace(process, user) for user in users}
                places = _places(process, program, able=not users.isdisjoint({0, owner}))
                used = next((found for place in places if (found := _inode(place)) in folders), None)
        except PermissionError:
            if owner in users:
                raise refused("in-use-unknown", directory=directory, pid=process.name) from None
        except OSError:  # it ended
            continue
        if used is not None:
            raise refused("in-use", directory=folders[used], pid=process.name)


def _inode(path: Path) -> tuple[int, int] | None:
    """Device and inode; None where it is not there. PermissionError where that cannot be known."""
    try:
        status = os.stat(path)
    except PermissionError:
        raise
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _in_its_namespace(process: Path, user: int) -> int:
    """What its user is called in its user namespace."""
    with suppress(OSError):  # a kernel without user namespaces
        for line in (process / "uid_map").read_text().splitlines():
            inside, outside, count = map(int, line.split())
            if 0 <= user - outside < count:
                return inside + user - outside
    return user


def _places(process: Path, program: bytes, *, able: bool) -> Iterator[Path]:
    """Where a server or pg_rewind works. A user who is not able to write there may name anything: of his we count
    only where he stands."""
    root, cwd, line = process / "root", process / "cwd", ""
    yield cwd
    if able:
        if program.startswith(b"pg_rewind"):
            line = "\0".join(of_process(int(process.name), "cmdline"))
        for home in (cwd, *(_below_root(root, cwd, name) for name in _TARGET.findall(line))):
            yield home
            yield from _elsewhere(home, root)


def _elsewhere(directory: Path, root: Path = Path("/")) -> list[Path]:
    """What pg_wal and pg_tblspc of a data directory lead to, for whom that folder is /: a server in a container."""
    links = (directory / "pg_wal", *(directory / "pg_tblspc").glob("*"))
    return [_below_root(root, directory, os.readlink(link)) for link in links if link.is_symlink()]


def _below_root(root: Path, folder: Path, name: str) -> Path:
    """What a process whose / is that root means by a name in that folder."""
    return root / name[1:] if name.startswith("/") else folder / name
