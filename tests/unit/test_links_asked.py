"""The options of `walproof lab link`, before any link is touched."""

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.tiers import each
from walproof.cli import lab_links_and_faults
from walproof.cli.lab_links_and_faults import LinkOptions, change_of, setting_text
from walproof.errors import MachineError, UsageError
from walproof.lab import network_links
from walproof.lab.blueprint import Blueprint
from walproof.links.settings import Change, Links, LinkSetting


@pytest.fixture
def paper(tmp_path: Path) -> Blueprint:
    """A lab that is down."""
    return Blueprint("paper", 251, ("n1", "n2", "n3"), tmp_path, tmp_path, 18)


@pytest.fixture
def lab(paper: Blueprint, monkeypatch: pytest.MonkeyPatch) -> Blueprint:
    """A lab on paper; any attempt to touch a link fails the test."""
    for name in ("shape", "set_all", "reset", "partition", "isolate"):
        monkeypatch.setattr(network_links, name, lambda *_: pytest.fail("a link was touched"))
    return paper


def given(*members: str, **options: Any) -> LinkOptions:
    return LinkOptions(members, **options)


@pytest.mark.parametrize("wrong", [
    given(rtt="-3ms"), given(rtt="fast"), given(loss="101%"), given(loss="-1%"), given(jitter="3 parsecs"),
    given(rate="100"), given(rate="0mbit/s"), given("n1", "n9", rtt="3ms"), given("n1..n9", delay="3ms"),
    given("n1..n2", rtt="3ms"), given(rtt="3ms", delay="1ms"), given(rtt="3ms", clear=True),
    given(regions="europe", rtt="3ms"), given("n1", regions="europe"), given(regions="atlantis"),
])  # fmt: skip
def test_what_is_not_valid_is_refused_and_no_link_is_touched(
    wrong: LinkOptions, lab: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real `shape` checks values before anything else: let it, on links that exist on paper only.
    monkeypatch.setattr(network_links, "shape", lambda lab, directions, change: Links().changed(directions, change))
    with pytest.raises(UsageError) as error:
        lab_links_and_faults.change(lab, wrong)
    assert error.value.exit_code == 2
    assert error.value.hint


# rows: a round trip is halved, a delay is one way, no rate is an endless one
@each([
    (given(rtt="40ms", loss="0.1%", jitter="1ms", rate="100mbit/s"), Change(delay_s=0.02, jitter_s=0.001, loss=0.001,
     rate_bps=1e8)),
    (given("n1..n2", delay="5ms"), Change(delay_s=0.005)),
    (given(rate="none"), Change(rate_bps=float("inf"))),
])  # fmt: skip
def test_options_are_a_change_in_numbers(options: LinkOptions, change: Change) -> None:
    assert change_of(options) == change


def test_the_words_of_a_setting_are_short() -> None:
    assert setting_text(LinkSetting(0.02, 0.001, 0.001, 1e8)) == "20 ±1 ms, 0.1% lost, 100 Mbit/s"
    assert setting_text(LinkSetting(0.02, cut=True)) == "cut"
    assert setting_text(LinkSetting()) == "unshaped"


def test_a_lab_without_links_needs_no_emulator(paper: Blueprint) -> None:
    state = network_links.state(paper)
    assert not state.needed
    assert not state.dead
    assert state.summary == "links unshaped"


def test_links_whose_emulator_does_not_run_are_called_dead(paper: Blueprint) -> None:
    network_links._store(paper, Links({("n1", "n2"): LinkSetting(0.005)}))
    state = network_links.state(paper)
    assert state.dead
    assert "dead" in state.summary


def test_an_unknown_member_cannot_be_cut(paper: Blueprint) -> None:
    for act in (network_links.partition, network_links.isolate):
        with pytest.raises(UsageError, match="n9"):
            act(paper, "n9")
    with pytest.raises(UsageError, match="n9"):
        network_links.partition_one_way(paper, "n1", "n9")
    assert not (paper.home / "links.json").exists()


def test_a_lab_that_is_down_has_no_links_to_shape_and_nothing_is_stored(paper: Blueprint) -> None:
    with pytest.raises(MachineError, match="not there"):
        network_links.set_round_trip(paper, 10)
    assert not network_links.configured(paper).table
