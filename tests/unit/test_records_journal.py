"""The journal of changed settings: on disk before the change, pending until reverted."""

import json
import shutil
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.cli.runs import APPLIED, Layer
from walproof.errors import MachineError
from walproof.records.journal import Change, Journal
from walproof.targets.patroni.configuration import CONFIG
from walproof.targets.sql.known_servers import AUTO

SAVED = Path(__file__).parent.parent / "replay" / "records" / "apply-journal.jsonl"
"""What `walproof apply` of 1.0.0 wrote on a lab under Patroni."""


def test_what_was_changed_and_not_reverted_is_pending_newest_first(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state" / "journal.jsonl")
    first = journal.note(1.0, "lab", "parameter", "fsync", before="on", after="off")
    second = journal.note(2.0, "lab", "sync", "mode", before=None, after="strict")
    assert Journal(journal.path).pending() == (second, first)
    journal.undone(second)
    assert journal.pending() == (first,)
    assert journal.pending("other") == ()


def test_a_torn_line_hides_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    first = journal.note(1.0, "lab", "parameter", "fsync", before="on", after="off")
    with journal.path.open("a") as file:
        file.write('{"change": {"numb')
    second = journal.note(2.0, "lab", "parameter", "jit", before=None, after="off")
    assert journal.pending() == (second, first)
    assert second.number == 2


def test_a_journal_of_1_0_0_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    shutil.copy(SAVED, journal.path)
    mark, change = journal.pending("lab:nc")
    assert (mark.what, mark.name) == (APPLIED, "on ANY 1, 4 clients")
    assert (change.number, change.what, change.name) == (1, CONFIG, "config")
    before = json.loads(change.before or "")
    assert set(before) == {"config", "shown"}
    assert before["config"]["synchronous_mode_strict"] is False
    assert json.loads(change.after or "")["synchronous_mode_strict"] is True
    journal.undone(change)
    assert journal.pending() == (mark,)


def test_kinds_of_changes_are_named_as_in_journals_of_1_0_0() -> None:
    assert (CONFIG, AUTO, APPLIED) == ("patroni config", "alter-system", "applied")


def applied(journal: Journal, name: str) -> Change:
    change = journal.note(1.0, "c", "parameter", name, before="off", after="on")
    journal.note(2.0, "c", APPLIED, name, before=None, after=None)
    return change


@each(["revert", "apply --undo"])
def test_an_undo_that_was_killed_is_ended_and_what_was_applied_before_stays(how: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    first, second = applied(journal, "first"), applied(journal, "second")
    assert Layer(journal, complete=False).pending("c") == [], "revert leaves what is complete"
    assert Layer(journal, complete=True).begin(3.0, "c")
    rest = Layer(journal, complete=how != "revert")
    assert how == "revert" or rest.begin(4.0, "c"), "the same once more"
    assert rest.pending("c") == [second]
    rest.undone(second)
    assert [change.name for change in journal.pending("c")] == ["first", "first"], "with its marks"
    assert Layer(journal, complete=False).pending("c") == []
    assert Layer(journal, complete=True).pending("c") == [first]


def test_an_undo_that_was_killed_before_its_marks_were_gone_undoes_nothing_else(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    applied(journal, "first")
    second = applied(journal, "second")
    layer = Layer(journal, complete=True)
    layer.begin(3.0, "c")
    journal.undone(second)
    assert Layer(journal, complete=True).pending("c") == Layer(journal, complete=False).pending("c") == []
    Layer(journal, complete=True).close("c")
    assert [change.name for change in journal.pending("c")] == ["first", "first"]


def test_what_was_applied_after_an_undo_that_failed_is_the_last(tmp_path: Path) -> None:
    """The mark of the older one decided: the undo said "undone", and nothing was."""
    journal = Journal(tmp_path / "journal.jsonl")
    first = applied(journal, "first")
    assert Layer(journal, complete=True).begin(3.0, "c")
    second = applied(journal, "second")
    layer = Layer(journal, complete=True)
    assert layer.begin(4.0, "c") and layer.pending("c") == [second]
    layer.undone(second)
    assert Layer(journal, complete=True).pending("c") == [first]
    Layer(journal, complete=True).undone(first)
    assert journal.pending() == ()


def test_nothing_is_applied_upon_what_is_half_undone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    change = applied(journal, "first")
    layer = Layer(journal, complete=True)
    layer.check_undone("c")
    layer.begin(3.0, "c")
    with pytest.raises(MachineError, match="still to be undone on c"):
        layer.check_undone("c")
    journal.undone(change)
    layer.check_undone("c")
    assert journal.pending() == (), "killed before its marks were gone"


def test_the_last_change_and_its_marks_are_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    change = applied(journal, "only")
    layer = Layer(journal, complete=True)
    layer.begin(3.0, "c")
    written: list[object] = []
    monkeypatch.setattr(journal, "_append", lambda *entries: written.append(len(entries)))
    layer.undone(change)
    assert written == [3]


def test_no_journal_means_nothing_pending(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none").pending() == ()


def test_no_room_for_the_journal_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot write the journal"):
        Journal(tmp_path / "file" / "j").note(1.0, "lab", "parameter", "x", before=None, after=None)
