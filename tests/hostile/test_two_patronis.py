"""Two clusters of Patroni behind the names of one target: it is one of them for as long as it is open."""

import atexit
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from walproof.errors import TargetError
from walproof.machine.clock import RealClock
from walproof.model.guarantee import ConfigChange
from walproof.model.topology import ClusterView
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.records.journal import Change, Journal
from walproof.targets.external import own_database
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.patroni.configuration import PatroniConfiguration
from walproof.targets.patroni.leader_lease import PatroniLeaderLease
from walproof.targets.patroni.target import PatroniCluster, open_patroni

OTHER = "is of another cluster, 8, not 7"
COPY = r"is of another cluster, that of n1 at 127.0.0.2:[0-9]+, not that of n1 at 127.0.0.1"


@pytest.fixture
def ours() -> Iterator[FakePatroni]:
    with fake_patroni(ttl=30) as made:
        made.system, made.members = "7", [made.listed()]
        yield made


@pytest.fixture
def theirs() -> Iterator[FakePatroni]:
    """Another cluster of the same scope, whose members have the same names."""
    with fake_patroni("127.0.0.2", ttl=30) as made:
        made.system, made.members = "8", [made.listed("127.0.0.2")]
        yield made


@pytest.fixture
def copy(theirs: FakePatroni) -> FakePatroni:
    """A standby cluster, or what a backup was restored to: of the same system identifier, with members of its own."""
    theirs.system = "7"
    return theirs


def away(patroni: FakePatroni) -> None:
    patroni.texts = dict.fromkeys(("/cluster", "/config", "/patroni"), "<html>")


def rest_of(*patronis: FakePatroni) -> PatroniRest:
    return PatroniRest(RestAccess(tuple(one.url for one in patronis)))


def test_a_drill_that_takes_the_first_away_does_not_go_on_with_the_other(
    ours: FakePatroni, theirs: FakePatroni, tmp_path: Path
) -> None:
    file = tmp_path / "t.toml"
    file.write_text(f'kind = "patroni"\nrest = ["{ours.url}", "{theirs.url}"]\n')
    away(theirs)
    target = open_patroni(str(file))
    theirs.texts = {}
    away(ours)
    with pytest.raises(TargetError, match=OTHER) as refused:
        target.members.renew()
    assert "rest" in refused.value.hint
    assert target.identity == target._known().system == "7"
    assert [endpoint.hosts for endpoint in target.members().values()] == [(("127.0.0.1", 9),)]


def test_names_of_two_clusters_are_refused_before_anything_is_done(
    ours: FakePatroni, theirs: FakePatroni, tmp_path: Path
) -> None:
    """The first to answer was the cluster: load and configuration went there without a word."""
    file = tmp_path / "t.toml"
    file.write_text(f'kind = "patroni"\nrest = ["{ours.url}", "{theirs.url}"]\n')
    with pytest.raises(TargetError, match=OTHER):
        open_patroni(str(file))
    assert not theirs.written


def test_what_was_set_is_not_told_undone_by_the_other(ours: FakePatroni, theirs: FakePatroni, tmp_path: Path) -> None:
    rest, journal = rest_of(ours, theirs), Journal(tmp_path / "journal.jsonl")
    configuration = PatroniConfiguration("c", RealClock(), rest, dict, lambda: ClusterView(0.0, (), None, ""))
    configuration.apply(configuration.plan(ConfigChange({}, None, {"ttl": 20})), journal)
    away(ours)
    with pytest.raises(TargetError, match=OTHER):
        configuration.undo(journal)
    assert len(journal.pending()) == 1 and {asked.method for asked in theirs.asked} == {"GET"}
    ours.texts = {}
    assert configuration.undo(journal) == [] and journal.pending() == () and ours.config == {"ttl": 30}


@pytest.mark.parametrize("answering", [True, False])
def test_a_copy_is_refused_as_another_cluster_is(
    answering: bool, ours: FakePatroni, copy: FakePatroni, tmp_path: Path
) -> None:
    """It has the identifier and the scope; an undo asked the first to answer."""
    file = tmp_path / "t.toml"
    file.write_text(f'kind = "patroni"\nrest = ["{ours.url}", "{copy.url}"]\n')
    with pytest.raises(TargetError, match=COPY):
        open_patroni(str(file), answering=answering)
    away(copy)
    target = open_patroni(str(file), answering=answering)
    copy.texts = {}
    away(ours)
    for ask in (target.rest.cluster, target.rest.config, target.rest.newest_config):
        with pytest.raises(TargetError, match=COPY):
            ask()
    assert {asked.method for asked in copy.asked} == {"GET"}


def test_members_that_were_listed_once_are_the_clusters_for_good(ours: FakePatroni) -> None:
    """Where two are down by turns, Patroni never lists both; without its DCS it lists none, and takes no change."""
    n1, n2 = ours.listed(), {**ours.listed(name="n2"), "api_url": "http://127.0.0.1:9/patroni"}
    rest = rest_of(ours)
    for listed in ([n1, n2], [n2], [], [n1]):
        ours.members = listed
        assert rest.cluster()["members"] == listed and rest.config() == {"ttl": 30}
        if listed:
            rest.patch({"ttl": 30})
        else:
            with pytest.raises(TargetError, match="lists no members"):
                rest.patch({"ttl": 20})
    assert rest.config() == {"ttl": 30}


@pytest.mark.parametrize("what", ["config", "database"])
def test_what_was_changed_on_a_cluster_is_not_told_undone_by_its_copy(
    what: str, ours: FakePatroni, copy: FakePatroni, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the journal too: the member that was asked is down, and a copy's Patroni answers at a name of `rest`."""
    file, journal = tmp_path / "t.toml", Journal(tmp_path / "journal.jsonl", cluster="7")
    file.write_text(f'kind = "patroni"\nrest = ["{ours.url}", "{copy.url}"]\n')
    copy.config = {"ttl": 20}
    dropped: list[str] = []

    def drop_left(_: object, change: Change, journal: Journal, __: object) -> list[str]:
        dropped.append(change.name)
        journal.undone(change)
        return []

    monkeypatch.setattr(PatroniCluster, "leader", lambda _: "n1")
    monkeypatch.setattr(PatroniCluster, "_answering", lambda *_: {})
    monkeypatch.setattr(PatroniConfiguration, "_await", lambda *_: None)
    monkeypatch.setattr(ExternalCluster, "_drop_left", drop_left)
    for name in ("check_system", "make"):
        monkeypatch.setattr(own_database, name, lambda *_: None)
    away(copy)
    target = open_patroni(str(file))
    target.journal = journal
    if what == "config":
        target.configuration.apply(target.configuration.plan(ConfigChange({}, None, {"ttl": 20})), journal)
    else:
        target.open_database()
    atexit.unregister(target.close)
    copy.texts = {}
    away(ours)
    (left,) = open_patroni(str(file), answering=False).revert(journal)
    assert f"of n1 at {ours.url[7:]}, and that of n1 at {copy.url[7:]} answers: left alone" in left
    assert len(journal.pending()) == 1 and not copy.written and not dropped
    away(copy)
    ours.texts = {}
    assert open_patroni(str(file), answering=False).revert(journal) == []
    assert not journal.pending() and ours.config == {"ttl": 30} and len(dropped) == (what == "database")


@pytest.mark.parametrize("change", ["patch", "restart", "reinitialize", "switch_over"])
@pytest.mark.parametrize(("system", "scope"), [("8", "main"), ("7", "standby-of-main"), ("", "main")])
def test_no_change_is_sent_to_a_name_that_leads_elsewhere_by_now(
    ours: FakePatroni, change: str, system: str, scope: str
) -> None:
    rest = rest_of(ours)
    rest.cluster()
    ours.system, ours.scope = system, scope
    changes = {
        "patch": lambda: rest.patch({"ttl": 20}),
        "restart": lambda: rest.restart(ours.url),
        "reinitialize": lambda: rest.reinitialize(ours.url),
        "switch_over": lambda: rest.switch_over("n1", None),
    }
    with pytest.raises(TargetError, match=r"another cluster|does not tell which"):
        changes[change]()
    assert ours.written == []


def test_a_members_name_that_leads_elsewhere_tells_nothing_of_it(ours: FakePatroni, theirs: FakePatroni) -> None:
    """A leader that is silent is not taken for one that answers, nor another's configuration for ours."""
    with fake_patroni() as leader:
        leader.system, standby = "7", {**ours.listed(name="n2"), "role": "replica"}
        ours.members = [leader.listed(), standby]
        rest = rest_of(ours, theirs)
        lease = PatroniLeaderLease(rest, RealClock())
        assert (seen := lease.look()) is not None and seen.answers
        leader.system = "8"
        assert (seen := lease.look()) is not None and not seen.answers and seen.ttl_s == 30.0
        assert rest.versions() == {"n1": "?", "n2": "4.1.3"}
        away(ours)
        for ask in (rest.cluster, rest.config, rest.newest_config):
            with pytest.raises(TargetError, match=OTHER):
                ask()
        assert lease.look() is None


def test_a_cluster_that_is_being_initialized_tells_none_and_is_asked_all_the_same(ours: FakePatroni) -> None:
    ours.system = ""
    rest = rest_of(ours)
    assert rest.identity() == "" and rest.config() == {"ttl": 30}
    rest.patch({"ttl": 20})
    ours.system = "7"
    assert rest.identity() == "7" and rest.newest_config() == {"ttl": 20}


def test_an_answer_needs_one_request_more_and_a_change_none_than_it_did(ours: FakePatroni) -> None:
    rest = rest_of(ours)
    rest.config()
    rest.patch({"ttl": 20})
    paths = [(asked.method, asked.path) for asked in ours.asked]
    assert paths == [("GET", "/config"), ("GET", "/patroni"), ("GET", "/patroni"), ("PATCH", "/config")]
