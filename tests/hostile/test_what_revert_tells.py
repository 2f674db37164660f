"""What `walproof revert` tells: every error, before strangers' files are looked at, and a small part of those alone."""

import json
import os
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.records import recorded
from tests.fixtures.tiers import each
from tests.hostile.test_lab_of_root import a_folder
from walproof.cli import revert
from walproof.cli.runs import APPLIED, applied_folder, journal_of_apply, keep_journal, runs_folder, undoing
from walproof.errors import MachineError
from walproof.machine import pid_files
from walproof.model.ports import Target
from walproof.records.journal import NAME, Journal
from walproof.records.own_journals import register
from walproof.targets.choose import choose
from walproof.targets.patroni.configuration import CONFIG, PatroniConfiguration

BEFORE = json.dumps({"config": {"ttl": 30}, "shown": {}})
AFTER = json.dumps({"ttl": 20})


def killed(patroni: FakePatroni, path: Path, record: Path | None = None) -> Target:
    """A run into that record that was killed after it had set ttl from 30 to 20; its target."""
    patroni.members = [patroni.listed()]
    if record:
        recorded(record, "price")
        record.chmod(0o700)
    target = choose(str(patroni.file(path)))
    keep_journal(target, record)
    target.journal.note(1.0, target.name, CONFIG, "config", before=BEFORE, after=AFTER)
    return target


def test_every_cluster_that_fails_is_told_and_those_that_answer_are_reverted(
    walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error alone was told: what stayed on the second cluster was never said."""
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    with fake_patroni(ttl=20) as up:
        for name in ("a", "b"):
            with fake_patroni(ttl=20) as down:
                killed(down, tmp_path / f"{name}.toml")
        mine = killed(up, tmp_path / "mine.toml").name
        code, out, err = walproof("revert", "--json")
        tree = json.loads(out)
        assert (code, [one["target"] for one in tree["reverted"]]) == (3, [mine])
        journals = sorted(str(path) for path in runs_folder().glob("*.jsonl"))
        assert sorted(one["journal"] for one in tree["failed"]) == journals and len(journals) == 2
        assert all(err.count(f": {path}\n") == 1 and f"rm {path}" in err for path in journals), err
        code, out, err = walproof("revert")
        assert (code, out, err.count("walproof: ")) == (3, "", 2)


def test_what_was_reverted_is_printed_before_strangers_files_are_looked_at(
    walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    monkeypatch.setattr(revert, "_elsewhere", interrupted)
    with fake_patroni(ttl=20) as patroni:
        name = killed(patroni, tmp_path / "c.toml").name
        assert walproof("revert")[:2] == (130, f"reverted on {name}:\n  setting ttl\n")


def test_strangers_records_fill_no_memory_and_are_named(walproof: Walproof, tmp_path: Path) -> None:
    """64 MiB of short lines took 3.3 GiB and 80 s, in each folder."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_text(("{" + " " * 60 + "}\n") * (12_000 if name < "c" else 120_000))
    Journal(tmp_path / "d" / NAME, {"journal": "x"}).note(1.0, "c", CONFIG, "config", before=BEFORE, after=AFTER)
    tracemalloc.start()
    try:
        code, out, err = walproof("revert")
        assert (code, out, tracemalloc.get_traced_memory()[1] < 16 << 20) == (0, "nothing to revert\n", True)
    finally:
        tracemalloc.stop()
    assert [name for name in "abcd" if f"walproof revert ./{name} reads it out" in err] == ["b", "c", "d"]
    assert err.count("not looked at: ") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_no_journal_lies_where_another_user_can_put_a_folder_in_its_place(
    walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner put an empty state folder in the place of root's: nothing to revert, exit 0."""
    state = a_folder(tmp_path / "theirs") / "state"
    monkeypatch.setenv("WALPROOF_STATE", str(state))
    with fake_patroni(ttl=20) as patroni:
        name = killed(patroni, tmp_path / "c.toml").name
        os.chown(state.parent, 12345, 12345)
        undo = ("apply", "--undo", "--target", name, "--allow", "config")
        for replaced in (False, True):
            if replaced:
                state.rename(state.with_name("hidden"))
            for words in (("revert",), undo, (*undo, "--dry-run")):
                code, out, err = walproof(*words)
                assert (code, out, "another user owns" in err) == (3, "", True), (words, err)
            keeping: tuple[Callable[[], object], ...] = (
                lambda: keep_journal(choose(name), None),
                lambda: journal_of_apply(name),
                applied_folder,
            )
            for keep in keeping:
                with pytest.raises(MachineError, match="another user owns"):
                    keep()
        assert patroni.written == []


def test_a_run_that_goes_on_with_a_record_is_at_work_at_once(walproof: Walproof, tmp_path: Path) -> None:
    """Not from its next change on: the settings were taken from under what it measured."""
    register(runs_folder(), tmp_path / "r").note(1.0, "c", CONFIG, "config", before=BEFORE, after=AFTER)
    (path,) = runs_folder().glob("*.jsonl")
    path.write_text(path.read_text().replace(f'"process": "{os.getpid()} ', '"process": "999999999 '))
    register(runs_folder(), tmp_path / "r")
    *_, head = Journal(path).heads()
    assert head["process"].startswith(f"{os.getpid()} ")


def test_a_record_is_not_gone_on_with_while_a_revert_is_at_work(walproof: Walproof, tmp_path: Path) -> None:
    register(runs_folder(), tmp_path / "r").note(1.0, "c", CONFIG, "config", before=BEFORE, after=AFTER)
    with undoing(), pytest.raises(MachineError, match=f"a revert goes on .process {os.getpid()}"):
        register(runs_folder(), tmp_path / "r")
    register(runs_folder(), tmp_path / "r")


def test_a_record_is_not_gone_on_with_while_another_process_does(walproof: Walproof, tmp_path: Path) -> None:
    """The second, refused or killed, would have stood in the journal as the one that has ended."""
    register(runs_folder(), tmp_path / "r").note(1.0, "c", CONFIG, "config", before=BEFORE, after=AFTER)
    (path,) = runs_folder().glob("*.jsonl")
    with subprocess.Popen(["sleep", "600"]) as living:
        try:
            identity = pid_files.identity(living.pid)
            path.write_text(path.read_text().replace(str(pid_files.identity(os.getpid())), str(identity)))
            before = path.read_text()
            with pytest.raises(MachineError, match=f"its run goes on .process {living.pid}"):
                register(runs_folder(), tmp_path / "r")
            assert path.read_text() == before
        finally:
            living.kill()


def test_what_was_undone_while_its_record_was_elsewhere_is_not_undone_again(
    walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moved record called it pending for ever, and reset what an operator had set since."""
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    with fake_patroni(ttl=20) as patroni:
        target = killed(patroni, tmp_path / "c.toml", tmp_path / "r")
        (tmp_path / "r").rename(tmp_path / "moved")
        assert walproof("revert")[0] == 0 and [one.body for one in patroni.written] == [{"ttl": 30}]
        patroni.config["ttl"] = 20
        assert "moved" not in walproof("revert")[2]
        code, out, err = walproof("revert", "moved", "--target", target.name, "--allow", "config")
        assert (code, out, "undone already" in err) == (0, "nothing to revert\n", True)
        assert len(patroni.written) == 1
        # Continued there: its next change is another journal's.
        keep_journal(target, tmp_path / "moved")
        target.journal.note(1.0, target.name, CONFIG, "config", before=BEFORE, after=AFTER)
        assert walproof("revert", "moved")[0] == 0 and len(patroni.written) == 2


def test_what_is_undone_is_undone_in_every_copy_of_its_record(
    walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    with fake_patroni(ttl=20) as patroni:
        target = killed(patroni, tmp_path / "c.toml", tmp_path / "r")
        shutil.copytree(tmp_path / "r", tmp_path / "copy")
        assert walproof("revert")[0] == 0
        patroni.config["ttl"] = 20
        code, out, err = walproof("revert", "copy", "--target", target.name, "--allow", "config")
        assert (code, out, "undone already" in err) == (0, "nothing to revert\n", True)
        assert len(patroni.written) == 1


def test_files_that_are_no_journals_keep_none_from_being_reverted(
    walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of one, kept beside it, covered it for ever; a folder stopped every revert."""
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    with fake_patroni(ttl=20) as patroni:
        target = killed(patroni, tmp_path / "c.toml")
        (kept,) = runs_folder().glob("*.jsonl")
        later = kept.read_text().replace('"at": 1.0', '"at": 9.0')
        kept.with_name("copy of it.jsonl").write_text(later)
        kept.with_name("folder.jsonl").mkdir(mode=0o700)
        code, out, err = walproof("revert")
        assert out == f"reverted on {target.name}:\n  setting ttl\n", err
        assert code == 4 and f"left alone, it cannot be read: {kept.with_name('folder.jsonl')}" in err


@each([20, 10])
def test_patronis_configuration_under_two_names_is_undone_newest_first(
    there: int, walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an apply through another file had set since was called another user's, and the older change forgotten."""
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    with fake_patroni(ttl=there) as patroni:
        target = killed(patroni, tmp_path / "c.toml")
        other = journal_of_apply("other.toml")
        before = json.dumps({"config": {"ttl": 20}, "shown": {}})
        other.note(2.0, "other.toml", CONFIG, "config", before=before, after=json.dumps({"ttl": 10}))
        other.note(3.0, "other.toml", APPLIED, "local", before=None, after=None)
        code, out, err = walproof("revert")
        assert (code, [one.body for one in patroni.written]) == ((4, []) if there == 10 else (0, [{"ttl": 30}])), out
        assert "by another user" not in out + err
        assert len(target.journal.pending()) == (there == 10)


def test_a_record_is_not_gone_on_with_below_what_was_applied_since(walproof: Walproof, tmp_path: Path) -> None:
    """Its end put back what it had found, from under the apply, and nothing was told."""
    with fake_patroni(ttl=10) as patroni:
        target = killed(patroni, tmp_path / "c.toml", tmp_path / "r")
        before = json.dumps({"config": {"ttl": 20}, "shown": {}})
        layer = journal_of_apply(target.name)
        layer.note(2.0, target.name, CONFIG, "config", before=before, after=json.dumps({"ttl": 10}))
        layer.note(3.0, target.name, APPLIED, "local", before=None, after=None)
        with pytest.raises(MachineError, match="has changed that since"):
            keep_journal(target, tmp_path / "r")
