"""A user's scripts, tables and programs on real servers: run as written, at the level of their arm."""

import shutil
from pathlib import Path

import pytest

from tests.fixtures.plain_pair import PlainPair, synchronous
from tests.fixtures.plain_target import PlainTarget
from walproof.errors import UsageError
from walproof.model.guarantee import Level
from walproof.model.sample import SYSBENCH, Arm, Protocol, Sample, SampleResult, Scenario, Workload, WorkloadKind
from walproof.targets.sql.price import SqlPricer

pytestmark = pytest.mark.lab
SEEN = "current_setting('transaction_isolation'), current_setting('synchronous_commit')"


@pytest.fixture(scope="module", autouse=True)
def waits_for_the_standby(pair: PlainPair) -> None:
    synchronous(pair, "FIRST 1 (n2)")


def run(pair: PlainPair, arm: Arm) -> SampleResult:
    target = PlainTarget(pair)
    load = SqlPricer(target, pgbench=pair.bin / "pgbench", pids=target.pids)
    load.prepare(arm.workload)
    return load.run_sample(Sample(0, 0, arm, Scenario()), 0.5, 1)


@pytest.fixture
def ours(tmp_path: Path) -> tuple[Path, Path]:
    """A file that makes a table, and a script that writes into it what it sees of its transaction."""
    init, script = tmp_path / "init.sql", tmp_path / "mine.sql"
    init.write_text(
        "DROP TABLE IF EXISTS seen;\nCREATE TABLE seen (isolation text, level text);\n"
        "COPY seen FROM stdin;\na\tb\n\\.\n"
    )
    script.write_text(
        "-- BEGIN;\nBEGIN ISOLATION LEVEL SERIALIZABLE;\nDO $$ BEGIN NULL; END $$;\n"
        f"INSERT INTO seen SELECT {SEEN} WHERE 1 = :one;\nEND;\n"
    )
    return init, script


@pytest.mark.parametrize(
    "protocol", [pytest.param(p, marks=pytest.mark.nightly) if p == Protocol.EXTENDED else p for p in Protocol]
)
@pytest.mark.parametrize("inside", [False, True], ids=["session", "transaction"])
def test_a_script_keeps_its_isolation_and_gets_the_level(
    pair: PlainPair, ours: tuple[Path, Path], protocol: Protocol, inside: bool
) -> None:
    init, script = ours
    workload = Workload(
        WorkloadKind.SCRIPT,
        script=str(script),
        init=str(init),
        protocol=protocol,
        per_transaction=inside,
        max_tries=3,
        variables=(("one", "1"),),
    )
    pair.sql("n1", "DROP SCHEMA IF EXISTS walproof CASCADE")
    found = run(pair, Arm(Level.REMOTE_WRITE, 2, workload))
    rows = pair.sql("n1", "SELECT isolation, level, count(*) FROM seen GROUP BY 1, 2 ORDER BY 1")
    assert [tuple(map(str, row)) for row in rows] == [
        ("a", "b", "1"),
        ("serializable", "remote_write", str(found.transactions)),
    ]
    again = run(pair, Arm(Level.LOCAL, 1, workload))
    assert again.transactions > 0
    assert str(pair.sql("n1", "SELECT count(*) FROM seen WHERE isolation = 'a'")[0][0]) == "1"


def test_tables_that_exist_stay_and_their_scale_must_be_right(pair: PlainPair) -> None:
    run(pair, Arm(Level.LOCAL, 1, Workload(scale=1)))
    found = run(pair, Arm(Level.LOCAL, 1, Workload(scale=1, existing=True, skew="zipfian:1.2")))
    assert found.transactions > 0
    with pytest.raises(UsageError, match="have scale 1, not 7"):
        run(pair, Arm(Level.LOCAL, 1, Workload(scale=7, existing=True)))


def test_any_program_that_prints_a_rate_is_a_driver(pair: PlainPair, tmp_path: Path) -> None:
    program = tmp_path / "bench"
    psql = pair.bin / "psql"
    program.write_text(
        "#!/bin/sh\n"
        f'level=$({psql} -XAtc "SHOW synchronous_commit") && [ "$level" = off ] || exit 7\n'
        'sleep "$WALPROOF_SECONDS"\necho "tps $((WALPROOF_CLIENTS * 10))"\n'
    )
    program.chmod(0o755)
    found = run(pair, Arm(Level.OFF, 3, Workload(WorkloadKind.SCRIPT, driver=str(program))))
    assert found.tps == pytest.approx(30.0)
    assert found.histogram == {}


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which(SYSBENCH) is None, reason="apt-get install --no-install-recommends sysbench")
def test_sysbench_is_a_driver(pair: PlainPair) -> None:
    workload = Workload(WorkloadKind.SCRIPT, 1, script="oltp_write_only", driver=SYSBENCH)
    found = run(pair, Arm(Level.ON, 2, workload))
    assert found.tps > 0
    assert 0 < sum(found.histogram.values()) == found.transactions
