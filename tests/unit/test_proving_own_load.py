"""`walproof prove --workload`: the user's own transactions beside the ledger, on a simulated cluster that runs them."""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from walproof.errors import TargetError, UsageError
from walproof.model.event import DrillDone, LoadSeen, Note
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder, LedgerRun, LoadFigures, LoadLimits
from walproof.model.ports import Capabilities
from walproof.model.sample import Arm, Workload
from walproof.proving.options import parse_options
from walproof.records.reader import read
from walproof.targets.simulated.cluster import Nature
from walproof.targets.simulated.target import Simulated

Run = Callable[..., tuple[int, str, str]]


@dataclass
class Workloads:
    """Notes what is asked of it; says once that clients are gone."""

    refuses: UsageError | TargetError | None = None
    prepared: list[Workload] = field(default_factory=list)
    opened: list[Arm] = field(default_factory=list)
    faults: list[float] = field(default_factory=list)
    closed: int = 0
    told: int = 0

    def prepare(self, workload: Workload) -> None:
        self.prepared.append(workload)

    def open_load(self, arm: Arm, seed: int) -> "Workloads":
        if self.refuses is not None:
            raise self.refuses
        self.opened.append(arm)
        self.told = 0
        return self

    def keep_up(self, led: object, patience_s: float) -> str:
        self.told += 1
        return "its clients are gone (server closed)" if self.told == 9 else ""

    def seen(self, fault_at: float) -> LoadFigures:
        self.faults.append(fault_at)
        return LoadFigures(812.4, 7.31, 790.0, 2, 1)

    def close(self) -> None:
        self.closed += 1


class Able(Simulated):
    """A simulated cluster on which workloads "run", and whose ledger's orders are kept."""

    def __init__(self) -> None:
        super().__init__(Nature(slowness=3))
        self.loads, self.limits = Workloads(), LoadLimits()
        self.orders: list[LedgerOrder] = []
        opens = self.ledger.open_ledger

        def noted(order: LedgerOrder) -> LedgerRun:
            self.orders.append(order)
            return opens(replace(order, rate=None))

        self.ledger.open_ledger = noted  # type: ignore[method-assign,assignment]

    def capabilities(self) -> Capabilities:
        able = super().capabilities()
        return replace(able, workload=self.loads, limits=self.limits)  # type: ignore[arg-type]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Able:
    """The cluster that every --target means."""
    one = Able()
    monkeypatch.setattr(importlib.import_module("walproof.cli.prove"), "choose", lambda text: one)
    return one


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `prove` in an empty directory with a script; exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    Path("own.sql").write_text("UPDATE t SET n = n + :step;")
    return lambda *words: ended(capsys, ["prove", *words])


OWN = ("--workload", "own.sql@3,insert@1", "-D", "step=2", "--clients", "6", "--levels", "off,on")


def test_the_workload_runs_beside_every_drill_at_its_level_and_what_it_saw_is_told(run: Run, target: Able) -> None:
    code, out, err = run(*OWN, "--route", "haproxy", "--max-tries", "3", "--record", "rec", "--json")
    assert code == 0, err
    assert {arm.level for arm in target.loads.opened} == {Level.OFF, Level.ON}
    arm = target.loads.opened[0]
    assert (arm.clients, arm.route, arm.workload.variables) == (6, "haproxy", (("step", "2"),))
    assert arm.workload.max_tries == 3 and len(target.loads.prepared) == 1
    assert target.loads.closed == len(target.loads.opened) == 2
    told = json.loads(out)
    assert [one["number"] for one in told["load"]] == [1, 2] and told["load"][0]["figures"]["outage_s"] == 7.31
    record = read(Path("rec"))
    assert next(e.text for e in record.events if isinstance(e, LoadSeen)) == (
        "drill 1, own.sql@3, insert@1 with 6 clients: 812/s before the fault, none for 7.3 s after it, then 790/s,"
        " 2 failed; clients lost 1 time"
    )
    assert any("its clients are gone (server closed)" in e.text for e in record.events if isinstance(e, Note))
    assert {path.name for path in record.kept()} >= {"1-own.sql"}
    assert record.started is not None and record.started.question["define"] == ["step=2"]


def test_the_verdict_is_that_of_the_ledger_alone(run: Run, target: Able) -> None:
    with_load = run(*OWN, "--json")[1]
    target.loads.refuses = TargetError("no route", "")
    undecided = json.loads(run(*OWN, "--json")[1])
    assert [drill["verdict"] for drill in json.loads(with_load)["drills"]] == ["expected loss", "held"]
    assert {drill["verdict"] for drill in undecided["drills"]} == {"undecided"}
    assert {drill["why"] for drill in undecided["drills"]} == {"no route"}


def test_a_script_that_fails_is_a_usage_error_and_no_fault_is_injected(run: Run, target: Able) -> None:
    target.loads.refuses = UsageError("own.sql, line 1: relation t does not exist", "--init tables.sql")
    code, _, err = run(*OWN, "--record", "rec")
    assert code == 2 and "own.sql, line 1" in err
    assert {e.kind for e in read(Path("rec")).events}.isdisjoint({"fault-changed", "drill-done"})


@pytest.mark.parametrize(("levels", "verdicts", "code"), [
    ("off,on", ["expected loss", "undecided"], 4),
    ("on,local", ["held", "undecided"], 4),
    ("on,remote_write,local", ["held", "undecided", "undecided"], 4),
])  # fmt: skip
def test_a_script_that_fails_after_a_fault_takes_no_verdict_back(
    levels: str, verdicts: list[str], code: int, run: Run, target: Able, monkeypatch: pytest.MonkeyPatch
) -> None:
    closes = target.loads.close

    def close() -> None:
        closes()
        target.loads.refuses = UsageError("own.sql, line 1: relation t does not exist", "--init tables.sql")

    monkeypatch.setattr(target.loads, "close", close)
    ended_with, out, _ = run("--workload", "own.sql", "-D", "step=2", "--levels", levels, "--json")
    drills = json.loads(out)["drills"]
    assert ([drill["verdict"] for drill in drills], ended_with) == (verdicts, code)
    assert "own.sql, line 1" in drills[-1]["why"]


def test_writers_and_workload_share_the_targets_cap(run: Run, target: Able) -> None:
    target.limits = LoadLimits(rate=300.0)
    run(*OWN)
    assert {arm.rate for arm in target.loads.opened} == {order.rate for order in target.orders} == {150.0}
    target.external, target.limits = True, LoadLimits(clients=20)
    code, _, err = run(*OWN, "--writers", "16", "--allow", "load,kill")
    assert code == 2 and "22 clients are more than this target's max_clients = 20" in err
    code, _, err = run(*OWN, "--writers", "16", "--allow", "kill")
    assert code == 2 and "--allow kill,load consents" in err


def test_without_a_workload_there_is_no_load_beside(run: Run, target: Able) -> None:
    assert run("--levels", "on", "--record", "rec")[0] == 0
    assert not target.loads.opened and not target.loads.prepared
    assert [order.rate for order in target.orders] == [None]
    assert not [e for e in read(Path("rec")).events if isinstance(e, LoadSeen)]
    assert [e for e in read(Path("rec")).events if isinstance(e, DrillDone)]


def test_a_dry_run_says_what_runs_beside_and_runs_nothing(run: Run, target: Able) -> None:
    sent = ("--scale", "5", "--skew", "zipfian:1.1", "--protocol", "simple")
    _, text, _ = run("--workload", "tpcb-like", *sent, "--dry-run")
    assert "and 4 clients of tpcb-like beside them" in text
    tree = json.loads(run(*OWN, "--init", "own.sql", "--dry-run", "--json")[1])
    assert (tree["workload"], tree["clients"]) == ("own.sql@3, insert@1", 6)
    assert not target.loads.prepared


@pytest.mark.parametrize(
    "words",
    [
        *([option, value] for option, value in [("--clients", "4"), ("--scale", "3"), ("--protocol", "simple")]),
        *([option, value] for option, value in [("--max-tries", "3"), ("--skew", "zipfian:1.1"), ("-D", "a=1")]),
        ["--init", "own.sql"],
    ],
)
def test_what_belongs_to_a_workload_is_refused_without_one(words: list[str], run: Run) -> None:
    code, _, err = run("--target", "sim", *words, "--dry-run")
    option = words[0] if words[0] != "-D" else "--define"
    assert code == 2 and f"{option} needs --workload" in err


@pytest.mark.parametrize(("words", "says"), [
    (("--target", "sim", "--workload", "insert"), "a simulated cluster has no server that could run it"),
    (("--pitfall", "P1", "--workload", "insert"), "a pitfall brings its own load"),
    (("--target", "sim", "--workload", "insert", "--clients", "0"), "value of --clients"),
    (("--target", "sim", "--workload", "nowhere.sql"), "cannot be read"),
    (("--target", "sim", "--workload", "own.sql", "-D", "stepp=1"), "is used by no script"),
])  # fmt: skip
def test_where_a_workload_cannot_run_it_is_refused_with_the_reason(words: list[str], says: str, run: Run) -> None:
    code, _, err = run(*words)
    assert code == 2 and says in err


def test_through_a_pool_the_level_goes_into_each_transaction() -> None:
    arm = parse_options({"workload": "tpcb-like", "route": "pgbouncer"}).own_load
    assert arm is not None and arm.workload.per_transaction
    with pytest.raises(UsageError, match="belongs to one session"):
        parse_options({"workload": "tpcb-like", "route": "pgbouncer", "protocol": "prepared"})
