"""The benchmark of `walproof observe`: what it has measured is kept, and judged as it ought to be. No lab."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import observe_true
from benchmarks.observe_loads import LOADS, Done, Load, Run
from tests.fixtures.observed import group, seen
from tests.fixtures.tiers import each
from walproof.errors import TargetError

FEW = tuple(load for load in LOADS if load.clients == 1)
"""At each level, alone."""


def run(**more: Any) -> Run:
    """Eight ms of wait as observed, as long as END took beyond that at off."""
    numbers = {"end_ms": 8.5, "client_ms": 9.0, "tps": 400.0, **more}
    return Run([seen(group(sessions=160, busy=160, standby=24, flush=40))] * 10, **numbers)


def done(load: Load) -> Done:
    return Done(load, run(), 0.5, run() if load.predicted[0] else None)


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """The command over FEW loads: its exit code, and what it measured; `wrong` is raised by loads of these levels."""

    def command(wrong: dict[str, BaseException] | None = None, **options: Any) -> tuple[int, list[str]]:
        texts: list[str] = []

        def measured(_target: object, load: Load, _seconds: float) -> Done:
            texts.append(load.levels[0])
            if error := (wrong or {}).get(load.levels[0]):
                raise error
            return done(load)

        def minute(_target: object, number: int, _record: Path) -> dict[str, Any]:
            texts.append(f"minute {number}")
            return {"log_ratios": [-0.001, 0.001], "session": 0.004, "own": 0.003}

        monkeypatch.setattr(observe_true, "measured", measured)
        monkeypatch.setattr(observe_true, "minute", minute)
        with contextlib.suppress(KeyboardInterrupt):
            return observe_true.observe_true(kept=tmp_path / "kept", **options), texts
        return -1, texts

    target = SimpleNamespace()
    monkeypatch.setattr(observe_true, "benchmark_target", lambda *_, **__: contextlib.nullcontext(target))
    monkeypatch.setattr(observe_true, "prepare", lambda _target: None)
    monkeypatch.setattr(observe_true, "LOADS", FEW)
    return command


def test_an_interrupted_run_loses_nothing(
    measuring: Callable[..., tuple[int, list[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = [load.levels[0] for load in FEW]
    assert measuring({"on": KeyboardInterrupt()}, part="true") == (-1, levels[: levels.index("on") + 1])
    with (tmp_path / "kept").open("a") as file:
        file.write('\n{"round": 0, "load": "off, 1 cli')
    code, again = measuring(minutes=3)
    assert again == [*levels[levels.index("on") :], "minute 0", "minute 1", "minute 2"]
    assert measuring(minutes=3) == (code, [])
    assert measuring(minutes=3, rounds=2)[1] == levels
    said = capsys.readouterr().out
    assert f"| loads | at least 24 | {len(FEW)}, {2 * len(FEW)} runs | NOT MET |" in said
    assert "| throughput beside it over that without, 64 clients | at least 0.99 | 1.000 (" in said


def test_a_load_that_fails_is_tried_again_and_the_others_go_on(
    measuring: Callable[..., tuple[int, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(measuring({"local": TargetError("no leader", "look")}, part="true")[1]) == len(FEW)
    assert "FAILED: local, 1 clients, 0 ms: no leader" in capsys.readouterr().out
    assert measuring(part="true")[1] == ["local"]


def test_nothing_measured_is_nothing_met(measuring: Callable[..., tuple[int, list[str]]]) -> None:
    assert measuring(rounds=0, minutes=0) == (1, [])


def test_loads_are_told_apart_and_predicted_from_loads_alike() -> None:
    assert len({load.text for load in LOADS}) == len(LOADS) >= 24
    predicted = {load.predicted[1] for load in LOADS} - {""}
    assert predicted == {"local", "remote_write", "remote_apply", "round trip 10 ms longer"}
    for load in LOADS:
        if base := load.predicted[0]:
            assert (base.levels, base.clients, base.trouble) == (("on",), load.clients, "")


@each([
    (Load(("on",), 1), {}, True),
    (Load(("on",), 1), {"end_ms": 9.2}, True),
    (Load(("on",), 1), {"end_ms": 9.6}, False),
    (Load(("off",), 1), {}, False),
    (Load(("remote_apply",), 1, trouble="replay paused"), {"end_ms": 1000.0}, False),
])  # fmt: skip
def test_waits_are_right_within_a_tenth(load: Load, more: dict[str, float], right: bool) -> None:
    assert observe_true._right([Done(load, run(**more), 0.5)]) == [right]


@each([
    ((0.0, 0.001), 0.004, [0, 0]),
    ((-0.1, -0.1001), 0.004, [0, 1]),
    ((-0.1, 0.1), 0.02, [1, 4]),
])  # fmt: skip
def test_what_watching_costs_is_judged_by_its_interval(
    logs: tuple[float, ...], session: float, codes: list[int]
) -> None:
    minutes = [{"log_ratios": logs, "session": session, "own": 0.01}]
    assert [figure[-1] for figure in observe_true._cost_figures(minutes)] == codes
