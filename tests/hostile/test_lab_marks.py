"""A lab's mark against foreign files, removals that are killed halfway, and labs raised anew while one sweeps."""

import os
import shutil
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from walproof.errors import Error
from walproof.lab import home, list_and_destroy
from walproof.lab.blueprint import Blueprint
from walproof.machine import pid_files
from walproof.machine.clock import RealClock

DEAD = "999999999 1 0-0-0"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WALPROOF_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("WALPROOF_LAB", raising=False)
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def planted(state: Path, owner: str = DEAD) -> Path:
    home.store(Blueprint("lab", 0, ("n1",), state / "lab", Path("/usr"), 18), "demo", owner)
    return state / "lab"


@pytest.mark.parametrize("name", ["lab.json", "blueprint.json.new", "up", "LAB.JSON"])
@pytest.mark.parametrize("content", ['{"number": 1}', "{}", "equipment of the chemistry lab"])
def test_a_file_that_anybody_might_have_marks_nothing(
    name: str, content: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "lab").mkdir()
    (state / "lab" / name).write_text(content)
    assert ended(capsys, ["lab", "down"])[0] == 3
    assert (state / "lab" / name).read_text() == content


def test_a_removal_killed_at_any_file_leaves_a_lab_that_is_found(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is removed, and however rmtree orders it, the mark is there until nothing else is."""
    folder = planted(state)
    for name in ("a", "zz"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
    unmarked: list[list[str]] = []
    real = os.unlink

    def watched(path: object, **rest: object) -> None:
        real(path, **rest)  # type: ignore[arg-type]
        left = os.listdir(folder)
        if left and home.IDENTITY not in left:
            unmarked.append(left)

    monkeypatch.setattr(os, "unlink", watched)
    assert list_and_destroy.destroy_lab("lab", RealClock())
    assert unmarked == []
    assert not folder.exists()


def test_a_creation_killed_while_its_mark_was_written_is_removed(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "lab").mkdir()
    (state / "lab" / f"{home.IDENTITY}.new").write_text('{"num')
    assert ended(capsys, ["lab", "down"])[0] == 0
    assert not (state / "lab").exists()


@pytest.mark.parametrize(("by", "anew"), [("sweep", "demo"), ("sweep", "lab up"), ("down --all", "demo")])
def test_a_lab_raised_anew_after_it_was_listed_stays(
    by: str, anew: str, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two commands find the same dead one's lab; the other has swept it and raised its own by now."""
    folder = planted(state)
    seen = list_and_destroy.labs()
    assert [lab.left_behind for lab in seen] == [True]
    shutil.rmtree(folder)
    planted(state, "" if anew == "lab up" else pid_files.identity(os.getppid()) or "")
    monkeypatch.setattr(list_and_destroy, "labs", lambda: seen)
    if by == "sweep":
        list_and_destroy.sweep(RealClock(), lambda _: None)
    else:
        ended(capsys, ["lab", "down", "--all"])
    assert home.identity("lab") is not None
    assert (folder / "blueprint.json").exists()


def test_what_cannot_be_removed_keeps_its_mark(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = planted(state)
    (folder / "n1").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Error, match="could not be removed"):
        list_and_destroy.destroy_lab("lab", RealClock())
    assert (folder / home.IDENTITY).exists()
