"""A temporary lab ends with its block, whatever happens to the reader of its progress."""

from pathlib import Path

import pytest

from walproof.lab import create, home
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
