"""`lab down`, `lab ls` and sweeping against folders that are no labs, names that are none, and blueprints that lie."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.labs import a_lab, port_base, state_of_its_own, what_is_left
from walproof.errors import MachineError
from walproof.lab import create, home, list_and_destroy, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.list_and_destroy import destroy_lab, sweep
from walproof.lab.privileges import member_uid
from walproof.machine import pid_files
from walproof.machine.clock import RealClock

LYING = {
    "dots": "..", "dot": ".", "slash": "a/b", "absolute": "/etc", "option": "-x", "empty": "", "space": "a b",
    "newline": "a\nb", "nul-like": "a%00", "unicode": "läb", "long": "x" * 41, "hidden": ".lab", "glob": "*",
    "up-and-out": "../../etc",
}  # fmt: skip


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    (tmp_path / "precious").write_text("mine")
    monkeypatch.setenv("WALPROOF_STATE", str(folder))
    monkeypatch.delenv("WALPROOF_LAB", raising=False)
    return folder


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.name.endswith(".lock"))


@pytest.mark.parametrize("name", LYING.values(), ids=LYING.keys())
@pytest.mark.parametrize("by", ["argument", "option", "environment"])
def test_a_name_that_is_none_removes_nothing(
    name: str, by: str, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if by == "environment":
        if not name:
            return  # an empty variable means the default lab
        monkeypatch.setenv("WALPROOF_LAB", name)
    before = everything(state.parent)
    words = {"argument": ["--", name], "option": [f"--lab={name}"], "environment": []}[by]
    code, out, err = ended(capsys, ["lab", "down", *words])
    assert (code, out) == (2, "")
    assert "hint:" in err
    assert everything(state.parent) == before


@pytest.mark.parametrize(("name", "refused"), [("lab", 3), ("applied", 2), ("journals", 2), ("other", 3)])
def test_a_folder_that_nothing_marks_is_refused_and_kept(
    name: str, refused: int, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Journals lie in two of them: no lab has their names."""
    (state / name).mkdir()
    (state / name / "letters.txt").write_text("dear all")
    code, _, err = ended(capsys, ["lab", "down", name])
    assert code == refused
    assert "is not a lab" in err or refused == 2
    assert (state / name / "letters.txt").read_text() == "dear all"


def test_all_keeps_folders_that_nothing_marks(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "applied").mkdir()
    (state / "applied" / "j.jsonl").write_text("{}")
    code, _, _ = ended(capsys, ["lab", "down", "--all"])
    assert code == 0
    assert (state / "applied" / "j.jsonl").exists()


def test_a_link_in_the_place_of_a_lab_is_not_followed(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = state.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / home.IDENTITY).write_text('{"number": 3}')
    (elsewhere / "data").write_text("mine")
    (state / "lab").symlink_to(elsewhere)
    code, _, _ = ended(capsys, ["lab", "down"])
    assert code == 3
    assert (elsewhere / "data").exists()


def test_a_mark_that_is_a_link_marks_nothing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "lab").mkdir()
    (state.parent / "mark").write_text('{"number": 3}')
    (state / "lab" / home.IDENTITY).symlink_to(state.parent / "mark")
    assert ended(capsys, ["lab", "down"])[0] == 3


def test_a_blueprint_of_another_folder_marks_nothing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Blueprint("lab", 9, ("n1",), state.parent / "precious-folder", Path("/usr"), 18)
    other.home.mkdir()
    home.store(other)
    (state / "lab").mkdir()
    (state / "lab" / "blueprint.json").write_bytes((other.home / "blueprint.json").read_bytes())
    assert ended(capsys, ["lab", "down"])[0] == 3
    assert other.home.exists()


def test_a_marked_folder_whose_blueprint_names_another_home_removes_only_itself(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = state.parent / "victim"
    victim.mkdir()
    (victim / "data").write_text("mine")
    blueprint = Blueprint("lab", 0, ("n1",), state / "lab", Path("/usr"), 18)
    home.store(blueprint)
    text = (state / "lab" / "blueprint.json").read_text().replace(str(state / "lab"), str(victim))
    (state / "lab" / "blueprint.json").write_text(text)
    assert ended(capsys, ["lab", "down"])[0] == 0
    assert (victim / "data").exists()
    assert not (state / "lab").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"number": "x"}', '{"number": 1, "owner": "x y z"}', "\x00" * 9])
def test_a_mark_that_cannot_be_read_still_marks(content: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "lab").mkdir()
    (state / "lab" / home.IDENTITY).write_text(content)
    assert ended(capsys, ["lab", "down"])[0] == 0
    assert not (state / "lab").exists()


def test_an_empty_folder_of_an_interrupted_creation_goes(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "lab").mkdir()
    assert ended(capsys, ["lab", "down"])[0] == 0
    assert not (state / "lab").exists()


def planted(state: Path, name: str, owner: str) -> None:
    home.store(Blueprint(name, 0, ("n1",), state / name, Path("/usr"), 18), "demo", owner)


def test_a_lab_of_a_dead_command_is_swept_and_one_of_a_living_is_not(state: Path) -> None:
    living = pid_files.identity(os.getpid()) or ""
    pid, start, boot = living.split()
    planted(state, "living", living)
    planted(state, "dead", f"999999999 {start} {boot}")
    planted(state, "reused", f"{pid} {int(start) - 7} {boot}")
    planted(state, "earlier-boot", f"{pid} {start} 0-0-0")
    planted(state, "lasting", "")
    sweep(RealClock(), lambda _: None)
    assert everything(state) == ["lasting", "lasting/blueprint.json", f"lasting/{home.IDENTITY}", "living",
                                 "living/blueprint.json", f"living/{home.IDENTITY}"]  # fmt: skip


def test_all_leaves_the_lab_of_a_living_command_and_reports_it(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted(state, "living", pid_files.identity(os.getppid()) or "")
    planted(state, "dead", "999999999 1 0-0-0")
    code, out, _ = ended(capsys, ["lab", "down", "--all", "--json"])
    reported = json.loads(out)
    assert code == 3
    assert reported["removed"] == ["dead"]
    assert "in use by walproof demo" in reported["stay"]["living"]
    assert (state / "living").exists()


def test_a_name_in_use_by_a_living_command_is_refused_with_a_hint_that_works(state: Path) -> None:
    planted(state, "l", pid_files.identity(os.getppid()) or "")
    wanted = Blueprint("l", 0, ("n1",), state / "l", Path("/usr"), 18)
    with pytest.raises(MachineError, match="in use by `walproof demo`") as refused:
        create.create_lab(wanted, RealClock(), lambda _: None)
    assert "--lab" in refused.value.hint


def test_ls_tells_who_made_each(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted(state, "a", "999999999 1 0-0-0")
    planted(state, "b", "")
    (state / "c").mkdir()
    labs = json.loads(ended(capsys, ["lab", "ls", "--json"])[1])["labs"]
    assert [(lab["name"], lab["state"]) for lab in labs] == [("a", "left behind by walproof demo"), ("b", "incomplete")]
    assert "left behind by walproof demo" in ended(capsys, ["lab", "ls"])[1]


@pytest.fixture
def marked_process(state: Path) -> Iterator[psutil.Popen]:
    """A process that carries a lab's mark and ignores every signal but -9."""
    script = "import signal,time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)"
    environment = {**os.environ, home.MARK: str(state / "ghost")}
    process = psutil.Popen([sys.executable, "-P", "-c", script], env=environment)
    yield process
    if process.is_running():
        process.kill()
    process.wait()


def test_processes_without_a_folder_are_found_and_ended(
    marked_process: psutil.Popen, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    while not list_and_destroy.labs():
        assert marked_process.is_running()
    assert [lab.name for lab in list_and_destroy.labs()] == ["ghost"]
    code, out, _ = ended(capsys, ["lab", "down", "--all"])
    assert code == 0
    assert "ghost" in out
    assert not marked_process.is_running() or marked_process.status() == psutil.STATUS_ZOMBIE


def test_processes_of_another_state_folder_are_left_alone(
    marked_process: psutil.Popen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WALPROOF_STATE", str(tmp_path / "another"))
    assert ended(capsys, ["lab", "down", "--all"])[0] == 0
    assert ended(capsys, ["lab", "down", "ghost"])[0] == 0
    assert marked_process.is_running()


DAMAGE = {
    "truncated": lambda text: text[:40],
    "empty": lambda text: "",
    "of-another-version": lambda text: json.dumps({"format": 99, "cluster": "lab"}),
    "binary": lambda text: "\x00\x01",
}


@pytest.mark.lab
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_running_lab_with_a_damaged_blueprint_is_ended_whole(damage: object) -> None:
    with a_lab(members=2) as blueprint:
        path = blueprint.home / "blueprint.json"
        path.write_text(damage(path.read_text()))  # type: ignore[operator]
        assert members.marked(blueprint)
        assert destroy_lab(blueprint.name, RealClock())
        assert what_is_left(blueprint) == []


@pytest.mark.lab
def test_shared_memory_of_the_lab_goes_and_that_of_others_stays() -> None:
    with a_lab(members=1) as blueprint:
        own, other = Path("/dev/shm/PostgreSQL.walproof-own"), Path("/dev/shm/PostgreSQL.walproof-other")
        for path, uid in ((own, member_uid(blueprint.number)), (other, member_uid(255))):
            path.touch()
            os.chown(path, uid, uid)
        try:
            destroy_lab(blueprint.name, RealClock())
            assert (own.exists(), other.exists()) == (False, True)
        finally:
            other.unlink()


@pytest.mark.lab
def test_a_running_lab_without_its_folder_is_ended_whole() -> None:
    with a_lab(members=2) as blueprint:
        moved = blueprint.home.with_name("moved-away")
        blueprint.home.rename(moved)
        try:
            assert destroy_lab(blueprint.name, RealClock())
            assert what_is_left(blueprint) == []
        finally:
            subprocess.run(["rm", "-rf", str(moved)], check=True)


@pytest.mark.lab
@pytest.mark.parametrize("after_s", [0.3, 1.0, 2.5])
def test_down_returns_when_everything_of_a_killed_up_is_gone(after_s: float) -> None:
    with state_of_its_own():
        words = [sys.executable, "-P", "-m", "walproof", "lab", "up", "--port", str(port_base())]
        creating = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(after_s)
        creating.send_signal(signal.SIGKILL)
        creating.wait()
        found = list_and_destroy.labs()
        destroy_lab(home.lab_name(), RealClock())
        assert list_and_destroy.labs() == ()
        for lab in found:
            blueprint = Blueprint(lab.name, lab.number, ("n1", "n2", "n3"), home.lab_home(lab.name), Path(), 0)
            assert what_is_left(blueprint) == []
