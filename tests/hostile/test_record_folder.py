"""A record in a folder where another user may rename: nothing is written outside of it, whatever he puts there."""

import os
from pathlib import Path

import pytest

from walproof.errors import MachineError
from walproof.records import writer
from walproof.records.layout import EVENTS, FILES, HEADER, opener
from walproof.records.writer import Writer


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside; the current one is where records are made."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def test_a_link_in_the_place_of_a_record_leads_nowhere(elsewhere: Path) -> None:
    with Writer(None, "prove") as emit:
        moved = emit.directory.rename("moved")
        emit.directory.mkdir()
        (emit.directory / FILES).symlink_to(elsewhere)
        emit.keep("drill-1-n1.log", "* * * * * root id\n")
    assert list(elsewhere.iterdir()) == []
    assert (moved / FILES / "drill-1-n1.log").read_text() == "* * * * * root id\n"
    assert "done" in (moved / EVENTS).read_text()


@pytest.mark.parametrize("place", ["files", "files/drill-1-n1.log"])
def test_a_link_within_a_record_leads_nowhere(place: str, elsewhere: Path) -> None:
    (elsewhere / "drill-1-n1.log").write_text("his")
    with Writer(Path("r"), "prove") as emit:
        if place != FILES:
            (emit.directory / FILES).mkdir()
        (emit.directory / place).symlink_to(elsewhere / place.removeprefix("files").removeprefix("/"))
        with pytest.raises(MachineError, match="cannot write the record"):
            emit.keep("drill-1-n1.log", "ours")
    assert (elsewhere / "drill-1-n1.log").read_text() == "his"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
@pytest.mark.usefixtures("elsewhere")
def test_a_folder_of_another_user_in_the_place_of_a_new_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(path: Path) -> None:
        path.mkdir(parents=True)
        os.chown(path, 1234, 1234)

    monkeypatch.setattr(writer, "make_folder", swapped)
    with pytest.raises(MachineError, match="another user has put his own in its place"):
        Writer(None, "prove")
    assert [path.name for path in Path("records").glob("*/*")] == []


@pytest.mark.parametrize("last", ['{"torn', '{"whole": 1}'])
def test_a_record_that_is_continued_is_mended_in_the_file_that_was_opened(
    last: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is put in its place meanwhile has nothing cut off or written where it leads."""
    his = elsewhere / "his"
    his.write_text("a line\nanother, without an end")
    with Writer(Path("r"), "price"):
        pass
    before = Path("r", EVENTS).read_text()
    Path("r", EVENTS).write_text(before + last)

    def swapping(path: str, flags: int) -> int:
        file = opener(path, flags)
        if path.endswith(EVENTS):
            Path("r", EVENTS).rename("moved")
            Path("r", EVENTS).symlink_to(his)
        return file

    monkeypatch.setattr(writer, "opener", swapping)
    with Writer(Path("r"), "price", resume=True):
        pass
    assert his.read_text() == "a line\nanother, without an end"
    kept = before if "torn" in last else f"{before}{last}\n"
    assert Path("moved").read_text().startswith(kept + '{"at":')


@pytest.mark.parametrize("place", [HEADER + ".new", f"{FILES}/x.log"])
def test_a_pipe_in_a_record_keeps_nobody_waiting(place: str, elsewhere: Path) -> None:
    Path("r", FILES).mkdir(parents=True)
    os.mkfifo(Path("r", place))
    with pytest.raises(MachineError, match="cannot write the record"), Writer(Path("r"), "prove") as emit:
        emit.keep("x.log", "ours")
