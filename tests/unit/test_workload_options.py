"""What a transaction does and how it is sent: options parsed, compared like with like, or refused with the reason."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.estimating.intervals import StoppedBy
from walproof.load.local_runner import LocalProcess, LocalWorkspace
from walproof.load.pgbench import RunningLoad, invocation, protocol_of, scripts_of
from walproof.load.workload_options import parse_workload, scale_on
from walproof.machine.clock import RealClock
from walproof.model.event import SampleDone
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Protocol, Sample, SampleResult, Scenario, Workload, WorkloadKind
from walproof.model.topology import Description, Endpoint
from walproof.pricing.command import PriceResult, consents_needed, result_lines
from walproof.pricing.estimates import price_table
from walproof.pricing.options import parse_options

ENDPOINT = Endpoint((("10.0.0.1", 5432),))


def started(arm: Arm, *, pooled: bool = False) -> tuple[tuple[str, ...], dict[str, str]]:
    endpoint = Endpoint(ENDPOINT.hosts, pooled=pooled)
    made = invocation(arm, endpoint, Path("/r"), 1, pgbench=Path("/bin/pgbench"), timeout_s=9)
    return made.argv[:-1], {name: script.sent for name, script in made.scripts.items()}


@pytest.fixture
def two_scripts(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "a.sql", tmp_path / "b.sql"
    first.write_text("BEGIN ISOLATION LEVEL SERIALIZABLE;\nUPDATE t SET n = n + 1;\nEND;\n")
    second.write_text("SELECT n FROM t;\n")
    return first, second


@each([{"mix": "on=10,local=90"}, {"route": "pgbouncer", "levels": "off,on"}])
def test_every_arm_of_a_run_with_a_pool_or_a_mix_is_sent_alike(more: dict[str, str]) -> None:
    arms = parse_options({"clients": "1,16", **more}).grid.arms
    pooled = more.get("route") == "pgbouncer"
    assert len({arm.workload for arm in arms}) == 1
    assert len({protocol_of(arm, pooled=pooled) for arm in arms}) == 1
    sent = set()
    for arm in arms:
        levels = [level for level, _ in arm.mix] or [arm.level]
        scripts = started(arm, pooled=pooled)[1].values()
        sent |= {
            text.replace(f"synchronous_commit TO {level};", "SET") for text, level in zip(scripts, levels, strict=True)
        }
    assert len(sent) == 1
    assert sent.pop().count("SET LOCAL SET") == 1


def test_the_plain_baseline_of_a_mix_sends_its_level_in_the_transaction_too() -> None:
    baseline, mixed = parse_options({"clients": "4", "mix": "on=10,local=90"}).grid.arms
    assert not baseline.mix
    argv, scripts = started(baseline)
    assert "-b" not in argv
    assert scripts["script.sql"] == started(mixed)[1]["local.sql"]
    assert argv[argv.index("-M") + 1] == started(mixed)[0][argv.index("-M") + 1] == "prepared"


def test_tuning_compares_through_a_pool_only_what_is_all_sent_by_the_simple_protocol() -> None:
    tune = {"tune": True, "limit": "10ms"}
    assert not parse_options(tune).grid.arms[0].workload.per_transaction
    simple = parse_options({**tune, "protocol": "simple"}).grid.arms[0]
    assert simple.workload.per_transaction
    assert protocol_of(simple, pooled=False) is protocol_of(simple, pooled=True) is Protocol.SIMPLE


def test_a_prepared_statement_through_a_pool_is_refused() -> None:
    with pytest.raises(UsageError, match="belongs to one session"):
        parse_workload({"route": "pgbouncer", "protocol": "prepared"})
    assert parse_workload({"route": "pgbouncer", "protocol": "extended"}).protocol is Protocol.EXTENDED


def test_weighted_scripts_run_by_their_weights_and_untouched(two_scripts: tuple[Path, Path]) -> None:
    first, second = two_scripts
    workload = parse_workload({"workload": f"{first}@3,{second}", "max_tries": "5"})
    assert workload.scripts == ((str(first), 3), (str(second), 1))
    assert workload.text == "a.sql@3, b.sql@1"
    arm = parse_options({"workload": f"{first}@3,{second}", "max_tries": "5", "clients": "1"}).grid.arms[0]
    argv, scripts = started(arm)
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "-f"] == ["/r/1.sql@3", "/r/2.sql@1"]
    assert "--max-tries=5" in argv
    assert scripts == {"1.sql": first.read_text(), "2.sql": second.read_text()}


def test_a_mix_of_levels_over_weighted_scripts_has_each_level_on_each_script() -> None:
    arm = parse_options({"workload": "tpcb-like@1,select-only@3", "mix": "on=1,local=3", "clients": "1"}).grid.arms[1]
    argv, _ = started(arm)
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "-f"] == [
        "/r/on-1.sql@625",
        "/r/on-2.sql@1875",
        "/r/local-1.sql@1875",
        "/r/local-2.sql@5625",
    ]


def test_keys_are_skewed_in_our_own_scripts_and_nowhere_else(two_scripts: tuple[Path, Path]) -> None:
    (_, text, _), *_ = scripts_of(parse_workload({"skew": "zipfian:1.1"}))
    assert "1 + permute(random_zipfian(1, 100000 * :scale, 1.1) - 1, 100000 * :scale, 0)" in text
    argv, scripts = started(Arm(parse_options({}).grid.arms[0].level, 1, parse_workload({"skew": "zipfian:1.1"})))
    assert "-b" not in argv
    assert scripts["script.sql"] == text
    with pytest.raises(UsageError, match="draws no keys"):
        parse_workload({"skew": "zipfian:1.1", "workload": str(two_scripts[0])})
    for wrong in ("zipfian", "zipfian:1", "poisson:3", "gaussian:1.5", "zipfian:x"):
        with pytest.raises(UsageError, match="not a distribution"):
            parse_workload({"skew": wrong})


@each([
    ({"workload": "tpcb-like@0,insert"}, "weight of tpcb-like"),
    ({"workload": "tpcb-like@1,"}, "empty entry"),
    ({"workload": "batch:2@1,batch:3@1"}, "two sizes"),
    ({"workload": "nothing@1,insert@1"}, "neither a workload nor a file"),
    ({"protocol": "fast"}, "not a protocol"),
    ({"max_tries": "0"}, "tries"),
    ({"init": "/nowhere.sql"}, "cannot be read"),
    ({"tables": "new"}, "not a choice of --tables"),
    ({"tables": "existing", "init": __file__}, "cannot be used with --tables existing"),
])  # fmt: skip
def test_what_is_not_valid_is_refused_with_the_reason(raw: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_workload(raw)


BATCHES = "INSERT INTO t SELECT generate_series(1, :batch), :'who';\n\\sleep :pause ms\nSELECT 1::int;\n"


def defined(tmp_path: Path, *given: str, **more: str) -> Workload:
    (tmp_path / "own.sql").write_text(BATCHES)
    return parse_workload({"workload": str(tmp_path / "own.sql"), "define": list(given), **more})


def test_variables_of_the_users_scripts_are_pgbenchs_own_and_part_of_what_is_compared(tmp_path: Path) -> None:
    workload = defined(tmp_path, "batch=500", "pause=2", protocol="simple")
    argv, _ = started(Arm(Level.ON, 1, workload))
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "-D"] == ["rows=1", "batch=500", "pause=2"]
    assert workload.manner == "simple protocol, batch=500, pause=2"
    assert workload != defined(tmp_path, "batch=5", "pause=2", protocol="simple")


@each(["_b=1", "b2=a=c", "bé=1", "B='x y'"])
def test_names_of_variables_are_those_that_pgbench_takes(text: str, tmp_path: Path) -> None:
    name, _, value = text.partition("=")
    (tmp_path / "any.sql").write_text(f"SELECT :{name};")
    assert parse_workload({"workload": str(tmp_path / "any.sql"), "define": [text]}).variables == ((name, value),)


@each(
    [
        *((wrong, "is not NAME=VALUE") for wrong in ("batch", "batch=", "=5", "1st=5", "a-b=5", "a b=5", " a=5")),
        *((f"{name}=5", f"{name} is set by") for name in ("scale", "rows", "client_id", "random_seed", "default_seed")),
        *((f"{name}=5", f"-D {name} is used by no script") for name in ("int", "bat", "batches", "wh")),
        ("password=geheim", "looks like a secret"),
        ("api_token=geheim", "looks like a secret"),
        ("batch=postgresql://u:geheim@h/db", "looks like a secret"),
    ]
)
def test_variables_that_pgbench_refuses_or_walproof_sets_or_no_script_reads_are_refused(
    given: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        defined(tmp_path, given)
    assert "geheim" not in refused.value.message


@each([
    ("UPDATE t SET a = a + :step;", 1),
    ("SELECT 1;\n\nSELECT '12:30';", 3),
    ("SELECT a[1:2]\n  FROM t;", 1),
    ("\\set steps 1\nSELECT :step, :steps;", 2),
    ("SELECT 1 -- :x\n  + :y;", 2),
])  # fmt: skip
def test_a_variable_that_nothing_defines_is_refused_with_its_line(script: str, line: int, tmp_path: Path) -> None:
    """pgbench would send NULL for it with prepared statements, and measure that."""
    (tmp_path / "any.sql").write_text(script)
    with pytest.raises(UsageError, match=rf"any.sql, line {line}: nothing defines :"):
        parse_workload({"workload": str(tmp_path / "any.sql")})
    assert parse_workload({"workload": str(tmp_path / "any.sql"), "protocol": "simple"})


@each([
    "SELECT 1::int, now()::timestamp;",
    "SELECT 1; -- of :x\n/* :y */ SELECT 2;",
    "\\set step random(1, 9)\nUPDATE t SET a = :step;",
    "SELECT 7 AS step \\gset\nSELECT :step;",
    "\\SET step 7\nSELECT :step;",
    "SELECT :scale, :client_id, :random_seed;",
    "\\if :client_id > 1\n\\set step 2\n\\else\n\\set step 3\n\\endif\nSELECT :step;",
    "SELECT a[1 : 2] FROM t;",
])  # fmt: skip
def test_a_variable_that_something_defines_is_taken(script: str, tmp_path: Path) -> None:
    (tmp_path / "any.sql").write_text(script)
    assert parse_workload({"workload": str(tmp_path / "any.sql")})


def test_a_variable_is_given_once_and_to_a_script_of_the_users(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names batch twice"):
        defined(tmp_path, "batch=1", "batch=2")
    for workload in ("tpcb-like", "insert@1,select-only@2"):
        with pytest.raises(UsageError, match="-D aid is used by no script"):
            parse_workload({"workload": workload, "define": ["aid=1"]})
    with pytest.raises(UsageError, match="--define needs --driver pgbench"):
        parse_workload({"driver": "sysbench", "define": ["batch=1"]})


def test_a_script_that_cannot_be_sent_alike_is_refused_before_anything_runs(tmp_path: Path) -> None:
    script = tmp_path / "two.sql"
    script.write_text("UPDATE a SET n = 1;\nUPDATE b SET n = 1;\n")
    assert parse_workload({"workload": str(script)}).kind is WorkloadKind.SCRIPT
    for more in ({"mix": "on=1,local=1"}, {"route": "pgbouncer"}):
        with pytest.raises(UsageError, match="each of its 2 statements commits by itself"):
            parse_options({"workload": str(script), **more})


def test_scale_relative_to_memory_is_the_number_it_is_on_the_target() -> None:
    lab = Description("lab", ("n1", "n2", "n3"), {"memory": "12 GiB"}, {"shared_buffers": "327688kB"})
    options = parse_options({"scale": "2xshared_buffers", "clients": "1"})
    assert options.relative_scale and not parse_options({"scale": "30"}).relative_scale
    assert {arm.workload.scale for arm in options.scaled(lab).grid.arms} == {round(2 * 256 * 2**20 / 15_700_000)}
    assert scale_on(lab, "0.5xmemory") == round(0.5 * 4 * 2**30 / 15_700_000)
    with pytest.raises(UsageError, match="memory of theirs cannot be read"):
        scale_on(Description("theirs", ("a",)), "2xmemory")


def test_tables_that_exist_need_their_own_consent() -> None:
    assert consents_needed(parse_options({"tables": "existing"})) == ("load", "existing-tables")
    assert consents_needed(parse_options({})) == ("load",)
    assert parse_workload({"tables": "existing"}) == Workload(existing=True)


def test_tries_again_are_read_from_what_pgbench_says_at_its_end(tmp_path: Path) -> None:
    class Stopped(LocalWorkspace):
        def start(self, argv: Sequence[str], log: str) -> LocalProcess:
            printed = (
                "number of transactions retried: 3 (6%)\ntotal number of retries: 7\n - total number of retries: 2\n"
            )
            return super().start(("printf", "%s", printed), log)

    arm = Arm(Level.ON, 1, Workload(max_tries=5))
    made = invocation(arm, ENDPOINT, tmp_path, 1, pgbench=Path("/bin/pgbench"), timeout_s=9)
    with RunningLoad([(made, Stopped())], RealClock()) as load:
        while not load.ended:
            pass
        assert load.retries == 7


def test_retries_and_failures_of_an_arm_are_in_the_answer() -> None:
    arm = Arm(Level.LOCAL, 2, Workload(max_tries=3))
    result = SampleResult(Sample(1, 0, arm, Scenario()), 0.0, 1.0, 100, 4, 100.0, 2.0, {700: 100}, retries=9)
    table = price_table(
        [SampleDone(1.0, result), SampleDone(2.0, replace(result, sample=Sample(2, 0, arm, Scenario()), retries=1))]
    )
    lines = result_lines(PriceResult(table, StoppedBy.BUDGET))
    assert "local with 2 clients, default settings: 200 transactions committed, 10 tries again, 8 failed." in lines


def test_a_script_that_its_protocol_cannot_send_is_refused(tmp_path: Path) -> None:
    joined, pipeline = tmp_path / "joined.sql", tmp_path / "pipeline.sql"
    joined.write_text("INSERT INTO t VALUES (1) \\; INSERT INTO t VALUES (2);")
    pipeline.write_text("\\startpipeline\nBEGIN;\nINSERT INTO t VALUES (1);\nEND;\n\\endpipeline\n")
    with pytest.raises(UsageError, match="the prepared protocol cannot send two at once"):
        parse_workload({"workload": str(joined)})
    assert parse_workload({"workload": str(joined), "protocol": "simple"}).protocol is Protocol.SIMPLE
    with pytest.raises(UsageError, match="has a pipeline, which the simple protocol lacks"):
        parse_workload({"workload": str(pipeline), "route": "pgbouncer"})
    assert parse_workload({"workload": str(pipeline), "mix": "on=1,local=1"}).per_transaction
