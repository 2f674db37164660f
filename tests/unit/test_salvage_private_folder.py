"""Where salvage writes as root: no component of the path can be another user's, and no link of another is followed."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.own_folder import own_folder
from walproof.errors import UsageError
from walproof.salvaging.private_folder import private_folder

__all__ = ["own_folder"]
NOBODY = 65534


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757])
@pytest.mark.parametrize("below", ["", "out", "a/b/out"])
def test_a_folder_in_which_others_may_write_is_refused(own_folder: Path, mode: int, below: str) -> None:
    (own_folder / "theirs").mkdir()
    (own_folder / "theirs").chmod(mode)
    with (
        pytest.raises(UsageError, match="other users may write there"),
        private_folder(own_folder / "theirs" / below),
    ):
        pass
    assert not list((own_folder / "theirs").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("below", ["", "out", "a/b/out"])
def test_a_folder_of_another_user_is_refused(own_folder: Path, below: str) -> None:
    (own_folder / "theirs").mkdir(mode=0o700)
    os.chown(own_folder / "theirs", NOBODY, NOBODY)
    with pytest.raises(UsageError, match="belongs to another user"), private_folder(own_folder / "theirs" / below):
        pass
    assert not list((own_folder / "theirs").iterdir())


@pytest.mark.parametrize("target", ["/etc", "../ours", "{}/ours"])
def test_a_link_in_a_folder_of_others_is_not_followed(own_folder: Path, target: str) -> None:
    """However safe the place it names is: it may name another in a moment."""
    for name in ("theirs", "ours"):
        (own_folder / name).mkdir()
    (own_folder / "theirs/link").symlink_to(target.format(own_folder))
    (own_folder / "theirs").chmod(0o777)
    (own_folder / "by_way_of").symlink_to("theirs/link")
    for path in ("theirs/link/out", "by_way_of/out", "theirs/../ours/../theirs/link"):
        with (
            pytest.raises(UsageError, match="other users may write there"),
            private_folder(own_folder / "x" / ".." / path),
        ):
            pass
    assert not list((own_folder / "ours").iterdir())


def test_a_link_of_ours_is_followed_and_one_without_end_is_not(own_folder: Path) -> None:
    (own_folder / "ours/deep").mkdir(parents=True)
    (own_folder / "link").symlink_to("ours")
    (own_folder / "up").symlink_to(own_folder / "link/deep/../..")
    (own_folder / "loop").symlink_to("loop")
    (own_folder / "file").write_text("")
    with private_folder(own_folder / "up/link/new/out") as opened:
        assert opened.path == own_folder / "ours/new/out" and stat.S_IMODE(opened.path.stat().st_mode) == 0o700
        assert os.path.samestat(os.fstat(opened.opened), opened.path.stat())
    for name in ("loop", "file", "file/out"):
        with pytest.raises(UsageError, match="is no place for root to write"), private_folder(own_folder / name):
            pass


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
