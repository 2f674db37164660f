"""A round of pitfalls is recorded as it goes: what was run before Ctrl-C is there, and the report shows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.model.drill import Finding
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.reporting.conclusion import conclusion
from walproof.studies.pitfalls import catalogue
from walproof.studies.pitfalls.catalogue import Pitfall
from walproof.studies.pitfalls.pitfall_lab import PitfallLab


class NoLab:
    """A PitfallLab without a lab; `closed` counts how often it was closed."""

    closed = 0

    def __init__(self, _blueprint: object) -> None:
        return

    def create_table(self) -> None:
        return

    def close(self, *, recover: bool) -> None:
        NoLab.closed += 1


@contextmanager
def no_pitfall_lab(*_: object, **__: object) -> Iterator[None]:
    yield


def shows(_lab: PitfallLab) -> Finding:
    return Finding(True, "seen")


def hides(_lab: PitfallLab) -> Finding:
    return Finding(False, "not seen")


def interrupted(_lab: PitfallLab) -> Finding:
    raise KeyboardInterrupt


@pytest.fixture
def no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "pitfall_lab", no_pitfall_lab)
    monkeypatch.setattr(catalogue, "PitfallLab", NoLab)


@pytest.mark.usefixtures("no_lab")
def test_what_was_run_before_ctrl_c_is_in_the_record_and_in_the_report(tmp_path: Path) -> None:
    wanted = [Pitfall("P1", "one", shows), Pitfall("P2", "two", interrupted), Pitfall("P3", "three", shows)]
    before = NoLab.closed
    with Writer(tmp_path / "r", "pitfalls") as writer:
        runs, stopped = catalogue.reproduce(catalogue.run_all(wanted, lambda _: None), writer)
    assert stopped
    assert NoLab.closed == before + 2
    assert [one.verdict for one in runs] == ["reproduced"]
    record = read(tmp_path / "r")
    assert [e.kind for e in record.events] == ["claim-judged", "ended"]
    assert conclusion(record.events) == "The one published claim was reproduced here."
    assert "2 were not run" in catalogue.as_lines(runs, len(wanted))[0]


@pytest.mark.usefixtures("no_lab")
# rows: shown, hidden
@each([([shows], 0), ([shows, hides], 1)])
def test_the_exit_code_says_whether_each_was_reproduced(reproduce: list[object], code: int, tmp_path: Path) -> None:
    wanted = [Pitfall(f"P{n}", "a pitfall", one) for n, one in enumerate(reproduce)]  # type: ignore[arg-type]
    with Writer(tmp_path / "r", "pitfalls") as writer:
        runs, stopped = catalogue.reproduce(catalogue.run_all(wanted, lambda _: None), writer)
    assert not stopped
    assert catalogue.exit_code(runs) == code
