"""A lab for a while ends with its block, whatever happens to whoever listened."""

from pathlib import Path

import pytest

from walproof.lab import create
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock


@pytest.fixture
def blueprint(tmp_path: Path) -> Blueprint:
    return Blueprint("l", 1, ("n1",), tmp_path, tmp_path, 18)


def test_a_lab_is_ended_though_nobody_listens_any_more(blueprint: Blueprint, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(create, "create_lab", lambda asked, clock, say: asked)
    monkeypatch.setattr(create, "destroy_lab", lambda name, clock: ended.append(name))

    def deaf(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt), create.temporary_lab(blueprint, RealClock(), deaf):
        raise KeyboardInterrupt
    assert ended == ["l"]
