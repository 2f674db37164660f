"""Other programs than pgbench: how they are started, what of their output is the rate, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.tiers import each
from walproof.errors import MachineError, TargetError, UsageError
from walproof.load import workload_options
from walproof.load.driver import (
    LoadRequest,
    SelfTimed,
    SelfTimedLoad,
    command_rate,
    environment,
    self_timed,
    start_load,
    sysbench_rate,
)
from walproof.load.local_runner import LocalWorkspace
from walproof.load.workload_options import parse_workload
from walproof.machine.clock import RealClock
from walproof.model.estimate import bucketed
from walproof.model.guarantee import Level
from walproof.model.sample import SYSBENCH, Arm, Workload, WorkloadKind
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.pricing.options import parse_options

ENDPOINT = Endpoint((("10.0.0.1", 5432), ("10.0.0.2", 5433)), passfile="/x/pgpass", options=(("sslmode", "require"),))
OUTPUT = """sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       1.551 |********                                 1
      12.984 |********************************         4
    1013.597 |**************************************** 5

SQL statistics:
    transactions:                        10     (4.99 per sec.)
    queries:                             60     (29.95 per sec.)
    ignored errors:                      3      (1.50 per sec.)
    reconnects:                          0      (0.00 per sec.)

Latency (ms):
         min:                                    1.54
         avg:                                  512.15
"""


def test_the_output_of_sysbench_is_read_into_rate_errors_and_latencies() -> None:
    found = sysbench_rate(OUTPUT)
    assert found is not None
    assert (found.tps, found.transactions, found.failed, found.mean_ms) == (4.99, 10, 3, 512.15)
    values = np.repeat([1.551, 12.984, 1013.597], [1, 4, 5])
    assert found.histogram == bucketed(values)
    assert sysbench_rate("FATAL: unable to connect") is None


@each([
    ("tps 1234.5", 1234.5),
    ("warming\nTPS = 7\n\n", 7.0),
    ("tps: 12.5\n", 12.5),
    ("tps 5\ndone", None),
    ("", None),
    ("tps -5", None),
    ("tps 1e9", None),
])  # fmt: skip
def test_the_rate_of_a_command_is_its_last_line(output: str, tps: float | None) -> None:
    found = command_rate(output)
    assert (found and found.tps) == tps


def test_the_endpoint_and_the_level_go_into_the_environment() -> None:
    found = environment(ENDPOINT, options="-c synchronous_commit=on")
    assert found == {
        "PGHOST": "10.0.0.1,10.0.0.2",
        "PGPORT": "5432,5433",
        "PGDATABASE": "postgres",
        "PGUSER": "postgres",
        "PGPASSFILE": "/x/pgpass",
        "PGSSLMODE": "require",
        "PGREQUIREAUTH": "!password",
        "PGPASSWORD": "",
        "PGHOSTADDR": "",
        "PGOPTIONS": "-c synchronous_commit=on",
    }


def test_sysbench_runs_whole_seconds_with_as_many_threads_as_clients() -> None:
    workload = Workload(WorkloadKind.SCRIPT, 3, script="oltp_write_only", driver=SYSBENCH)
    made = self_timed(Arm(Level.ON, 8, workload, rate=100.0), ENDPOINT, 1.2, 7, application="a")
    assert made.seconds == 2
    assert {"sysbench", "oltp_write_only", "--threads=8", "--time=2", "--rate=100", "--table-size=3000"} < set(
        made.argv
    )
    assert "PGOPTIONS=-c synchronous_commit=on" in made.argv
    assert made.argv[-1] == "run"


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def ended(load: SelfTimedLoad) -> SelfTimedLoad:
    while not load.ended:
        os.sched_yield()
    return load


def test_a_command_gets_clients_and_seconds_and_its_rate_is_the_sample(tmp_path: Path) -> None:
    script = program(tmp_path / "bench", 'echo "tps $((WALPROOF_CLIENTS * 100))"')
    arm = Arm(Level.ON, 4, Workload(WorkloadKind.SCRIPT, driver=str(script)))
    workspace = LocalWorkspace()
    with start_load(LoadRequest(arm, ENDPOINT, 2.0, 1, Path("/bin/pgbench")), [workspace], RealClock()) as load:
        assert isinstance(load, SelfTimedLoad)
        summary, warm = ended(load).summary(10.0, 12.5)
    assert (summary.credit, summary.transactions, summary.histogram, warm) == (1000.0, 1000, {}, 10.0)


@each([("echo broken; exit 3", "exit code 3 .*broken"), ("echo fine", "printed no rate: fine")])
def test_a_command_that_fails_or_prints_no_rate_is_a_failed_sample(text: str, reason: str, tmp_path: Path) -> None:
    argv = ("env", "A=b", str(program(tmp_path / "bench", text)))
    load = SelfTimedLoad(SelfTimed(argv, 1.0, command_rate), LocalWorkspace())
    with load, pytest.raises(TargetError, match=reason):
        ended(load).summary(0.0, 1.0)


def test_the_processor_time_of_a_command_includes_what_it_started(tmp_path: Path) -> None:
    spin = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
    script = program(tmp_path / "bench", f"sh -c '{spin}'; echo tps 5")
    with SelfTimedLoad(SelfTimed(("env", str(script)), 1.0, command_rate), LocalWorkspace()) as load:
        assert sum(load.used().cpu_s.values()) == 0.0
        assert sum(ended(load).used().cpu_s.values()) > 0.01


def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = program(tmp_path / "bench", f"sleep 60 & echo $! > {tmp_path}/child; echo tps 5; wait")
    with SelfTimedLoad(SelfTimed(("env", str(script)), 1.0, command_rate), LocalWorkspace()) as load:
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
            os.sched_yield()
        load.end(0.01, lambda: None)
        with pytest.raises(TargetError, match="did not end in time"):
            load.summary(0.0, 1.0)
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")

    def dead() -> bool:
        try:
            return child.read_text().split()[2] == "Z"
        except OSError:
            return True

    wait_for(Wait.PROGRAM_GONE, dead, RealClock())  # killed, it still needs a processor to end on


@each([
    ({"driver": "sysbench", "workload": "tpcb-like"}, "not a sysbench test"),
    ({"driver": "sysbench", "protocol": "simple"}, "--protocol needs"),
    ({"driver": "sysbench", "max_tries": "3"}, "--max-tries needs"),
    ({"driver": "sysbench", "route": "pgbouncer"}, "transaction pool cannot pass on"),
    ({"driver": "sh bench.sh", "mix": "on=1,local=1"}, "mix of levels cannot pass on"),
    ({"driver": "sh bench.sh", "workload": "insert"}, "--workload cannot be used"),
    ({"driver": "sh bench.sh", "tune": True, "limit": "5ms"}, "--tune needs latencies"),
    ({"driver": "sysbench", "soak": "10min"}, "--soak needs --driver pgbench"),
    ({"driver": "sh 'bench"}, "cannot be read"),
    ({"driver": " "}, "names no program"),
])  # fmt: skip
def test_what_a_driver_cannot_measure_is_refused_with_the_reason(raw: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_workload(raw)


def test_a_driver_that_is_not_there_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_options, "lookup", lambda _: None)
    with pytest.raises(MachineError, match="sysbench is missing") as raised:
        parse_workload({"driver": "sysbench"})
    assert "sysbench" in str(raised.value.hint)


def test_a_command_is_the_workload_of_every_arm() -> None:
    arms = parse_options({"driver": "sh -c true", "clients": "1", "levels": "on"}).grid.arms
    assert {arm.workload.text for arm in arms} == {"sh -c true"}
