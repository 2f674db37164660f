"""WAL as it lies in folders after a failover: unfinished, cut off, compressed, by a link, of timelines before. What is
there and cannot be read is told; never "nothing was lost"."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.lost_rows import SALVAGER
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, free_port, plain_pair, promote, start, stop, wheel_bin
from tests.lab.test_salvage import _run, _typed
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging.timelines import position, segment

__all__ = ["own_folder"]
pytestmark = pytest.mark.lab
SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class Parted:
    """n1 committed a row in the segment of the fork, and two transactions in the next, its last. `before`: a position
    before the fork, behind the last checkpoint."""

    pair: PlainPair
    before: int

    def name(self, further: int = 0) -> str:
        return segment(1, self.before // SIZE + further, SIZE)


@pytest.fixture(scope="module")
def parted() -> Iterator[Parted]:
    with plain_pair(wheel_bin()) as pair:
        _run(pair, "n1", ["CREATE TABLE t (id int PRIMARY KEY)", "SELECT pg_switch_wal()", "CHECKPOINT"])
        ((before,),) = pair.sql("n1", "SELECT pg_current_wal_lsn()::text")
        _run(pair, "n1", ["INSERT INTO t SELECT generate_series(1, 30)"])
        ((until,),) = pair.sql("n1", "SELECT pg_current_wal_lsn()::text")
        caught = f"SELECT pg_last_wal_replay_lsn() >= '{until}'"
        _await(pair, "n2", caught)
        promote(pair)
        pair.sql("n2", SALVAGER)
        _run(pair, "n1", ["SELECT pg_switch_wal()", "INSERT INTO t VALUES (100)", "INSERT INTO t VALUES (101)"])
        stop(pair, "n1")
        yield Parted(pair, position(str(before)))


@pytest.fixture
def disk(parted: Parted, own_folder: Path) -> Path:
    """A copy of the old primary's disk."""
    shutil.copytree(parted.pair.data("n1"), own_folder / "old", symlinks=True)
    _own(parted, own_folder / "old")
    return own_folder / "old"


def _own(parted: Parted, folder: Path) -> None:
    user = parted.pair.data("n1").stat().st_uid
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def salvaged(walproof: Walproof, parted: Parted, old: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    typed = [str(old) if word == str(parted.pair.data("n1")) else word for word in _typed(parted.pair, *more)]
    code, out, err = walproof(*typed, "--out", str(old.parent / "lost"), "--json")
    return code, json.loads(out) if out else {}, err


def compressed(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    path.unlink()


@pytest.mark.parametrize(
    "hide",
    [
        lambda path: os.truncate(path, 8 << 20),
        compressed,
        lambda path: path.rename(path.with_name(f"{path.name}.gz.partial")),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "gzip", "gzip, unfinished", "gone"],
)
def test_wal_of_the_lost_part_that_is_not_read_makes_it_undecided(
    parted: Parted, disk: Path, walproof: Walproof, hide: Callable[[Path], object]
) -> None:
    for path in (disk / "pg_wal").glob("0000*"):
        if path.name > parted.name(1):  # made to be used later
            path.unlink()
    hide(disk / "pg_wal" / parted.name(1))
    code, told, err = salvaged(walproof, parted, disk)
    assert (code, told.get("lost_transactions")) == (4, 0), (told, err)


@pytest.mark.parametrize("where", ["", "archive"])
def test_the_unfinished_segment_of_pg_receivewal_is_read(
    parted: Parted, disk: Path, walproof: Walproof, where: str
) -> None:
    archive = disk.parent / "archive" if where else disk / "pg_wal"
    archive.mkdir(exist_ok=True)
    for path in (disk / "pg_wal").glob("0000*"):
        path.rename(archive / f"{path.name}{'.partial' if path.name == parted.name(1) else ''}")
    code, told, err = salvaged(walproof, parted, disk, *(("--wal", str(archive)) if where else ()))
    assert (code, told.get("lost_transactions"), len(told["undecided"])) == ((4, 2, 1) if where else (0, 2, 0)), (
        told,
        err,
    )


def test_where_an_archive_ends_nobody_knows_that_nothing_was_lost(
    parted: Parted, disk: Path, walproof: Walproof
) -> None:
    """A new primary archives the segment of the fork as .partial: it ends there, and says nothing of the old one."""
    archive = disk.parent / "archive"
    archive.mkdir()
    for path in (disk / "pg_wal").glob("0000*"):
        if path.name < parted.name():
            shutil.copy(path, archive)
        path.unlink()
    shutil.copy(parted.pair.data("n2") / "pg_wal" / parted.name(), archive / f"{parted.name()}.partial")
    code, told, err = salvaged(walproof, parted, disk, "--wal", str(archive))
    assert (code, told.get("lost_transactions")) == (4, 0), (told, err)
    assert "the old primary's disk may have more" in str(told.get("undecided"))


def test_of_two_files_of_a_name_the_one_in_which_reading_goes_further_is_read(
    parted: Parted, disk: Path, walproof: Walproof
) -> None:
    """A backup's own pg_wal ends where the backup did, within a segment of which an archive holds the rest."""
    archive = disk.parent / "archive"
    archive.mkdir()
    for path in (disk / "pg_wal").glob("0000*"):
        shutil.copy(path, archive)
        if path.name > parted.name():
            path.write_bytes(bytes(SIZE))  # made to be used later
    with (disk / "pg_wal" / parted.name()).open("r+b") as file:
        file.seek(parted.before % SIZE)
        file.write(bytes(SIZE - parted.before % SIZE))
    code, told, err = salvaged(walproof, parted, disk, "--wal", str(archive))
    assert (code, told.get("lost_transactions"), len(told["undecided"])) == (4, 2, 1), (told, err)


def test_the_disk_of_a_primary_that_had_just_been_promoted_is_read(walproof: Walproof, own_folder: Path) -> None:
    """Its first checkpoint is on the page on which the timelines part: recovery reads WAL of both, and the history."""
    with plain_pair(wheel_bin()) as pair:
        _run(pair, "n1", ["CREATE TABLE t (id int PRIMARY KEY)"])
        pair.ports["n3"] = free_port()
        stop(pair, "n2", "fast")
        subprocess.run(["cp", "-a", pair.data("n2"), pair.data("n3")], check=True)
        with (pair.data("n3") / "postgresql.conf").open("a") as config:
            config.write(f"port = {pair.ports['n3']}\nrecovery_target_timeline = 'current'\n")
        start(pair, "n2")
        start(pair, "n3")
        try:
            _run(pair, "n1", ["CHECKPOINT", "INSERT INTO t SELECT generate_series(1, 30)", SALVAGER])
            ((until,),) = pair.sql("n1", "SELECT pg_current_wal_lsn()::text")
            for name in ("n2", "n3"):
                _await(pair, name, f"SELECT pg_last_wal_replay_lsn() >= '{until}'")
            stop(pair, "n1")
            stop(pair, "n3", "fast")
            promote(pair, "n2")
            _await(pair, "n2", "SELECT timeline_id = 2 FROM pg_control_checkpoint()")
            _run(pair, "n2", ["INSERT INTO t VALUES (100)"])
            stop(pair, "n2")
            history = pair.data("n2") / "pg_wal/00000002.history"  # or it would take the same number
            subprocess.run(["cp", "-a", history, pair.data("n3") / "pg_wal"], check=True)
            start(pair, "n3")
            promote(pair, "n3")
            old = str(pair.data("n2"))
            dsn = make_conninfo(pair.member_endpoint("n3").client_conninfo(), user="salvager", password="salvager")
            typed = ("--old", old, "--new", dsn, "--bin", str(pair.bin), "--out", str(own_folder / "lost"), "--json")
            code, out, err = walproof("salvage", *typed)
            told = json.loads(out) if out else {}
            assert (code, told.get("lost_transactions"), told.get("undecided")) == (0, 1, []), (told, err)
            assert told["databases"][0]["tables"][0]["inserted"] == 1
        finally:
            stop(pair, "n3")


def _await(pair: PlainPair, member: str, query: str) -> None:
    wait_for(Wait.PROGRAM_READY, lambda: pair.sql(member, query) == [(True,)], RealClock())
