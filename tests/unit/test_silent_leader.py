"""A leader that is silent while its lease runs: seen through other members, told, drawn, exported."""

import shlex
from dataclasses import replace

from prometheus_client import generate_latest
from rich.console import Console

from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.tiers import each
from walproof.machine.clock import RealClock
from walproof.model.leader_lease import LeaseSeen
from walproof.model.topology import ClusterView, MemberView, Role, Snapshot
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.targets.patroni.leader_lease import PatroniLeaderLease
from walproof.watching import terminal
from walproof.watching.exporter import Metrics
from walproof.watching.picture import Picture, with_silent_leader, with_snapshot
from walproof.watching.silent_leader import SilentLeader, beside_sql, silent_leader, told

SILENT = LeaseSeen(100.0, 100.0, "main", "n1", answers=False, synchronous=("n2", "n3"), ttl_s=30.0, loop_wait_s=10.0)


def at(seconds: float, **more: object) -> LeaseSeen:
    return replace(SILENT, asked_at=100.0 + seconds, at=100.0 + seconds, **more)  # type: ignore[arg-type]


def after(*looks: LeaseSeen | None) -> SilentLeader | None:
    silent = None
    for look in looks:
        silent = silent_leader(silent, look)
    return silent


def silence(*looks: LeaseSeen | None) -> SilentLeader:
    silent = after(*looks)
    assert silent is not None
    return silent


def test_the_lease_is_counted_from_the_first_question_that_the_leader_left_open() -> None:
    silent = silence(at(0), None, at(8))
    assert (silent.silent_s, silent.lease_left_s, silent.acts_by) == (8.0, 22.0, 142.0)
    for words in (
        "leader n1 silent, lease running",
        "REST and SQL",
        "n2, n3",
        "(8 s)",
        "at most 22 s more",
        "by itself",
    ):
        assert words in silent.text


# rows: it answers again, the key is free
@each([at(5, answers=True), at(5, leader="", answers=True)])
def test_silence_ends_with_an_answer_or_with_the_key(last: LeaseSeen) -> None:
    assert after(at(0), last) is None


def test_a_leader_that_hands_over_within_a_second_is_not_told_of() -> None:
    """A kill: its Patroni answers nothing while PostgreSQL crashes, and the key is free, or another's, soon after."""
    assert told(silence(at(0), at(1))) is None
    assert told(silence(at(0), at(2))) is not None
    assert told(silence(at(0), at(1.9), at(2.5, leader="n2"))) is None
    assert told(silence(replace(SILENT, at=103.0))) is not None, "one question that stayed open for three seconds"


def test_a_new_leader_that_is_silent_too_is_counted_anew() -> None:
    assert silence(at(0), at(9, leader="n2")).since == 109.0


def test_what_keeps_patroni_from_acting_is_said() -> None:
    assert "was renewed" in silence(at(0), at(43)).text
    paused = silence(at(0, paused=True))
    assert paused.acts_by is None and "only once PostgreSQL of n1 is down" in paused.text
    assert "is not known" in silence(at(0, ttl_s=None)).text
    assert "–" in silence(at(0, ttl_s=1e17)).text


def test_postgres_that_answers_beside_a_silent_patroni_may_take_writes() -> None:
    silent = silence(at(0))
    answering = MemberView("n1", Role.LEADER, "running")
    beside = beside_sql(silent, ClusterView(1.0, (answering,), "n1"))
    assert beside is not None and beside.by == "REST" and "may take writes" in beside.text
    gone = beside_sql(silent, ClusterView(1.0, (replace(answering, role=Role.UNKNOWN),), None))
    assert gone is not None and gone.by == "REST and SQL"


@each(["main", "pg; touch /tmp/x #", "$(id)", "it's", "a\nb", "--dcs-url=x"])
def test_the_command_is_one_and_quotes_the_name(scope: str) -> None:
    """Of a name with a line end one line is left: no shell runs a second one."""
    words = shlex.split(silence(at(0, scope=scope)).command)
    assert words == ["patronictl", "list", "-W", "--", " ".join(scope.split())]


def test_page_and_terminal_show_it_and_when_it_began_and_ended() -> None:
    view = ClusterView(1.0, (MemberView("n1", Role.UNKNOWN, "unreachable"),), None)
    picture = with_silent_leader(with_snapshot(Picture(target="main"), Snapshot(view)), silence(at(0), at(3)))
    shown = picture.as_json()["silent_leader"]
    assert shown["command"] == "patronictl list -W -- main" and "lease running" in shown["text"]
    assert "failover" in shown["not"]
    console = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal.rendered(picture))
    text = console.export_text()
    assert (
        "leader n1 silent" in text and "type: patronictl list -W -- main" in text and "not patronictl failover" in text
    )
    ended = with_silent_leader(picture, None)
    assert ended.as_json()["silent_leader"] is None
    assert [e.text for e in ended.events] == ["n1 silent, its lease runs", "n1 answers again, or its lease ended"]
    assert with_silent_leader(ended, None) is ended


def test_its_metrics_are_there_only_while_it_is_silent() -> None:
    metrics = Metrics()
    metrics.record_silent_leader(silence(at(0), at(3)))
    text = generate_latest(metrics.registry).decode()
    series = 'walproof_leader_silent_seconds{by="REST and SQL",command="patronictl list -W -- main",member="n1"} 3.0'
    assert series in text and 'walproof_leader_lease_seconds{member="n1"} 27.0' in text
    metrics.record_silent_leader(None)
    assert b'member="n1"' not in generate_latest(metrics.registry)


def lease_of(*urls: str) -> PatroniLeaderLease:
    return PatroniLeaderLease(PatroniRest(RestAccess(urls, timeout_s=1.0)), RealClock())


def listed(patroni: FakePatroni, name: str, role: str) -> dict[str, object]:
    return patroni.listed(name=name) | {"role": role}


def test_another_member_tells_who_leads_and_the_leader_itself_whether_it_answers() -> None:
    with fake_patroni() as leader, fake_patroni() as standby:
        standby.config = {"ttl": 25, "loop_wait": 5}
        standby.members = [listed(leader, "n1", "leader"), listed(standby, "n2", "quorum_standby")]
        lease = lease_of(standby.url)
        seen = lease.look()
        assert seen is not None and (seen.leader, seen.answers, seen.scope) == ("n1", True, "main")
        assert seen.synchronous == ("n2",)
        leader.texts["/patroni"] = "no JSON"
        silent = lease.look()
        assert silent is not None and not silent.answers and (silent.ttl_s, silent.loop_wait_s) == (25.0, 5.0)
        standby.members = [listed(leader, "n1", "replica"), listed(standby, "n2", "quorum_standby")]
        free = lease.look()
        assert free is not None and free.leader == "" and free.answers


def test_times_that_patroni_refuses_are_not_taken_for_those_in_effect() -> None:
    with fake_patroni() as leader, fake_patroni() as standby:
        standby.config = {"ttl": "60s"}
        standby.members = [listed(leader, "n1", "leader"), listed(standby, "n2", "replica")]
        leader.texts["/patroni"] = "no JSON"
        seen = lease_of(standby.url).look()
        assert seen is not None and not seen.answers and seen.ttl_s is None


def test_where_no_member_answers_nothing_is_known() -> None:
    assert lease_of("http://127.0.0.1:9").look() is None
