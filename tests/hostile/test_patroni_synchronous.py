"""Synchronous replication through Patroni's dynamic configuration: in effect, set by others, undone."""

import json
from typing import cast

import pytest

from tests.fixtures.fake_patroni import FakePatroni
from tests.hostile.test_patroni_configuration import configuration, journal, patroni
from walproof.errors import TargetError, UsageError, WaitTimeout
from walproof.machine.clock import RealClock
from walproof.model.guarantee import ConfigChange, QuorumKind, SyncReplication
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.records.journal import Journal
from walproof.targets.configure import configure
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.patroni.configuration import PatroniConfiguration
from walproof.targets.patroni.target import PatroniOperations
from walproof.targets.simulated.clock import VirtualClock

__all__ = ["configuration", "journal", "patroni"]


def listed(fake: FakePatroni, **tags: dict[str, object]) -> None:
    """n1 leads, n2 and n3 stream, with these tags."""
    roles = {"n1": ("leader", "running"), "n2": ("replica", "streaming"), "n3": ("replica", "streaming")}
    fake.members = [
        {"name": n, "role": role, "state": state, "api_url": f"{fake.url}/patroni", "tags": tags.get(n, {})}
        for n, (role, state) in roles.items()
    ]


def sync(number: int, method: QuorumKind | None = QuorumKind.ANY) -> ConfigChange:
    return ConfigChange(replication=SyncReplication(method, number))


BARRED: dict[str, dict[str, object]] = {
    "nosync: true": {"nosync": True},
    "sync_priority: 0": {"sync_priority": 0},
    'nostream: "yes"': {"nostream": "yes"},
    'replicatefrom: "n2"': {"replicatefrom": "n2"},
}


@pytest.mark.parametrize("reason", BARRED)
def test_more_standbys_than_may_be_synchronous_are_refused_and_the_reason_is_named(
    reason: str, patroni: FakePatroni, configuration: PatroniConfiguration
) -> None:
    """Patroni would ask for ANY 1 without a word."""
    listed(patroni, n3=BARRED[reason])
    for method in QuorumKind:
        with pytest.raises(UsageError, match=f"2 standbys cannot be synchronous here, 1 can: n3 .{reason}") as refused:
            configuration.plan(sync(2, method))
        assert "any1 or first1" in str(refused.value.hint)
    assert configuration.plan(sync(1)).differences
    assert patroni.written == []


def observing(configuration: PatroniConfiguration, names: str) -> None:
    standbys = tuple(MemberView(n, Role.STANDBY, "streaming", sync_state="quorum") for n in ("n2", "n3"))
    configuration._observe = lambda: ClusterView(0.0, standbys, "n1", names)


STATIC = "ANY 1 (n2, n3)"
LEFT: dict[str, tuple[str, dict[str, object]]] = {
    "stopped": ("ANY 1 (n2)", {"state": "stopped"}),
    "nosync": ("ANY 1 (n2)", {"tags": {"nosync": True}}),
    "behind": ("ANY 1 (n2)", {"lag": 2 << 20}),
    "none left": ("", {"state": "stopped"}),
    "none left, strict": ("*", {"state": "stopped"}),
}


@pytest.mark.parametrize("left", LEFT)
def test_a_standby_that_leaves_after_the_plan_leaves_no_smaller_quorum_that_is_called_in_effect(
    left: str, patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    """ANY 1, or no name at all, was in effect, and the apply of ANY 2 ended with 0. An undo is not held up by it."""
    listed(patroni)
    patroni.config["maximum_lag_on_syncnode"] = 1 << 20
    configuration._clock = VirtualClock()
    plan = configuration.plan(sync(2))
    configuration.apply(plan, journal)
    names, change = LEFT[left]
    for member in patroni.members[1 if "none" in left else 2 :]:
        member.update(change)
    observing(configuration, names)
    with pytest.raises(WaitTimeout, match="QUORUM_NAMED"):
        configuration.wait(plan)
    observing(configuration, "")
    assert configuration.undo(journal) == [] and not journal.pending()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_without_a_leader_that_answers_nothing_is_in_effect(
    number: int, patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    """Its names read as none: asynchronous was called in effect."""
    listed(patroni)
    patroni.config["synchronous_mode"] = "quorum"
    configuration._clock = VirtualClock()
    plan = configuration.plan(sync(number, QuorumKind.ANY if number else None))
    configuration.apply(plan, journal)
    configuration._observe = lambda: ClusterView(0.0, (), None, "")
    with pytest.raises(WaitTimeout, match="QUORUM_NAMED"):
        configuration.wait(plan)


def test_a_star_that_any_connection_matches_is_no_quorum(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    listed(patroni)
    configuration._clock = VirtualClock()
    observing(configuration, "")
    plan = configuration.plan(sync(1, QuorumKind.FIRST))
    configuration.apply(plan, journal)
    observing(configuration, "*")
    with pytest.raises(WaitTimeout, match="QUORUM_NAMED"):
        configuration.wait(plan)
    observing(configuration, "n2")
    configuration.wait(plan)


@pytest.mark.parametrize("strict", [None, False, True])
def test_a_leader_alone_is_not_made_to_wait_for_a_standby(
    strict: bool | None, patroni: FakePatroni, configuration: PatroniConfiguration
) -> None:
    """Strict mode names '*' there: every commit would wait for ever."""
    listed(patroni)
    del patroni.members[1:]
    with pytest.raises(UsageError, match="1 standby cannot be synchronous here, none can: no other standby is there"):
        configuration.plan(ConfigChange(replication=SyncReplication(QuorumKind.ANY, 1, strict)))


@pytest.mark.parametrize("found", [
    {"synchronous_mode": "quorum", "synchronous_node_count": "1"},
    {"synchronous_mode": "on", "synchronous_node_count": "1"},
    {"synchronous_mode": "quorum", "synchronous_mode_strict": "False"},
    {"ttl": "20", "synchronous_mode": "off"},
])  # fmt: skip
def test_a_value_that_is_written_as_a_text_is_the_same_value(
    found: dict[str, object], patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    """Patroni leaves "1" where 1 is patched; that was awaited until it timed out."""
    listed(patroni)
    patroni.config |= found
    before = json.loads(json.dumps(patroni.config))
    configuration._clock = VirtualClock()
    names = {"off": "", "on": "n2"}.get(str(found["synchronous_mode"]), STATIC)
    observing(configuration, names)
    plan = configuration.plan(ConfigChange(replication=SyncReplication(QuorumKind.ANY, 1, False), manager={"ttl": 20}))
    configuration.apply(plan, journal)
    observing(configuration, STATIC)
    configuration.wait(plan)
    observing(configuration, names)
    assert configuration.undo(journal) == []
    assert patroni.config == before


@pytest.mark.parametrize("mode", ["off", False, None, "strict"])
def test_names_of_patroni_yml_are_in_effect_again_after_an_undo(
    mode: object, patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    """They were awaited to go: all was reverted, and `revert` timed out. After a kill -9 too: the journal has them."""
    listed(patroni)
    patroni.config |= {} if mode is None else {"synchronous_mode": mode}
    configuration._clock = VirtualClock()
    observing(configuration, "FIRST 1 (n3)")
    configuration.apply(configuration.plan(sync(1)), journal)
    assert configuration.undo(journal) == [] and not journal.pending()


def test_an_undo_waits_for_names_that_are_brought_back(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    """With synchronous_mode off before and after, the next scenario was priced before they were in effect."""
    listed(patroni)
    patroni.config |= {"synchronous_mode": "off", "synchronous_mode_strict": False}
    patroni.config["postgresql"]["parameters"]["synchronous_standby_names"] = STATIC
    configuration._clock = VirtualClock()
    observing(configuration, "")
    configure(configuration, sync(0, None), journal)
    with pytest.raises(WaitTimeout, match="QUORUM_NAMED"):
        configuration.undo(journal)
    assert patroni.config["postgresql"]["parameters"]["synchronous_standby_names"] == STATIC
    observing(configuration, STATIC)
    assert configuration.undo(journal) == [] and not journal.pending()


def test_asynchronous_removes_the_names_of_an_operator_and_undo_brings_them_back(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    listed(patroni)
    patroni.config["postgresql"]["parameters"]["synchronous_standby_names"] = STATIC
    before = json.loads(json.dumps(patroni.config))
    for mode in (False, "quorum"):
        patroni.config = json.loads(json.dumps({**before, "synchronous_mode": mode, "synchronous_mode_strict": False}))
        found = json.loads(json.dumps(patroni.config))
        observing(configuration, "")
        configure(configuration, sync(0, None), journal)
        assert "synchronous_standby_names" not in patroni.config["postgresql"]["parameters"]
        observing(configuration, STATIC)
        assert configuration.undo(journal) == []
        assert patroni.config == found


def test_names_that_the_dynamic_configuration_does_not_have_are_not_waited_for(
    patroni: FakePatroni, configuration: PatroniConfiguration
) -> None:
    listed(patroni)
    observing(configuration, STATIC)
    with pytest.raises(UsageError, match=r"by patroni\.yml or ALTER SYSTEM"):
        configuration.plan(sync(0, None))
    patroni.config["synchronous_mode"] = "quorum"
    assert configuration.plan(sync(0, None)).differences, "Patroni's own names go with the mode"


@pytest.mark.parametrize(("names", "mode"), [(STATIC, "off"), (STATIC, "quorum"), ("n2", "off"), ("", "off")])
def test_names_by_alter_system_are_no_quorum_of_patronis(
    names: str, mode: str, patroni: FakePatroni, configuration: PatroniConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They looked like the ANY 1 that was asked for, and Patroni could never have replaced a standby in them."""
    listed(patroni)
    patroni.config["synchronous_mode"] = mode
    observing(configuration, names)
    row = {"setting": names, "file": "/data/postgresql.auto.conf"}
    monkeypatch.setattr(configuration._settings, "rows", lambda _member, _names: {"synchronous_standby_names": row})
    for number in (1, 0) if names else (1,):
        with pytest.raises(UsageError, match=r"by patroni\.yml or ALTER SYSTEM"):
            configuration.plan(sync(number))
    row["file"] = "/data/postgresql.conf"
    assert configuration.plan(sync(1)).change == sync(1)


@pytest.mark.parametrize(("mode", "tags", "why"), [
    ("off", {"nofailover": True}, "nofailover: true"),
    ("quorum", {"failover_priority": 0}, "failover_priority: 0"),
    ("on", {"nosync": True}, "nosync: true"),
])  # fmt: skip
def test_a_switchover_to_a_member_that_may_not_lead_is_refused_at_once(
    mode: str, tags: dict[str, object], why: str, patroni: FakePatroni
) -> None:
    listed(patroni, n3=tags)
    patroni.config["synchronous_mode"] = mode

    class Leading:
        clock = RealClock()

        def leader(self) -> str:
            return "n1"

    operations = PatroniOperations(PatroniRest(RestAccess((patroni.url,))), cast(ExternalCluster, Leading()))
    with pytest.raises(TargetError, match=f"does not let n3 lead: {why}"):
        operations.switch_over("n3")
    assert patroni.written == []
