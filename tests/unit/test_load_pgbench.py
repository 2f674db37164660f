"""Samples without a server: how pgbench is called, its logs as columns, statistics read during a sample."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.errors import MachineError, UsageError
from walproof.load import local_runner
from walproof.load.local_runner import Machine, Used, machine_usage, used
from walproof.load.pgbench import APPLICATION, invocation, scripts_of
from walproof.load.pgbench_log import columns, pieces, summary, warm_from
from walproof.load.sampler import Counters, Polled, Snapshot, window
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Scenario, Workload, WorkloadKind
from walproof.model.topology import Endpoint
from walproof.targets.lab.scenarios import wanted

ENDPOINT = Endpoint((("10.0.0.1", 5432),), passfile="/x/pgpass")
PGBENCH = Path("/bin/pgbench")


def argv(arm: Arm) -> tuple[str, ...]:
    return invocation(arm, ENDPOINT, Path("/work"), 7, pgbench=PGBENCH, timeout_s=60).argv


def after(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_built_in_workload_runs_prepared_with_the_level_in_the_session() -> None:
    arguments = argv(Arm(Level.REMOTE_APPLY, 16))
    assert after(arguments, "-M") == "prepared"
    assert after(arguments, "-b") == "tpcb-like"
    assert after(arguments, "-c") == "16"
    assert after(arguments, "--random-seed") == "7"
    assert "synchronous_commit=remote_apply" in arguments[-1]
    assert APPLICATION in arguments[-1]
    assert after(argv(Arm(Level.ON, 4, rate=250.0)), "-R") == "250"
    assert after(argv(Arm(Level.ON, 1, Workload(WorkloadKind.BATCH, rows=50))), "-D") == "rows=50"


def test_the_password_is_never_on_the_command_line() -> None:
    assert "passfile='/x/pgpass'" in argv(Arm(Level.ON, 1))[-1]
    assert not any(re.search("password='[^']", word) for word in argv(Arm(Level.ON, 1)))


def test_through_a_pool_the_level_goes_into_each_transaction() -> None:
    pooled = replace(ENDPOINT, pooled=True)
    made = invocation(Arm(Level.ON, 4, route="pgbouncer"), pooled, Path("/r"), 1, pgbench=PGBENCH, timeout_s=9)
    assert after(made.argv, "-M") == "simple"
    assert "synchronous_commit" not in made.argv[-1]
    assert "BEGIN\\;SET LOCAL synchronous_commit TO on;" in made.scripts["script.sql"].sent


def test_a_mix_is_one_weighted_script_per_level() -> None:
    mix = ((Level.ON, 10.0), (Level.LOCAL, 90.0))
    made = invocation(Arm(Level.ON, 4, mix=mix), ENDPOINT, Path("/r"), 1, pgbench=PGBENCH, timeout_s=9)
    assert made.levels == (Level.ON, Level.LOCAL)
    assert "/r/on.sql@1000" in made.argv
    assert "/r/local.sql@9000" in made.argv
    assert "SET LOCAL synchronous_commit TO local;" in made.scripts["local.sql"].sent
    assert "BEGIN;\nSET LOCAL" in made.scripts["on.sql"].sent


def test_an_unreadable_script_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        scripts_of(Workload(WorkloadKind.SCRIPT, script=str(tmp_path / "none.sql")))
    empty = tmp_path / "empty.sql"
    empty.write_text("-- nothing\n\\set a 1\n")
    with pytest.raises(UsageError, match="holds no SQL"):
        scripts_of(Workload(WorkloadKind.SCRIPT, script=str(empty)))


def log(lines: list[tuple[int, int, str, int, int]]) -> bytes:
    return "".join(f"{c} {n} {lat} {s} {us // 10**6} {us % 10**6}\n" for c, n, lat, s, us in lines).encode()


LINES = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.integers(0, 10**6),
        st.integers(1, 10**8),
        st.integers(0, 3),
        st.integers(10**15, 2 * 10**15),
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(LINES)
def test_log_columns_are_what_was_written(lines: list[tuple[int, int, int, int, int]]) -> None:
    found = columns(log([(c, n, str(lat), s, us) for c, n, lat, s, us in lines]))
    assert found.latency_us.tolist() == [line[2] for line in lines]
    assert found.script.tolist() == [line[3] for line in lines]
    assert found.end_us.tolist() == [line[4] for line in lines]


@settings(max_examples=20, deadline=None)
@given(LINES, st.integers(30, 400))
def test_pieces_of_any_size_hold_every_complete_line(lines: list[tuple[int, int, int, int, int]], size: int) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(log([(c, n, str(lat), s, us) for c, n, lat, s, us in lines]) + b"1 2 3")
        file.flush()
        found = [int(v) for piece in pieces(Path(file.name), size) for v in piece.latency_us]
    assert found == [line[2] for line in lines]


def test_failed_and_skipped_transactions_are_counted_apart() -> None:
    found = columns(log([(0, 1, "500", 0, 10**15), (0, 2, "failed", 0, 10**15), (1, 1, "skipped", 0, 10**15)]))
    assert (found.latency_us.tolist(), found.failed) == ([500], 2)


def test_lines_with_lag_are_read_too_and_uneven_lines_refused() -> None:
    line = b"0 1 500 0 1000000000 5 77\n"
    assert columns(line).latency_us.tolist() == [500]
    assert (columns(line).lag_us.tolist(), columns(line, paced=True).lag_us.tolist()) == ([0], [77])
    with pytest.raises(MachineError):
        columns(line + b"0 1 500 0 1000000000 5\n")


def test_throughput_credit_counts_the_share_within_the_sample(tmp_path: Path) -> None:
    second = 10**6
    (tmp_path / "log.1").write_bytes(
        log(
            [
                (0, 1, str(second), 0, 1001 * second),
                (0, 2, str(second), 0, 1002 * second),
                (0, 3, str(second), 0, 1003 * second),
            ]
        )
    )
    found = summary([tmp_path / "log.1"], since=1000.5, until=1002.25)
    assert (found.transactions, sum(found.histogram.values())) == (3, 2)
    assert found.credit == pytest.approx(1.75)
    assert (found.began, found.ended, found.mean_ms) == (1001.0, 1003.0, 1000.0)


def test_a_sample_counts_once_every_client_ended_its_second_transaction_but_from_half_way_at_the_latest(
    tmp_path: Path,
) -> None:
    ends = [(0, 1, 1001), (0, 2, 1002), (1, 1, 1003), (0, 3, 1003), (1, 2, 1004), (0, 4, 1005), (2, 1, 1009)]
    (tmp_path / "log.1").write_bytes(log([(c, n, "1000", 0, at * 10**6) for c, n, at in ends]))
    logs = [tmp_path / "log.1"]
    assert warm_from(logs, since=1000.0, until=1010.0) == 1004.0
    assert warm_from(logs, since=1000.0, until=1006.0) == 1003.0
    assert warm_from(logs, since=1005.0, until=1010.0) == 1005.0
    (tmp_path / "log.1").write_bytes(b"")
    assert warm_from(logs, since=1000.0, until=1010.0) == 1000.0


def test_each_class_of_a_mix_has_its_histogram(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_bytes(
        log([(0, 1, "1000", 0, 10**15), (0, 2, "2000", 1, 10**15), (0, 3, "2000", 1, 10**15)])
    )
    found = summary([tmp_path / "log.1"], scripts=2)
    assert {number: sum(h.values()) for number, h in found.per_script.items()} == {0: 1, 1: 2}
    assert found.histogram == {694: 1, 763: 2}


def snapshot(at: float, **more: object) -> Snapshot:
    base: dict[str, object] = {
        "counters": {},
        "members": {},
        "machine": Machine(0, 0, 0, 0),
        "client": Used({}, {}, {}),
        "known": Used({}, {}, {}),
    }
    return Snapshot(at, **{**base, **more})  # type: ignore[arg-type]


def test_a_window_is_the_difference_of_its_ends() -> None:
    before = snapshot(
        0.0,
        counters={"n1": Counters(100, 10, 5.0, 3, "ANY 1 (n2)", 1)},
        members={"n1": Used({1: 1.0}, {1: 0}, {1: 100})},
        client=Used({9: 0.0}, {}, {}),
        known=Used({1: 1.0}, {}, {}),
    )
    later = snapshot(
        2.0,
        counters={"n1": Counters(1100, 30, 15.0, 4, "ANY 1 (n2)", 1)},
        members={"n1": Used({1: 2.0}, {1: 7}, {1: 300})},
        machine=Machine(4.0, 3.0, 3.5, 0.0),
        client=Used({9: 0.5}, {}, {}),
        known=Used({1: 2.0}, {}, {}),
    )
    seen = window(before, later, Polled(waits={"cpu": 3, "IPC:SyncRep": 1}, lags={"n2": [(1.0, None, 3.0)]}), "n1")
    member = seen.members["n1"]
    assert (member.cpu_cores, member.wal_bytes, member.wal_flushes, member.wal_flush_ms) == (0.5, 1000, 20, 0.5)
    assert (member.disk_reads, member.disk_writes) == (7, 200)
    assert seen.waits == {"IPC:SyncRep": 0.25, "cpu": 0.75}
    assert (seen.client_cores, seen.machine_busy, seen.checkpoints, seen.streaming) == (0.25, 0.875, 1, 1)
    assert seen.stolen == pytest.approx((3.0 - 0.5 - 1.0) / 4.0)


# rows: nothing reported yet, too little, half of it, none in all, older WAL too, no WAL, an old record
@each([
    (100_000, 0, 0, None),
    (100_000, 49_000, 20, None),
    (100_000, 50_000, 20, 40),
    (100_000, 100_000, 0, 0),
    (100_000, 200_000, 40, 20),
    (0, 0, 0, None),
    (100_000, None, 20, None),
])  # fmt: skip
def test_full_pages_are_those_of_the_wal_that_statistics_report(
    written: int, reported: int | None, pages: int, known: int | None
) -> None:
    """As PostgreSQL 15 under four clients reports it: 2.7 of 6.0 MB written, 333 of about 740 page images."""
    then = Counters(1000, 50, 9.0, 9, "", 0, 7, None if reported is None else 900)
    now = replace(then, lsn=1000 + written, full_pages=7 + pages, reported_wal=reported and 900 + reported)
    now = replace(now, reported_wal=900) if reported == 0 else now
    member = window(snapshot(0.0, counters={"n1": then}), snapshot(0.5, counters={"n1": now}), Polled(), "n1").members[
        "n1"
    ]
    assert (member.wal_bytes, member.wal_full_pages) == (written, known)


def test_a_member_that_restarted_has_unknown_counters_not_negative_ones() -> None:
    before = snapshot(0.0, counters={"n1": Counters(1000, 50, 9.0, 9, "", 0)})
    later = snapshot(1.0, counters={"n1": Counters(10, 1, 0.0, 0, "", 0)})
    member = window(before, later, Polled(), "n1").members["n1"]
    assert (member.wal_bytes, member.wal_flushes, member.wal_flush_ms) == (None, None, None)


def test_the_lags_of_a_standby_are_means_of_what_was_reported() -> None:
    both = {"n2": Counters(1, None, None, 0, "", 0)}
    polled = Polled(lags={"n2": [(1.0, 2.0, None), (3.0, 4.0, None)]})
    member = window(snapshot(0.0, counters=both), snapshot(1.0, counters=both), polled, "n1").members["n2"]
    assert (member.write_lag_ms, member.flush_lag_ms, member.replay_lag_ms) == (2.0, 3.0, None)


def test_processes_and_machine_are_read_from_proc() -> None:
    import os

    member = used([os.getpid(), 2**22 + 1])
    assert set(member.cpu_s) == {os.getpid()}
    assert 0 < machine_usage().busy <= machine_usage().total


def test_a_scenario_names_its_factors() -> None:
    found = wanted(Scenario(quorum=2, cores=0.5, rtt_ms=3.0, regions="europe", parameters=(("commit_delay", "10"),)))
    assert found == {
        "parameters": (("commit_delay", "10"),),
        "quorum": ("ANY", 2, None),
        "cores": 0.5,
        "links": ("regions", "europe"),
    }
    assert wanted(Scenario()) == {}


def test_the_work_directory_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_runner, "_MEMORY", tmp_path)
    here, dead = local_runner._prefix(), 2**22 + 1
    stay = [f"{here}{os.getpid()}-x", f"{local_runner.PREFIX}00000000-{dead}-of-another-container"]
    for name in (f"{here}{dead}-x", *stay):
        (tmp_path / name).mkdir()
    made = local_runner.new_work_directory()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*stay, made.name])
