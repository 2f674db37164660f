"""A round of pitfalls is recorded as it goes: what was played before Ctrl-C is there, and the report says it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.reporting.conclusion import conclusion
from walproof.studies.pitfalls import run
from walproof.studies.pitfalls.catalogue import Pitfall
from walproof.studies.pitfalls.scene import Found, Scene


class Bare:
    """A scene without a lab; `ended` says how often it was left."""

    ended = 0

    def __init__(self, _blueprint: object) -> None:
        return

    def begin(self) -> None:
        return

    def end(self, *, heal: bool) -> None:
        Bare.ended += 1


@contextmanager
def bare_stage(*_: object, **__: object) -> Iterator[None]:
    yield


def shows(_scene: Scene) -> Found:
    return Found(True, "seen")


def hides(_scene: Scene) -> Found:
    return Found(False, "not seen")


def interrupted(_scene: Scene) -> Found:
    raise KeyboardInterrupt


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "stage", bare_stage)
    monkeypatch.setattr(run, "Scene", Bare)


@pytest.mark.usefixtures("bare")
def test_what_was_played_before_ctrl_c_is_in_the_record_and_in_the_report(tmp_path: Path) -> None:
    wanted = [Pitfall("P1", "one", shows), Pitfall("P2", "two", interrupted), Pitfall("P3", "three", shows)]
    before = Bare.ended
    with Writer(tmp_path / "r", "pitfalls") as writer:
        told, stopped = run.reproduce(wanted, writer, lambda _: None)
    assert stopped
    assert Bare.ended == before + 2
    assert [one.verdict for one in told] == ["reproduced"]
    record = read(tmp_path / "r")
    assert [e.kind for e in record.events] == ["claim-judged", "ended"]
    assert conclusion(record.events) == "The one published claim was reproduced here."
    assert "2 were not played" in run.shown(told, len(wanted))


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("plays", "code"), [([shows], 0), ([shows, hides], 1)], ids=["shown", "hidden"])
def test_the_exit_code_says_whether_each_showed_itself(tmp_path: Path, plays: list[object], code: int) -> None:
    wanted = [Pitfall(f"P{n}", "a pitfall", play) for n, play in enumerate(plays)]  # type: ignore[arg-type]
    with Writer(tmp_path / "r", "pitfalls") as writer:
        told, stopped = run.reproduce(wanted, writer, lambda _: None)
    assert not stopped
    assert run.exit_code(told) == code
