"""Load and ledger on real servers: samples are honest, acknowledgements are kept, cancelled waits counted apart."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import psycopg
import pytest

from tests.fixtures.plain_pair import PlainPair, debian_pair, plain_pair, promote, stop, synchronous
from tests.fixtures.plain_target import PlainTarget
from walproof.errors import MachineError, TargetError
from walproof.lab import network_links
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.load import Attempts, LedgerOrder, LedgerRun, Outcome, Progress, Rows
from walproof.model.sample import Arm, Sample, Scenario, Workload, WorkloadKind
from walproof.model.waiting import Wait, wait_for
from walproof.targets.lab.target import LabTarget
from walproof.targets.sql import workloads
from walproof.targets.sql.ledger import SqlLedger
from walproof.targets.sql.price import SqlPricer

pytestmark = pytest.mark.lab
TIMES = 3.0
SMALL = Workload(scale=1)


@pytest.fixture(scope="module", params=["wheel", pytest.param("debian", marks=pytest.mark.nightly)])
def pair(request: pytest.FixtureRequest) -> Iterator[PlainPair]:
    """A primary and a synchronous standby, on each PostgreSQL that is here."""
    with plain_pair() if request.param == "wheel" else debian_pair() as made:
        synchronous(made, "FIRST 1 (n2)")
        yield made


def until(run: LedgerRun, enough: Callable[[Progress], bool]) -> None:
    """Wait until the ledger's progress is enough."""
    wait_for(Wait.WRITERS_UP, lambda: enough(run.progress()), RealClock(), times=TIMES)


def pairs(writer: np.ndarray, number: np.ndarray) -> set[tuple[int, int]]:
    """(writer, number) of rows or attempts."""
    return set(zip(writer.tolist(), number.tolist(), strict=True))


def chosen(attempts: Attempts, *outcomes: Outcome) -> set[tuple[int, int]]:
    """The attempts that ended so."""
    mask = np.isin(attempts.outcome, outcomes)
    return pairs(attempts.writer[mask], attempts.number[mask])


def held(rows: Rows) -> set[tuple[int, int]]:
    """What a member holds."""
    return pairs(rows.writer, rows.number)


def pricer(pair: PlainPair) -> SqlPricer:
    """A pricer over the pair."""
    target = PlainTarget(pair)
    return SqlPricer(target, pgbench=pair.bin / "pgbench", pids=target.pids)


@pytest.mark.parametrize(
    "arm",
    [
        Arm(Level.OFF, 2, SMALL),
        Arm(Level.ON, 4, Workload(WorkloadKind.INSERT)),
        Arm(Level.ON, 2, Workload(WorkloadKind.BATCH, rows=10)),
        Arm(Level.ON, 4, SMALL, mix=((Level.ON, 50.0), (Level.LOCAL, 50.0))),
        Arm(Level.LOCAL, 2, SMALL, rate=50.0),
        Arm(Level.ON, 2, SMALL, "pgbouncer"),
    ],
    ids=["tpcb", "insert", "batch", "mix", "rate", "pooled"],
)
def test_a_sample_counts_the_commits_that_the_server_counts(pair: PlainPair, arm: Arm) -> None:
    load = pricer(pair)
    load.prepare(arm.workload)
    table = "walproof.inserted" if arm.workload.kind in (WorkloadKind.INSERT, WorkloadKind.BATCH) else "pgbench_history"
    before = int(str(pair.sql("n1", f"SELECT count(*) FROM {table}")[0][0]))
    found = load.run_sample(Sample(0, 0, arm, Scenario()), 0.6, 1)
    added = int(str(pair.sql("n1", f"SELECT count(*) FROM {table}")[0][0])) - before
    assert found.transactions * arm.workload.rows == added > 0
    assert 0 < sum(found.histogram.values()) <= found.transactions
    assert found.tps > 0
    assert found.mean_ms > 0
    # How long is left of a sample once every client is warm is the machine's affair; what was counted in it is not.
    assert found.seconds > 0
    assert found.tps * found.seconds <= found.transactions + 1e-6
    assert found.failed == 0
    assert found.window.standby_names == "FIRST 1 (n2)"
    assert found.window.streaming == 1
    assert found.window.waits
    assert set(found.window.members) == {"n1", "n2"}
    assert (found.window.members["n1"].wal_bytes or 0) > 0
    assert set(found.per_level) == {str(level) for level, _ in arm.mix}
    if arm.mix:
        assert sum(sum(h.values()) for h in found.per_level.values()) <= found.transactions


def test_page_images_of_a_short_sample_are_of_all_its_wal_or_not_known(pair: PlainPair) -> None:
    """Busy backends report their WAL once a second: of half a second none may be reported yet, and that is not 0."""
    arm = Arm(Level.LOCAL, 4, Workload(scale=5))
    load = pricer(pair)
    load.prepare(arm.workload)
    for number, seconds in enumerate((0.5, 0.5, 0.5, 3.0)):
        pair.sql("n1", "CHECKPOINT")
        found = load.run_sample(Sample(number, number, arm, Scenario()), seconds, number)
        leader = found.window.members["n1"]
        assert leader.wal_bytes is not None
        # Nothing but page images makes a transaction of pgbench write more than this.
        if leader.wal_bytes > 2_000 * found.transactions:
            assert leader.wal_full_pages is None or leader.wal_full_pages > leader.wal_bytes / 8192 / 4, leader
    assert leader.wal_full_pages is not None


def page_images(pair: PlainPair, row: int) -> int:
    """Full-page images of changing that row in each page of pgbench_accounts."""
    change = f"UPDATE pgbench_accounts SET abalance = 1 WHERE aid % 61 = {row}"
    ((plan,),) = pair.sql("n1", f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) {change}")
    assert isinstance(plan, list)
    return int(plan[0]["Plan"]["WAL FPI"])


def test_measuring_begins_without_the_page_images_that_follow_a_checkpoint(pair: PlainPair) -> None:
    workload = Workload(scale=2)
    pricer(pair).prepare(workload)
    loaded = page_images(pair, 5)
    pair.sql("n1", "CHECKPOINT")
    unprepared = page_images(pair, 6)
    pair.sql("n1", "CHECKPOINT")
    pricer(pair).prepare(workload)
    again = page_images(pair, 7)
    assert unprepared > 1000
    assert max(loaded, again) < 0.02 * unprepared


def test_a_checkpoint_still_running_when_the_tables_are_loaded_costs_no_page_images_either(
    pair: PlainPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = workloads._Loader.load
    writing = "SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    with contextlib.closing(psycopg.connect(pair.member_endpoint("n1").client_conninfo(), autocommit=True)) as backup:

        def then_checkpoint(loader: workloads._Loader, scale: int) -> None:
            load(loader, scale)
            backup.pgconn.send_query(b"SELECT pg_backup_start('spread', false)")  # a checkpoint that takes its time
            wait_for(Wait.PROGRAM_READY, lambda: pair.sql("n1", writing) == [("CheckpointWriteDelay",)], RealClock())

        monkeypatch.setattr(workloads._Loader, "load", then_checkpoint)
        pricer(pair).prepare(Workload(scale=3))
        still = pair.sql("n1", writing)
        images = page_images(pair, 5)
        pair.sql("n1", "CHECKPOINT")
    assert still != [("CheckpointerMain",)]
    assert images < 50


def test_tables_of_somebody_else_are_never_touched(pair: PlainPair) -> None:
    pair.sql("n1", "DROP TABLE IF EXISTS walproof.walproof_ledger")
    pair.sql("n1", "CREATE SCHEMA IF NOT EXISTS walproof")
    pair.sql("n1", "CREATE TABLE walproof.walproof_ledger (mine text)")
    try:
        ledger = SqlLedger(PlainTarget(pair))
        with pytest.raises(MachineError, match="not walproof's"):
            ledger.open_ledger(LedgerOrder(Level.ON, writers=1))
        assert pair.sql("n1", "SELECT count(*) FROM walproof.walproof_ledger") == [(0,)]
    finally:
        pair.sql("n1", "DROP TABLE walproof.walproof_ledger")


def test_every_acknowledged_row_is_on_both_members_and_the_readers_saw_them(pair: PlainPair) -> None:
    ledger = SqlLedger(PlainTarget(pair))
    run = ledger.open_ledger(LedgerOrder(Level.REMOTE_APPLY, writers=6, drill=1))
    # A process that lives need not have written yet.
    writing = "SELECT count(DISTINCT writer) FROM walproof.walproof_ledger WHERE drill = 1"
    until(run, lambda p: p.acknowledged >= 200 and p.writers_alive == 6 == pair.sql("n1", writing)[0][0])
    attempts = run.stop()
    acknowledged = chosen(attempts, Outcome.ACKNOWLEDGED)
    assert {int(w) for w in np.unique(attempts.writer)} == set(range(6))
    # Attempts that stop() interrupted came back with nothing: no names and no end.
    answered = attempts.outcome == Outcome.ACKNOWLEDGED
    assert [attempts.standby_names[i] for i in np.unique(attempts.names[answered])] == ["FIRST 1 (n2)"]
    assert np.unique(attempts.timeline[answered]).tolist() == [1]
    assert (attempts.lsn[answered] > 0).all()
    assert (attempts.ended >= attempts.started)[answered].all()
    for member in ("n1", "n2"):
        rows = ledger.read_ledger(member, 1)
        assert acknowledged <= held(rows)
        assert (rows.checksum == rows.stated).all()
        assert ledger.check_data(member) == ""
    fresh, missed = run.witnessed().fresh_somewhere
    assert missed == 0, f"{fresh} fresh at remote_apply"
    assert set(run.witnessed().seen_on_leader) <= pairs(attempts.writer, attempts.number)
    assert run.stop() is attempts


def test_through_a_pool_each_row_carries_level_server_and_timeline(pair: PlainPair) -> None:
    ledger = SqlLedger(PlainTarget(pair))
    run = ledger.open_ledger(LedgerOrder(Level.REMOTE_WRITE, writers=2, route="pgbouncer", drill=2, witnesses=False))
    until(run, lambda p: p.acknowledged >= 20)
    attempts = run.stop()
    assert chosen(attempts, Outcome.ACKNOWLEDGED) <= held(ledger.read_ledger("n1", 2))
    assert [server.split()[0] for server in attempts.servers] == ["127.0.0.1"]
    assert np.unique(attempts.timeline[attempts.outcome == Outcome.ACKNOWLEDGED]).tolist() == [1]


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A postmaster and its children stopped while the block runs."""
    everyone = [pid, *(child.pid for child in psutil.Process(pid).children())]
    for process in everyone:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


WAITING = "SELECT {what} FROM pg_stat_activity WHERE application_name = 'walproof-ledger' AND wait_event = 'SyncRep'"


def test_a_cancelled_wait_is_downgraded_and_a_terminated_one_unknown(pair: PlainPair) -> None:
    ledger = SqlLedger(PlainTarget(pair))
    run = ledger.open_ledger(LedgerOrder(Level.ON, writers=3, drill=3, witnesses=False))
    until(run, lambda p: p.acknowledged >= 30)

    def all_waiting() -> bool:
        return int(str(pair.sql("n1", WAITING.format(what="count(*)"))[0][0])) >= 3

    with frozen(pair.postmaster("n2")):
        wait_for(Wait.SETTING_IN_EFFECT, all_waiting, RealClock(), times=TIMES)
        cancelled = pair.sql("n1", WAITING.format(what="pg_cancel_backend(pid)"))
        wait_for(Wait.SETTING_IN_EFFECT, all_waiting, RealClock(), times=TIMES)
        ended = pair.sql("n1", WAITING.format(what="pg_terminate_backend(pid)"))
        assert run.progress().writers_alive == 3
        attempts = run.stop()
    assert len(cancelled) >= 3
    assert len(ended) >= 3
    assert len(chosen(attempts, Outcome.DOWNGRADED)) >= 3
    assert len(chosen(attempts, Outcome.UNKNOWN)) >= 3
    # Both kinds are on the primary and were never confirmed (pitfalls P1 and P2).
    assert chosen(attempts, Outcome.DOWNGRADED) <= held(ledger.read_ledger("n1", 3))


def test_without_a_standby_a_sample_says_so_and_ends(pair: PlainPair) -> None:
    load = pricer(pair)
    load.prepare(Workload(WorkloadKind.INSERT))
    with frozen(pair.postmaster("n2")), pytest.MonkeyPatch.context() as patch:
        patch.setattr("walproof.targets.sql.price._GRACE_S", 1.0)
        with pytest.raises(TargetError):
            load.run_sample(Sample(0, 0, Arm(Level.ON, 2, Workload(WorkloadKind.INSERT)), Scenario()), 0.5, 1)


def test_writers_find_the_promoted_standby_and_loss_shows() -> None:
    with plain_pair() as own:
        ledger = SqlLedger(PlainTarget(own))
        run = ledger.open_ledger(LedgerOrder(Level.LOCAL, writers=4, drill=9))
        until(run, lambda p: p.acknowledged >= 100)
        stop(own, "n1")
        promote(own)
        before = run.progress().acknowledged
        until(run, lambda p: p.acknowledged >= before + 100)
        attempts = run.stop()
        assert set(attempts.timeline.tolist()) == {1, 2}
        late = attempts.timeline == 2
        kept = held(ledger.read_ledger("n2", 9))
        done = attempts.outcome == Outcome.ACKNOWLEDGED
        assert pairs(attempts.writer[late & done], attempts.number[late & done]) <= kept
        assert len(chosen(attempts, Outcome.UNKNOWN)) <= 2 * 4 + 4


def named(target: LabTarget, beginning: str) -> None:
    """Wait for standby names that begin so: after a failover, too, which a starved machine may have caused."""
    wait_for(
        Wait.QUORUM_NAMED,
        lambda: target.observe().standby_names.startswith(beginning),
        RealClock(),
        times=TIMES,
    )


def test_the_labs_factors_are_entered_measured_and_reverted(lab: Blueprint) -> None:
    target = LabTarget(lab)
    setting = Scenario(quorum_kind=QuorumKind.ANY, quorum=2, rtt_ms=8.0, parameters=(("commit_delay", "50"),))
    target.pricing.prepare(SMALL)
    try:
        measured = target.pricing.enter(setting)
        assert set(measured) == {"n1-n2", "n1-n3", "n2-n3"}
        assert min(trips[0] for trips in measured.values()) >= 7.5
        named(target, "ANY 2")
        found = target.pricing.run_sample(Sample(0, 0, Arm(Level.ON, 2, SMALL, "pgbouncer", pool=10), setting), 1.0, 1)
        assert found.transactions > 0
        assert found.mean_ms >= 7.5
        assert found.window.standby_names.startswith("ANY 2")
        target.pricing.enter(Scenario(rtt_ms=8.0))
        named(target, "ANY 1")
    finally:
        target.pricing.leave()
    target.pricing.enter(Scenario())
    assert not any(link.delay_s for link in network_links.configured(lab).settings.values())
    named(target, "ANY 1")
