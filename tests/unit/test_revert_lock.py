"""One process at a time undoes by a state folder; no run changes that meanwhile; targets whose names are alike."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.command_line import one_sentence
from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.tiers import each
from walproof.cli.runs import APPLIED, Layer, applied_folder, covering, journal_of_apply, keep_journal, runs_folder
from walproof.lab import home
from walproof.records.journal import Change, Journal
from walproof.records.own_journals import UNDOING, register, registered, same_setting
from walproof.targets.choose import choose
from walproof.targets.patroni.configuration import CONFIG, PatroniConfiguration


@pytest.fixture
def patroni(walproof: Walproof) -> Iterator[FakePatroni]:
    with fake_patroni(ttl=20) as server:
        server.members = [server.listed()]
        yield server


def killed(patroni: FakePatroni, folder: Path) -> str:
    """A run that was killed after it had set ttl from 30 to 20; its target."""
    target = choose(str(patroni.file(folder / "c.toml")))
    keep_journal(target, None)
    before = json.dumps({"config": {"ttl": 30}, "shown": {}})
    target.journal.note(1.0, target.name, CONFIG, "config", before=before, after=json.dumps({"ttl": 20}))
    return target.name


def test_beside_a_revert_nothing_else_is_undone_and_no_run_changes_what_it_undoes(
    patroni: FakePatroni, walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once ran a `recover` twice in one directory; a run that began just then noted what was put back."""
    name = killed(patroni, tmp_path)
    note = (
        "import sys; from pathlib import Path; from walproof.cli.runs import journal_of_apply, runs_folder\n"
        "from walproof.records.own_journals import register\n"
        "journal = register(runs_folder(), None) if sys.argv[1] == 'run' else journal_of_apply('c')\n"
        f"journal.note(1.0, {name!r}, {CONFIG!r}, sys.argv[2], before=None, after=None)"
    )
    walproofs = [
        [sys.executable, "-m", "walproof", *words]
        for words in (
            ("revert",),
            ("revert", "--target", name),
            ("apply", "--undo", "--target", name, "--allow", "config"),
        )
    ]
    notes = [[sys.executable, "-c", note, *words] for words in (("run", "config"), ("apply", "config"), ("run", "x"))]
    beside: list[subprocess.CompletedProcess[str]] = []

    def wait(*_: object) -> None:
        for argv in (*walproofs, *notes):
            beside.append(subprocess.run(argv, capture_output=True, text=True, check=False))

    monkeypatch.setattr(PatroniConfiguration, "_await", wait)
    code, out, err = walproof("revert")
    assert (code, out) == (0, f"reverted on {name}:\n  setting ttl\n"), err
    assert [one.returncode for one in beside] == [4, 4, 4, 1, 1, 0], beside
    assert all(f"goes on (process {os.getpid()})" in one.stderr for one in beside[:5])
    assert [asked.body for asked in patroni.written] == [{"ttl": 30}]
    assert [change.name for one in registered(runs_folder()) for change in one.pending()] == ["x"]
    assert Layer(journal_of_apply("c"), complete=False).pending() == []


def test_the_lock_ends_with_its_process_and_is_no_link(
    patroni: FakePatroni, walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    name = killed(patroni, tmp_path)
    lock = home.state_folder() / UNDOING
    held = (
        "import time; from walproof.cli.runs import runs_folder, undoing; from walproof.records.own_journals import *\n"
        "with undoing() as announce:\n"
        " announce([one for journal in registered(runs_folder()) for one in journal.pending()])\n"
        " print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        one_sentence(walproof("revert"), f"goes on (process {process.pid})", 4)
        process.send_signal(signal.SIGKILL)
    again = register(runs_folder(), None)
    again.undone(again.note(1.0, name, CONFIG, "config", before=None, after=None))
    lock.rename(tmp_path / "elsewhere")
    lock.symlink_to(tmp_path / "elsewhere")
    one_sentence(walproof("revert"), "others own", 3)
    lock.unlink()
    assert walproof("revert")[0] == 0 and [asked.body for asked in patroni.written] == [{"ttl": 30}]


def test_a_change_is_later_than_what_is_pending_whatever_the_clock_says(walproof: Walproof) -> None:
    first = register(runs_folder(), None).note(1e9, "c", "alter-system n1", "jit", before=None, after="off")
    beside = journal_of_apply("c").note(5.0, "c", "alter-system n1", "jit", before="off", after="on")
    third = register(runs_folder(), None).note(6.0, "c", "alter-system n1", "jit", before="on", after="off")
    assert first.at < beside.at < third.at


def test_one_setting_is_known_by_its_server_and_perhaps_by_a_name(tmp_path: Path) -> None:
    def noted(target: str, cluster: str, what: str = "n1", name: str = "jit") -> Change:
        journal = Journal(tmp_path / "journal.jsonl", cluster=cluster)
        return journal.note(1.0, target, f"alter-system {what}", name, before=None, after="off")

    one = noted("a", "7", "n1 on the server s1")
    same: dict[bool | None, tuple[Change, ...]] = {
        True: (noted("a", ""), noted("a", "7"), noted("a", "7", "n2 on the server s1")),
        None: (noted("b", "7"), noted("b", ""), noted("a", "7", "n1 on the server s2")),
        False: (
            noted("a", "8"),
            noted("a", "7", "n2"),
            noted("a", "7", "n2 on the server s2"),
            noted("a", "7", "n1", "x"),
        ),
    }
    assert {want: {same_setting(one, other) for other in others} for want, others in same.items()} == {
        want: {want} for want in same
    }


ALIKE = [
    ("cnpg:a/b-c", "cnpg:a-b/c"),
    ("host=" + ",".join(["db.example.com"] * 9) + " dbname=one", "host=" + ",".join(["db.example.com"] * 9)),
    ("/x/a.toml", "x-a.toml"),
]


@each(ALIKE, whole=True)
def test_targets_whose_names_are_alike_have_two_journals(names: tuple[str, str], walproof: Walproof) -> None:
    paths = [journal_of_apply(name).path for name in names]
    assert len({path.name for path in paths}) == 2 and all(len(path.name) < 255 for path in paths)


def test_a_complete_apply_hides_none_of_another_target_that_was_killed(
    patroni: FakePatroni, walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one file of 1.0.0, which stays in use until nothing of a target is left in it."""
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    target = choose(str(patroni.file(tmp_path / "a.toml"))).name
    old = applied_folder() / f"{target.replace('/', '-').lstrip('-')}.jsonl"
    for name in (target, target.replace("/a.", "-a.")):
        before = json.dumps({"config": {"ttl": 30}, "shown": {}})
        Journal(old).note(1.0, name, CONFIG, "config", before=before, after=json.dumps({"ttl": 20}))
    other = Journal(old).note(2.0, name, APPLIED, "local", before=None, after=None).target
    assert [change.target for change in Layer(Journal(old), complete=False).pending()] == [target]
    assert journal_of_apply(target).path == journal_of_apply(other).path == old
    assert walproof("revert")[:2] == (0, f"reverted on {target}:\n  setting ttl\n")
    assert journal_of_apply(target).path != old == journal_of_apply(other).path


@each([
    ({"config": {"ttl": 20}}, {"ttl": 10}, True),
    ({"config": {"ttl": 20}}, {}, True),
    ({"config": {}}, {"postgresql": {"parameters": {"jit": "off"}}}, False),
    ({"spec": []}, [[["postgresql", "parameters", "jit"], "off"]], False),
    ("odd", ["odd"], True),
])  # fmt: skip
def test_a_complete_apply_covers_the_keys_alone_that_it_changed(
    before: object, after: object, covers: bool, walproof: Walproof, tmp_path: Path
) -> None:
    older = register(runs_folder(), None)
    note = json.dumps({"config": {"ttl": 30}, "shown": {}})
    change = older.note(1.0, "c", CONFIG, "config", before=note, after=json.dumps({"ttl": 20}))
    apply = journal_of_apply("c")
    apply.note(2.0, "c", CONFIG, "config", before=json.dumps(before), after=json.dumps(after))
    apply.note(3.0, "c", APPLIED, "local", before=None, after=None)
    assert bool(covering(older.registration, [change])) == covers
