"""Copies a data directory: by reflink where the file system can, holes stay holes; never writes to it."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from walproof.machine.programs import program
from walproof.salvaging.data_directory import OldServer, roots, small_file
from walproof.salvaging.refusals import refused

_EMPTY = (
    "pg_commit_ts", "pg_dynshmem", "pg_logical/mappings", "pg_logical/snapshots", "pg_notify", "pg_replslot",
    "pg_serial", "pg_snapshots", "pg_stat", "pg_stat_tmp", "pg_subtrans", "pg_tblspc", "pg_twophase",
    "pg_wal/archive_status", "pg_wal/summaries",
)  # fmt: skip


def copy(old: OldServer, wal: Mapping[str, Path], size: int, to: Path) -> None:
    """Copy what is needed below `to`; a refusal when there is no space, or the directory changed meanwhile."""
    free = shutil.disk_usage(to).free
    if free < size * 1.1:
        raise refused("no-space", needed=f"{size / 1e9:,.2f}", free=f"{free / 1e9:,.2f}", folder=to.parent)
    before = small_file(old.directory, "global/pg_control")
    for name in _EMPTY:
        (to / "data" / name).mkdir(parents=True, exist_ok=True)
    for source, place in roots(old).items():
        (to / place).parent.mkdir(parents=True, exist_ok=True)
        _cp([source], to / place.parent)
    for folder in set(wal.values()):
        _cp([folder / name for name in wal if wal[name] == folder], to / "data/pg_wal")
    for space in (to / "tablespaces").glob("*"):
        (to / "data/pg_tblspc" / space.name).symlink_to(space.absolute())
    if small_file(old.directory, "global/pg_control") != before:
        raise refused("changed", directory=old.directory)


def _cp(sources: list[Path], to: Path) -> None:
    """cp -R as it is: links stay links, a pipe is not opened (`data_directory.size` has refused both)."""
    options = ("-R", "--no-dereference", "--reflink=auto", "--sparse=always", "-t", str(to), "--")
    done = subprocess.run([program("cp"), *options, *sources], capture_output=True, text=True, check=False)
    if done.returncode:
        raise refused("unreadable", file=sources[0], why=done.stderr.strip())


def give(paths: Iterable[Path], user: int) -> None:
    """Give folders and what is below them to that user; links themselves, never what they name."""
    for folder, _, names in (walked for path in paths for walked in os.walk(path)):
        os.chmod(folder, 0o700)
        for one in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(one, user, user, follow_symlinks=False)
