"""Patroni's keys and values as the guard reads them: as Patroni does, whoever wrote them."""

import json
from itertools import product
from typing import Any

import pytest
from patroni.config import Config

from tests.fixtures.guards import MEMBER, entries, entry
from walproof.guarding.leader_lock import LIMIT, state_of
from walproof.guarding.seal_quorum import LATE_S, why_not
from walproof.model.takeover import Candidate, LockState

ODD_LAGS: tuple[object, ...] = ("10MB", None, [], True)


def member(**data: object) -> Candidate:
    return state_of({"members/n2": entry("members/n2", {**MEMBER, **data}, 6, 78)}, 0.0).candidates["n2"]


def test_a_members_key_is_read_as_patroni_reads_it_whoever_wrote_it() -> None:
    plain = Candidate(78, True, 1, "10.0.0.2:5432")
    assert member() == member(tags=None) == member(tags={}) == member(timeline=None) == member(version=None) == plain
    assert member(version="") == plain and member(version="4.1.5").version == (4, 1, 5)
    assert member(version="4.beta.5").version == (4, 0, 5)
    assert member(timeline="7").timeline == 7 and member(timeline="x").timeline == 0
    assert not member(state="starting").running
    assert [member(conn_url=u).address for u in (None, "", "postgres://[", "postgres://h:1/x")] == [":5432"] * 2 + [
        "", "h:1"
    ]  # fmt: skip
    odd = member(tags=[1])
    assert odd.tagged and not odd.counts and odd.priority == 0
    assert [member(tags={"failover_priority": p}).priority for p in (5, "5", None, "x", 1e400, "0")] == [
        5,
        5,
        1,
        1,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("tags", "tagged"),
    [
        ({"replicatefrom": "n1"}, 'replicatefrom: "n1"'),
        ({"nofailover": True}, "nofailover: true"),
        ({"nofailover": "false"}, 'nofailover: "false"'),
        ({"nosync": "yes"}, 'nosync: "yes"'),
        ({"failover_priority": 0}, "failover_priority: 0"),
        ({"failover_priority": "0"}, 'failover_priority: "0"'),
        ({"sync_priority": "-1"}, 'sync_priority: "-1"'),
        ({"failover_priority": "0x0"}, 'failover_priority: "0x0"'),
        ({"nostream": "yes"}, 'nostream: "yes"'),
        ({"nostream": "maybe"}, ""),
        ({"failover_priority": []}, ""),
        ({"failover_priority": "1MB", "sync_priority": "low"}, ""),
        ({"nofailover": False, "failover_priority": 0}, ""),
        ({"nofailover": "", "failover_priority": -1}, ""),
        ({"nosync": False, "sync_priority": 0}, ""),
        ({"nofailover": False, "replicatefrom": "", "failover_priority": 7}, ""),
        ({"failover_priority": None, "noloadbalance": True}, ""),
    ],
)
def test_g4_voters_are_counted_as_patroni_reads_their_tags(tags: dict[str, Any], tagged: str) -> None:
    state = state_of(entries(members_n2=entry("members/n2", {**MEMBER, "tags": tags}, 6, 78)), 0.0)
    assert state.candidates["n2"].tagged == tagged
    assert ("n2" in state.counted) == (tagged == "")


def test_numbers_that_are_missing_or_out_of_range_are_patronis_own() -> None:
    def settings(**config: object) -> LockState:
        return state_of({"config": entry("config", config, 3)}, 0.0)

    missing = settings()
    assert (missing.ttl_s, missing.loop_wait_s, missing.least_position) == (30, 10, -1048576)
    assert (missing.holder, missing.sync_leader, missing.voters, missing.quorum, missing.limit_s) == ("", "", (), 0, 0)
    assert (missing.holder_version, missing.holder_lease, missing.sync_version, missing.failover_version) == (0,) * 4
    assert state_of({}, 0.0).config_version == 0
    assert [settings(ttl=t).ttl_s for t in (5, 19, 20, 21, 40)] == [20, 20, 20, 21, 40]
    assert [settings(loop_wait=w).loop_wait_s for w in (0, 1, 7, "x")] == [1, 1, 7, 10]
    status = {"status": entry("status", {"optime": 5000000}, 4), "config": entry("config", {}, 3)}
    assert state_of(status, 0.0).least_position == 5000000 - 1048576
    limits = [{"limit_s": n} for n in (30, 30.0, -5, None)]
    assert [state_of({LIMIT: entry(LIMIT, one, 9)}, 0.0).limit_s for one in limits] == [30, 30, 0, 0]
    nobody = {"leader": None, "sync_standby": None}
    for named, voters in ((nobody, ()), ({"sync_standby": " n2 ,,n3,"}, ("n2", "n3"))):
        state = state_of({"sync": entry("sync", named, 5)}, 0.0)
        assert (state.voters, state.sync_leader, state.quorum) == (voters, "", 0)
    on = settings(pause=True, standby_cluster={"host": "h"})
    assert on.paused and on.standby_cluster and not (missing.paused or missing.standby_cluster)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        *(
            ({"synchronous_mode": mode}, {"synchronous": True})
            for mode in (True, 1, "on", "1", "yes", "Quorum", "TRUE")
        ),
        *(({"synchronous_mode": mode}, {"synchronous": False}) for mode in (False, "off", None, 2, "strict", [True])),
        *(({"pause": word}, {"paused": True}) for word in (1, "on", "Yes")),
        *(({"pause": word}, {"paused": False}) for word in ("false", "maybe", 7)),
        *(({"failsafe_mode": word}, {"failsafe": True}) for word in (1, "on", "Yes")),
        *(({"failsafe_mode": word}, {"failsafe": False}) for word in ("false", "off", "maybe")),
        ({"standby_cluster": {"create_replica_methods": ["basebackup"]}}, {"standby_cluster": False}),
        ({"standby_cluster": "n9"}, {"standby_cluster": False}),
        ({"standby_cluster": {"restore_command": "cp %f %p"}}, {"standby_cluster": True}),
        *(({"maximum_lag_on_failover": lag}, {"least_position": 5 - (1 << 20)}) for lag in ODD_LAGS),
        ({"maximum_lag_on_failover": "0"}, {"least_position": 5}),
        ({"maximum_lag_on_failover": "0x3"}, {"least_position": 2}),
    ],
)
def test_the_configuration_is_read_as_patroni_reads_it(config: dict[str, Any], expected: dict[str, object]) -> None:
    status = {"optime": "5", "slots": {}}
    seen = state_of({"config": entry("config", config, 3), "status": entry("status", status, 4)}, 0.0)
    assert {name: getattr(seen, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("quorum", "expected"),
    [("1", 1), (1, 1), (None, 0), (0, 0), ("x", None), ([1], None), (1e400, None), (-1, None), ("-2", None)],
)
def test_a_sync_key_whose_quorum_is_no_number_names_no_voter(quorum: object, expected: int | None) -> None:
    """Patroni takes all of it for empty; read as 0, one sealed voter would have been enough."""
    named = {"leader": "n1", "sync_standby": "n2,n3", "quorum": quorum}
    state = state_of(entries(sync=entry("sync", json.dumps(named), 11)), 0.0)
    assert (state.voters, state.quorum) == (((), 0) if expected is None else (("n2", "n3"), expected))


@pytest.mark.parametrize(
    ("mode", "version", "expected"),
    [
        ("quorum", "3.3.8", False), ("Quorum", "3.0.3", False), ("quorum", "4.1.5", True),
        ("quorum", "4.0.0", True), ("on", "3.3.8", True), (True, "3.0.3", True),
    ],
)  # fmt: skip
def test_quorum_mode_is_none_to_a_patroni_that_does_not_know_it(mode: object, version: str, expected: bool) -> None:
    """It empties the names; where it could not remove /sync, that still says that n2 and n3 have every commit."""
    config = entry("config", json.dumps({"synchronous_mode": mode}), 3)
    keys = entries(config=config, members_n2=entry("members/n2", {**MEMBER, "version": version}, 6, 78))
    assert state_of(keys, 0.0).synchronous is expected


@pytest.mark.parametrize("ttl", [5, 20, 21, 30, 60])
def test_the_times_are_those_that_patroni_makes_of_the_configuration(ttl: int) -> None:
    """/config keeps what was written; Patroni of before 3.2 obeys it. A lease is then overdue within the ttl."""
    for loop_wait, retry_timeout in product((0, 1, 9, 10, 25, 60), (1, 3, 5, 10, 14, 15, 40)):
        config = {"ttl": ttl, "loop_wait": loop_wait, "retry_timeout": retry_timeout}
        keys = {"config": entry("config", config, 3), "members/n1": entry("members/n1", {"version": "4.1.5"}, 5, 77)}
        Config._validate_and_adjust_timeouts(object.__new__(Config), config)
        for version, expected in (("4.1.5", config["loop_wait"]), ("3.2", config["loop_wait"]), ("3.1.9", None)):
            keys["members/n2"] = entry("members/n2", {**MEMBER, "version": version}, 6, 78)
            state = state_of(keys, 0.0)
            assert state.ttl_s == config["ttl"]
            assert state.loop_wait_s == (max(1, loop_wait) if expected is None else expected)
            assert expected is None or state.loop_wait_s + LATE_S < state.ttl_s


@pytest.mark.parametrize("odd", ["60s", "25.5", None, [], float("inf")])
def test_where_patroni_refuses_the_configuration_its_times_are_not_known(odd: object) -> None:
    """Patroni kept its loop_wait of 20 s, the guard took its default of 10 s: a healthy lease was overdue."""
    config = {"ttl": odd, "loop_wait": 20, "retry_timeout": 10, "synchronous_mode": True}
    seen = state_of(entries(config=entry("config", json.dumps(config), 3)), 100.0)
    assert "ttl in /config" in seen.unsuitable and why_not(seen, {}, 100.0, frozenset()) == seen.unsuitable
    assert not state_of(entries(config=entry("config", json.dumps({**config, "ttl": "60"}), 3)), 100.0).unsuitable
