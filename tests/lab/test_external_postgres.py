"""A plain pair on Debian's PostgreSQL 15 as an external cluster: inspected, priced, written, changed, reverted."""

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.fixtures import toy
from tests.fixtures.command_line import returned as run
from tests.fixtures.external_cluster import everything, found, is_back, opened, pair_dsn, pair_file
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.priced_records import PAIR, advice_file
from tests.fixtures.same_list import ANYWHERE, same_list
from walproof.errors import MachineError, TargetError, UsageError
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange, Level, QuorumKind, SyncReplication
from walproof.model.load import LedgerOrder
from walproof.model.sample import Arm, Sample, Scenario, Workload, WorkloadKind
from walproof.model.waiting import Wait, wait_for
from walproof.proving.lost_commits import compared, judged, lost_rows
from walproof.records.journal import Journal
from walproof.targets import choose
from walproof.targets.configure import applied, configure
from walproof.targets.external.cluster import ExternalCluster

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def pair(debian: PlainPair) -> PlainPair:
    return debian


@pytest.fixture(scope="module")
def advice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return advice_file(tmp_path_factory.mktemp("advice") / "advice.json", cluster=PAIR)


def changed(target: ExternalCluster, parameters: dict[str, str | None]) -> None:
    configure(target.configuration, ConfigChange(parameters), target.journal)


def test_members_are_found_and_named_by_how_they_stream(pair: PlainPair, tmp_path: Path) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        view = target.observe()
        assert view.leader == f"127.0.0.1:{pair.ports['n1']}"
        assert [m.name for m in view.standbys] == ["n2"]
        assert view.standbys[0].state == "streaming"
        described = target.describe()
        assert described.facts["postgres"] == "15"
        assert target.endpoint("multi-host").client_conninfo()
        with pytest.raises(TargetError, match="haproxy"):
            target.endpoint("haproxy")
        with pytest.raises(TargetError, match="cannot address"):
            target.member_endpoint("n9")


def test_only_what_the_file_gives_commands_for_can_be_broken(pair: PlainPair, tmp_path: Path) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        assert target.capabilities().why_not(Capability.STOP) is None
        assert "[faults] kill" in str(target.capabilities().why_not(Capability.KILL))
        assert target.capabilities().why_not(Capability.POWER_CUT)
        assert target.capabilities().why_not(Capability.SLOW_DISK)


def test_it_is_priced_and_written_in_a_database_of_its_own_which_goes_away(pair: PlainPair, tmp_path: Path) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        before = everything(target)
        workload = Workload(WorkloadKind.INSERT, scale=1)
        target.pricing.prepare(workload)
        measured = target.pricing.run_sample(Sample(1, 0, Arm(Level.LOCAL, 2, workload), Scenario()), 1.0, 1)
        assert measured.transactions > 0
        with pytest.raises(UsageError, match="max_clients = 4"):
            target.pricing.run_sample(Sample(1, 0, Arm(Level.LOCAL, 5, workload), Scenario()), 1.0, 1)
        ledger = target.ledger.open_ledger(LedgerOrder(Level.LOCAL, writers=2, witnesses=False))
        wait_for(Wait.WRITERS_UP, lambda: ledger.progress().acknowledged > 20, target.clock)
        attempts = ledger.stop()
        rows = target.ledger.read_ledger(str(target.observe().leader), 0)
        assert len(rows) >= 20
        assert len(attempts) >= len(rows) - 2
        target.close()
        assert is_back(target, before)


def test_nothing_is_changed_without_a_journal_and_hanging_quorums_are_refused(pair: PlainPair, tmp_path: Path) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        with pytest.raises(MachineError, match="journal"):
            changed(target, {"work_mem": "5MB"})
        target.journal = Journal(tmp_path / "journal.jsonl")
        with pytest.raises(UsageError, match="would hang every commit"):
            configure(
                target.configuration, ConfigChange(replication=SyncReplication(QuorumKind.ANY, 2)), target.journal
            )
        with pytest.raises(UsageError, match="only at a restart"):
            changed(target, {"max_connections": "310"})
        assert not target.revert(target.journal)


def test_apply_then_undo_leaves_everything_as_it_was(
    pair: PlainPair, advice: Path, tmp_path: Path, own_state: Path
) -> None:
    pair.sql("n1", "ALTER SYSTEM SET wal_sender_timeout = '33s'")
    pair.sql("n1", "ALTER SYSTEM SET log_min_duration_statement = '9s'")
    pair.sql("n1", "SELECT pg_reload_conf()")
    pair.sql("n1", "ALTER DATABASE template1 SET synchronous_commit = off")
    file = str(pair_file(pair, tmp_path))
    files = [pair.data(m) / "postgresql.auto.conf" for m in ("n1", "n2")]
    with opened(file) as target:
        before, texts = everything(target), [f.read_text() for f in files]
        with pytest.raises(UsageError, match="did not allow it") as refused:
            run("apply", str(advice), "--target", file)
        assert "--allow config" in refused.value.hint
        assert run("apply", str(advice), "--target", file, "--dry-run")[0] == 0
        assert [f.read_text() for f in files] == texts
        code, output = run("apply", str(advice), "--target", file, "--allow", "config", "--json")
        assert code == 0
        assert json.loads(output)["in_effect"]["synchronous"] == ["n2"]
        other = "these commits have another level: every role in template1: synchronous_commit=off"
        assert other in json.loads(output)["caveats"]
        # n1 has no cluster_name, and will stream as walreceiver.
        assert any("after a failover to n2 every commit hangs" in one for one in json.loads(output)["caveats"])
        assert pair.sql("n1", "SHOW wal_sender_timeout") == [("15s",)]
        assert run("revert")[1].startswith("nothing to revert")
        assert run("apply", "--undo", "--target", file, "--allow", "config")[0] == 0
        assert is_back(target, before)
        assert [entries(f.read_text()) for f in files] == [entries(t) for t in texts]
    pair.sql("n1", "ALTER DATABASE template1 RESET synchronous_commit")


def test_advise_and_apply_list_the_same_and_that_is_what_is_set(
    pair: PlainPair, tmp_path: Path, own_state: Path
) -> None:
    file = str(pair_file(pair, tmp_path))
    lists = same_list(run, file, tmp_path, ANYWHERE)
    before = entries((pair.data("n1") / "postgresql.auto.conf").read_text())
    advice = str(tmp_path / "advice.json")
    assert run("apply", advice, "--target", file, "--allow", "config", "--choice", "1")[0] == 0
    now = entries((pair.data("n1") / "postgresql.auto.conf").read_text())
    assert {line.split(" = ")[0] for line in set(now) - set(before)} <= set(lists[-1])
    assert {f"{name} = '{value}'" for name, value in lists[-1].items()} <= set(now)
    assert run("apply", "--undo", "--target", file, "--allow", "config")[0] == 0


def entries(text: str) -> list[str]:
    """Lines of postgresql.auto.conf that count: pg_basebackup -R may have left a name twice, the last one counts."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    last = {line.split(" = ")[0]: line for line in lines}
    return sorted(last.values())


@pytest.mark.parametrize("changes", [1, 5])
def test_after_kill_9_in_the_middle_revert_undoes_everything(
    pair: PlainPair, advice: Path, tmp_path: Path, own_state: Path, changes: int
) -> None:
    file = str(pair_file(pair, tmp_path))
    auto = pair.data("n1") / "postgresql.auto.conf"
    with opened(file) as target:
        before, text = everything(target), auto.read_text()
        words = [sys.executable, "-m", "tests.fixtures.killed_midway", file, str(advice), str(changes)]
        killed = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        assert killed.returncode == -9, killed.stderr
        assert auto.read_text() != text
        code, output = run("revert", "--json")
        assert code == 0
        assert json.loads(output)["reverted"][0]["left"] == []
        assert is_back(target, before)
        assert entries(auto.read_text()) == entries(text)
        assert json.loads(run("revert", "--json")[1]) == {"reverted": [], "left_alone": [], "failed": []}


def test_a_refused_change_is_reverted_with_what_came_before_it(pair: PlainPair, tmp_path: Path) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        before = everything(target)
        plan = target.configuration.plan(ConfigChange({"checkpoint_timeout": "7min", "work_mem": "nonsense"}))
        with pytest.raises(UsageError, match="everything was reverted"):
            applied(target.configuration, plan, Journal(tmp_path / "j.jsonl"))
        assert is_back(target, before)


def test_what_somebody_else_changed_since_is_left_alone(pair: PlainPair, tmp_path: Path) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        journal = Journal(tmp_path / "j.jsonl")
        target.journal = journal
        changed(target, {"work_mem": "5MB"})
        pair.sql("n1", "ALTER SYSTEM SET work_mem = '6MB'")
        try:
            (left,) = target.revert(journal)
            assert "another user" in left
            assert pair.sql("n1", "SHOW work_mem") == [("6MB",)]
        finally:
            pair.sql("n1", "ALTER SYSTEM RESET work_mem")
            pair.sql("n1", "SELECT pg_reload_conf()")


def test_bad_connection_parameters_get_one_sentence(pair: PlainPair, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="is a standby") as standby, opened(pair_dsn(pair, "n2")):
        pass
    assert str(pair.ports["n1"]) in standby.value.hint
    with pytest.raises(TargetError, match="does not answer"), opened("host=127.0.0.1 port=1 user=postgres"):
        pass
    wrong = tmp_path / "wrong"
    wrong.write_text("*:*:*:*:nonsense\n")
    wrong.chmod(0o600)
    dsn = f"host=127.0.0.1 port={pair.ports['n1']} user=postgres passfile={wrong}"
    with pytest.raises(TargetError, match="password"), opened(dsn):
        pass


def test_a_role_without_rights_learns_which_grant_helps(pair: PlainPair, tmp_path: Path) -> None:
    pair.sql("n1", "CREATE ROLE plain LOGIN PASSWORD 'x'")
    passfile = tmp_path / "pass"
    passfile.write_text("*:*:*:plain:x\n")
    passfile.chmod(0o600)
    try:
        with opened(f"host=127.0.0.1 port={pair.ports['n1']} user=plain dbname=postgres passfile={passfile}") as target:
            assert "rights-missing" in found(target)
            target.journal = Journal(tmp_path / "j.jsonl")
            with pytest.raises(TargetError) as refused:
                changed(target, {"work_mem": "5MB"})
            assert "GRANT" in refused.value.hint
            with pytest.raises(TargetError) as denied:
                target.open_database()
            assert "CREATEDB" in denied.value.hint
    finally:
        pair.sql("n1", "DROP ROLE plain")


def test_data_files_are_checked_once_the_role_has_what_the_hint_grants(pair: PlainPair, tmp_path: Path) -> None:
    pair.sql("n1", "CREATE ROLE plain LOGIN CREATEDB PASSWORD 'x'")
    passfile = tmp_path / "pass"
    passfile.write_text("*:*:*:plain:x\n")
    passfile.chmod(0o600)
    dsn = f"host=127.0.0.1 port={pair.ports['n1']} user=plain dbname=postgres passfile={passfile}"
    template = pair.member_endpoint("n1").client_conninfo(dbname="template1")
    try:
        with opened(dsn) as target, pytest.raises(TargetError, match="role plain may not use amcheck") as refused:
            written_and_checked(target)
        grant = refused.value.hint.removeprefix("as superuser in template1: ")
        with psycopg.connect(template, autocommit=True) as connection:
            connection.execute(grant.encode())
        with opened(dsn) as target:
            assert written_and_checked(target) == ""
    finally:
        with psycopg.connect(template, autocommit=True) as connection:
            connection.execute("DROP EXTENSION IF EXISTS amcheck")
        pair.sql("n1", "DROP ROLE plain")


def written_and_checked(target: ExternalCluster) -> str:
    ledger = target.ledger
    run = ledger.open_ledger(LedgerOrder(Level.LOCAL, writers=1, drill=1, witnesses=False))
    wait_for(Wait.WRITERS_UP, lambda: run.progress().acknowledged > 0, target.clock)
    run.stop()
    return ledger.check_data(target.leader())


SET, RESET = "ALTER SYSTEM SET {}", "ALTER SYSTEM RESET {}"
SEEDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("fsync-off", "n1", ("fsync = off",)),
    ("full-page-writes-off", "n1", ("full_page_writes = off",)),
    ("zero-damaged-pages", "n1", ("zero_damaged_pages = on",)),
    ("ignore-checksum-failure", "n2", ("ignore_checksum_failure = on",)),
    ("commit-delay", "n1", ("commit_delay = 20000",)),
    ("wide-window-of-off", "n1", ("synchronous_commit = off", "wal_writer_delay = '2s'")),
    ("remote-level-no-names", "n1", ("synchronous_commit = remote_apply",)),
    ("level-off", "n1", ("synchronous_commit = off",)),
    ("level-local", "n1", ("synchronous_standby_names = 'n2'", "synchronous_commit = local")),
    ("level-remote-write", "n1", ("synchronous_standby_names = 'n2'", "synchronous_commit = remote_write")),
    ("levels-differ", "n2", ("synchronous_commit = local",)),
    ("names-match-nobody", "n1", ("synchronous_standby_names = 'ANY 1 (n2, ghost)'",)),
    ("names-star", "n1", ("synchronous_standby_names = '*'",)),
    ("quorum-larger-than-connected", "n1", ("synchronous_standby_names = 'ANY 2 (n2, ghost)'",)),
    ("quorum-without-spare", "n1", ("synchronous_standby_names = 'FIRST 1 (n2)'",)),
    ("first-where-any-would-do", "n1", ("synchronous_standby_names = 'FIRST 1 (n2, n3)'",)),
    ("names-lost-at-promotion", "n1", ("synchronous_standby_names = 'n2'",)),
    ("replay-delayed", "n2", ("recovery_min_apply_delay = '5s'",)),
    ("replay-yields-for-ever", "n2", ("max_standby_streaming_delay = -1",)),
    ("receiver-reports-nothing", "n2", ("wal_receiver_status_interval = 0",)),
    ("receiver-timeout-long", "n2", ("wal_receiver_timeout = 0",)),
    ("sender-timeout-off", "n1", ("wal_sender_timeout = 0",)),
    ("sender-timeout-long", "n1", ("wal_sender_timeout = '60s'", "synchronous_standby_names = 'n2'")),
    ("sender-timeout-short", "n1", ("wal_sender_timeout = '1s'",)),
    ("recovery-long", "n1", ("checkpoint_timeout = '2h'",)),
    ("settings-pending", "n1", ("max_connections = 77",)),
)
STANDING = ("keepalives-long", "user-timeout-off", "one-machine", "standby-without-slot")
"""Found on the pair as it is made: nothing of these is set there."""


def reload(pair: PlainPair, member: str, names: tuple[str, ...]) -> None:
    """Reload and wait until new sessions have it: the postmaster reads its files in its own time."""
    from walproof.machine.clock import RealClock

    asked = pair.sql(member, "SELECT clock_timestamp(), pg_reload_conf()")[0][0]
    question = f"SELECT pg_conf_load_time() >= '{asked}'"
    wait_for(Wait.SETTING_IN_EFFECT, lambda: pair.sql(member, question) == [(True,)], RealClock())


def test_each_seed_on_a_real_pair_is_found_and_gone_when_reverted(pair: PlainPair, tmp_path: Path) -> None:
    missed, stayed = [], []
    with opened(str(pair_file(pair, tmp_path))) as target:
        standing = found(target)
        assert set(STANDING) <= standing
        for check, member, settings in SEEDS:
            names = tuple(s.split(" = ")[0] for s in settings)
            kept = {n: v for n, v in pair.sql(member, "SELECT name, setting FROM pg_file_settings") if n in names}
            for one in settings:
                pair.sql(member, SET.format(one))
            reload(pair, member, names)
            missed += [check] if check not in found(target) else []
            for name in names:
                pair.sql(member, SET.format(f"{name} = '{kept[name]}'") if name in kept else RESET.format(name))
            reload(pair, member, names)
            stayed += [check] if check not in standing and check in found(target) else []
    assert missed == []
    assert stayed == []


@pytest.mark.nightly
def test_overrides_paused_replay_slots_and_tables_are_found(pair: PlainPair, tmp_path: Path) -> None:
    made = (
        ("n1", "ALTER ROLE postgres IN DATABASE template1 SET synchronous_commit = off"),
        ("n1", "CREATE DATABASE sick"),
        ("n1", "ALTER DATABASE sick SET synchronous_commit = local"),
        ("n1", "CREATE FUNCTION f() RETURNS int LANGUAGE sql SET synchronous_commit = off RETURN 1"),
        ("n1", "CREATE UNLOGGED TABLE t (a int)"),
        ("n2", "SELECT pg_wal_replay_pause()"),
    )
    taken = (
        ("n2", "SELECT pg_wal_replay_resume()"),
        ("n1", "ALTER ROLE postgres IN DATABASE template1 RESET synchronous_commit"),
        ("n1", "DROP DATABASE sick"),
        ("n1", "DROP FUNCTION f"),
        ("n1", "DROP TABLE t"),
    )
    wanted = {
        "role-overrides-level",
        "database-overrides-level",
        "function-overrides-level",
        "unlogged-tables",
        "replay-paused",
    }
    with opened(str(pair_file(pair, tmp_path))) as target:
        assert not wanted & found(target)
        for member, statement in made:
            pair.sql(member, statement)
        seen = found(target)
        for member, statement in taken:
            pair.sql(member, statement)
        assert wanted <= seen
        assert not wanted & found(target)


def test_a_new_target_is_one_folder_and_one_line(pair: PlainPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observed and written to by the ledger, with no other file touched."""
    monkeypatch.setattr(choose, "TARGETS", [toy.TYPE, *choose.TARGETS])
    target = choose.choose(f"toy:{pair.ports['n1']}:{pair.passfile}")
    view = target.observe()
    assert view.leader == "only"
    able = target.capabilities()
    assert able.ledger is not None
    assert able.why_not(Capability.KILL)
    run = able.ledger.open_ledger(LedgerOrder(Level.LOCAL, writers=2, route="port"))
    wait_for(Wait.WRITERS_UP, lambda: run.progress().acknowledged >= 40, target.clock)
    attempts = run.stop()
    readings = [compared(attempts, able.ledger.read_ledger("only", 0))]
    findings = judged(attempts, readings, lost_rows(attempts, readings))
    pair.sql("n1", "DROP SCHEMA walproof CASCADE")
    assert findings.acknowledged >= 40
    assert (findings.lost, findings.phantom, findings.duplicate, findings.corrupted) == (0, 0, 0, 0)
