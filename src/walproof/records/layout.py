"""The files of a record directory, its header and format version; how files and folders are made that only their owner
may read, from their first byte on and under any umask. Writes no event."""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

from walproof.errors import UsageError
from walproof.machine.untrusted import bounded, from_json, printable, regular

FOLDER, FILE = 0o700, 0o600


def make_folder(path: Path, mode: int = FOLDER) -> None:
    """Create the folder where it is missing, and its parents, in which no other may write; one that exists stays so."""
    if not path.parent.exists():
        make_folder(path.parent, 0o755)
    path.mkdir(exist_ok=True, mode=mode)


def opener(path: str, flags: int) -> int:
    """For open(): a file that it creates is its owner's alone; a link in its place, or a pipe, is an OSError."""
    opened = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE)
    if not stat.S_ISREG(os.fstat(opened).st_mode):  # a pipe that is opened for both is none of open(2)'s errors
        os.close(opened)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    return opened


@contextmanager
def opened_folder(path: Path | str) -> Iterator[int]:
    """A descriptor of the folder, which no link names: who renames it has nothing written elsewhere. OSError else."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


def only_ours(path: Path | int) -> bool:
    """Whether it is this user's own folder or file, opened or by its path, and no other user may write in it."""
    try:
        status = os.fstat(path) if isinstance(path, int) else path.lstat()
    except OSError:
        return False
    kind = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022


FORMAT = 1
"""Raised when an earlier reader would misunderstand, not when it would merely skip something new."""
HEADER = "record.json"
EVENTS = "events.jsonl"
FILES = "files"
_MOST_HEADER = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """What record.json says: format version, the walproof that wrote it, verb, time of creation (ISO, UTC)."""

    format: int
    walproof: str
    verb: str
    created: str

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def version() -> str:
    """The version of this walproof, "unknown" when it runs uninstalled."""
    try:
        return installed("walproof")
    except PackageNotFoundError:
        return "unknown"


def new_name(at: float, verb: str) -> str:
    """The name of a record started at `at` (seconds since the epoch).

    >>> new_name(0.0, "price")
    '19700101T000000Z-price'
    """
    return f"{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}-{verb}"


def safe_name(name: str) -> str:
    """A file name without folders or odd characters, for what a target called its logs.

    >>> safe_name("../n1/postgres.log")
    'n1-postgres.log'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")[:120] or "unnamed"


def read_header(directory: Path) -> tuple[Header | None, str]:
    """The header and "", or None and a sentence saying what is wrong with it; UsageError for another format."""
    try:
        with regular(directory, directory / HEADER) as file:
            raw = printable(from_json(bounded(file, _MOST_HEADER).decode("utf-8", errors="replace")))
        header = Header(int(raw["format"]), str(raw["walproof"]), str(raw["verb"]), str(raw["created"]))
    except FileNotFoundError:
        return None, f"{HEADER} is missing"
    except (ValueError, KeyError, TypeError, OSError):
        return None, f"{HEADER} is damaged"
    if header.format != FORMAT:
        raise UsageError(
            f"{directory} is a record of format {header.format}, and this walproof reads format {FORMAT}",
            f"open it with walproof {header.walproof[:20]!r}, which wrote it, or with a newer one",
        )
    return header, ""


def record_directory(path: Path) -> Path:
    """The record directory meant by `path` (itself, or a file inside it); UsageError when it is not a record."""
    directory = path.parent if path.name in (HEADER, EVENTS) and os.path.isfile(path) else path
    hint = "give the directory that `walproof price` or `walproof prove` named, such as records/20260101T120000Z-price"
    if not os.path.lexists(directory):
        raise UsageError(f"{path} is not a record: there is no such directory", hint)
    links = [name for name in (HEADER, EVENTS, FILES) if (directory / name).is_symlink()]
    if links:
        raise UsageError(f"{path} is not a record: {links[0]} in it is a link, which is not followed", hint)
    if not directory.is_dir() or not ((directory / HEADER).is_file() or (directory / EVENTS).is_file()):
        raise UsageError(f"{path} is not a record: neither {HEADER} nor {EVENTS} is in it", hint)
    return directory
