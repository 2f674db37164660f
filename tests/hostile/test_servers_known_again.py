"""Which server was changed: names and addresses move, standbys are copied, a role may not look."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.external_cluster import opened, pair_dsn, pair_file
from tests.fixtures.plain_pair import PlainPair, await_streaming, plain_pair, start, stop
from tests.fixtures.runs_on_a_pair import NOW, Runs
from tests.fixtures.tiers import each
from walproof.cli.runs import APPLIED, runs_folder
from walproof.errors import TargetError
from walproof.machine.clock import RealClock
from walproof.model.guarantee import MACHINE
from walproof.model.ports import SILENT
from walproof.model.topology import Endpoint
from walproof.records.journal import Change, Journal
from walproof.records.own_journals import RegisteredJournal, registered
from walproof.targets.sql import connection, known_servers, settings
from walproof.targets.sql.known_servers import AUTO

pytestmark = pytest.mark.lab


def moved(runs: Runs, change: Callable[[Change], str]) -> RegisteredJournal:
    """A run that was killed, whose changes of synchronous_commit to off were noted as that function says."""
    runs.set(journal := runs.run("a"), "off")
    later = runs.run("b")
    for one in reversed(journal.pending()):
        later.note(1.0, one.target, change(one), one.name, before=one.before, after=one.after)
        journal.undone(one)
    return later


def made_at_another_time(change: Change) -> str:
    return re.sub("made at [0-9]+", "made at 0007", change.what)


@pytest.mark.parametrize("set_there", [True, False])
def test_what_another_server_of_the_cluster_answers_ends_nothing(
    set_there: bool, runs: Runs, walproof: Walproof
) -> None:
    """An address that follows the leader: the old leader kept the setting, untold, the new one got its value."""
    journal = moved(runs, made_at_another_time)
    if not set_there:
        runs.pair.sql("n1", "ALTER SYSTEM RESET synchronous_commit")
    code, out, err = walproof("revert")
    assert (code, runs.now(), len(journal.pending())) == (1, [("off",)] if set_there else [], 2), (out, err)
    assert "no server that answers is known to be that one" in out
    assert f"  what stays is in {journal.registration}" in out
    assert out.count("is 'off' too, which was not set there") == 1 + set_there


@pytest.mark.nightly
def test_another_servers_address_is_not_the_server_that_was_changed(
    runs: Runs, pair: PlainPair, walproof: Walproof
) -> None:
    """The address of a standby that was down was another standby's: the first kept the setting, told as undone."""
    journal = moved(runs, lambda one: one.what.replace(one.kind, f"{AUTO} 127.0.0.1:{pair.ports['n1']}"))
    stop(pair, "n2", "fast")
    try:
        code, out, err = walproof("revert")
        assert (code, runs.now(), len(journal.pending())) == (3, [], 1), (out, err)
        assert "no server that answers is known to be that one" in err
    finally:
        start(pair, "n2")
        await_streaming(pair)
    assert (walproof("revert")[0], registered(runs_folder()), pair.sql("n2", NOW)) == (0, [], [])


@pytest.mark.parametrize("rewound", [False, True])
def test_a_copy_that_has_what_was_set_is_named(rewound: bool, runs: Runs, pair: PlainPair, walproof: Walproof) -> None:
    """A standby made since, or rewound: `apply --undo` said that all was undone, and after a switchover it was not."""
    undo = ("apply", "--undo", "--target", runs.target.name, "--allow", "config")
    layer = runs.apply()
    runs.set(run := runs.run("a"), "off")
    of_n2, of_n1 = run.pending()
    for one in (of_n2, of_n1):
        run.undone(one)
    for one in (of_n2, of_n1) if rewound else (of_n1,):
        noted = layer.note(1.0, one.target, one.what, one.name, before=one.before, after=one.after)
        if one is of_n2:
            layer.undone(noted)
    layer.note(2.0, runs.target.name, APPLIED, "off", before=None, after=None)
    code, out, _ = walproof(*undo)
    assert (code, runs.now(), pair.sql("n2", NOW)) == (1, [], [("off",)])
    assert f"{of_n2.kind.removeprefix(f'{AUTO} ')}: synchronous_commit is 'off' too, which was not set there" in out


def logins(pair: PlainPair, folder: Path, *lines: str) -> Path:
    """The pair's passfile with these lines more."""
    passfile = folder / "pgpass"
    passfile.write_text(pair.passfile.read_text() + "".join(f"{line}\n" for line in lines))
    passfile.chmod(0o600)
    return passfile


@pytest.mark.nightly
@pytest.mark.parametrize("again", [False, True])
def test_a_given_name_is_not_believed_where_another_known_server_answers_so(
    again: bool, runs: Runs, pair: PlainPair, walproof: Walproof, tmp_path: Path
) -> None:
    """The address of standbys, under [members], was the other's: the first kept the setting, told as undone."""
    pair_file(pair, tmp_path, named=True)
    with opened(runs.target.name) as target:
        runs.target = target
        journal = moved(runs, lambda one: one.what.replace(one.kind, f"{AUTO} n1"))
    stop(pair, "n2", "fast")
    try:
        for _ in range(1 + again):
            code, out, err = walproof("revert")
            assert (code, runs.now(), len(journal.pending())) == (3, [], 1), (out, err)
    finally:
        start(pair, "n2")
        await_streaming(pair)
    assert (walproof("revert")[0], pair.sql("n2", NOW)) == (0, [])


@pytest.mark.nightly
def test_a_name_that_was_silent_at_first_is_asked_who_it_is(
    runs: Runs, pair: PlainPair, walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server that came up at that name, between the look and the undo, was put back in its place."""
    pair_file(pair, tmp_path, named=True)
    with opened(runs.target.name) as target:
        runs.target = target
        journal = moved(runs, lambda one: one.what.replace(one.kind, f"{AUTO} n1"))
        monkeypatch.setattr(settings, "answering", lambda _: ({}, None))
        left = target.configuration.undo(journal)
    (of_n2,) = (one for one in journal.pending())
    assert (runs.now(), "/n2, made at" in of_n2.what, len(left)) == ([], True, 1), left


@pytest.mark.nightly
def test_a_server_that_comes_back_meanwhile_is_told(
    runs: Runs, pair: PlainPair, walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent by every name at first, it had a place at the end: it was neither undone nor told."""
    pair_file(pair, tmp_path, named=True)
    with opened(runs.target.name) as target:
        runs.target = target
        journal = moved(
            runs, lambda one: one.what.replace(f"{one.kind} ", f"{AUTO} other ") if "/n2" in one.what else one.what
        )
        other = next(one for one in journal.pending() if one.kind == f"{AUTO} other")
        journal.note(1.0, other.target, other.what.replace("other", "n2"), "jit", before=None, after="off")
        monkeypatch.setattr(settings, "answering", lambda _: ({}, None))
        (left,) = target.configuration.undo(journal)
    assert left.startswith("other: synchronous_commit was not reverted yet: its server answers as n2 by now")
    assert [one.name for one in journal.pending()] == ["synchronous_commit"]


@pytest.mark.nightly
def test_what_1_0_0_noted_is_undone_after_a_newer_application_too(runs: Runs, walproof: Walproof) -> None:
    """Every server that was noted since was taken for another one than the change, which told none."""
    journal = moved(runs, lambda one: one.kind)
    with opened(runs.target.name) as target:
        runs.set(journal, "local", target)
        runs.end(journal, target)
    assert (walproof("revert")[0], runs.now(), registered(runs_folder())) == (0, [], [])


@pytest.mark.nightly
def test_what_a_member_had_before_is_no_copy(runs: Runs, pair: PlainPair, walproof: Walproof) -> None:
    """Every plan that names what is so already on one member ended with "not all is undone"."""
    pair.sql("n2", "ALTER SYSTEM SET synchronous_commit = 'off'")
    runs.set(runs.run("a"), "off")
    assert (walproof("revert")[0], runs.now(), pair.sql("n2", NOW)) == (0, [], [("off",)])


@pytest.mark.nightly
def test_a_copy_of_the_volume_on_another_machine_is_another_server(
    runs: Runs, walproof: Walproof, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby from a snapshot was undone in its original's place, which was down and kept the setting."""
    journal = moved(runs, lambda one: f"{one.what.partition(MACHINE)[0]}{MACHINE}7")
    code, out, err = walproof("revert")
    is_told = Path("/etc/machine-id").exists()
    assert (code, runs.now(), len(journal.pending())) == ((1, [("off",)], 2) if is_told else (0, [], 0)), (out, err)


@pytest.mark.nightly
def test_an_address_that_takes_turns_is_no_way_to_a_server(
    pair: PlainPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standbys' address of a proxy: one was set and the other reloaded, and both were told to be in effect."""
    turns, real = cycle(("n1", "n2", "n2")), connection.connected

    def connected(endpoint: Endpoint, *within_s: float) -> AbstractContextManager[Any]:
        return real(pair.member_endpoint(next(turns)) if endpoint.hosts[0][0] == "turns" else endpoint)

    for module in (known_servers, settings):
        monkeypatch.setattr(module, "connected", connected)
    journal = Journal(tmp_path / "journal.jsonl")
    members = {"ro": Endpoint((("turns", 1),)), "n1": pair.member_endpoint("n1"), "n2": pair.member_endpoint("n2")}
    auto, show = settings.AutoConf("t", RealClock(), members), "SHOW synchronous_commit"
    for _ in range(2):
        auto.set({"synchronous_commit": "off"}, journal)
        assert [pair.sql(member, show) for member in ("n1", "n2")] == [[("off",)], [("off",)]]
        assert len(journal.pending()) == 2
        assert auto.undo(journal.pending(), journal.undone, SILENT, journal.servers()) == []
        assert [pair.sql(member, show) for member in ("n1", "n2")] == [[("on",)], [("on",)]]
        assert not journal.pending()


@pytest.mark.nightly
def test_an_apply_under_another_name_of_the_cluster_is_named(runs: Runs, pair: PlainPair, walproof: Walproof) -> None:
    """A target file that was renamed: `apply --undo` said that nothing was applied, with all of it in effect."""
    layer = runs.apply()
    runs.set(layer, "off")
    layer.note(2.0, runs.target.name, APPLIED, "off", before=None, after=None)
    undo = ("apply", "--undo", "--allow", "config", "--target")
    code, out, err = walproof(*undo, pair_dsn(pair, "n1"))
    assert (code, out, runs.now()) == (4, "", [("off",)]) and f"something as {runs.target.name} on it" in err
    assert (walproof(*undo, runs.target.name)[0], runs.now()) == (0, [])
    assert walproof(*undo, pair_dsn(pair, "n1"))[0] == 0


@pytest.mark.nightly
def test_a_server_of_two_names_is_set_and_undone_once(
    runs: Runs, pair: PlainPair, walproof: Walproof, tmp_path: Path
) -> None:
    """It was undone in the order of the names: "set by another user since", exit 1."""
    both = pair.passfile.read_text().replace("127.0.0.1", "localhost").strip()
    twice = pair_dsn(pair, "n1", "n1", "n2").replace("host=127.0.0.1", "host=localhost")
    twice = twice.replace(str(pair.passfile), str(logins(pair, tmp_path, both)))
    with opened(twice) as target:
        assert len(target.members()) == 3, target.members()
        runs.set(run := runs.run("a"), "off", target)
        assert len(run.pending()) == 2
    assert (walproof("revert")[0], runs.now(), pair.sql("n2", NOW)) == (0, [], [])


@pytest.mark.nightly
@pytest.mark.parametrize("named", [False, True])
def test_nothing_is_set_on_a_server_that_would_not_be_known_again(
    named: bool, runs: Runs, pair: PlainPair, walproof: Walproof, tmp_path: Path
) -> None:
    """A role that may not look, by a floating address, put back the new leader's and told that all was undone."""
    few = (
        "GRANT pg_read_all_settings TO few",
        "GRANT SELECT ON pg_file_settings TO few",
        "GRANT EXECUTE ON FUNCTION pg_show_all_file_settings(), pg_reload_conf(), pg_control_system() TO few",
        "GRANT ALTER SYSTEM ON PARAMETER synchronous_commit TO few",
        "GRANT pg_monitor TO few",
        "ALTER ROLE few LOGIN PASSWORD 'few'",
    )
    file = pair_file(pair, tmp_path, named=named)
    passfile = logins(pair, tmp_path, "127.0.0.1:*:*:few:few")
    file.write_text(
        file.read_text().replace("user=postgres", "user=few dbname=postgres").replace(str(pair.passfile), str(passfile))
    )
    for statement in ("CREATE ROLE few", *few):
        pair.sql("n1", statement)
    try:
        with opened(str(file)) as target:
            if not named:
                with pytest.raises(TargetError, match="so nothing is set") as refused:
                    runs.set(run := runs.run("a"), "off", target)
                assert "pg_stat_file(text)" in refused.value.hint and "[members]" in refused.value.hint
                assert (list(run.pending()), runs.now()) == ([], [])
                pair.sql("n1", "GRANT EXECUTE ON FUNCTION pg_stat_file(text) TO few")
            runs.set(run := runs.run("b"), "off", target)
            assert {bool(one.server) for one in run.pending()} == {not named}
        assert (walproof("revert")[0], runs.now(), pair.sql("n2", NOW)) == (0, [], [])
    finally:
        pair.sql("n1", "DROP OWNED BY few")
        pair.sql("n1", "DROP ROLE few")


@pytest.mark.nightly
@pytest.mark.parametrize("named", [False, True])
def test_servers_that_nothing_tells_apart_are_set_by_their_given_names_alone(
    named: bool, runs: Runs, pair: PlainPair, walproof: Walproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two standbys copied at once into folders of one name: while one was down the other got its value back, twice."""
    server = known_servers.server_of
    monkeypatch.setattr(known_servers, "server_of", lambda one: replace(server(one), made="/data, made at 7"))
    with opened(str(pair_file(pair, tmp_path, named=named))) as target:
        if not named:
            with pytest.raises(TargetError, match="both were made in one second"):
                runs.set(run := runs.run("a"), "off", target)
            assert (list(run.pending()), runs.now()) == ([], [])
            return
        runs.set(runs.run("a"), "off", target)
    stop(pair, "n2", "fast")
    try:
        code, out, err = walproof("revert")
        assert (code, runs.now(), len(registered(runs_folder())[0].pending())) == (3, [], 1), (out, err)
    finally:
        start(pair, "n2")
        await_streaming(pair)
    assert (walproof("revert")[0], pair.sql("n2", NOW)) == (0, [])


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_what_was_set_as_it_was_is_over_after_a_failover_too(runs: Runs, walproof: Walproof) -> None:
    """A plan sets all that it names, what is so already too: each drill with a failover would have raised an alarm."""
    run = runs.run("a")
    for what in (f"{AUTO} n1", f"{AUTO} n1 on the server elsewhere"):
        run.note(1.0, runs.target.name, what, "synchronous_commit", before="off", after="off")
    code, out, err = walproof("revert")
    assert (code, runs.now(), registered(runs_folder())) == (0, [], []), (out, err)


@pytest.mark.nightly
def test_a_member_of_a_given_name_that_was_made_anew_is_the_one_of_that_name(
    runs: Runs, pair: PlainPair, walproof: Walproof, tmp_path: Path
) -> None:
    """A standby by pg_basebackup, chown -R: all was put back, and exit 1 stayed for ever."""
    pair_file(pair, tmp_path, named=True)
    with opened(runs.target.name) as target:
        runs.target = target
        moved(runs, made_at_another_time)
    assert (walproof("revert")[0], runs.now(), registered(runs_folder())) == (0, [], [])


@pytest.mark.nightly
@each([False, True])
def test_nothing_is_set_where_a_host_is_another_clusters_by_now(
    named: bool, pair: PlainPair, walproof: Walproof, tmp_path: Path
) -> None:
    """Its address was given to that cluster: the names of this one's standbys, set there, held all its commits."""
    password = pair.passfile.read_text().rpartition(":")[2].strip()
    with plain_pair() as other:
        other.sql("n1", f"ALTER ROLE postgres PASSWORD '{password}'")
        other.passfile.write_text(pair.passfile.read_text())
        ports = [pair.ports["n1"], pair.ports["n2"], other.ports["n1"]]
        file = pair_file(pair, tmp_path)
        file.write_text(
            file.read_text().replace(f",{ports[1]}", f",{ports[1]},{ports[2]}").replace("1,1", "1,127.0.0.1,1")
        )
        if named:
            file.write_text(f"{file.read_text()}[members]\n" + "".join(f'm{p} = "127.0.0.1:{p}"\n' for p in ports))
        code, _, said = walproof("doctor", "--target", str(file))
        assert (code, "these are servers of different clusters" in said) == (3, True), said
        with opened(pair_dsn(pair, "n1", "n2")) as target:
            first = next(iter(target.members().values()))
            members = {"n1": first, "c": first.at(("127.0.0.1", ports[2]))}
            journal = Journal(tmp_path / "journal.jsonl")
            changed = settings.AutoConf("t", RealClock(), members, {"n1", "c"} if named else set())
            with pytest.raises(TargetError, match="different clusters"):
                changed.set({"synchronous_commit": "off"}, journal)
        assert (journal.pending(), other.sql("n1", NOW), pair.sql("n1", NOW)) == ((), [], [])
