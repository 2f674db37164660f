"""Names of standbys as PostgreSQL has them, wherever one is read, compared or written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.sick import well, with_member, with_settings
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import diagnosed
from walproof.errors import UsageError
from walproof.model.facts import Facts, Sender
from walproof.model.guarantee import ConfigChange, Quorum, QuorumKind, SyncReplication, read_standby_names
from walproof.model.topology import ClusterView, Endpoint, MemberView, Role
from walproof.pricing.level_in_effect import quorum_round_trip_ms
from walproof.targets.configure import NoJournal
from walproof.targets.postgres.target import NAMES, PostgresConfiguration
from walproof.targets.simulated.clock import VirtualClock
from walproof.targets.sql.connection import streams_as
from walproof.targets.sql.observe import combined
from walproof.targets.sql.settings import AutoConf
from walproof.watching.picture import sync_status

ANY, FIRST = QuorumKind.ANY, QuorumKind.FIRST


@each([
    ('1 ("East,2")', FIRST, 1, ("East,2",)),
    ('ANY 1 ("a""b", """")', ANY, 1, ('a"b', '"')),
    ("any 2 (a , b)", ANY, 2, ("a", "b")),
    ("FirSt\t3(a)", FIRST, 3, ("a",)),
    ("1, 2", FIRST, 1, ("1", "2")),
    ('"any", "FIRST"', FIRST, 1, ("any", "FIRST")),
    ('"(", ")", ""', FIRST, 1, ("(", ")", "")),
    ('"*"', FIRST, 1, ("*",)),
    ("anyone, first_1, é$", FIRST, 1, ("anyone", "first_1", "é$")),
    ("ANY 4294967297 (a)", ANY, 1, ("a",)),
    (f"{'0' * 5000}2 (a)", FIRST, 2, ("a",)),
])  # fmt: skip
def test_a_list_is_read_by_postgresqls_grammar(text: str, kind: QuorumKind, k: int, names: tuple[str, ...]) -> None:
    assert read_standby_names(text) == Quorum(kind, k, names)


@each([
    " ", "a b", "a,", "ANY (a)", "ANY 0 (a)", "0 (a)", "999999999999999999999999 (a)", "any", "first, b", 'a"b', '"a',
    "db-1", "ANY1 (a)", "(a)",
])  # fmt: skip
def test_a_list_that_postgresql_refuses_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="PostgreSQL refuses the standby names") as refused:
        read_standby_names(text)
    assert refused.value.exit_code == 2


@given(
    st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1), st.sampled_from(QuorumKind)
)
def test_what_is_written_is_read_back(names: list[str], kind: QuorumKind) -> None:
    quorum = Quorum(kind, 2, tuple(names))
    assert read_standby_names(quorum.text) == quorum


# compared without case, as PostgreSQL does


@each([
    ("FIRST 1 (N2, n3)", "n2", 1),
    ("FIRST 1 (n3, N2)", "n2", 2),
    ("ANY 1 (n3, N2)", "n2", 1),
    ("ANY 1 (n3, *)", "x", 1),
    ("K", "\u212a", 0),
    ("É", "é", 0),
])  # fmt: skip
def test_a_name_counts_whatever_its_case_in_ascii(text: str, name: str, priority: int) -> None:
    quorum = read_standby_names(text)
    assert quorum is not None and quorum.priority(name) == priority


def view(*members: MemberView, names: str = "") -> ClusterView:
    return ClusterView(0.0, (MemberView("n1", Role.LEADER, "running"), *members), "n1", names)


def standby(name: str, streams_as: str | None = None) -> MemberView:
    return MemberView(name, Role.STANDBY, "streaming", streams_as=streams_as)


@each([
    ("ANY 1 (N2)", standby("n2")),
    ('ANY 1 ("East,2")', standby("East,2")),
    ('1 ("a""b")', standby('a"b')),
    ("ANY 1 (n2)", standby("10.0.0.2:5432", "N2")),
])  # fmt: skip
def test_watch_says_blocked_only_where_commits_are(names: str, member: MemberView) -> None:
    assert sync_status(view(member, names=names), 1).spare == 0
    assert sync_status(view(standby("other"), names=names), 1).spare == -1


def test_the_round_trip_is_that_of_the_standbys_that_count() -> None:
    measured = {"pg-1-pg-2": 1.0, "pg-3-pg-1": 9.0, "pg-2-pg-3": 5.0}
    assert quorum_round_trip_ms(measured, "pg-1", 'FIRST 1 ("PG-3", "pg-2")') == 9.0
    assert quorum_round_trip_ms(measured, "pg-1", 'ANY 1 ("PG-3")') == 9.0
    assert quorum_round_trip_ms(measured, "pg-1", '1 ("PG-2", "PG-3")') == 1.0


def plain(names: str, *senders: str) -> Facts:
    facts = with_settings(well(managed=False), "*", synchronous_standby_names=names)
    rows = tuple(Sender(name, sync_state="quorum", slot=name) for name in senders)
    return with_member(facts, "n1", senders=rows)


@each([
    ('1 ("East,2")', ("East,2", "n3")),
    ('ANY 1 ("a""b", n3)', ('a"b', "n3")),
    ("ANY 1 (N2, N3)", ("n2", "n3")),
    ("ANY 1 (1, 007)", ("1", "007")),
])  # fmt: skip
def test_the_doctor_raises_no_false_error(names: str, senders: tuple[str, ...]) -> None:
    found = {finding.id for finding in diagnosed(plain(names, *senders))}
    assert not found & {"names-match-nobody", "quorum-larger-than-connected"}


def test_two_standbys_whose_names_differ_in_case_only_are_one_to_postgresql() -> None:
    found = {finding.id: finding for finding in diagnosed(plain("ANY 1 (n2)", "n2", "N2"))}
    assert found["same-name-twice"].evidence == "2 standbys stream as n2"


def test_a_fix_to_paste_quotes_the_names_it_lists() -> None:
    facts = plain("ghost", "o'brien", 'a"b', "pg_receivewal", "walreceiver")
    fix = next(f.fix for f in diagnosed(facts) if f.id == "names-match-nobody")
    assert """= 'FIRST 1 ("o''brien", "a""b")';""" in fix


# written: none is left out


def written(*members: MemberView, number: int = 1, leader: MemberView | None = None) -> str | None:
    first = leader or MemberView("n1", Role.LEADER, "running")
    seen = ClusterView(0.0, (first, *members), first.name)
    planned = PostgresConfiguration("t", VirtualClock(), dict, lambda: seen).plan(
        ConfigChange({}, SyncReplication(ANY, number))
    )
    return {one.name: one.value for one in planned.settings}[NAMES]


def test_what_was_planned_is_set_whoever_streams_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names were made anew after they had been shown."""
    leader, wanted = MemberView("n1", Role.LEADER, "running"), list[dict[str, str | None]]()
    views = [ClusterView(0.0, (leader, *more), leader.name) for more in ((standby("n2"),), ())]
    monkeypatch.setattr(AutoConf, "set", lambda _self, these, _journal: wanted.append(dict(these)))
    configuration = PostgresConfiguration("t", VirtualClock(), dict, lambda: views[0])
    plan = configuration.plan(ConfigChange({}, SyncReplication(ANY, 1)))
    views.pop(0)
    configuration.apply(plan, NoJournal())
    assert wanted == [{one.name: one.value for one in plan.settings}]


@each([
    (standby("east:send"), '"east:send"'),
    (standby("a,b"), '"a,b"'),
    (standby('a"b'), '"a""b"'),
    (standby("10.0.0.2:5432", "db:5432"), '"db:5432"'),
    (standby("label", "n2"), '"n2"'),
])  # fmt: skip
def test_every_standby_that_streams_is_listed_as_it_streams(member: MemberView, listed: str) -> None:
    names = sorted([listed, '"n1"', '"west"'])
    assert written(standby("west"), member) == f"ANY 1 ({', '.join(names)})"


@each([
    ((standby("10.0.0.2:5432", "walreceiver"),), "'walreceiver' cannot stand in"),
    ((standby("10.0.0.2", ""),), "'' cannot stand in"),
    ((standby("*"),), "'\\*' cannot stand in"),
    ((standby("\\xc3" * 15 + "\\xc"),), "no more than 63 characters"),
    ((standby("a", "n2"), standby("b", "N2")), "cannot tell apart"),
])  # fmt: skip
def test_a_name_that_cannot_be_expressed_is_refused_and_not_left_out(
    members: tuple[MemberView, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        written(standby("west"), *members)
    assert refused.value.exit_code == 2


@each([
    (MemberView("10.0.0.1:5432", Role.LEADER, "running"), '"west"'),
    (MemberView("label", Role.LEADER, "running", streams_as="15/main"), '"15/main", "west"'),
    (MemberView("label", Role.LEADER, "running", streams_as="WEST"), '"WEST"'),
])  # fmt: skip
def test_the_leader_is_listed_as_it_will_stream(leader: MemberView, listed: str) -> None:
    assert written(standby("west"), leader=leader) == f"ANY 1 ({listed})"


# observed


def row(**more: Any) -> dict[str, Any]:
    return {"standby": True, "lsn": 400, "timeline": 2, "names": "", "standbys": [], "version": 180000, **more}


def sender(name: str, address: str | None = "127.0.0.1") -> dict[str, Any]:
    return {"name": name, "state": "streaming", "sync_state": "quorum", "address": address}


@each([
    ("application_name='East,2' host=x", "", "East,2"),
    ("fallback_application_name=N2", "", "N2"),
    (None, "15/main", "15/main"),
    ("application_name=é", "x", "\\xc3\\xa9"),
])  # fmt: skip
def test_a_member_is_known_by_the_name_it_streams_under_whatever_it_is_called(
    conninfo: str | None, cluster_name: str, name: str
) -> None:
    follows = row(receiver_conninfo=conninfo, cluster_name=cluster_name)
    leads = row(standby=False, commits=0, waiting=0, longest_wait_s=0, standbys=[sender("other"), sender(name.lower())])
    members = {n: Endpoint((("127.0.0.1", port),)) for port, n in enumerate(("one", "two"), 5432)}
    seen = combined(0.0, members, {"one": leads, "two": follows}).view.member("two")
    assert streams_as(follows) == name
    assert seen is not None and (seen.state, seen.streams_as) == ("streaming", name.lower())
