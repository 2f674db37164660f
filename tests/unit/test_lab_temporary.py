"""A temporary lab ends with its block, whatever happens to the reader of its progress."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from walproof.lab import client_access, create, home, network_links
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock


@pytest.fixture
def blueprint(tmp_path: Path) -> Blueprint:
    return Blueprint("l", 1, ("n1",), tmp_path / "l", tmp_path, 18)


def _marked(planned: Blueprint, *, made_by: str, owner: str) -> Blueprint:
    home.store(planned, made_by, owner)
    return planned


def test_a_lab_is_destroyed_though_nobody_reads_its_progress(
    blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroyed: list[str] = []
    monkeypatch.setattr(create, "create_lab", lambda planned, clock, progress, **identity: _marked(planned, **identity))
    monkeypatch.setenv("WALPROOF_STATE", str(blueprint.home.parent))
    monkeypatch.setattr(create, "destroy_lab", lambda name, clock: destroyed.append(name))

    def closed(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt), create.temporary_lab(blueprint, RealClock(), closed, "demo"):
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
    monkeypatch.setattr(network_links, "build", lambda _: None)
    for check in ("check_paths", "check_ports"):
        monkeypatch.setattr(client_access, check, lambda _: None)
    monkeypatch.setattr(create, "_start", start)
    monkeypatch.setattr(create, "tear_down", lambda ended, _: destroyed.append(ended.name))
    with pytest.raises(BrokenPipeError):
        create.create_lab(planned, RealClock(), lambda _: None)
    assert destroyed == ["l"]
