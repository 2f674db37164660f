"""A temporary lab ends with its block, whatever happens to the reader of its progress."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from walproof.lab import access, create, network
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock


@pytest.fixture
def blueprint(tmp_path: Path) -> Blueprint:
    return Blueprint("l", 1, ("n1",), tmp_path, tmp_path, 18)


def test_a_lab_is_destroyed_though_nobody_reads_its_progress(
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroyed: list[str] = []
    monkeypatch.setattr(create, "create_lab", lambda planned, clock, progress: planned)
    monkeypatch.setattr(create, "destroy_lab", lambda name, clock: destroyed.append(name))

    def closed(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt), create.temporary_lab(blueprint, RealClock(), closed):
        raise KeyboardInterrupt
    assert destroyed == ["l"]


def test_a_lab_that_does_not_start_is_destroyed_though_its_logs_cannot_be_kept(
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("WALPROOF_STATE", str(state))
    planned = replace(blueprint, home=state / "l")
    destroyed: list[str] = []

    def start(started: Blueprint, *_: object) -> None:
        shutil.rmtree(state)
        raise BrokenPipeError

    monkeypatch.setattr(create, "_numbered", lambda planned, _: planned)
    monkeypatch.setattr(network, "build", lambda _: None)
    for check in ("check_paths", "check_ports"):
        monkeypatch.setattr(access, check, lambda _: None)
    monkeypatch.setattr(create, "_start", start)
    monkeypatch.setattr(create, "tear_down", lambda ended, _: destroyed.append(ended.name))
    with pytest.raises(BrokenPipeError):
        create.create_lab(planned, RealClock(), lambda _: None)
    assert destroyed == ["l"]
