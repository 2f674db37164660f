"""The track record names every pitfall, and what is not valid is refused."""

import re
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.model.drill import Finding
from walproof.studies.pitfalls.catalogue import CATALOGUE, PitfallRun, as_dict, pitfalls

RECORD = Path(__file__).parents[2] / "docs" / "track-record.md"


def test_all_twenty_two_are_there_once() -> None:
    assert [p.number for p in CATALOGUE] == [f"P{i}" for i in range(1, 23)]
    assert pitfalls("all") == CATALOGUE
    assert [p.number for p in pitfalls("p3, P1")] == ["P3", "P1"]


@each(["P0", "P23", "", "everything"])
def test_an_unknown_pitfall_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        pitfalls(text)


def test_the_track_record_has_a_row_for_each_and_at_least_18_reproduced() -> None:
    rows = re.findall(r"^\| (P\d+) \|.*?\| (reproduced|not reproduced|undecided) \|", RECORD.read_text("utf-8"), re.M)
    assert [number for number, _ in rows] == [p.number for p in CATALOGUE]
    assert sum(verdict == "reproduced" for _, verdict in rows) >= 18


def test_a_pitfall_the_lab_could_not_run_is_undecided_and_says_why() -> None:
    undecided = PitfallRun(CATALOGUE[0], None, 3.04, "the lab has no leader just now")
    assert undecided.verdict == "undecided"
    assert as_dict(undecided)["evidence"] == "the lab has no leader just now"
    assert PitfallRun(CATALOGUE[0], Finding(True, "seen"), 1.0).verdict == "reproduced"
    assert PitfallRun(CATALOGUE[0], Finding(False, "not seen"), 1.0).verdict == "not reproduced"
