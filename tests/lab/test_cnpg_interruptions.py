"""walproof interrupted, and interrupted by what it did not do itself, on the stand-in over real PostgreSQL.

Killed with -9 and reverted; failovers that nobody asked for, in a sample and in a drill; a load pod that is lost; an
API server that is away for 20 s. Load from within, which all goes well with, stands last.
"""

import itertools
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import returned
from tests.fixtures.kubernetes.jobs import LoadPodRunner
from tests.fixtures.kubernetes.state import Server
from tests.fixtures.kubernetes.target import ADDRESS, Kubernetes, current_context, real_stand_in, settled
from walproof.errors import MachineError
from walproof.load import local_runner
from walproof.machine.clock import RealClock
from walproof.model.load import Outcome
from walproof.model.waiting import Wait, wait_for
from walproof.proving.history import decode

pytestmark = [pytest.mark.lab, pytest.mark.nightly]
IMAGE = "localhost/walproof:test"
SPEED = 10.0
NUMBERS = itertools.count(1)
LOADED = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walproof-load' AND query LIKE 'UPDATE%'"


@pytest.fixture(scope="module")
def runner() -> LoadPodRunner:
    return LoadPodRunner()


@pytest.fixture(scope="module")
def started(runner: LoadPodRunner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    folder = tmp_path_factory.mktemp("cnpg")
    with real_stand_in(folder, speed=SPEED, runner=runner) as (running, members), current_context(running):
        yield Kubernetes(running, members, folder)


@pytest.fixture
def kubernetes(started: Kubernetes) -> Iterator[Kubernetes]:
    """Healthy before, with nothing of walproof's after."""
    started.revert_what_is_left()
    settled(started.running, started.members)
    before = started.spec()
    yield started
    settled(started.running, started.members)
    assert started.left() == [] and started.spec() == before


@dataclass
class Run:
    """One walproof with a record, while it runs."""

    kubernetes: Kubernetes
    process: subprocess.Popen[str]
    record: Path

    def events(self, key: str) -> list[dict[str, Any]]:
        """What it has recorded so far that holds such a key."""
        path = self.record / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if key in event]

    def until(self, *kinds: str) -> None:
        """Until it has recorded an event of each kind."""
        wanted = set(kinds)

        def recorded() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return wanted <= {event["kind"] for event in self.events("kind")}

        wait_for(Wait.PITFALL_SHOWN, recorded, RealClock(), times=4)

    def killed(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)

    def drill(self) -> dict[str, Any]:
        """Its only drill, once it has ended."""
        out, err = self.process.communicate(timeout=200)
        assert "Traceback" not in err, err
        (drill,) = json.loads(out)["drills"]
        return {"exit": self.process.returncode, **drill}


def run(kubernetes: Kubernetes, verb: str, *words: str) -> Run:
    """walproof, started, with a record of its own."""
    record = kubernetes.folder / "records" / f"{next(NUMBERS)}"
    process = kubernetes.walproof(verb, "--target", ADDRESS, *words, "--json", "--record", str(record))
    return Run(kubernetes, process, record)


def prove(kubernetes: Kubernetes, fault: str, *words: str, level: str = "on") -> Run:
    """One drill of four writers."""
    allowed = f"load,{fault}" if fault != "none" else "load"
    return run(kubernetes, "prove", "--fault", fault, "--levels", level, "--writers", "4", "--allow", allowed, *words)


def price(kubernetes: Kubernetes, *words: str) -> Run:
    """Samples of two seconds."""
    short = ("--levels", "local,on", "--clients", "2", "--scale", "1", "--sample", "2s", "--budget", "16s")
    return run(kubernetes, "price", *short, "--allow", "load", *words)


def reverted(kubernetes: Kubernetes) -> None:
    """`walproof revert`, and nothing is left that it could not revert."""
    code, out = kubernetes.ended("revert", "--target", ADDRESS)
    assert code == 0, out


def under_load(kubernetes: Kubernetes) -> bool:
    """Whether clients of a sample are at work on the primary."""
    answer = kubernetes.members.psql(kubernetes.members.primary, LOADED, ()).stdout.strip()
    return answer not in (b"", b"0")


@pytest.mark.parametrize("journal", ["kept", "lost"])
def test_a_drill_that_was_killed_is_reverted_with_its_frozen_primary_and_its_load_pods(
    kubernetes: Kubernetes, journal: str
) -> None:
    primary, cnpg = kubernetes.members.primary, kubernetes.running.cnpg
    drill = prove(kubernetes, "freeze", "--load-image", IMAGE)
    drill.until("drill-started")
    wait_for(Wait.PITFALL_SHOWN, lambda: cnpg.state.member(primary).server is Server.FROZEN, RealClock(), times=4)
    drill.killed()
    assert cnpg.state.member(primary).server is Server.FROZEN
    kinds = {item["kind"] for item in kubernetes.labelled()}
    assert {"Job", "Secret"} <= kinds and kubernetes.spec()["managed"]["roles"]
    if journal == "lost":
        shutil.rmtree(kubernetes.folder / "state" / "journals")
    reverted(kubernetes)


def test_a_drill_that_was_killed_after_its_primary_leaves_the_members_well(kubernetes: Kubernetes) -> None:
    drill = prove(kubernetes, "kill")
    drill.until("drill-started", "fault-changed")
    drill.killed()
    assert kubernetes.labelled()
    reverted(kubernetes)


def test_a_price_that_was_killed_is_reverted(kubernetes: Kubernetes) -> None:
    sampling = price(kubernetes)
    wait_for(Wait.PITFALL_SHOWN, lambda: under_load(kubernetes), RealClock(), times=4)
    sampling.killed()
    assert kubernetes.labelled()
    reverted(kubernetes)


def test_a_failover_in_a_sample_is_in_no_figure_but_in_the_notes(kubernetes: Kubernetes) -> None:
    clock = RealClock()
    sampling = price(kubernetes)
    wait_for(Wait.PITFALL_SHOWN, lambda: len(sampling.events("result")) >= 2, clock, times=4)
    wait_for(Wait.PITFALL_SHOWN, lambda: under_load(kubernetes), clock, times=4)
    clock.pause(0.5)
    killed_at = clock.now()
    kubernetes.running.cnpg.kill(kubernetes.members.primary)
    wait_for(Wait.NEW_LEADER, lambda: kubernetes.running.cnpg.state.names != "", clock)
    out, err = sampling.process.communicate(timeout=200)
    assert "Traceback" not in err, err
    assert sampling.process.returncode == 0, err
    assert "failed over during the run" in json.loads(out)["arms"][0]["caveats"]
    assert any("failed" in event["text"] for event in sampling.events("text"))
    back_at = next(e["at"] for e in sampling.events("view") if e["at"] > killed_at and e["view"]["leader"])
    done = [event["result"] for event in sampling.events("result")]
    spans = [(one["started_at"], one["started_at"] + one["seconds"]) for one in done]
    assert not [span for span in spans if span[0] < back_at and span[1] > killed_at + 0.2], (spans, killed_at, back_at)
    assert any(begin >= back_at for begin, _ in spans)


def test_a_second_failover_in_a_drill_does_not_change_what_was_kept(kubernetes: Kubernetes) -> None:
    cnpg, first = kubernetes.running.cnpg, kubernetes.members.primary
    drill = prove(kubernetes, "kill")
    drill.until("drill-started", "fault-changed")
    wait_for(Wait.NEW_LEADER, lambda: cnpg.state.primary != first and cnpg.state.member(first).ready, RealClock())
    cnpg.kill(cnpg.state.primary)
    found = drill.drill()
    assert found["findings"]["lost"] == 0 and found["verdict"] in ("held", "undecided"), found
    assert found["verdict"] == "held" or found["why"], found


@pytest.mark.parametrize("level", ["on", "local"])
def test_a_failover_that_no_fault_asked_for_is_seen_and_judged_as_one(kubernetes: Kubernetes, level: str) -> None:
    drill = prove(kubernetes, "none", level=level)
    drill.until("drill-started")
    RealClock().pause(2.0)
    kubernetes.running.cnpg.kill(kubernetes.members.primary)
    found = drill.drill()
    assert found["verdict"] in ("held", "undecided", "expected loss"), found
    assert found["verdict"] == "undecided" or "took over meanwhile" in found["why"], found
    assert level == "local" or found["findings"]["lost"] == 0


def test_a_drill_whose_load_pod_is_lost_is_undecided(kubernetes: Kubernetes, runner: LoadPodRunner) -> None:
    earlier = set(runner.pods)
    drill = prove(kubernetes, "kill", "--load-image", IMAGE)
    drill.until("drill-started", "fault-changed")
    (lost,) = set(runner.pods) - earlier
    runner.pods[lost].kill()
    found = drill.drill()
    assert (found["verdict"], found["exit"]) == ("undecided", 4), found
    assert lost in found["why"], found


def test_a_drill_goes_on_while_the_api_server_is_away(kubernetes: Kubernetes) -> None:
    drill = prove(kubernetes, "kill")
    drill.until("drill-started", "fault-changed")
    kubernetes.running.serving.api.oddities.unreachable_for(20.0)
    found = drill.drill()
    assert found["verdict"] in ("held", "undecided") and found["findings"]["lost"] == 0, found


def answer(*words: str) -> dict[str, Any]:
    """What a command with load pods answers, which runs in this process."""
    code, out = returned(*words, "--target", ADDRESS, "--load-image", IMAGE, "--json")
    assert code == 0, out
    return dict(json.loads(out))


def test_two_pods_price_together_and_no_pgbench_is_needed_here(
    kubernetes: Kubernetes, runner: LoadPodRunner, own_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Path:
        raise MachineError("there is no pgbench here")

    monkeypatch.setattr(local_runner, "pgbench", none)
    earlier = len(runner.pods)
    words = ("price", "--load-pods", "2", "--levels", "local,on", "--clients", "4", "--scale", "1", "--budget", "8s")
    priced = answer(*words, "--sample", "1s", "--allow", "load", "--record", str(tmp_path / "r"))
    assert {arm["level"]: arm["blocks"] > 0 for arm in priced["arms"]} == {"local": True, "on": True}
    events = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    described = next(e for e in events if "description" in e)
    assert described["description"]["facts"]["load"] == f"from within: 2 of {IMAGE}"
    samples = [e["result"] for e in events if "result" in e]
    assert samples and all(s["transactions"] > 0 and s["window"]["client_cores"] > 0 for s in samples)
    assert not any(s["window"]["outside"] for s in samples)
    assert len(runner.pods) == earlier + 2


def test_a_drill_with_its_ledger_in_a_pod_is_held(kubernetes: Kubernetes, own_state: Path, tmp_path: Path) -> None:
    words = ("prove", "--fault", "kill", "--levels", "on", "--writers", "4", "--allow", "load,kill")
    (drill,) = answer(*words, "--record", str(tmp_path / "r"))["drills"]
    assert drill["verdict"] == "held" and drill["acknowledged"] > 50, drill
    (history,) = (tmp_path / "r").rglob("drill-1.history")
    attempts = decode(history.read_bytes()).attempts
    assert int((attempts.outcome == Outcome.ACKNOWLEDGED).sum()) == drill["acknowledged"]
