"""Ctrl-C and SIGTERM in the middle of a run: recovered, the record closed, exit 130."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run
from walproof.model.event import DrillDone, Ended
from walproof.model.sample import Sample, SampleResult
from walproof.records.reader import read
from walproof.targets.simulated.faults import SimulatedFaults
from walproof.targets.simulated.target import SimulatedPricing

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def run(walproof: Run) -> Iterator[Run]:
    """Runs walproof; afterwards the signals are handled as before."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield walproof
    assert [signal.getsignal(number) for number in SIGNALS] == before


def stopped_by(record: str) -> str:
    last = read(Path(record)).events[-1]
    assert isinstance(last, Ended)
    return last.stopped_by


def signalled_in_sample(which: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """The signal comes in that sample; the samples started, for later."""
    started: list[Sample] = []
    run_sample = SimulatedPricing.run_sample

    def signalled(self: SimulatedPricing, planned: Sample, seconds: float, seed: int) -> SampleResult:
        started.append(planned)
        if len(started) == which:
            os.kill(os.getpid(), number)
        return run_sample(self, planned, seconds, seed)

    monkeypatch.setattr(SimulatedPricing, "run_sample", signalled)
    return started


@pytest.mark.parametrize("number", SIGNALS)
def test_price_tells_what_it_has_and_leaves_the_target(
    number: signal.Signals, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[bool] = []
    leave = SimulatedPricing.leave

    def leaving(self: SimulatedPricing) -> None:
        left.append(True)
        leave(self)

    signalled_in_sample(9, number, monkeypatch)
    monkeypatch.setattr(SimulatedPricing, "leave", leaving)
    words = ("--levels", "local,on", "--clients", "1", "--precision", "0.1%", "--record", "rec", "--json")
    code, out, _ = run("price", "--target", "sim", *words)
    assert code == 128 + number
    assert json.loads(out)["stopped_by"] == "interrupted"
    assert stopped_by("rec") == "interrupted"
    assert left


@pytest.mark.parametrize("number", SIGNALS)
def test_prove_recovers_before_it_ends(number: signal.Signals, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    recovered: list[bool] = []
    kills = 0
    kill, recover = SimulatedFaults.kill, SimulatedFaults.recover

    def killing(self: SimulatedFaults, member: str) -> None:
        nonlocal kills
        kills += 1
        kill(self, member)
        if kills == 2:
            os.kill(os.getpid(), number)

    def recovering(self: SimulatedFaults) -> None:
        recovered.append(True)
        recover(self)

    monkeypatch.setattr(SimulatedFaults, "kill", killing)
    monkeypatch.setattr(SimulatedFaults, "recover", recovering)
    code, out, _ = run(
        "prove", "--target", "sim", "--levels", "on", "--repeat", "3", "--record", "rec", "--json"
    )  # fmt: skip
    assert code == 128 + number
    assert len(json.loads(out)["drills"]) == 1
    assert len([e for e in read(Path("rec")).events if isinstance(e, DrillDone)]) == 1
    assert len(recovered) == 2
    assert stopped_by("rec") == "interrupted"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_study_goes_on_with_nothing_and_judges_nothing(
    number: signal.Signals, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = signalled_in_sample(3, number, monkeypatch)
    code, out, err = run("study", "run", "patroni-tradeoff", "--target", "sim", "--record", "rec")
    assert (code, out) == (128 + number, "")
    assert "interrupted" in err
    assert len(started) == 3
    assert stopped_by("rec") == "interrupted"
