"""Who names the synchronous standbys under Patroni, and who may be one: the doctor goes by both facts."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.cnpg.seeds import OVERRIDDEN
from tests.fixtures.sick import patroni, well, with_member, with_patroni, with_patroni_members, with_settings
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import diagnosed
from walproof.advising.doctor.finding import Finding
from walproof.model.facts import Facts, Namer, PatroniMember, SettingFact

NAMES = "synchronous_standby_names"
PATRONIS = {"use_pg_rewind": True}
"""The section postgresql of the configuration that nothing is found in."""


def found(facts: Facts, name: str) -> Finding | None:
    return next((f for f in diagnosed(facts) if f.id == name), None)


def named(text: str, mode: str = "off", *, file: str = "", dynamic: bool = True, **keys: Any) -> Facts:
    """Names in effect on every member, set in Patroni's dynamic configuration or, with a file, there."""
    section = {**PATRONIS, "parameters": {NAMES: text} if dynamic else {}}
    facts = with_patroni(well(), synchronous_mode=mode, postgresql=section, **keys)
    facts = with_settings(facts, "*", **{NAMES: text})
    if file:
        for member in facts.members:
            setting = SettingFact(NAMES, text, source="configuration file", file=file)
            facts = with_member(facts, member.name, settings={**member.settings, NAMES: setting})
    return facts


AUTO, WRITTEN = "/data/postgresql.auto.conf", "/data/postgresql.conf"


@each([
    ("ANY 2 (n2, n3)", "quorum-without-spare"),
    ("FIRST 1 (n2)", "quorum-without-spare"),
    ("FIRST 1 (n2, n3)", "first-where-any-would-do"),
    ("ANY 1 (n2, ghost)", "names-match-nobody"),
    ("ANY 2 (n2, ghost)", "quorum-larger-than-connected"),
])  # fmt: skip
def test_names_of_an_operator_are_checked_under_patroni_too(text: str, check: str) -> None:
    assert found(named(text), check), "with synchronous_mode off Patroni writes what the operator set"
    by_patroni = found(named(text, "quorum"), check)
    assert by_patroni is None or "Patroni names it again" in by_patroni.fix


GHOST, EDIT = "ANY 1 (n2, ghost)", "patronictl edit-config --pg 'synchronous_standby_names=ANY 1 ("


# rows: dynamic, dynamic, paused, standby cluster, ALTER SYSTEM, patroni.yml, dynamic, file seen, Patroni, Patroni,
# paused, over Patroni, plain
@each([
        (named(GHOST), EDIT),
        (named(GHOST, pause=True), EDIT),
        (named(GHOST, "quorum", standby_cluster={"host": "10.1.0.1"}), EDIT),
        (named(GHOST, file=AUTO), "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ("),
        (named(GHOST, file=WRITTEN, dynamic=False), f"{NAMES}: 'ANY 1 ("),
        (named(GHOST, file=WRITTEN), EDIT),
        (named(GHOST, "quorum"), "bring the missing standby back; Patroni names it again"),
        (named(GHOST, "on", pause=True), "bring the missing standby back; Patroni names it again"),
        (named(GHOST, "quorum", file=AUTO), "ALTER SYSTEM RESET synchronous_standby_names"),
        (with_settings(well(managed=False), "*", **{NAMES: GHOST}), "ALTER SYSTEM SET synchronous_standby_names"),
    ])  # fmt: skip
def test_a_ghost_is_removed_where_its_name_was_written(facts: Facts, fix: str) -> None:
    ghost = found(facts, "names-match-nobody")
    assert ghost is not None and ghost.fix.startswith(fix)


@each([["jit=off"], "jit=off", {"parameters": "jit=off"}, {"parameters": 7}])
def test_a_section_that_patroni_refuses_ends_no_check_of_an_operators_names(odd: object) -> None:
    """It ended in an AttributeError or TypeError."""
    facts = with_patroni(named(GHOST, file=WRITTEN), postgresql=odd)
    ghost = found(facts, "names-match-nobody")
    assert ghost is not None and NAMES in ghost.fix


def test_a_star_of_an_operator_is_replaced_and_one_of_patroni_waits_for_a_standby() -> None:
    star, of_patroni = found(named("*"), "names-star"), found(named("*", "on"), "names-star")
    assert (
        star is not None
        and star.fix.startswith(EDIT.replace("ANY", "FIRST"))
        and '"n2"' in star.fix
        and '"n3"' in star.fix
    )
    assert of_patroni is not None and of_patroni.fix.startswith("Patroni finds no standby to name")
    assert found(named("*", "on", file=AUTO), "names-star").fix.startswith("ALTER SYSTEM RESET")  # type: ignore[union-attr]


def test_names_missing_on_a_standby_are_lost_only_where_no_manager_writes_them() -> None:
    for mode, lost in (("off", True), ("quorum", False)):
        facts = with_settings(named("ANY 1 (n2, n3)", mode), "n2", **{NAMES: ""})
        assert (found(facts, "names-lost-at-promotion") is not None) is lost


def test_names_emptied_by_alter_system_are_reset_and_no_standby_is_brought_back() -> None:
    empty = found(named("", "quorum", file=AUTO), "remote-level-no-names")
    assert empty is not None and empty.fix.startswith("ALTER SYSTEM RESET")
    assert OVERRIDDEN.namer is Namer.CLOUDNATIVEPG
    (ghost, *_) = [f for f in diagnosed(OVERRIDDEN) if f.id == "remote-level-no-names"]
    assert "ALTER SYSTEM RESET ALL" in ghost.fix


def test_a_tool_a_member_that_catches_up_and_a_paused_replay_are_no_spare() -> None:
    facts = with_settings(well(managed=False), "*", **{NAMES: "ANY 1 (n2, n3)"})
    leader = facts.leader
    assert leader is not None and found(facts, "quorum-without-spare") is None
    catching = with_member(facts, "n1", senders=(leader.senders[0], replace(leader.senders[1], state="catchup")))
    assert found(catching, "quorum-without-spare")
    tool = with_settings(facts, "*", **{NAMES: "*"})
    tool = with_member(
        tool, "n1", senders=(leader.senders[0], replace(leader.senders[1], application_name="pg_receivewal"))
    )
    assert found(tool, "quorum-without-spare")
    paused = with_member(facts, "n3", replay_paused=True)
    assert found(paused, "quorum-without-spare") is None
    assert found(with_settings(paused, "*", synchronous_commit="remote_apply"), "quorum-without-spare")


LEADER, SECOND, THIRD = patroni().members


def cluster(third: PatroniMember = THIRD, second: PatroniMember = SECOND, **keys: Any) -> Facts:
    return with_patroni_members(with_patroni(well(), **keys), LEADER, second, third)


def tagged(member: PatroniMember = THIRD, **tags: Any) -> PatroniMember:
    return replace(member, tags=tags)


STRICT: dict[str, Any] = {"synchronous_mode_strict": True, "maximum_lag_on_syncnode": 1 << 20}
BARRED = {
    "nosync": tagged(nosync=True),
    "nosync, text": tagged(nosync="yes"),
    "sync_priority 0": tagged(sync_priority="0"),
    "nostream": tagged(nostream="on"),
    "cascades": tagged(replicatefrom="n2"),
    "stopped": replace(THIRD, state="stopped"),
    "from the archive": replace(THIRD, state="in archive recovery"),
    "behind": replace(THIRD, role="replica", lag_bytes=2 << 20),
}


@pytest.mark.parametrize("mode", ["on", "quorum"])
@pytest.mark.parametrize("third", BARRED.values(), ids=BARRED)
def test_only_members_that_may_be_synchronous_are_counted(third: PatroniMember, mode: str) -> None:
    """Patroni asks for no more than it may name (sync.py, _ReplicaList): two are wanted, ANY 1 is in effect."""
    two = cluster(third, synchronous_mode=mode, synchronous_node_count=2, **STRICT)
    fewer = found(two, "patroni-node-count")
    assert fewer is not None and fewer.evidence.startswith("synchronous_node_count = 2, 1 standby that may be")
    assert "on n3" in fewer.evidence and "n3" in fewer.fix
    one = found(cluster(third, synchronous_mode=mode, **STRICT), "two-members-strict")
    assert one is not None and "n2 alone may be synchronous" in one.evidence and "n3" in one.fix
    degrading = cluster(third, synchronous_mode=mode, maximum_lag_on_syncnode=1 << 20)
    assert found(degrading, "patroni-not-strict")


# rows: none, of the leader, of itself, of no member, flag before priority, streams, hardly behind, named, told late,
# one of the quorum, told late
@each([
        THIRD, tagged(replicatefrom="n1"), tagged(replicatefrom="n3"), tagged(replicatefrom="gone"),
        tagged(nosync=False, sync_priority=0), tagged(nostream="no"), replace(THIRD, lag_bytes=4096),
        replace(THIRD, role="sync_standby", lag_bytes=2 << 20), replace(THIRD, lag_bytes=2 << 20),
    ])  # fmt: skip
def test_members_that_may_be_synchronous_are_a_spare(third: PatroniMember) -> None:
    ids = {f.id for f in diagnosed(cluster(third, synchronous_mode="on", **STRICT))}
    assert not ids & {"two-members-strict", "patroni-node-count", "patroni-not-strict", "patroni-nobody-synchronous"}


# rows: one each, on, one each, quorum, one each, off, both, the other is behind, behind in quorum mode
@each([
    ({"synchronous_mode": "on"}, tagged(SECOND, nosync=True), tagged(nofailover=True), "error"),
    ({"synchronous_mode": "quorum"}, tagged(SECOND, nosync=True), tagged(nofailover=True), ""),
    ({"synchronous_mode": "off"}, tagged(SECOND, nosync=True), tagged(nofailover=True), ""),
    ({"synchronous_mode": "off"}, tagged(SECOND, failover_priority=0), tagged(nofailover=True), "error"),
    ({"synchronous_mode": "off"}, tagged(SECOND, nofailover=True), replace(THIRD, lag_bytes=2 << 20), "warning"),
    ({"synchronous_mode": "quorum"}, tagged(SECOND, nofailover=True), replace(THIRD, lag_bytes=2 << 20), ""),
])  # fmt: skip
def test_who_may_take_over_is_counted_as_the_mode_lets_them(
    keys: dict[str, Any], second: PatroniMember, third: PatroniMember, severity: str
) -> None:
    none = found(cluster(third, second, **keys), "patroni-nobody-eligible")
    assert (str(none.severity) if none else "") == severity


def test_no_standby_that_may_be_synchronous_is_an_error_whatever_bars_each() -> None:
    both = cluster(tagged(nostream=True), tagged(SECOND, replicatefrom="n3"), synchronous_mode="on")
    none = found(both, "patroni-nobody-synchronous")
    assert none is not None and none.evidence == 'replicatefrom: "n3" on n2, nostream: true on n3'
    assert none.fix.startswith("remove 'replicatefrom: \"n3\"' from the tags of n2 in its patroni.yml")
