"""Journals in the state folder: found again when a run is continued, forgotten when nothing is left, flushed anew."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.fake_patroni import fake_patroni
from tests.fixtures.tiers import each
from tests.hostile.test_power_cut_of_journal import Disk
from walproof.cli import watch
from walproof.cli.runs import applied_folder, runs_folder
from walproof.errors import MachineError, UsageError
from walproof.lab import home
from walproof.machine import pid_files
from walproof.model.ports import Target
from walproof.records.journal import NAME, Change, Journal, journals_in
from walproof.records.own_journals import OVER, RegisteredJournal, Run, register, registered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r").mkdir(mode=0o700)
    return tmp_path / "state" / "journals"


def noted(journal: RegisteredJournal, name: str) -> Change:
    return journal.note(1.0, "c", "alter-system n1", name, before=None, after="1")


def test_a_continued_run_goes_on_with_what_the_killed_one_left(tmp_path: Path, folder: Path) -> None:
    first = noted(register(folder, tmp_path / "r"), "a")
    again = register(folder, tmp_path / "r")
    assert again.pending() == (first,)
    second = noted(again, "b")
    (found,) = registered(folder)
    assert found.pending() == Journal(tmp_path / "r" / NAME).pending() == (second, first)
    again.undone(second)
    again.undone(first)
    assert registered(folder) == []
    assert list(folder.glob("*.jsonl")) == []


def test_a_copied_record_is_another_record(tmp_path: Path, folder: Path) -> None:
    ours = register(folder, tmp_path / "r")
    noted(ours, "a")
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    other = register(folder, tmp_path / "copy")
    assert other.run.journal != ours.run.journal
    assert other.pending() == ()


def test_no_number_is_used_twice_in_a_record(tmp_path: Path, folder: Path) -> None:
    """Else what is undone first would hide what is changed afterwards, where the state folder is lost."""
    for name in ("a", "b"):
        journal = register(folder, tmp_path / "r")
        journal.undone(noted(journal, name))
    left = noted(register(folder, tmp_path / "r"), "c")
    assert Journal(tmp_path / "r" / NAME).pending() == (left,)


def test_nothing_is_written_through_a_link_in_the_record(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "outside").write_text("")
    (tmp_path / "r" / NAME).symlink_to(tmp_path / "outside")
    journal = register(folder, tmp_path / "r")
    journal.undone(noted(journal, "a"))
    assert (tmp_path / "outside").read_text() == ""


def test_nothing_is_written_where_the_folder_above_the_record_puts_a_link_in_its_place(
    tmp_path: Path, folder: Path
) -> None:
    """The folder above may be another user's: who renames the record there would choose where root writes."""
    journal = register(folder, tmp_path / "r")
    change = noted(journal, "a")
    (tmp_path / "r").rename(tmp_path / "away")
    (tmp_path / "chosen").mkdir(mode=0o700)
    (tmp_path / "r").symlink_to(tmp_path / "chosen")
    second = noted(journal, "b")
    journal.undone(change)
    assert list((tmp_path / "chosen").iterdir()) == []
    assert journal.pending() == (second,)


def test_nothing_is_written_into_a_folder_of_others_in_the_records_place(tmp_path: Path, folder: Path) -> None:
    journal = register(folder, tmp_path / "r")
    (tmp_path / "r").chmod(0o777)
    noted(journal, "a")
    assert list((tmp_path / "r").iterdir()) == []


def test_a_record_that_is_gone_is_not_made_again_by_reverting(tmp_path: Path, folder: Path) -> None:
    change = noted(register(folder, tmp_path / "r"), "a")
    shutil.rmtree(tmp_path / "r")
    (found,) = registered(folder)
    found.undone(change)
    assert not (tmp_path / "r").exists()


def test_where_the_state_folder_cannot_be_written_nothing_is_changed(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(MachineError, match="cannot write the journal"):
        noted(register(tmp_path / "state" / "journals", tmp_path / "r"), "a")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_where_others_may_write_in_the_folder_nothing_is_changed(mode: int, tmp_path: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(MachineError, match="others own"):
        register(folder, tmp_path / "r")


def test_what_is_noted_and_undone_by_many_threads_at_once_is_all_there(tmp_path: Path, folder: Path) -> None:
    journal = register(folder, tmp_path / "r")

    def faults(name: str) -> None:
        for number in range(10):
            journal.undone(noted(journal, f"{name} {number}"))
        noted(journal, name)

    threads = [threading.Thread(target=faults, args=(name,)) for name in "abcd"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert {change.name for change in journal.pending()} == set("abcd")
    numbers = [change.number for change in Journal(tmp_path / "r" / NAME).changes()]
    assert len(numbers) == len(set(numbers)) == 44


@each([runs_folder().name, applied_folder().name])
def test_no_lab_is_made_where_journals_lie(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a lab"):
        home.lab_home(name)


def test_what_is_noted_after_everything_was_undone_outlives_a_power_cut_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk, real = Disk(root), os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        disk.flushed(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    journal = register(root / "journals", tmp_path / "r")
    journal.undone(noted(journal, "a"))
    # Else the new file might get the inode of the old one.
    (tmp_path / "takes the inode").write_text("")
    noted(journal, "b")
    (left,) = (disk.after_power_cut(tmp_path / "copy") / "journals").glob("*.jsonl")
    assert [change.name for change in Journal(left).pending()] == ["b"]


@pytest.mark.parametrize("allowed", [("--allow", "kill"), ()])
def test_faults_of_the_live_page_are_noted_without_a_record(
    tmp_path: Path, walproof: Walproof, monkeypatch: pytest.MonkeyPatch, allowed: tuple[str, ...]
) -> None:
    """Before, `revert` after kill -9 knew nothing of what its buttons had begun."""

    class Page:
        def __init__(self, collector: object, target: Target, **_: object) -> None:
            target.journal.note(1.0, "c", "cnpg fault", "freeze pg-1", before=None, after=None)

        def run(self, *_: object) -> None:
            """Nothing."""

        stop = run

    monkeypatch.setattr(watch, "Page", Page)
    monkeypatch.setattr(watch, "Collector", lambda *_, **__: Mock())
    with fake_patroni() as server:
        server.members = [server.listed()]
        done = walproof("watch", "--target", str(server.file(tmp_path / "c.toml")), *allowed)
        assert done[0] == 0, done
    noted = [[change.name for change in one.pending()] for one in registered(runs_folder())]
    assert noted == ([["freeze pg-1"]] if allowed else [])
    assert sorted(tmp_path.rglob(NAME)) == []


@each([False, True])
def test_a_run_that_ends_before_it_could_remove_what_it_made_says_so_at_its_end(removed: bool, tmp_path: Path) -> None:
    script = (
        "import atexit; from types import SimpleNamespace; from walproof.cli.runs import keep_journal;"
        "target = SimpleNamespace(external=True, name='cnpg:db/pg', identity=''); keep_journal(target, None);"
        "change = target.journal.note(1.0, target.name, 'database', 'own', before=None, after='draft');"
        f"atexit.register(target.journal.undone, change) if {removed} else None"
    )
    environment = {**os.environ, "WALPROOF_STATE": str(tmp_path / "state")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    left = "walproof: 1 change could not be undone on cnpg:db/pg: walproof revert does it, or says what stays\n"
    assert done.stderr == ("" if removed else left)


CONTAINER, HOST = b"pid:[4026532761]", b"pid:[4026531836]"


# rows: no-machine-id, first-boot, machine-id-of-an-image, another-container
@each([
    ("", HOST, True),
    ("uninitialized\n", HOST, True),
    ("3d1219c7c4c5404aaa1f6d2a48adfda4\n", CONTAINER, True),
    ("", CONTAINER, False),
])  # fmt: skip
def test_a_run_on_another_machine_of_the_same_name_may_go_on(
    machine_id: str, pids: bytes, another_boot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts and containers of one name and one image, whose pid namespaces may have one number."""
    boot, own, namespace = tmp_path / "boot", tmp_path / "machine-id", [pids]
    boot.write_text("0b7c9a52-0000-4000-8000-000000000001\n")
    own.write_text(machine_id)
    monkeypatch.setattr(pid_files, "_BOOT", boot)
    monkeypatch.setattr(pid_files, "_MACHINE_ID", own)
    monkeypatch.setattr("os.readlink", lambda _: namespace[0])
    with subprocess.Popen(["true"]) as killed:
        pass
    there = pid_files.this_process()
    machine, _, process = there.partition(" ")
    run, over = Run("0" * 32, "", process, machine), f"{machine} {killed.pid} 1 {boot.read_text().strip()}"
    assert (pid_files.ended(there), pid_files.ended(over), run.goes_on()) == (False, True, "")
    if another_boot:
        boot.write_text("0b7c9a52-0000-4000-8000-000000000002\n")
    else:
        namespace[0] = b"pid:[4026532999]"
    assert (pid_files.ended(there), pid_files.ended(over)) == (None, None)
    assert run.goes_on().startswith(f"it was started on {socket.gethostname()}, where it may still run")
    assert run.goes_on(frozenset({socket.gethostname()})) == ""


def test_what_a_run_changes_after_all_was_undone_is_over_by_no_older_word(tmp_path: Path, folder: Path) -> None:
    """Two levels of one run had one id: the second, killed, was called undone already once its file was lost."""
    journal = register(folder, tmp_path / "r")
    journal.undone(noted(journal, "a"))
    noted(journal, "b")
    over = journals_in(folder / OVER)
    assert over and journals_in(tmp_path / "r" / NAME) == over | {journal.run.journal}
    assert journal.run.journal not in over
