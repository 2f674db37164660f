"""`lab down`, `lab ls` and sweeping: folders that are no labs, names that are none, marks and blueprints that lie.

Removals that are killed halfway too, and labs raised anew while another command sweeps."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.labs import a_lab, what_is_left
from tests.fixtures.tiers import every
from walproof.errors import Error, MachineError
from walproof.lab import create, home, list_and_destroy, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.list_and_destroy import destroy_lab, sweep
from walproof.lab.privileges import MOST_LABS, member_uid
from walproof.machine import pid_files, untrusted
from walproof.machine.clock import RealClock

DEAD = "999999999 1 0-0-0"
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


@pytest.mark.parametrize("by", ["argument", "option", "environment"])
def test_a_name_that_is_none_removes_nothing(
    by: str, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(state.parent)

    def refused(name: str) -> None:
        if by == "environment":
            monkeypatch.setenv("WALPROOF_LAB", name)
        words = {"argument": ["--", name], "option": [f"--lab={name}"], "environment": []}[by]
        code, out, err = ended(capsys, ["lab", "down", *words])
        assert (code, out) == (2, "")
        assert "hint:" in err
        assert everything(state.parent) == before

    # An empty variable means the default lab.
    every([name for name in LYING.values() if name or by != "environment"], refused)


def test_a_folder_that_nothing_marks_is_refused_and_kept(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Journals lie in two of them: no lab has their names. A file that anybody might have marks nothing."""

    def kept(name: str, file: str, text: str, refused: int) -> None:
        (state / name).mkdir(exist_ok=True)
        (state / name / file).write_text(text)
        code, _, err = ended(capsys, ["lab", "down", name])
        assert code == refused
        assert "is not a lab" in err or refused == 2
        assert (state / name / file).read_text() == text
        (state / name / file).unlink()

    chemistry = "equipment of the chemistry lab"
    rows = [("lab", 3), ("applied", 2), ("journals", 2), ("other", 3)]
    files = ["lab.json", "blueprint.json.new", "up", "LAB.JSON"]
    anybodys = [("lab", file, text, 3) for file in files for text in ('{"number": 1}', "{}", chemistry)]
    every([*((name, "letters.txt", "dear all", code) for name, code in rows), *anybodys], kept)


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


def test_a_mark_that_cannot_be_read_still_marks_and_so_does_one_half_written_or_no_file_at_all(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def goes(file: str, content: str) -> None:
        (state / "lab").mkdir()
        if file:
            (state / "lab" / file).write_text(content)
        assert ended(capsys, ["lab", "down"])[0] == 0
        assert not (state / "lab").exists()

    unread = ["", "{", "[]", '{"number": "x"}', '{"number": 1, "owner": "x y z"}', "\x00" * 9]
    every([*((home.IDENTITY, one) for one in unread), (f"{home.IDENTITY}.new", '{"num'), ("", "")], goes)


def planted(state: Path, name: str, owner: str) -> Path:
    home.store(Blueprint(name, 0, ("n1",), state / name, Path("/usr"), 18), "demo", owner)
    return state / name


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


@pytest.mark.skipif(os.geteuid() != 0, reason="users of labs are root's")
def test_a_lab_of_an_earlier_boot_ends_nothing_of_one_that_has_its_number_now(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uid = member_uid(MOST_LABS)
    home.store(Blueprint("old", MOST_LABS, ("n1",), state / "old", Path("/usr"), 18))
    (state / "old" / "up").touch()
    (state / "boot_id").write_text("another boot")
    monkeypatch.setattr(pid_files, "_BOOT", state / "boot_id")
    with subprocess.Popen(["setpriv", f"--reuid={uid}", "--clear-groups", "sleep", "600"]) as of_another:
        try:
            assert '"processes": 0' in ended(capsys, ["lab", "ls", "--json"])[1]
            assert "earlier boot" in ended(capsys, ["lab", "status", "--lab", "old"])[2]
            assert ended(capsys, ["lab", "down", "old"])[0] == 0
            assert of_another.poll() is None
        finally:
            of_another.kill()


def test_a_lab_of_another_machine_is_nobodys_to_judge_here(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as there:
        there.setattr(pid_files, "machine", lambda: "ci-7/00000000")
        planted(state, "demo", DEAD)
        planted(state, "lab", "")
    before = everything(state)
    sweep(RealClock(), lambda _: None)
    with pytest.raises(MachineError, match="made on ci-7, where it may still run"):
        create.create_lab(Blueprint("lab", 0, ("n1",), state / "lab", Path("/usr"), 18), RealClock(), lambda _: None)
    for words in (["down"], ["down", "--all"], ["down", "--ended-on", "ci-8"], ["status"]):
        assert ended(capsys, ["lab", *words])[0] == 3
    assert everything(state) == before
    assert "made on ci-7" in ended(capsys, ["lab", "ls"])[1]
    assert ended(capsys, ["lab", "down", "--all", "--ended-on", "ci-7"])[0] == 0
    assert everything(state) == []


def test_all_leaves_the_lab_of_a_living_command_and_reports_it(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted(state, "living", pid_files.identity(os.getppid()) or "")
    planted(state, "dead", DEAD)
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
    planted(state, "a", DEAD)
    planted(state, "b", "")
    (state / "c").mkdir()
    labs = json.loads(ended(capsys, ["lab", "ls", "--json"])[1])["labs"]
    assert [(lab["name"], lab["state"]) for lab in labs] == [("a", "left behind by walproof demo"), ("b", "incomplete")]
    assert "left behind by walproof demo" in ended(capsys, ["lab", "ls"])[1]


def test_a_removal_killed_at_any_file_leaves_a_lab_that_is_found(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is removed, and however rmtree orders it, the mark is there until nothing else is."""
    folder = planted(state, "lab", DEAD)
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
    assert destroy_lab("lab", RealClock())
    assert unmarked == []
    assert not folder.exists()


@pytest.mark.parametrize(("by", "anew"), [("sweep", "demo"), ("sweep", "lab up"), ("down --all", "demo")])
def test_a_lab_raised_anew_after_it_was_listed_stays(
    by: str, anew: str, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two commands find the same dead one's lab; the other has swept it and raised its own by now."""
    folder = planted(state, "lab", DEAD)
    seen = list_and_destroy.labs()
    assert [lab.left_behind for lab in seen] == [True]
    shutil.rmtree(folder)
    planted(state, "lab", "" if anew == "lab up" else pid_files.identity(os.getppid()) or "")
    monkeypatch.setattr(list_and_destroy, "labs", lambda: seen)
    if by == "sweep":
        sweep(RealClock(), lambda _: None)
    else:
        ended(capsys, ["lab", "down", "--all"])
    assert home.identity("lab") is not None
    assert (folder / "blueprint.json").exists()


def test_what_cannot_be_removed_keeps_its_mark(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = planted(state, "lab", DEAD)
    (folder / "n1").mkdir()
    monkeypatch.setattr(untrusted, "remove_tree", lambda *_, **__: None)
    impatient = RealClock()
    impatient.patience = 0.01
    with pytest.raises(Error, match="could not be removed"):
        destroy_lab("lab", impatient)
    assert (folder / home.IDENTITY).exists()


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


DAMAGE: dict[str, Callable[[str], str]] = {
    "truncated": lambda text: text[:40],
    "empty": lambda text: "",
    "of-another-version": lambda text: json.dumps({"format": 99, "cluster": "lab"}),
    "binary": lambda text: "\x00\x01",
}


@pytest.mark.parametrize("damage", DAMAGE.values())
def test_processes_of_a_lab_with_a_damaged_blueprint_are_ended(
    damage: Callable[[str], str], marked_process: psutil.Popen, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(state, "ghost", "")
    path = state / "ghost" / "blueprint.json"
    path.write_text(damage(path.read_text()))
    assert ended(capsys, ["lab", "down", "ghost"])[0] == 0
    assert not marked_process.is_running() or marked_process.status() == psutil.STATUS_ZOMBIE
    assert everything(state) == []


@pytest.mark.nightly
@pytest.mark.lab
def test_a_running_lab_with_a_damaged_blueprint_is_ended_whole_and_what_is_others_stays() -> None:
    """Its shared memory goes too, by its mark's number, and that of another user stays."""
    with a_lab(members=2) as blueprint:
        path = blueprint.home / "blueprint.json"
        path.write_text(DAMAGE["truncated"](path.read_text()))
        own, other = Path("/dev/shm/PostgreSQL.walproof-own"), Path("/dev/shm/PostgreSQL.walproof-other")
        for memory, uid in ((own, member_uid(blueprint.number)), (other, member_uid(255))):
            memory.touch()
            os.chown(memory, uid, uid)
        assert members.marked(blueprint)
        try:
            assert destroy_lab(blueprint.name, RealClock())
            assert what_is_left(blueprint) == []
            assert (own.exists(), other.exists()) == (False, True)
        finally:
            other.unlink()


@pytest.mark.nightly
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
