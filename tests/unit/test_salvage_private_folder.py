"""Where salvage writes as root: no component of the path can be another user's, and no link of another is followed."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.own_folder import own_folder
from tests.fixtures.tiers import every
from walproof.errors import UsageError
from walproof.salvaging.private_folder import private_folder

__all__ = ["own_folder"]
NOBODY = 65534


BELOW = ("", "out", "a/b/out")


def refused(says: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=says), private_folder(folder):
        pass


def test_a_folder_in_which_others_may_write_or_that_is_anothers_is_refused(own_folder: Path) -> None:
    (own_folder / "theirs").mkdir()

    def writable(mode: int, below: str) -> None:
        (own_folder / "theirs").chmod(mode)
        refused("other users may write there", own_folder / "theirs" / below)

    every([(mode, "out") for mode in (0o777, 0o1777, 0o775, 0o757)] + [(0o777, below) for below in BELOW], writable)
    if os.geteuid() == 0:  # only root can give a folder away
        (own_folder / "theirs").chmod(0o700)
        os.chown(own_folder / "theirs", NOBODY, NOBODY)
        every([("belongs to another user", own_folder / "theirs" / below) for below in BELOW], refused)
    assert not list((own_folder / "theirs").iterdir())


def test_a_link_in_a_folder_of_others_is_not_followed(own_folder: Path) -> None:
    """However safe the place it names is: it may name another in a moment."""
    for name in ("theirs", "ours"):
        (own_folder / name).mkdir()
    (own_folder / "by_way_of").symlink_to("theirs/link")
    (own_folder / "theirs").chmod(0o777)

    def is_refused(target: str, path: str) -> None:
        (own_folder / "theirs/link").unlink(missing_ok=True)
        (own_folder / "theirs/link").symlink_to(target)
        refused("other users may write there", own_folder / "x" / ".." / path)
        assert not list((own_folder / "ours").iterdir())

    paths = ("theirs/link/out", "by_way_of/out", "theirs/../ours/../theirs/link")
    every([(target, path) for target in ("/etc", "../ours", f"{own_folder}/ours") for path in paths], is_refused)


def test_a_link_of_ours_is_followed_and_one_without_end_is_not(own_folder: Path) -> None:
    (own_folder / "ours/deep").mkdir(parents=True)
    (own_folder / "link").symlink_to("ours")
    (own_folder / "up").symlink_to(own_folder / "link/deep/../..")
    (own_folder / "loop").symlink_to("loop")
    (own_folder / "file").write_text("")
    with private_folder(own_folder / "up/link/new/out") as opened:
        assert opened.path == own_folder / "ours/new/out" and stat.S_IMODE(opened.path.stat().st_mode) == 0o700
        assert os.path.samestat(os.fstat(opened.opened), opened.path.stat())
    every([("is no place for root to write", own_folder / name) for name in ("loop", "file", "file/out")], refused)


def test_a_file_has_its_name_once_it_is_whole(own_folder: Path) -> None:
    def text() -> Iterator[str]:
        yield "half"
        assert [path.name for path in (own_folder / "out").iterdir()] == ["x.sql.unfinished"]
        raise MemoryError

    with private_folder(own_folder / "out") as out:
        with pytest.raises(MemoryError):
            out.write("x.sql", text())
        assert out.names() == []


def test_what_is_written_replaces_nothing_and_only_its_owner_reads_it(own_folder: Path) -> None:
    before = os.umask(0)
    try:
        with private_folder(own_folder / "out") as out, out.folder("below") as below:
            paths = [out.write("report.json", ["a", "b"]), below.write("x", ["c"])]
            (own_folder / "out/link").symlink_to(own_folder / "victim")
            for name in ("report.json", "link"):
                with pytest.raises(FileExistsError):
                    out.write(name, ["evil"])
            with pytest.raises(FileExistsError), out.folder("link"):
                pass
            assert out.names() == ["below", "link", "report.json"]
            out.remove("link")
            out.remove("below")
            assert out.names() == ["link", "report.json"]
    finally:
        os.umask(before)
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o600 and paths[0].read_text() == "ab"
    assert not (own_folder / "victim").exists()
    assert stat.S_IMODE((own_folder / "out").stat().st_mode) == 0o700


def test_a_folder_that_is_renamed_is_still_the_one_that_is_written(own_folder: Path) -> None:
    with private_folder(own_folder / "out") as out:
        (own_folder / "out").rename(own_folder / "was")
        (own_folder / "out").symlink_to("/etc")
        out.write("report.json", ["a"])
        with out.folder("below") as below:
            below.write("x", ["b"])
    assert (own_folder / "was/report.json").read_text() == "a" and (own_folder / "was/below/x").read_text() == "b"
