"""Load from within, over real PostgreSQL: two pods price together, a drill's ledger is written in one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.fixtures.kubernetes.jobs import LoadPodRunner
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.stand_in import StandIn
from tests.fixtures.kubernetes.target import ADDRESS, current_context, real_stand_in
from walproof.cli.main import walproof
from walproof.errors import MachineError
from walproof.load import local_runner
from walproof.model.load import Outcome
from walproof.proving.history import decode

pytestmark = pytest.mark.lab
IMAGE = "localhost/walproof:test"


@pytest.fixture(scope="module")
def runner() -> LoadPodRunner:
    return LoadPodRunner()


@pytest.fixture(scope="module")
def cluster(runner: LoadPodRunner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with real_stand_in(tmp_path_factory.mktemp("api"), speed=10.0, runner=runner) as (running, _):
        yield running


def asked(cluster: StandIn, *words: str, code: int = 0) -> dict[str, Any]:
    """The answer to a command about the stand-in."""
    with current_context(cluster):
        done = CliRunner().invoke(walproof, [*words, "--target", ADDRESS, "--load-image", IMAGE, "--json"])
    assert done.exit_code == code, done.output + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def left(cluster: StandIn) -> list[str]:
    """Everything of ours that is still there."""
    found = [item for kind in ("Job", "Pod", "Secret") for item in cluster.store.listed(named(kind))[0]]
    ours = [i for i in found if i["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "walproof"]
    return [item["metadata"]["name"] for item in ours]


def test_two_pods_price_together_and_no_pgbench_is_needed_here(
    cluster: StandIn, runner: LoadPodRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Path:
        raise MachineError("there is no pgbench here")

    monkeypatch.setattr(local_runner, "pgbench", none)
    words = ("price", "--load-pods", "2", "--levels", "local,on", "--clients", "4", "--scale", "1", "--budget", "8s")
    record = ("--record", str(tmp_path / "r"))
    answer = asked(cluster, *words, "--sample", "1s", "--allow", "load", *record)
    assert {arm["level"]: arm["blocks"] > 0 for arm in answer["arms"]} == {"local": True, "on": True}
    events = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    described = next(e for e in events if "description" in e)
    assert described["description"]["facts"]["load"] == f"from within: 2 of {IMAGE}"
    samples = [e["result"] for e in events if "result" in e]
    assert samples and all(s["transactions"] > 0 and s["window"]["client_cores"] > 0 for s in samples)
    assert not any(s["window"]["outside"] for s in samples)
    assert len(runner.pods) == 2 and left(cluster) == []


def test_a_drill_with_its_ledger_in_a_pod_is_held(cluster: StandIn, tmp_path: Path) -> None:
    words = ("prove", "--fault", "kill", "--levels", "on", "--writers", "4", "--allow", "load,kill")
    answer = asked(cluster, *words, "--record", str(tmp_path / "r"))
    (drill,) = answer["drills"]
    assert drill["verdict"] == "held" and drill["acknowledged"] > 50, drill
    (history,) = (tmp_path / "r").rglob("drill-1.history")
    attempts = decode(history.read_bytes()).attempts
    assert int((attempts.outcome == Outcome.ACKNOWLEDGED).sum()) == drill["acknowledged"]
    assert left(cluster) == []
