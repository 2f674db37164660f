"""`apply` sets what the advice lists, and what no drill decides only where it is named."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.priced_records import PAIR, advice_file, price_record
from tests.fixtures.records import recorded
from tests.fixtures.same_list import ANYWHERE, WITH_MANAGER, same_list
from tests.fixtures.tiers import each
from walproof.advising.advise import chosen, read_advice
from walproof.advising.recipes import config_change
from walproof.cli.runs import applied_folder
from walproof.machine.clock import RealClock
from walproof.model.advice import ClusterProfile
from walproof.model.topology import ClusterView
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.records.journal import Journal
from walproof.targets.external.configuration_patches import at, listed, paths_of
from walproof.targets.patroni.configuration import PatroniConfiguration

__all__ = ["walproof"]


def test_advise_and_apply_list_the_same_on_a_simulated_cluster(walproof: Run, tmp_path: Path) -> None:
    lists = same_list(lambda *words: walproof(*words)[:2], "sim", tmp_path, ANYWHERE)
    assert [one["synchronous_commit"] for one in lists] == ["on", "on", "local", "remote_apply"]
    assert lists[2]["synchronous_standby_names"] == ""


def test_advise_and_apply_list_the_same_under_patroni_and_that_is_what_is_patched(
    walproof: Run, tmp_path: Path
) -> None:
    with fake_patroni(ttl=30) as fake:
        fake.members = [fake.listed(), {**fake.listed(name="n2"), "role": "replica"}]
        file = str(fake.file(tmp_path / "t.toml", '[restapi]\nuser = "u"\npassword_file = "p"\nplain_http = true\n'))
        Path("p").write_text("secret")
        Path("p").chmod(0o600)
        lists = same_list(lambda *words: walproof(*words)[:2], file, tmp_path, WITH_MANAGER)
        assert [one.get("ttl") for one in lists] == [None] * 4 + ["27", "30"]
        assert fake.written == []
        # Without the wait, which asks members that are not there.
        choice = chosen(read_advice((tmp_path / "advice.json").read_text()), 1)
        rest = PatroniRest(RestAccess((fake.url,), "u", "secret"))
        configuration = PatroniConfiguration("c", RealClock(), rest, dict, lambda: ClusterView(0.0, (), None, ""))
        plan = configuration.plan(config_change(choice, ClusterProfile(patroni="4.1.3")))
        configuration.apply(plan, Journal(tmp_path / "journal.jsonl"))
        patch = fake.written[0].body
        assert {one.name: one.value for one in listed({path: at(patch, path) for path in paths_of(patch)})} == lists[-1]


@each([("lab", "does not list"), ("pair", "does not list")])
def test_what_the_advice_does_not_list_is_not_set(manager: str, says: str, walproof: Run, tmp_path: Path) -> None:
    """Advice for a lab, and for two servers of other names, applied to a simulated cluster."""
    file = advice_file(tmp_path / "advice.json", cluster=None if manager == "lab" else PAIR)
    done = walproof("apply", str(file), "--target", "sim", "--dry-run")
    one_sentence(done, says)
    assert "walproof advise RECORD --target sim --json" in done[2]


def test_a_setting_more_or_less_in_the_file_is_refused(walproof: Run, tmp_path: Path) -> None:
    same_list(lambda *words: walproof(*words)[:2], "sim", tmp_path, ANYWHERE[:1])
    file = tmp_path / "advice.json"
    tree = json.loads(file.read_text())
    settings = tree["choices"][0]["settings"]
    for changed, says in (
        (settings[1:], "does not list synchronous_commit = on, which would be set on sim"),
        ([*settings, {"name": "fsync", "value": "off"}], "lists fsync = off, which would not be set on sim"),
        ([], "does not list what it sets"),
    ):
        tree["choices"][0]["settings"] = changed
        file.write_text(json.dumps(tree))
        one_sentence(walproof("apply", str(file), "--target", "sim"), says)


def test_what_no_drill_decides_is_applied_only_by_name(walproof: Run, tmp_path: Path) -> None:
    record = str(recorded(tmp_path / "p", "price", price_record()))
    code, out, _ = walproof("advise", record, "--rpo", "0")
    assert code == 4
    assert out.startswith("nothing that meets --rpo 0s is proven: ") and "was never drilled" in out.splitlines()[0]
    assert "\nprove it first: walproof prove --target lab --levels " in out
    code, _, err = walproof("apply", record, "--rpo", "0", "--target", "sim")
    assert (code, "is not proven" in err, "walproof prove" in err, "--choice 1" in err) == (4, True, True, True)
    assert walproof("apply", record, "--rpo", "0", "--target", "sim", "--dry-run")[0] == 0
    code, out, _ = walproof("apply", record, "--rpo", "0", "--target", "sim", "--choice", "1")
    assert (code, "not proven: " in out) == (0, True)
    code, out, _ = walproof("advise", record, "--rpo", "0", "--level", "remote_apply")
    assert (code, "remote_apply ANY 1, 16 clients, as asked, is not proven: " in out) == (4, True)
    assert walproof("apply", record, "--rpo", "0", "--level", "remote_apply", "--target", "sim")[0] == 0
    assert walproof("advise", record)[0] == 0


class Applying:
    """An apply that sets remote_apply under Patroni, patched and without its mark while `meanwhile` runs."""

    def __init__(self, run: Run, fake: FakePatroni, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.fake, self.monkeypatch = run, fake, monkeypatch
        self.file = str(fake.file(folder / "t.toml", '[waits]\nsetting-in-effect = "1s"\n'))
        self.words = [str(recorded(folder / "p", "price", price_record())), "--target", self.file, "--allow", "config"]
        self.other: list[subprocess.CompletedProcess[str]] = []

    def beside(self, *commands: tuple[str, ...]) -> tuple[int, str, str]:
        """Applied while these commands of walproof run, one after another, as processes of their own."""

        def wait(*_: object) -> None:
            for words in commands:
                argv = [sys.executable, "-m", "walproof", *words]
                self.other.append(subprocess.run(argv, capture_output=True, text=True, check=False))

        self.monkeypatch.setattr(PatroniConfiguration, "_await", wait)
        done = self.run("apply", "--level", "remote_apply", *self.words)
        self.monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
        return done


@pytest.fixture
def applying(walproof: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Applying]:
    with fake_patroni(ttl=30) as fake:
        fake.members = [fake.listed(), {**fake.listed(name="n2"), "role": "replica"}]
        yield Applying(walproof, fake, tmp_path, monkeypatch)


def test_beside_an_apply_nothing_else_is_applied_undone_or_reverted_there(applying: Applying, walproof: Run) -> None:
    """Else `revert` undid it and it ended "in effect", and two that are applied at once took each other's number."""
    other = ("apply", "--level", "local", *applying.words)
    undo = ("apply", "--undo", *applying.words[1:])
    code, out, err = applying.beside(("revert",), ("revert", "--target", applying.file), other, undo)
    assert (code, "in effect" in out) == (0, True), err
    assert [one.returncode for one in applying.other] == [4, 3, 3, 3], applying.other
    assert all(f"an apply goes on (process {os.getpid()})" in one.stderr for one in applying.other)
    assert (
        applying.other[0].stdout == "nothing reverted: some is left alone\n"
        and "left alone, an apply" in applying.other[0].stderr
    )
    assert parameters(applying.fake)["synchronous_commit"] == "remote_apply"
    (path,) = applied_folder().glob("*.jsonl")
    assert [change.number for change in Journal(path).changes()] == [1, 2], "the change and its mark"
    assert walproof(*undo)[0] == 0
    assert "synchronous_commit" not in parameters(applying.fake)


def parameters(fake: FakePatroni) -> dict[str, object]:
    return dict(fake.config.get("postgresql", {}).get("parameters", {}))


def test_the_lock_of_an_apply_ends_with_its_process_and_is_no_link(
    applying: Applying, walproof: Run, tmp_path: Path
) -> None:
    assert applying.beside()[0] == 0
    (path,) = applied_folder().glob("*.lock")
    held = (
        f"import time; from pathlib import Path; from walproof.cli.runs import applying\n"
        f"with applying(Path({str(path.with_suffix('.jsonl'))!r})): print('held', flush=True); time.sleep(600)"
    )
    undo = ("apply", "--undo", *applying.words[1:])
    with subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        one_sentence(walproof(*undo), f"an apply goes on (process {process.pid})", 3)
        process.send_signal(signal.SIGKILL)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    one_sentence(walproof(*undo), "others own", 3)
    path.unlink()
    assert walproof(*undo)[0] == 0
