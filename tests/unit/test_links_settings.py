"""What may be asked of links, and what it means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.links.settings import Change, Links, LinkSetting, all_directions, check, directions_of, links_of

MEMBERS = ("n1", "n2", "n3")


@each([
    ((), "n1-n2 n1-n3 n2-n1 n2-n3 n3-n1 n3-n2"),
    (("n1",), "n1-n2 n1-n3 n2-n1 n3-n1"),
    (("n1", "n3"), "n1-n3 n3-n1"),
    (("n1..n2",), "n1-n2"),
])  # fmt: skip
def test_no_words_mean_all_a_member_its_own_two_their_pair_and_dots_one_way(words: tuple[str, ...], meant: str) -> None:
    assert sorted(directions_of(words, MEMBERS)) == [tuple(pair.split("-")) for pair in meant.split()]


@pytest.mark.parametrize("words", [("n9",), ("n1", "n9"), ("n1..n9",), ("..n1",), ("n1..",), ("n1..n2..n3",)])
def test_an_unknown_member_is_refused_by_name(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="no member is called") as error:
        directions_of(words, MEMBERS)
    assert "n1, n2, n3" in error.value.hint
    assert error.value.exit_code == 2


@pytest.mark.parametrize("words", [("n1", "n1"), ("n1..n1",)])
def test_a_link_to_itself_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="two different ends"):
        directions_of(words, MEMBERS)


@each([
    LinkSetting(delay_s=-0.001), LinkSetting(delay_s=11), LinkSetting(jitter_s=-1), LinkSetting(loss=1.01),
    LinkSetting(loss=-0.1), LinkSetting(rate_bps=0), LinkSetting(rate_bps=-5), LinkSetting(delay_s=float("nan")),
    LinkSetting(loss=float("nan")), LinkSetting(rate_bps=float("nan")),
])  # fmt: skip
def test_what_no_wire_can_do_is_refused(setting: LinkSetting) -> None:
    with pytest.raises(UsageError):
        check(setting)


def test_a_change_leaves_what_it_does_not_name() -> None:
    links = Links().changed([("n1", "n2")], Change(delay_s=0.005, loss=0.01))
    links = links.changed([("n1", "n2")], Change(loss=0.0))
    assert links.setting(("n1", "n2")) == LinkSetting(delay_s=0.005)
    assert links.setting(("n2", "n1")).plain


def test_an_endless_rate_takes_the_limit_away() -> None:
    limited = Change(rate_bps=1e6).onto(LinkSetting())
    assert limited.rate_bps == 1e6
    assert Change(rate_bps=float("inf")).onto(limited).plain


def test_only_what_is_configured_passes_the_emulator() -> None:
    links = Links().changed(all_directions(MEMBERS), Change(delay_s=0.005))
    assert len(links.table) == 6
    assert Links().changed(all_directions(MEMBERS), Change(delay_s=0.0)).table == {}


def test_recovery_undoes_cuts_and_keeps_the_shape() -> None:
    links = Links().changed([("n1", "n2")], Change(delay_s=0.005)).changed(all_directions(MEMBERS), Change(cut=True))
    recovered = Links(links.settings, frozenset({"n1"})).without_cuts()
    assert recovered.table == {("n1", "n2"): LinkSetting(delay_s=0.005)}
    assert not recovered.isolated
    assert not recovered.cuts


def test_recovery_of_one_member_leaves_the_others_cut() -> None:
    links = Links().changed(all_directions(MEMBERS), Change(cut=True))
    recovered = Links(links.settings, frozenset({"n1", "n2"})).without_cuts("n1")
    assert set(recovered.cuts) == {d for d in all_directions(MEMBERS) if "n1" not in d}
    assert recovered.isolated == {"n2"}


def test_of_two_members_cut_from_all_others_the_one_that_recovers_stays_cut_from_the_other() -> None:
    links = Links(Links().changed(all_directions(MEMBERS), Change(cut=True)).settings, apart=frozenset({"n1", "n2"}))
    recovered = links.without_cuts("n2")
    assert set(recovered.cuts) == {d for d in all_directions(MEMBERS) if "n1" in d}
    assert not recovered.without_cuts("n1").cuts


def test_a_direction_is_no_member_to_cut_off() -> None:
    with pytest.raises(UsageError, match=r"no member is called 'n1\.\.n2'"):
        Links().cut_off("n1..n2", MEMBERS)


def test_what_may_be_in_effect_in_the_middle_of_a_change_is_cut_before_or_after() -> None:
    shaped = Links({("n1", "n2"): LinkSetting(delay_s=0.005)})
    before = shaped.cut_off("n1", MEMBERS)
    for old, new in ((before, shaped), (shaped, before)):
        between = old.with_cuts_of(new)
        assert between.table == before.table and between.apart == {"n1"}
    isolated = Links(isolated=frozenset({"n3"}))
    assert isolated.with_cuts_of(shaped).isolated == shaped.with_cuts_of(isolated).isolated == {"n3"}


@each(["1", None, -1.0, 1e9])
def test_a_file_with_a_setting_no_link_can_have_is_refused(delay: object) -> None:
    row = {"from": "n1", "to": "n2", "delay_s": delay}
    with pytest.raises((UsageError, TypeError)):
        links_of({"settings": [row], "isolated": []})


def test_clearing_undoes_the_shape_and_keeps_cuts() -> None:
    links = Links().changed([("n1", "n2")], Change(delay_s=0.005, cut=True)).changed([("n2", "n1")], Change(loss=0.1))
    cleared = links.reset(all_directions(MEMBERS))
    assert cleared.table == {("n1", "n2"): LinkSetting(cut=True)}


settings = st.builds(
    LinkSetting,
    delay_s=st.floats(0, 10),
    jitter_s=st.floats(0, 10),
    loss=st.floats(0, 1),
    rate_bps=st.none() | st.floats(8e3, 1e12),
    cut=st.booleans(),
)


@given(st.dictionaries(st.sampled_from(all_directions(MEMBERS)), settings), st.sets(st.sampled_from(MEMBERS)))
def test_links_survive_their_file(asked: dict[tuple[str, str], LinkSetting], isolated: set[str]) -> None:
    links = Links(asked, frozenset(isolated))
    again = links_of(json.loads(json.dumps(links.as_json())))
    assert again.table == links.table
    assert again.isolated == links.isolated
