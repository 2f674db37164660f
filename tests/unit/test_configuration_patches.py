"""Patches of our own keys: an undo gives back what was there, and leaves alone what another operator changed since."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.fake_patroni import merged
from tests.fixtures.tiers import each
from walproof.targets.cnpg.configuration import same as same_in_a_cluster
from walproof.targets.external.configuration_patches import Leaves, at, patch_of, paths_of, undoing

VALUES = st.one_of(st.integers(0, 3), st.booleans(), st.sampled_from(["a", "b"]))
TABLES = st.dictionaries(st.sampled_from("pq"), VALUES, min_size=1)
TREES = st.dictionaries(st.sampled_from("xyz"), st.one_of(VALUES, TABLES), max_size=3)
OURS = st.dictionaries(
    st.sampled_from("xyz"),
    st.one_of(VALUES, st.dictionaries(st.sampled_from("pq"), st.one_of(st.none(), VALUES), min_size=1)),
    max_size=3,
)
"""walproof removes keys of a table, never a table."""
THEIRS = st.one_of(OURS, st.dictionaries(st.sampled_from("xyz"), st.none()))
MISSING = ["postgresql.parameters.a is not set", "postgresql.parameters.b is not set"]


def leaves_of(tree: dict[str, Any]) -> Leaves:
    return {path: at(tree, path) for path in paths_of(tree)}


def undone(before: dict[str, Any], change: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(the configuration after our change, another operator's, and the undo of ours; what the undo left alone)."""
    after = merged(before, change)
    ours = {path: at(after, path) for path in paths_of(before, after)}
    now = merged(after, theirs)
    back, left = undoing({path: at(before, path) for path in ours}, ours, now)
    return merged(now, patch_of(back)), left


@given(TREES, OURS)
def test_undoing_our_own_patch_gives_the_configuration_before(before: dict[str, Any], change: dict[str, Any]) -> None:
    now, left = undone(before, change, {})
    assert left == []
    # An empty table that a removed key leaves behind says nothing.
    assert leaves_of(now) == leaves_of(before)


@given(TREES, OURS, THEIRS)
def test_what_another_operator_changed_since_survives_an_undo(
    before: dict[str, Any], change: dict[str, Any], theirs: dict[str, Any]
) -> None:
    after = merged(before, change)
    now, _ = undone(before, change, theirs)
    changed = [path for path in paths_of(after, theirs) if at(after, path) != at(merged(after, theirs), path)]
    for path in changed:
        if not isinstance(at(theirs, path), dict):
            assert at(now, path) == at(theirs, path)


# rows: another-key, undone-already, key-of-ours, table-removed, no-table
@each(
    [
        ({"pause": True}, {"ttl": 30, "postgresql": {"parameters": {"a": 1, "b": 5}}}, []),
        ({"ttl": 30}, {"postgresql": {"parameters": {"a": 1, "b": 5}}}, []),
        (
            {"postgresql": {"parameters": {"a": 7}}},
            {"ttl": 30, "postgresql": {"parameters": {"b": 5}}},
            ["postgresql.parameters.a is 7"],
        ),
        # `b` is missing as we left it, but with the whole table.
        (
            {"postgresql": {"parameters": None}},
            {"ttl": 30},
            ["postgresql.parameters.a is not set", "postgresql.parameters.b is not set"],
        ),
        (
            {"postgresql": "odd"},
            {"ttl": 30},
            ["postgresql.parameters.a is not set", "postgresql.parameters.b is not set"],
        ),
    ]
)
def test_only_what_is_as_we_set_it_is_brought_back(
    theirs: dict[str, Any], back: dict[str, Any], left: list[str]
) -> None:
    before = {"ttl": 30, "postgresql": {"parameters": {"a": 1, "b": 5}}}
    ours = {("ttl",): 20, ("postgresql", "parameters", "a"): 2, ("postgresql", "parameters", "b"): None}
    now = merged(merged(before, patch_of(ours)), theirs)
    values, sentences = undoing({path: at(before, path) for path in ours}, ours, now)
    assert patch_of(values) == back
    assert [sentence.partition(" now, ")[0] for sentence in sentences] == [f"cluster: {name}" for name in left]


def test_what_our_patch_did_not_change_is_not_undone() -> None:
    """The API had added a default to the table; another operator's key in it stays."""
    before, ours = {"method": "any", "number": 1, "failoverQuorum": False}, {"method": "any", "number": 1}
    now = {"synchronous": {**before, "maxStandbyNamesFromCluster": 3}}
    assert undoing({("synchronous",): before}, {("synchronous",): ours}, now, same_in_a_cluster) == ({}, [])
