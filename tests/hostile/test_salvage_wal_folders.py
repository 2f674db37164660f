"""WAL as it lies in folders after a failover: unfinished, cut off, compressed, by a link, of timelines before. What is
there and cannot be read is told; never "nothing was lost"."""

import gzip
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, free_port, plain_pair, promote, start, stop, wheel_bin
from tests.fixtures.salvaged import SALVAGER, dsn, fork, on, salvaged
from tests.fixtures.tiers import every
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging.timelines import position, segment

__all__ = ["own_folder", "walproof"]
pytestmark = [pytest.mark.lab, pytest.mark.nightly]
SIZE = 1 << 24


class Parted(NamedTuple):
    """n1 committed a row in the segment of the fork, and two transactions in the next, its last. `before`: a position
    before the fork, behind the last checkpoint."""

    pair: PlainPair
    before: int

    def name(self, further: int = 0) -> str:
        return segment(1, self.before // SIZE + further, SIZE)


@pytest.fixture(scope="module")
def parted() -> Iterator[Parted]:
    with plain_pair(wheel_bin()) as pair:
        on(pair, "n1", ["CREATE TABLE t (id int PRIMARY KEY)", "SELECT pg_switch_wal()", "CHECKPOINT"])
        ((before,),) = pair.sql("n1", "SELECT pg_current_wal_lsn()::text")
        on(pair, "n1", ["INSERT INTO t SELECT generate_series(1, 30)"])
        fork(pair)
        on(pair, "n1", ["SELECT pg_switch_wal()", "INSERT INTO t VALUES (100)", "INSERT INTO t VALUES (101)"])
        stop(pair, "n1")
        yield Parted(pair, position(str(before)))


class Disk(NamedTuple):
    """A copy of the old primary's disk, and an archive beside it."""

    parted: Parted
    wal: Path
    archive: Path

    def segments(self) -> list[Path]:
        return sorted(self.wal.glob("0000*"))

    @property
    def last(self) -> Path:
        return self.wal / self.parted.name(1)


def without_later(disk: Disk) -> None:
    """Segments that were made to be used later."""
    for path in disk.segments():
        if path.name > disk.parted.name(1):
            path.unlink()


def cut_off(disk: Disk) -> None:
    without_later(disk)
    os.truncate(disk.last, 8 << 20)


def compressed(disk: Disk) -> None:
    without_later(disk)
    disk.last.with_name(f"{disk.last.name}.gz").write_bytes(gzip.compress(disk.last.read_bytes(), 1))
    disk.last.unlink()


def unfinished_gzip(disk: Disk) -> None:
    without_later(disk)
    disk.last.rename(disk.last.with_name(f"{disk.last.name}.gz.partial"))


def gone(disk: Disk) -> None:
    without_later(disk)
    disk.last.unlink()


def unfinished(disk: Disk) -> None:
    """As pg_receivewal leaves it."""
    disk.last.rename(disk.last.with_name(f"{disk.last.name}.partial"))


def unfinished_in_archive(disk: Disk) -> None:
    for path in disk.segments():
        path.rename(disk.archive / f"{path.name}{'.partial' if path == disk.last else ''}")


def of_new_primary(disk: Disk) -> None:
    """It archives the segment of the fork as .partial: the archive ends there, and says nothing of the old one."""
    name = disk.parted.name()
    for path in disk.segments():
        if path.name < name:
            shutil.copy(path, disk.archive)
        path.unlink()
    shutil.copy(disk.parted.pair.data("n2") / "pg_wal" / name, disk.archive / f"{name}.partial")


def ends_with_backup(disk: Disk) -> None:
    """Within a segment of which an archive holds the rest: of two files of a name that goes further is read."""
    for path in disk.segments():
        shutil.copy(path, disk.archive)
        if path.name > disk.parted.name():
            path.write_bytes(bytes(SIZE))  # made to be used later
    with (disk.wal / disk.parted.name()).open("r+b") as file:
        file.seek(disk.parted.before % SIZE)
        file.write(bytes(SIZE - disk.parted.before % SIZE))


def test_wal_that_is_not_read_makes_it_undecided(parted: Parted, walproof: Run, own_folder: Path) -> None:
    owner = parted.pair.data("n1").stat().st_uid

    def is_told(lies: Callable[[Disk], None], code: int, lost: int, undecided: int | None = None) -> None:
        root = own_folder / lies.__name__
        shutil.copytree(parted.pair.data("n1"), root / "old", symlinks=True)
        for path in (root / "old", *(root / "old").rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
        disk = Disk(parted, root / "old/pg_wal", root / "archive")
        disk.archive.mkdir()
        lies(disk)
        more = ("--wal", str(disk.archive)) if [*disk.archive.iterdir()] else ()
        said, told, err = salvaged(walproof, parted.pair, root / "lost", *more, old=root / "old")
        assert (said, told.get("lost_transactions")) == (code, lost), (told, err)
        assert undecided is None or len(told["undecided"]) == undecided
        assert lies is not of_new_primary or "the old primary's disk may have more" in str(told["undecided"])

    rows = [
        (cut_off, 4, 0),
        (compressed, 4, 0),
        (unfinished_gzip, 4, 0),
        (gone, 4, 0),
        (unfinished, 0, 2, 0),
        (unfinished_in_archive, 4, 2, 1),
        (of_new_primary, 4, 0),
        (ends_with_backup, 4, 2, 1),
    ]
    every(rows, is_told)


def test_the_disk_of_a_primary_that_had_just_been_promoted_is_read(walproof: Run, own_folder: Path) -> None:
    """Its first checkpoint is on the page on which the timelines part: recovery reads WAL of both, and the history."""
    with plain_pair(wheel_bin()) as pair:
        on(pair, "n1", ["CREATE TABLE t (id int PRIMARY KEY)"])
        pair.ports["n3"] = free_port()
        stop(pair, "n2", "fast")
        subprocess.run(["cp", "-a", pair.data("n2"), pair.data("n3")], check=True)
        with (pair.data("n3") / "postgresql.conf").open("a") as config:
            config.write(f"port = {pair.ports['n3']}\nrecovery_target_timeline = 'current'\n")
        start(pair, "n2")
        start(pair, "n3")
        try:
            on(pair, "n1", ["CHECKPOINT", "INSERT INTO t SELECT generate_series(1, 30)", SALVAGER])
            ((until,),) = pair.sql("n1", "SELECT pg_current_wal_lsn()::text")
            for name in ("n2", "n3"):
                _await(pair, name, f"SELECT pg_last_wal_replay_lsn() >= '{until}'")
            stop(pair, "n1")
            stop(pair, "n3", "fast")
            promote(pair, "n2")
            _await(pair, "n2", "SELECT timeline_id = 2 FROM pg_control_checkpoint()")
            on(pair, "n2", ["INSERT INTO t VALUES (100)"])
            stop(pair, "n2")
            history = pair.data("n2") / "pg_wal/00000002.history"  # or it would take the same number
            subprocess.run(["cp", "-a", history, pair.data("n3") / "pg_wal"], check=True)
            start(pair, "n3")
            promote(pair, "n3")
            typed = ("--new", dsn(pair, "n3"))
            code, told, err = salvaged(walproof, pair, own_folder / "lost", *typed, old=pair.data("n2"))
            assert (code, told.get("lost_transactions"), told.get("undecided")) == (0, 1, []), (told, err)
            assert told["databases"][0]["tables"][0]["inserted"] == 1
        finally:
            stop(pair, "n3")


def _await(pair: PlainPair, member: str, query: str) -> None:
    wait_for(Wait.PROGRAM_READY, lambda: pair.sql(member, query) == [(True,)], RealClock())
