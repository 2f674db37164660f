"""What `walproof revert RECORD` undoes is what it has checked: nobody puts another journal in its place meanwhile."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.records import recorded
from walproof.records.journal import NAME, Journal
from walproof.targets.patroni.configuration import CONFIG, PatroniConfiguration


@pytest.fixture
def patroni(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePatroni]:
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    with fake_patroni(ttl=20) as server:
        server.members = [server.listed()]
        yield server


def record(folder: Path, target: str, before: dict[str, Any] | None) -> Path:
    """A record from elsewhere whose journal would set that; None: nothing."""
    recorded(folder, "price")
    journal = Journal(folder / NAME)
    note = json.dumps({"config": before, "shown": {}})
    change = journal.note(1.0, target, CONFIG, "config", before=note, after='{"ttl": 20}')
    if before is None:
        journal.undone(change)
    return folder


@pytest.mark.parametrize("before", [{"ttl": 30}, None], ids=["checked", "nothing to undo"])
def test_a_record_that_is_put_in_its_place_is_not_obeyed(
    before: Any, tmp_path: Path, walproof: Walproof, patroni: FakePatroni, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever may rename in the folder above, once the journal was read for the first time."""
    ours = record(tmp_path / "r", patroni.url, before)
    evil = record(tmp_path / "evil", patroni.url, {"ttl": 99})
    pending = Journal.pending

    def swapping(journal: Journal, target: str | None = None) -> Any:
        changes = pending(journal, target)
        if evil.exists():
            ours.rename(tmp_path / "moved")
            evil.rename(ours)
        return changes

    monkeypatch.setattr(Journal, "pending", swapping)
    assert walproof("revert", "r", "--target", patroni.url, "--allow", "config")[0] == 0
    assert [asked.body for asked in patroni.written] == ([{"ttl": 30}] if before else [])


@pytest.mark.parametrize("theirs", ["folder", "file", "another user's"])
def test_where_others_may_write_it_is_copied_first(
    theirs: str, tmp_path: Path, walproof: Walproof, patroni: FakePatroni
) -> None:
    folder = record(tmp_path / "a record", patroni.url, {"ttl": 30})
    if theirs == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root may give a folder away")
        os.chown(folder, 1234, 1234)
    else:
        (folder if theirs == "folder" else folder / NAME).chmod(0o777)
    words = "--target", patroni.url, "--allow", "config"
    for given in ((), words):
        code, out, err = walproof("revert", "a record", *given)
        assert (code, patroni.asked) == (2, [])
        assert "would revert 1 change" in out
        assert "what is read out need not be what is reverted" in err
    command = err.split("hint: ")[-1].partition(";")[0].strip()
    assert command == "cp -R 'a record' mine && chmod -R go-w mine"
    subprocess.run(command, shell=True, check=True)
    assert walproof("revert", "mine", *words)[0] == 0
    assert [asked.body for asked in patroni.written] == [{"ttl": 30}]
