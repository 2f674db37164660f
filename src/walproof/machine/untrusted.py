"""What others wrote: JSON and TOML (a ValueError when unreadable or nested too deeply), and files in their folders.

In a folder where another user may write, or that a stranger made, no link is ever followed; `trusted` is one that only
we can change, or that the user named."""

import contextlib
import errno
import grp
import json
import os
import pwd
import re
import shutil
import stat
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

DEEPEST = 100
"""Levels of lists and objects; what walproof, Patroni and Kubernetes write has a dozen or two."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_FIELD = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: controls, formats (bidirectional, of no width), surrogates, ends of lines and paragraphs."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LEFT = 2_000_000
"""Files and folders that are removed one by one: a minute of it."""
_MOST_OF_PROCESS = 1 << 16
_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def from_json(text: str | bytes) -> Any:
    """What the JSON says; ValueError where it is none, or nested more than DEEPEST levels deep.

    >>> from_json('{"a": [1]}')
    {'a': [1]}
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        tree = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Most lines of a record have fewer brackets than that, and need no walk.
    if text.count("[") + text.count("{") > DEEPEST and _too_deep(tree):
        raise ValueError(_TOO_DEEP)
    return tree


def from_toml(text: str) -> dict[str, Any]:
    """What the TOML says; tomllib.TOMLDecodeError where it is none, or nested more than DEEPEST levels deep."""
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    if _too_deep(tree):
        raise tomllib.TOMLDecodeError(_TOO_DEEP)
    return tree


def printable(tree: Any) -> Any:
    r"""A tree of JSON whose texts move no terminal: control characters are replaced, line ends and tabs stay.

    >>> printable({"a": ["x\x1b[2J"]})
    {'a': ['x�[2J']}
    """
    if isinstance(tree, str):
        return _CONTROLS.sub("\ufffd", tree)
    if isinstance(tree, dict):
        return {printable(key): printable(value) for key, value in tree.items()}
    return [printable(one) for one in tree] if isinstance(tree, list) else tree


def one_line(text: object, most: int | None = None) -> str:
    """Another's words on one line, without what a terminal obeys; `most`: characters that are taken of them.

    >>> one_line("no" + chr(27) + "[2J" + chr(10) + "space")
    'no?[2J space'
    """
    words = " ".join(str(text)[:most].split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def field(text: object) -> str:
    """Another's words as one field of a report: what ends a line, moves a terminal or turns letters round is replaced.

    `printable` is for whole texts alone, such as logs, which have lines of their own.

    >>> field("pg" + chr(10) + "error  forged" + chr(0x202E))
    'pg�error  forged�'
    """
    words = str(text)
    if words.isprintable():
        return words
    return "".join("\ufffd" if unicodedata.category(letter) in _NO_FIELD else letter for letter in words)


def _too_deep(tree: Any) -> bool:
    level = [tree]
    for _ in range(DEEPEST):
        inner = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [one for nodes in inner for one in nodes]
    return any(isinstance(node, dict | list) for node in level)


@contextlib.contextmanager
def _folder(trusted: Path, path: Path) -> Iterator[int]:
    """The folder of the file, opened component by component; OSError where one of them is a link."""
    opened = os.open(trusted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parent.relative_to(trusted).parts:
            below = _below(opened, part)
            os.close(opened)
            opened = below
        yield opened
    finally:
        os.close(opened)


def _below(opened: int, part: str) -> int:
    try:
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=opened)
    except NotADirectoryError as wrong:
        if stat.S_ISLNK(os.stat(part, dir_fd=opened, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, f"{part} is a link, which is not followed") from None
        raise wrong


@contextlib.contextmanager
def regular(trusted: Path, path: Path) -> Iterator[BinaryIO]:
    """A regular file open for reading; OSError for anything else: a link, a device, a pipe that waits.

    What is no regular file is not even opened: opening some devices does something.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _folder(trusted, path) as folder:
        mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(os.open(path.name, flags, dir_fd=folder), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
            yield file


def bounded(file: BinaryIO, most: int) -> bytes:
    """What is left of an open file; OSError where that is more than `most` bytes: a sparse file of any size is tiny."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    if left > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")
    return file.read(max(left, 0))


def of_process(pid: int, name: Literal["cmdline", "comm", "environ"]) -> list[str]:
    """The first 64 KiB of a process's arguments, name or variables; OSError where it has ended.

    They are what it says: it may name any range of its memory as these (prctl(2), PR_SET_MM_MAP).
    """
    with Path(f"/proc/{pid}/{name}").open("rb", buffering=0) as file:
        return os.fsdecode(file.read(_MOST_OF_PROCESS)).rstrip("\0").split("\0")


def read_line(trusted: Path, path: Path) -> str:
    """The first line of a regular file, at most 200 bytes of it; OSError for anything else."""
    with regular(trusted, path) as file:
        return file.readline(200).decode(errors="replace").strip()


def remove(trusted: Path, path: Path) -> None:
    """Remove the file, or the link in its place; nothing happens when it, or its folder, is not there or is a link."""
    with contextlib.suppress(OSError), _folder(trusted, path) as folder:
        os.unlink(path.name, dir_fd=folder)


def remove_tree(folder: Path | str, dir_fd: int | None = None) -> None:
    """Remove a folder and all that others put there, however deep, no link followed. OSError where something stays.

    What is too deep for a recursion, or a descriptor a level, is moved up into the folder: last, for that takes space.
    It gives up at two million of these: somebody may write there meanwhile.
    """
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True, dir_fd=dir_fd)
    try:
        opened = os.open(folder, _FOLDER, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    done = 0
    try:
        while names := os.listdir(opened):
            if (done := done + len(names)) > _MOST_LEFT:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))
            for name in names:
                if _is_folder(opened, name):
                    _emptied(opened, name)
                    os.rmdir(name, dir_fd=opened)
                else:
                    os.unlink(name, dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(folder, dir_fd=dir_fd)


def _emptied(above: int, folder: str) -> None:
    inside = os.open(folder, _FOLDER, dir_fd=above)
    try:
        for name in os.listdir(inside):
            if _is_folder(inside, name):
                os.rename(name, os.urandom(16).hex(), src_dir_fd=inside, dst_dir_fd=above)
            else:
                os.unlink(name, dir_fd=inside)
    finally:
        os.close(inside)


def _is_folder(opened: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode)


def create(trusted: Path, path: Path) -> int:
    """A new file for writing, in the place of what lies there; its descriptor. OSError when it cannot be."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    remove(trusted, path)
    with _folder(trusted, path) as folder:
        return os.open(path.name, flags, 0o600, dir_fd=folder)


def names(trusted: Path, folder: Path) -> list[str]:
    """The names in a folder, in their order; OSError where it, or a folder above it, is a link or is not there."""
    with _folder(trusted, folder / "any") as opened:
        return sorted(os.listdir(opened))


def entries(trusted: Path, folder: Path) -> list[tuple[str, str]]:
    """The names in a folder, in their order, each with its kind: folder, file, link or other; OSError as `names`."""
    with _folder(trusted, folder / "any") as opened, os.scandir(opened) as found:
        return sorted((one.name, _kind(one)) for one in found)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def copy(trusted: Path, path: Path, to: Path, most: int) -> None:
    """Copy a regular file of at most so many bytes to a new file that only its owner reads; OSError for all else."""
    with regular(trusted, path) as source:
        content = bounded(source, most)
    made = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(made, "wb") as target:
        target.write(content)


def tail(trusted: Path, path: Path, most: int) -> str:
    """The last bytes of a regular file, at most so many, from the start of a line on; OSError for anything else."""
    with regular(trusted, path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - most, 0))
        end = file.read(most)
    whole = end if size <= most else end.partition(b"\n")[2] or end
    return whole.decode(errors="replace")


def modified(trusted: Path, path: Path) -> float:
    """When the file was last written, seconds since the epoch; OSError where it is not there."""
    with _folder(trusted, path) as folder:
        return os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mtime


def is_own_group(group: int, of: Path | int, user: int | None = None) -> bool:
    """Whether nobody else is in the group of that file, opened or by its path: this user's own, or root's.

    user: another who is believed there.
    By its name too: accounts of a domain are not listed. Some of the system have root's as their first group (sync,
    halt). Under an ACL the mode's group is the mask of all that it names (acl(5)).
    """
    with contextlib.suppress(OSError):
        os.getxattr(of, "system.posix_acl_access")
        return False
    with contextlib.suppress(KeyError):
        known = grp.getgrgid(group)
        if not group and {*known.gr_mem} <= {"root"}:
            return True  # a user of a container has root's group, and often no entry: no name
        accounts = (entry.pw_name for entry in pwd.getpwall() if group and entry.pw_gid == group)
        name = pwd.getpwuid(os.geteuid() if user is None else user).pw_name
        return (not group or known.gr_name == name) and {*known.gr_mem, *accounts} <= {"root", name}
    return False
