"""After kill -9 on clusters that answer in part, not at all, or are another cluster: what is reverted, what is told."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.fake_patroni import fake_patroni
from tests.fixtures.plain_pair import PlainPair, await_streaming, plain_pair, start, stop
from tests.fixtures.tiers import each
from walproof.cli.runs import APPLIED, applied_folder, journal_of_apply, keep_journal, runs_folder
from walproof.errors import TargetError
from walproof.model.guarantee import ConfigChange
from walproof.model.topology import Endpoint
from walproof.records.journal import Journal
from walproof.targets.external import own_database
from walproof.targets.sql.connection import resolved

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("own_state")]
KILLED = """
import os, pathlib, sys
from walproof.cli.runs import keep_journal
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange
from walproof.targets.choose import choose
from walproof.targets.configure import configure

target = choose(sys.argv[1])
keep_journal(target, pathlib.Path(sys.argv[2]) if sys.argv[2] else None)
for step in sys.argv[3:]:
    what, _, rest = step.partition(" ")
    if what == "database":
        target.open_database()
    elif what == "set":
        configure(target.configuration, ConfigChange(dict([rest.split("=")]), None), target.journal)
    else:
        target.capabilities().faults[Capability(what)].inject(rest)
os.kill(os.getpid(), 9)
"""
OFF = "set synchronous_commit=off"


def killed(target: str, *steps: str, record: str = "") -> None:
    """A run that does these steps and dies by kill -9."""
    words = [sys.executable, "-c", KILLED, target, record, *steps]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == -9, done.stderr


def databases(pair: PlainPair) -> list[str]:
    """walproof's."""
    return [str(name) for (name,) in pair.sql("n1", "SELECT datname FROM pg_database WHERE datname LIKE 'walproof%'")]


def is_set(pair: PlainPair, member: str) -> bool:
    """Whether postgresql.auto.conf of that member sets synchronous_commit."""
    return "synchronous_commit" in (pair.data(member) / "postgresql.auto.conf").read_text()


def pending() -> list[str]:
    """What the state folder's journals of runs still hold, by kind."""
    return [change.what for path in runs_folder().glob("*.jsonl") for change in Journal(path).pending()]


def named(pair: PlainPair, folder: Path, *members: str, role: str = "postgres") -> str:
    """A target file of these members, which its commands freeze and thaw, under their names."""
    ports = [str(pair.ports[m]) for m in members]
    hosts = ",".join(["127.0.0.1"] * len(ports))
    listed = "".join(f'{m} = "127.0.0.1:{port}"\n' for m, port in zip(members, ports, strict=True))
    signal = f"kill -{{}} $(head -1 {pair.home}/{{{{member}}}}/postmaster.pid)"
    path = folder / "target.toml"
    path.write_text(
        f'kind = "postgres"\ndsn = "host={hosts} port={",".join(ports)} user=postgres passfile={pair.passfile}'
        f' options=\'-c role={role}\'"\n[waits]\nnew-leader = "1s"\n[members]\n{listed}[faults]\n'
        f'freeze = "{signal.format("STOP")}"\nthaw = "{signal.format("CONT")}"\n'
    )
    return str(path)


@pytest.fixture(scope="module")
def other() -> Iterator[PlainPair]:
    """Another cluster."""
    with plain_pair() as made:
        yield made


@pytest.fixture
def prod(pair: PlainPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service file whose service prod is the pair."""
    path = tmp_path / "services"
    monkeypatch.setenv("PGSERVICEFILE", str(path))
    means(path, pair)
    return path


def means(services: Path, pair: PlainPair) -> None:
    port, passfile = pair.ports["n1"], pair.passfile
    services.write_text(f"[prod]\nhost=127.0.0.1\nport={port}\nuser=postgres\npassfile={passfile}\n")


# another cluster under the name


def test_nothing_is_undone_on_another_cluster_and_nothing_of_the_first_is_forgotten(
    pair: PlainPair, other: PlainPair, prod: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record"
    record.mkdir()
    killed("service=prod", "database", OFF, record=str(record))
    other.sql("n1", "ALTER SYSTEM SET synchronous_commit = off")
    means(prod, other)
    try:
        for _ in range(2):
            code, out, err = ended(capsys, ["revert"])
            assert code == 3 and "another cluster answers under this name" in err, (out, err)
            assert is_set(other, "n1") and is_set(pair, "n1") and len(databases(pair)) == 1
        with opened("service=prod") as target, pytest.raises(TargetError, match="another cluster"):
            keep_journal(target, record)
        means(prod, pair)
        assert ended(capsys, ["revert"])[0] == 0
        assert not is_set(pair, "n1") and databases(pair) == [] and pending() == []
    finally:
        other.sql("n1", "ALTER SYSTEM RESET ALL")


@pytest.mark.nightly
def test_an_application_is_not_undone_on_another_cluster(
    pair: PlainPair, other: PlainPair, prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "service=prod"
    with opened(name) as target:
        journal, (member,) = journal_of_apply(name, target.identity), set(target.members()) & {"n1", target.leader()}
    for what, of in ((f"alter-system {member}", "synchronous_commit"), (APPLIED, "off")):
        journal.note(1.0, name, what, of, before=None, after="off")
    for one in (pair, other):
        one.sql("n1", "ALTER SYSTEM SET synchronous_commit = off")
    undo = ["apply", "--undo", "--target", name, "--allow", "config"]
    try:
        means(prod, other)
        code, _, err = ended(capsys, undo)
        assert code == 3 and "another cluster" in err and is_set(other, "n1")
        means(prod, pair)
        assert ended(capsys, undo)[0] == 0
        assert not is_set(pair, "n1") and not journal.pending()
    finally:
        for one in (pair, other):
            one.sql("n1", "ALTER SYSTEM RESET ALL")
        for path in applied_folder().glob("*"):
            path.unlink()


@pytest.mark.nightly
def test_a_member_that_is_another_clusters_server_now_keeps_its_settings(
    pair: PlainPair, other: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = named(pair, tmp_path, "n1", "n2")
    killed(file, OFF)
    text = Path(file).read_text()
    both = tmp_path / "pgpass"
    lines = ((one.passfile.read_text(), port) for one in (pair, other) for port in one.ports.values())
    both.write_text("".join(line.replace("*", str(port), 1) for line, port in lines))
    both.chmod(0o600)
    moved = text.replace(str(pair.ports["n2"]), str(other.ports["n1"])).replace(str(pair.passfile), str(both))
    Path(file).write_text(moved)
    other.sql("n1", "ALTER SYSTEM SET synchronous_commit = off")
    try:
        code, _, err = ended(capsys, ["revert"])
        assert code == 3 and "n2 is a server of another cluster now" in err and "rm " not in err
        assert is_set(other, "n1") and is_set(pair, "n2") and not is_set(pair, "n1")
        Path(file).write_text(text)
        assert ended(capsys, ["revert"])[0] == 0 and not is_set(pair, "n2")
    finally:
        other.sql("n1", "ALTER SYSTEM RESET ALL")


@pytest.mark.nightly
def test_nothing_is_set_where_every_name_leads_to_another_cluster_by_now(
    pair: PlainPair, other: PlainPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host, a service or an address: what answers there agreed with itself."""
    there, journal = resolved(pair_dsn(other, "n1")), Journal(tmp_path / "journal.jsonl")
    with opened(named(pair, tmp_path, "n1")) as target:
        monkeypatch.setattr(target, "members", lambda: {"n1": there})
        plan = target.configuration.plan(ConfigChange({"synchronous_commit": "off"}))
        with pytest.raises(TargetError, match="n1 is a server of another cluster"):
            target.configuration.apply(plan, journal)
    assert not journal.pending() and not is_set(other, "n1")


@pytest.mark.nightly
def test_a_database_is_made_and_gone_only_where_the_clusters_own_server_answers(
    pair: PlainPair, other: PlainPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that led to another cluster's server after who answers was asked."""
    elsewhere = resolved(pair_dsn(other, "n1"))
    with opened(named(pair, tmp_path, "n1")) as target, monkeypatch.context() as moved:
        keep_journal(target, None)
        moved.setattr(target, "admin", lambda member: elsewhere)
        with pytest.raises(TargetError, match="is a server of another cluster"):
            target.open_database()
        with pytest.raises(TargetError, match="is a server of another cluster"):
            own_database.make(elsewhere, own_database.new_name(), target.identity)
        assert databases(other) == [] and pending() == []
        moved.undo()
        target.open_database()
        moved.setattr(target, "admin", lambda member: elsewhere)
        target.close()
        assert pending() == ["database"] and len(databases(pair)) == 1
        with pytest.raises(TargetError, match="is a server of another cluster"):
            target.revert(target.journal)
        moved.undo()
        assert target.revert(target.journal) == []
    assert databases(pair) == [] and pending() == []


@pytest.mark.nightly
@each([("8", "another cluster answers under this name"), ("", "is not known")])
def test_patronis_configuration_is_not_undone_on_another_or_an_unknown_cluster(
    identifier: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_patroni(ttl=20) as patroni:
        patroni.members = [patroni.listed()]
        name = str(patroni.file(tmp_path / "patroni.toml"))
        for one in ("7", identifier):
            patroni.texts["/patroni"] = f'{{"database_system_identifier": "{one}"}}'
            with opened(name) as target:
                journal = journal_of_apply(name, target.identity)
                if one == "7":
                    journal.note(1.0, name, "patroni config", "config", before='{"config": {}}', after='{"ttl": 20}')
        try:
            code, _, err = ended(capsys, ["revert"])
            assert code == 3 and says in err and ("rm " in err) is bool(identifier), err
            assert patroni.written == [] and len(journal.pending()) == 1
        finally:
            journal.remove()


# no member answers, or not all do


@pytest.mark.parametrize("words", [(), ("--target",)])
def test_the_only_server_frozen_is_thawed_and_all_else_reverted(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    file = named(pair, tmp_path, "n1")
    killed(file, "database", OFF, "freeze n1")
    code, out, err = ended(capsys, ["revert", *words, *(file for _ in words)])
    try:
        assert code == 0, (out, err)
        assert "fault freeze n1" in out and databases(pair) == [] and not is_set(pair, "n1") and pending() == []
    finally:
        os.kill(pair.postmaster("n1"), 18)


@pytest.mark.nightly
def test_a_fault_that_stays_is_told_and_its_journal_is_not_called_worthless(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = named(pair, tmp_path, "n1")
    killed(file, OFF, "freeze n1")
    text = Path(file).read_text()
    Path(file).write_text(text.replace("kill -CONT", "false"))
    try:
        code, _, err = ended(capsys, ["revert"])
        assert code == 3 and "freeze of n1 is not undone: your command failed" in err and "rm " not in err, err
        assert len(pending()) == 2
        Path(file).write_text(text)
        assert ended(capsys, ["revert"])[0] == 0
    finally:
        os.kill(pair.postmaster("n1"), 18)
    assert not is_set(pair, "n1")


@pytest.mark.nightly
def test_a_member_that_is_down_keeps_nothing_else_from_being_reverted(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = named(pair, tmp_path, "n1", "n2")
    killed(file, "database", OFF)
    stop(pair, "n2", "fast")
    try:
        code, _, err = ended(capsys, ["revert"])
        assert (
            code == 3 and "rm " not in err and [what.split(" on the ")[0] for what in pending()] == ["alter-system n2"]
        )
        assert databases(pair) == [] and not is_set(pair, "n1")
    finally:
        start(pair, "n2")
        await_streaming(pair)
    assert ended(capsys, ["revert"])[0] == 0 and not is_set(pair, "n2")


@pytest.mark.nightly
def test_without_a_leader_the_settings_of_standbys_are_reverted(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = named(pair, tmp_path, "n1", "n2")
    killed(file, "database", OFF)
    stop(pair, "n1", "fast")
    try:
        code, _, err = ended(capsys, ["revert"])
        assert (
            code == 3
            and "rm " not in err
            and sorted(what.split(" on the ")[0] for what in pending()) == ["alter-system n1", "database"]
        )
        assert not is_set(pair, "n2")
        stop(pair, "n2", "fast")
        code, _, err = ended(capsys, ["revert"])
        assert code == 3 and "the cluster does not answer" in err and "gone for good: rm " in err
    finally:
        start(pair, "n1")
        start(pair, "n2")
        await_streaming(pair)
    assert ended(capsys, ["revert"])[0] == 0
    assert databases(pair) == [] and not is_set(pair, "n1")


# a database that is there, and another role's


@pytest.mark.nightly
def test_a_database_that_the_user_may_not_drop_is_told_until_it_is_gone(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for role in ("alice", "bob"):
        pair.sql("n1", f"CREATE ROLE {role} CREATEDB")
        pair.sql("n1", f"GRANT pg_monitor TO {role}")
    killed(named(pair, tmp_path, "n1", role="alice"), "database")
    (name,) = databases(pair)
    named(pair, tmp_path, "n1", role="bob")
    for _ in range(2):
        code, out, err = ended(capsys, ["revert"])
        assert code == 1 and f"database {name} stays: alice owns it, not bob" in out, (out, err)
        assert pending() == ["database"]
    pair.sql("n1", f"DROP DATABASE {name}")
    assert ended(capsys, ["revert"])[0] == 0 and pending() == []
    pair.sql("n1", "DROP ROLE alice, bob")


@pytest.mark.nightly
def test_a_run_at_whose_end_another_role_owns_its_database_does_not_end_with_success(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.sql("n1", "CREATE ROLE carol")
    make = own_database.make

    def given_away(leader: Endpoint, name: str, system: str) -> None:
        make(leader, name, system)
        pair.sql("n1", f"ALTER DATABASE {name} OWNER TO carol")

    monkeypatch.setattr(own_database, "make", given_away)
    words = ["--fault", "none", "--levels", "local", "--writers", "1", "--allow", "load", "--record"]
    code, out, err = ended(capsys, ["prove", "--target", named(pair, tmp_path, "n1"), *words, str(tmp_path / "rec")])
    (name,) = databases(pair)
    assert code == 3 and "lost nothing" in out, (out, err)
    (left,) = Journal(tmp_path / "rec" / "journal.jsonl").pending()
    assert (left.what, left.name) == ("database", name)
    pair.sql("n1", f"DROP DATABASE {name}")
    pair.sql("n1", "DROP ROLE carol")
