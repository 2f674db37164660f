"""Region files: the shipped ones, and bad ones."""

from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.links.round_trips import Regions, matrix, read_regions, shipped, sites_of
from walproof.links.settings import all_directions

MEMBERS = ("n1", "n2", "n3")
HEAD = 'title = "t"\nsource = "s"\nsites = ["a", "b"]\n'


def test_at_least_three_region_files_are_shipped() -> None:
    assert {"one-region", "europe", "us-eu"} <= set(shipped())


@each(shipped())
def test_a_shipped_file_names_its_source_and_fills_the_matrix(name: str) -> None:
    regions = read_regions(name)
    assert regions.source
    table = matrix(regions, MEMBERS)
    assert set(table) == set(all_directions(MEMBERS))
    assert all(0 < setting.delay_s < 0.1 for setting in table.values())
    text = (Path(__file__).parents[2] / "src/walproof/links/regions" / f"{name}.toml").read_text()
    assert "https://" in text


def test_half_the_round_trip_goes_each_way() -> None:
    table = matrix(read_regions("europe"), MEMBERS)
    assert table["n1", "n2"].delay_s == pytest.approx(0.005)
    assert table["n1", "n2"] == table["n2", "n1"]
    assert table["n2", "n3"].delay_s == pytest.approx(0.006)


def test_more_members_than_sites_share_them_in_turn() -> None:
    regions = read_regions("europe")
    members = ("n1", "n2", "n3", "n4", "n5")
    assert sites_of(regions, members)["n4"] == "london"
    assert matrix(regions, members)["n1", "n4"].delay_s == pytest.approx(0.00015)


def test_members_may_be_put_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + '[members]\nn1 = "b"\n[[round_trip]]\nbetween = ["a", "b"]\nrtt = "7ms"\n')
    regions = read_regions(str(path))
    assert sites_of(regions, MEMBERS) == {"n1": "b", "n2": "b", "n3": "a"}
    assert matrix(regions, MEMBERS)["n1", "n3"].delay_s == pytest.approx(0.0035)


@each([
    ("not toml at all [", "not TOML"),
    ('title = "t"\nsource = "s"\n', "sites"),
    (HEAD + "colour = 1\n", "colour"),
    (HEAD, "does not name"),
    (HEAD + '[[round_trip]]\nbetween = ["a", "b"]\nrtt = "-7ms"\n', "-7ms"),
    (HEAD + '[[round_trip]]\nbetween = ["a", "b"]\nrtt = "1h"\n', "not between"),
    (HEAD + '[members]\nn9 = "a"\n', "n9"),
    (HEAD + '[members]\nn1 = "z"\n', "z"),
    (HEAD.replace('"a", "b"', ""), "no site"),
])  # fmt: skip
def test_a_bad_file_is_refused_with_its_reason(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        matrix(read_regions(str(path)), MEMBERS)


def test_a_missing_file_names_the_shipped_ones() -> None:
    with pytest.raises(UsageError, match="the region file atlantis cannot be read") as error:
        read_regions("atlantis")
    assert "europe" in error.value.hint


def test_a_file_of_nothing_but_types_is_a_region() -> None:
    assert Regions(title="t", source="s", sites=("a",)).within == "0.3ms"
