"""Journals that hold one setting, on a real server: undone newest first whichever is asked for, never forgotten."""

import os
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.runs_on_a_pair import Runs
from walproof.cli.runs import APPLIED, Layer, _leaves, applying, journal_of_apply, runs_folder
from walproof.errors import MachineError, TargetError
from walproof.model.guarantee import ConfigChange
from walproof.model.sample import Scenario
from walproof.records.journal import Journal
from walproof.records.own_journals import registered
from walproof.targets.sql.known_servers import AUTO

pytestmark = [pytest.mark.lab, pytest.mark.nightly]
ALONE = (4, "nothing reverted: some is left alone\n")


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
    older: str, words: tuple[str, ...], runs: Runs, walproof: Walproof
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
def test_one_server_under_two_names_is_one(known: bool, runs: Runs, pair: PlainPair, walproof: Walproof) -> None:
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
    there: str, as_found: bool, runs: Runs, walproof: Walproof
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


@pytest.mark.parametrize("how", ["of 1.0.0", "another name"])
def test_what_an_apply_set_as_well_stays(how: str, runs: Runs, walproof: Walproof) -> None:
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
