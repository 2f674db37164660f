"""Patroni's values and tags as walproof reads them, beside Patroni's own functions: no disagreement."""

import copy
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from patroni import global_config, utils
from patroni.config import Config
from patroni.tags import Tags

from tests.fixtures.tiers import each
from walproof.model import patroni_values as ours

_SIGNS = st.sampled_from(["", "-", "+", " ", "0", "0x", "."])
_TAILS = st.sampled_from(["", ".5", ".", "e3", "E-1", "e", "MB", "kB", "s", " s", "ms", "min", "d", "x", "\t", "_000"])
NUMERALS = st.builds("{}{}{}".format, _SIGNS, st.integers(0, 10**7), _TAILS)
WORDS = st.sampled_from([
    "on", "off", "true", "false", "yes", "no", "On", "YES", " on", "1", "0", "quorum", "QUORUM", "strict", "n1", "",
    "0x1fMB", "-070d", ".5", "1e400", "inf", "nan", "1e5 MB", "٣", "None", "9" * 5000,
])  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 3), st.floats(), st.text(max_size=6), NUMERALS, WORDS,
    st.lists(st.integers(0, 1), max_size=1), st.dictionaries(st.text(max_size=1), st.booleans(), max_size=1),
)  # fmt: skip
"""What a stranger may have written: numbers, words, numbers with units, and what is none of them."""
MANY = settings(max_examples=200, deadline=None)
KEYS = (*ours.NUMBERS, *ours.SWITCHES)
TAGS = ("nofailover", "failover_priority", "nosync", "sync_priority", "nostream", "replicatefrom")


class Tagged(Tags):  # type: ignore[misc]
    """A member with these tags, as Patroni reads them after it filtered its own."""

    def __init__(self, tags: dict[str, Any]) -> None:
        self._tags: dict[str, Any] = self._filter_tags(tags)

    @property
    def tags(self) -> dict[str, Any]:
        return self._tags


def of_patroni(read: Any, value: Any) -> Any:
    """What Patroni reads, None where its own function fails on so large a number."""
    try:
        return read(value)
    except (OverflowError, ValueError):
        return None


@given(VALUES)
@MANY
def test_a_value_is_read_as_patroni_reads_it(value: Any) -> None:
    assert ours.parse_bool(value) == utils.parse_bool(value)
    assert ours.parse_int(value) == of_patroni(utils.parse_int, value)


def drawn(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the keys with a value each."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, VALUES))


@given(drawn(KEYS), st.one_of(VALUES, st.fixed_dictionaries({}, optional={"host": WORDS, "restore_command": WORDS})))
@MANY
def test_the_dynamic_configuration_is_read_as_patroni_reads_it(config: dict[str, Any], standby: Any) -> None:
    config["standby_cluster"] = standby
    theirs = type(global_config)()
    theirs.update(None, config)

    def same(mine: object, name: str) -> None:
        with suppress(OverflowError, ValueError):
            assert mine == getattr(theirs, name), (name, config)

    for name in ("maximum_lag_on_failover", "maximum_lag_on_syncnode"):
        same(ours.number(config, name), name)
    same(ours.synchronous_node_count(config), "synchronous_node_count")
    same(ours.primary_start_timeout(config), "primary_start_timeout")
    same(ours.is_standby_cluster(config), "is_standby_cluster")
    same(ours.synchronous_mode(config) != "off" and not ours.is_standby_cluster(config), "is_synchronous_mode")
    same(ours.synchronous_mode(config) == "quorum", "is_quorum_commit_mode")
    assert all(ours.is_on(config, name) == theirs.check_mode(name) for name in ours.SWITCHES)


@given(drawn(TAGS))
@MANY
def test_tags_are_read_as_patroni_reads_them(tags: dict[str, Any]) -> None:
    theirs = Tagged(tags)
    with suppress(OverflowError, ValueError):
        assert bool(ours.nofailover(tags)) == theirs.nofailover
        assert bool(ours.nosync(tags)) == theirs.nosync
        assert bool(ours.nostream(tags)) == theirs.nostream
        assert bool(ours.replicatefrom(tags)) == bool(theirs.replicatefrom)


SECTIONS = st.one_of(VALUES, st.fixed_dictionaries({"parameters": VALUES}))


@given(
    drawn(tuple(ours.DEFAULTS)), st.fixed_dictionaries({}, optional={"postgresql": SECTIONS, "standby_cluster": VALUES})
)
@MANY
def test_timeouts_are_refused_and_adjusted_as_patroni_does(times: dict[str, Any], sections: dict[str, Any]) -> None:
    config = times | sections
    member = Config("", validator=None)
    was = [member[name] for name in ours.DEFAULTS]
    taken = member.set_dynamic_configuration(copy.deepcopy(config))
    assert bool(ours.refused(config)) == (not taken and bool(config))
    if taken:
        assert list(ours.times(config)) == [member[name] for name in ours.DEFAULTS]
    else:
        assert was == [member[name] for name in ours.DEFAULTS]


@each(ours.NUMBERS)
def test_the_numbers_that_are_not_set_are_patronis_own(name: str) -> None:
    theirs = type(global_config)()
    theirs.update(None, {"nothing": "set"})
    assert ours.number({}, name) == getattr(theirs, name.replace("master", "primary"))
