"""A stranger's record with links in it: nothing is read, written, listed or opened through one."""

import os
import threading
import webbrowser
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, one_sentence
from tests.fixtures.records import price_events, prove_events, recorded
from walproof.errors import MachineError, UsageError
from walproof.model.event import Note
from walproof.records.reader import Tail, read
from walproof.records.writer import Writer

MINE = "mine, and not for a stranger"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "key").write_text(MINE)
    return folder


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []

    def opens(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)
    return opened


def record(folder: Path) -> Path:
    return recorded(folder, "price", price_events(), n1_log="a log")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", ["home/key", "home/new"])
def test_the_page_replaces_a_link_in_its_place_and_that_is_opened(
    to: str, walproof: Run, mine: Path, browser: list[str], tmp_path: Path
) -> None:
    theirs = record(tmp_path / "theirs")
    (theirs / "report.html").symlink_to(tmp_path / to)
    code, _, err = walproof("report", "theirs", "--open")
    page = theirs / "report.html"
    assert code == 0, err
    assert (mine / "key").read_text() == MINE
    assert not (mine / "new").exists()
    assert not page.is_symlink()
    assert "<html" in page.read_text()
    assert browser == [page.as_uri()]


@pytest.mark.parametrize("name", ["theirs/report.html", "./theirs/../theirs/page.html", "theirs/files/../report.html"])
def test_a_page_that_is_named_within_the_record_is_written_through_no_link(
    name: str, walproof: Run, mine: Path, tmp_path: Path
) -> None:
    record(tmp_path / "theirs")
    Path(os.path.abspath(name)).symlink_to(mine / "key")
    code, _, err = walproof("report", "theirs", "--html", name)
    assert code == 0, err
    assert (mine / "key").read_text() == MINE
    assert "<html" in Path(name).read_text()


@pytest.mark.parametrize("words", [("--html", "theirs/sub/key"), ("--histograms", "theirs/sub")])
def test_nothing_is_written_into_a_folder_that_a_link_names(
    walproof: Run, mine: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    (record(tmp_path / "theirs") / "sub").symlink_to(mine)
    one_sentence(walproof("report", "theirs", *words), "", code=3)
    assert [p.name for p in mine.iterdir()] == ["key"]
    assert (mine / "key").read_text() == MINE


def test_a_histogram_is_written_through_no_link(walproof: Run, mine: Path, tmp_path: Path) -> None:
    theirs = record(tmp_path / "theirs")
    assert walproof("report", "theirs", "--histograms", "theirs/h")[0] == 0
    for log in (theirs / "h").iterdir():
        log.unlink()
        log.symlink_to(mine / "key")
    assert walproof("report", "theirs", "--histograms", "theirs/h")[0] == 0
    assert (mine / "key").read_text() == MINE
    assert not any(log.is_symlink() for log in (theirs / "h").iterdir())


def test_a_page_elsewhere_goes_where_the_user_says_through_a_link_too(walproof: Run, tmp_path: Path) -> None:
    record(tmp_path / "theirs")
    (tmp_path / "latest.html").symlink_to("today.html")
    assert walproof("report", "theirs", "--html", "latest.html")[0] == 0
    assert "<html" in (tmp_path / "today.html").read_text()
    assert walproof("report", "theirs", "--html", "/dev/stdout")[0] == 0


@pytest.mark.parametrize("verb", [
    "report theirs", "report theirs --rejudge", "watch theirs --duration 1", "advise theirs --rpo 0",
    "price --resume theirs --target sim",
])  # fmt: skip
@pytest.mark.parametrize("name", ["events.jsonl", "record.json", "files"])
def test_a_record_whose_own_files_are_links_is_refused(
    walproof: Run, mine: Path, name: str, verb: str, tmp_path: Path
) -> None:
    theirs, another = record(tmp_path / "theirs"), record(tmp_path / "another")
    (theirs / name).rename(theirs / "gone")
    (theirs / name).symlink_to(another / name)
    before = contents(another)
    one_sentence(walproof(*verb.split()), f"{name} in it is a link")
    assert contents(another) == before


@pytest.mark.timeout(20)
def test_a_pipe_or_a_device_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    theirs = record(tmp_path / "theirs")
    (theirs / "events.jsonl").unlink()
    os.mkfifo(theirs / "events.jsonl")
    found: list[BaseException] = []

    def ask() -> None:
        try:
            read(theirs)
        except MachineError as wrong:
            found.append(wrong)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    assert [type(one) for one in found] == [MachineError]


def test_a_record_does_not_tell_what_lies_in_another_folder(mine: Path, tmp_path: Path) -> None:
    theirs = record(tmp_path / "theirs")
    (theirs / "files" / "key-is-there").symlink_to(mine / "key")
    found = read(theirs)
    assert [p.name for p in found.kept()] == ["n1.log"]
    (theirs / "files").rename(theirs / "gone")
    (theirs / "files").symlink_to(mine)
    assert found.kept() == ()


def test_a_history_is_not_read_through_a_link(walproof: Run, tmp_path: Path) -> None:
    recorded(tmp_path / "theirs", "prove", prove_events(), n1_log="a log")
    (tmp_path / "key").write_bytes(b"no history")
    number = read(tmp_path / "theirs").events
    drills = [event.drill.number for event in number if hasattr(event, "drill")]
    for drill in drills:
        (tmp_path / "theirs" / "files" / f"drill-{drill}.history").symlink_to(tmp_path / "key")
    code, _, err = walproof("report", "theirs", "--rejudge")
    assert code == 2
    assert "keeps no histories" in err


def test_a_tail_follows_no_link(tmp_path: Path) -> None:
    theirs, another = record(tmp_path / "theirs"), record(tmp_path / "another")
    tail = Tail(theirs)
    (theirs / "events.jsonl").unlink()
    (theirs / "events.jsonl").symlink_to(another / "events.jsonl")
    with pytest.raises(MachineError, match="Too many levels"):
        tail.more()
    with pytest.raises(UsageError, match="is a link"):
        Tail(theirs)


@pytest.mark.parametrize("name", ["events.jsonl", "record.json.new", "files/n1.log"])
def test_a_writer_writes_through_no_link(name: str, mine: Path, tmp_path: Path) -> None:
    theirs = record(tmp_path / "theirs")
    (theirs / "record.json").unlink()
    (theirs / name).unlink(missing_ok=True)
    (theirs / name).symlink_to(mine / "key")

    def resumed() -> None:
        with Writer(theirs, "price", resume=True) as emit:
            emit(Note(1.0, "x"))
            emit.keep("n1.log", "theirs")

    with pytest.raises(MachineError, match="cannot write the record"):
        resumed()
    assert (mine / "key").read_text() == MINE
