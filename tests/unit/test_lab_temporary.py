"""A temporary lab ends with its block, whatever happens to the reader of its progress."""

from pathlib import Path

import pytest

from walproof.lab import create
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
