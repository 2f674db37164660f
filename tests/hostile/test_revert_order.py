"""Journals that hold one setting, on a real server: undone newest first whichever is asked for, never forgotten."""

import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.external_cluster import opened, pair_dsn, pair_file
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.records import recorded
from walproof.cli.runs import APPLIED, Layer, _leaves, applying, journal_of_apply, runs_folder
from walproof.errors import MachineError, TargetError
from walproof.machine import pid_files
from walproof.model.guarantee import ConfigChange
from walproof.model.ports import Notebook
from walproof.model.sample import Scenario
from walproof.records.journal import Journal
from walproof.records.own_journals import RegisteredJournal, Run, registered
from walproof.targets.configure import configure
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.sql.settings import AUTO

pytestmark = pytest.mark.lab
NOW = "SELECT setting FROM pg_file_settings WHERE name = 'synchronous_commit'"
ALONE = (4, "nothing reverted: some is left alone\n")


class Runs:
    """Runs and applies on one server that set synchronous_commit, and were killed or go on."""

    def __init__(self, pair: PlainPair, target: ExternalCluster, folder: Path, living: int) -> None:
        self.pair, self.target, self.folder = pair, target, folder
        self._living = pid_files.identity(living) or ""
        ((self.system,),) = pair.sql("n1", "SELECT system_identifier::text FROM pg_control_system()")

    def run(self, name: str, *, at_work: bool = False, cluster: str | None = None) -> RegisteredJournal:
        """The journal of a run into that record."""
        recorded(self.folder / name, "price")
        (self.folder / name).chmod(0o700)
        process = self._living if at_work else "999999999 1 boot"
        run = Run(secrets.token_hex(16), str(self.folder / name), process, pid_files.machine())
        return RegisteredJournal(runs_folder(), run, self.target.identity if cluster is None else cluster)

    def apply(self) -> Layer:
        return Layer(journal_of_apply(self.target.name, self.target.identity), complete=False)

    def set(self, journal: Notebook, value: str, target: ExternalCluster | None = None) -> None:
        configure((target or self.target).configuration, ConfigChange({"synchronous_commit": value}), journal)

    def end(self, journal: Notebook, target: ExternalCluster | None = None) -> None:
        """The run ends as any does."""
        (target or self.target).configuration.undo(journal)

    def now(self) -> list[tuple[object, ...]]:
        """Of postgresql.auto.conf."""
        return self.pair.sql("n1", NOW)


@pytest.fixture
def runs(pair: PlainPair, tmp_path: Path, walproof: Walproof) -> Iterator[Runs]:
    with subprocess.Popen(["sleep", "600"]) as living:
        try:
            with opened(str(pair_file(pair, tmp_path))) as target:
                yield Runs(pair, target, tmp_path, living.pid)
        finally:
            living.kill()
            for member in ("n1", "n2"):
                pair.sql(member, "ALTER SYSTEM RESET synchronous_commit")
                pair.sql(member, "SELECT pg_reload_conf()")


def test_an_apply_that_was_killed_after_a_run_is_reverted_before_it(runs: Runs, walproof: Walproof) -> None:
    runs.set(runs.run("a"), "off")
    runs.set(runs.apply(), "local")
    code, out, err = walproof("revert")
    assert (code, runs.now()) == (0, []), (out, err)
    assert "by another user" not in out and walproof("revert")[:2] == (0, "nothing to revert\n")


def test_a_record_is_left_alone_while_a_later_run_is_not_reverted(runs: Runs, walproof: Walproof) -> None:
    runs.set(runs.run("a"), "off")
    runs.set(runs.run("b"), "local")
    code, out, err = walproof("revert", "a")
    assert ((code, out), runs.now()) == (ALONE, [("local",)])
    assert f"left alone until the run of {runs.folder / 'b'} is undone, which changed synchronous_commit since" in err
    assert (walproof("revert", "b")[0], runs.now()) == (0, [("off",)])
    assert (walproof("revert", "a")[0], runs.now()) == (0, [])


@pytest.mark.parametrize(
    ("older", "words"),
    [("run", ()), ("run", ("a",)), ("run", ("--target",)), ("apply", ()), ("apply", ("--target",))],
)
def test_what_a_run_at_work_changed_too_is_left_alone_until_it_ends(
    runs: Runs, walproof: Walproof, older: str, words: tuple[str, ...]
) -> None:
    """Its end sets again what it found there, which is what the older one had set."""
    work = runs.run("work", at_work=True)
    runs.set(runs.run("a") if older == "run" else runs.apply(), "off")
    runs.set(work, "local")
    words = (*words, runs.target.name) if words == ("--target",) else words
    assert (walproof("revert", *words)[:2], runs.now()) == (ALONE, [("local",)])
    runs.end(work)
    assert runs.now() == [("off",)]
    assert (walproof("revert", *words)[0], runs.now()) == (0, [])


@pytest.mark.parametrize("known", [True, False])
def test_one_server_under_two_names_is_one(runs: Runs, pair: PlainPair, walproof: Walproof, known: bool) -> None:
    """By the system identifier, and without one by the value that stands there."""
    cluster = (runs.target.identity or str(runs.system)) if known else ""
    with opened(pair_dsn(pair, "n1", "n2")) as other:
        work = runs.run("work", at_work=True, cluster=cluster)
        runs.set(runs.run("a", cluster=cluster), "off")
        runs.set(work, "local", other)
        code, out, err = walproof("revert")
        assert ((code, out), runs.now()) == (ALONE, [("local",)]), err
        assert "by another user" not in out + err
        runs.end(work, other)
    assert (walproof("revert")[0], runs.now()) == (0, [])


def test_a_setting_that_a_run_at_work_has_changed_is_not_changed_by_another(runs: Runs, walproof: Walproof) -> None:
    """The first, ending first, took the other's value for another user's, and the other then put back the first's."""
    work = runs.run("work", at_work=True)
    runs.set(work, "local")
    for journal in (runs.run("a"), runs.apply()):
        with pytest.raises(MachineError, match=r"holds a change of it on .*, and its run goes on \(process"):
            runs.set(journal, "off")
        assert (list(journal.pending()), runs.now()) == ([], [("local",)])
    runs.end(work)
    assert runs.now() == []


def test_a_setting_that_an_apply_at_work_has_changed_is_not_changed_by_a_run(runs: Runs, walproof: Walproof) -> None:
    layer = runs.apply()
    with applying(journal_of_apply(runs.target.name).path):
        runs.set(layer, "local")
        with pytest.raises(MachineError, match=f"its apply goes on .process {os.getpid()}"):
            runs.set(runs.run("a"), "off")
    runs.set(runs.run("b"), "off")
    assert (walproof("revert")[0], runs.now()) == (0, [])


def test_what_another_user_set_during_a_run_is_told_at_its_end_and_by_revert(runs: Runs, walproof: Walproof) -> None:
    """The run forgot it untold, and ended with success."""
    runs.target.journal = journal = runs.run("a")
    pricing = runs.target.capabilities().pricing
    assert pricing is not None
    pricing.enter(Scenario(parameters=(("synchronous_commit", "off"),)))
    runs.pair.sql("n1", "ALTER SYSTEM SET synchronous_commit = 'local'")
    pricing.leave()
    assert (runs.now(), len(journal.pending()), _leaves(runs.target)) == ([("local",)], 1, True)
    code, out, _ = walproof("revert")
    assert (code, runs.now(), registered(runs_folder())) == (1, [("local",)], [])
    assert "synchronous_commit is 'local' now, set by another user since: left alone" in out


def test_runs_that_took_turns_are_undone_in_turns(runs: Runs, walproof: Walproof) -> None:
    a, b = runs.run("a"), runs.run("b")
    for journal, value in ((a, "off"), (b, "local"), (a, "remote_write")):
        runs.set(journal, value)
    assert (walproof("revert")[0], runs.now(), registered(runs_folder())) == (0, [], [])


def test_an_apply_is_not_undone_below_what_was_set_since(runs: Runs, walproof: Walproof) -> None:
    undo = ("apply", "--undo", "--target", runs.target.name, "--allow", "config")
    layer = runs.apply()
    runs.set(layer, "local")
    layer.note(2.0, runs.target.name, APPLIED, "local", before=None, after=None)
    runs.set(runs.run("a"), "off")
    code, out, err = walproof(*undo)
    assert (code, out, runs.now()) == (3, "", [("off",)]) and "walproof revert" in err
    assert (walproof("revert")[0], runs.now()) == (0, [("local",)])
    assert (walproof(*undo)[0], runs.now()) == (0, [])


@pytest.mark.parametrize(("there", "as_found"), [("off", False), ("local", True)])
def test_a_setting_of_a_copy_covers_only_what_stands_there(
    runs: Runs, walproof: Walproof, there: str, as_found: bool
) -> None:
    """A restored backup has the system identifier of what it was made of, and its apply may stay for ever."""
    runs.set(runs.run("a"), "off")
    copy = journal_of_apply("the copy", runs.target.identity)
    copy.note(1.0, "the copy", f"{AUTO} n1", "synchronous_commit", before="off", after="local")
    copy.note(2.0, "the copy", APPLIED, "local", before=None, after=None)
    for member in ("n1", "n2"):
        runs.pair.sql(member, f"ALTER SYSTEM SET synchronous_commit = '{there}'")
    code, out, err = walproof("revert")
    assert ((code, out) == ALONE, runs.now() == [(there,)]) == (as_found, as_found), (out, err)
    assert ("on the copy is undone, which has set synchronous_commit since" in err) == as_found
    runs.run("b").note(3.0, runs.target.name, f"{AUTO} n1", "synchronous_commit", before=None, after="off")


def test_a_member_that_is_gone_for_good_keeps_no_older_change_of_another(runs: Runs, walproof: Walproof) -> None:
    runs.set(runs.run("a"), "off")
    gone = runs.run("b")
    gone.note(2.0, runs.target.name, f"{AUTO} n9", "synchronous_commit", before="off", after="local")
    code, out, err = walproof("revert")
    assert (code, runs.now()) == (1, []), (out, err)
    assert f"not reverted on {runs.target.name}:" in out and "n9" in out
    assert f"  what stays is in {gone.registration}" in out
    assert len(gone.pending()) == 1


@pytest.mark.parametrize("value", ["RESET", "SET synchronous_commit = 'local'"])
def test_a_leader_that_nothing_tells_from_the_one_before_ends_nothing(
    runs: Runs, walproof: Walproof, value: str
) -> None:
    """By a floating address of the servers' own, with a role that may not look at files, or an image of one disk."""
    runs.set(runs.run("a"), "off")
    what = next(one.what for one in registered(runs_folder())[0].pending() if "/n1, made at " in one.what)
    assert walproof("revert")[0] == 0
    journal = runs.run("vip")
    what = what.replace("timeline 1", "timeline 7")
    journal.note(1.0, runs.target.name, what, "synchronous_commit", before=None, after="off")
    runs.pair.sql("n1", "ALTER SYSTEM " + value.replace("RESET", "RESET synchronous_commit"))
    code, out, _ = walproof("revert")
    assert (code, len(journal.pending()), "set by another user" in out) == (1, 1, False)


@pytest.mark.parametrize("set_there", [True, False])
def test_what_another_server_of_the_cluster_answers_ends_nothing(
    runs: Runs, walproof: Walproof, set_there: bool
) -> None:
    """An address that follows the leader: the old leader kept the setting, untold, the new one got its value."""
    runs.set(runs.run("a"), "off")
    what = next(one.what for one in registered(runs_folder())[0].pending() if "/n1, made at " in one.what)
    assert walproof("revert")[0] == 0
    journal, other = runs.run("vip"), re.sub("made at [0-9]+", "made at 7", what).replace("timeline 1", "timeline 7")
    journal.note(1.0, runs.target.name, other, "synchronous_commit", before=None, after="off")
    if set_there:
        runs.pair.sql("n1", "ALTER SYSTEM SET synchronous_commit = 'off'")
    code, out, err = walproof("revert")
    assert (code, runs.now(), len(journal.pending())) == (1, [("off",)] if set_there else [], 1), (out, err)
    assert "nothing is set here" in out and f"  what stays is in {journal.registration}" in out


def test_the_server_that_was_changed_is_found_by_another_name(runs: Runs, walproof: Walproof) -> None:
    """After a failover the members without cluster_name have other names: nothing could be undone."""
    runs.set(runs.run("a"), "off")
    journal = registered(runs_folder())[0]
    renamed = runs.run("b")
    for change in reversed(journal.pending()):
        what = change.what.replace(change.kind, f"{AUTO} gone")
        renamed.note(1.0, change.target, what, change.name, before=change.before, after=change.after)
        journal.undone(change)
    assert (walproof("revert")[0], runs.now(), registered(runs_folder())) == (0, [], [])


@pytest.mark.parametrize("how", ["of 1.0.0", "another name"])
def test_what_an_apply_set_as_well_stays(runs: Runs, walproof: Walproof, how: str) -> None:
    """A run that was killed had set it, an apply found and wanted it: `revert` took it away from under that."""
    runs.set(runs.run("a"), "off")
    journal = registered(runs_folder())[0]
    older = runs.run("b")
    target = runs.target.name if how == "of 1.0.0" else "host=elsewhere"
    for change in reversed(journal.pending()):
        what = change.kind if how == "of 1.0.0" else change.what
        older.note(1.0, runs.target.name, what, change.name, before=change.before, after=change.after)
        journal.undone(change)
    layer = Layer(journal_of_apply(target, runs.target.identity), complete=False)
    for change in older.pending():
        layer.note(2.0, target, change.what, change.name, before="off", after="off")
    layer.note(3.0, target, APPLIED, "off", before=None, after=None)
    assert (walproof("revert")[:2], runs.now()) == (ALONE, [("off",)])


def test_what_was_set_as_it_was_is_over_after_a_failover_too(runs: Runs, walproof: Walproof) -> None:
    """A plan sets all that it names, what is so already too: each drill with a failover would have raised an alarm."""
    runs.pair.sql("n1", "ALTER SYSTEM SET synchronous_commit = 'off'")
    runs.set(runs.run("a"), "off")
    later = runs.run("b")
    for change in registered(runs_folder())[0].pending():
        elsewhere = re.sub("made at [0-9]+", "made at 7", change.what).replace("timeline 1", "timeline 7")
        later.note(1.0, change.target, elsewhere, change.name, before=change.before, after=change.after)
    code, out, err = walproof("revert")
    assert (code, runs.now(), registered(runs_folder())) == (0, [("off",)], []), (out, err)


def test_a_member_that_was_made_anew_or_leads_again_is_the_one_of_its_name(runs: Runs, walproof: Walproof) -> None:
    """Drills with two failovers, a standby by pg_basebackup, chown -R: all was put back, and exit 1 stayed for ever."""
    runs.set(runs.run("a"), "off")
    later, journal = runs.run("b"), registered(runs_folder())[0]
    for change in reversed(journal.pending()):
        leads = "/n1, made at " in change.what
        what = (
            change.what.replace("timeline 1", "timeline 7")
            if leads
            else re.sub("made at [0-9]+", "made at 7", change.what)
        )
        later.note(1.0, change.target, what, change.name, before=change.before, after=change.after)
        journal.undone(change)
    assert (walproof("revert")[0], runs.now(), registered(runs_folder())) == (0, [], [])


def test_the_order_that_1_0_0_noted_covers_nothing(runs: Runs, walproof: Walproof) -> None:
    run, layer = runs.run("a"), runs.apply()
    for journal in (run, layer):
        journal.note(1.0, runs.target.name, "auto.conf order n1", "order", before="[]", after=None)
    runs.set(run, "off")
    layer.note(2.0, runs.target.name, APPLIED, "local", before=None, after=None)
    assert (walproof("revert")[0], runs.now(), registered(runs_folder())) == (0, [], [])


def test_what_is_put_back_between_the_look_and_the_note_is_not_set_again(runs: Runs, tmp_path: Path) -> None:
    """A run that had looked before a revert ended noted what that had put back a moment later."""

    class Late(Journal):
        def note(self, *words: object, **values: object):  # type: ignore[no-untyped-def]
            runs.pair.sql("n1", "ALTER SYSTEM RESET synchronous_commit")
            return super().note(*words, **values)  # type: ignore[arg-type]

    runs.pair.sql("n1", "ALTER SYSTEM SET synchronous_commit = 'off'")
    late = Late(tmp_path / "late.jsonl")
    with pytest.raises(TargetError, match="changed meanwhile"):
        runs.target.configuration.apply(
            runs.target.configuration.plan(ConfigChange({"synchronous_commit": "local"})), late
        )
    assert (late.pending(), runs.now(), os.path.exists(late.path)) == ((), [], True)
