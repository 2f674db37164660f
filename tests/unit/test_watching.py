"""The live picture, the catalogue, the actions and the page's safety, without a cluster."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
import yaml
from prometheus_client import generate_latest
from rich.console import Console
from starlette.testclient import TestClient

from tests.fixtures import observed
from tests.fixtures.tiers import each
from walproof.errors import Error, TargetError, UsageError
from walproof.estimating.observed_waits import observation
from walproof.guarding.kubernetes_freeze import State
from walproof.guarding.status_and_metrics import GuardMetrics, GuardStatus
from walproof.machine.clock import RealClock
from walproof.model.drill import Drill, Findings, Verdict, Victim
from walproof.model.event import DrillDone, FaultChanged
from walproof.model.guarantee import Level
from walproof.model.leader_lease import LeaseSeen
from walproof.model.load import Outcome
from walproof.model.observed_waits import WaitsSeen
from walproof.model.topology import ClusterView, Endpoint, LinkView, MemberView, Role, Snapshot
from walproof.model.waiting import Wait, wait_for
from walproof.reporting.observe_section import TONES
from walproof.targets.simulated.target import simulated
from walproof.targets.sql.observe import combined
from walproof.watching import actions, terminal
from walproof.watching import page as page_module
from walproof.watching.actions import Actions, ActionStatus
from walproof.watching.alerts_and_dashboard import ALERTS, PANELS, alert_rules, dashboard
from walproof.watching.canary import Canary, Probe
from walproof.watching.collector import Collector
from walproof.watching.exporter import Metrics
from walproof.watching.page import Page, page_html
from walproof.watching.picture import (
    Picture,
    TimelineEvent,
    sync_status,
    with_links,
    with_probe,
    with_record_event,
    with_snapshot,
    with_waits,
)
from walproof.watching.silent_leader import silent_leader


def view(at: float, leader: str | None = "n1", names: str = 'ANY 1 ("n2","n3")', streaming: int = 2) -> ClusterView:
    members = [MemberView("n1", Role.LEADER if leader == "n1" else Role.UNKNOWN, "running", 1, 100, 0)]
    for i, name in enumerate(("n2", "n3")):
        role = Role.LEADER if leader == name else Role.STANDBY
        state = "streaming" if i < streaming else "stopped"
        members.append(MemberView(name, role, state, 1, 90, 10, sync_state="quorum"))
    return ClusterView(at, tuple(members), leader, names)


def snapshot(at: float, commits: int | None = None, **more: Any) -> Snapshot:
    return Snapshot(view(at, **more), commits, 0, 0.0)


@each([('ANY 1 ("n2","n3")', 2, 1, 1), ('ANY 2 ("n2","n3")', 1, 2, -1), ("", 2, 0, 0), ("*", 2, 1, 1)])
def test_the_sync_status_is_what_the_standby_names_ask_for(
    names: str, streaming: int, in_effect: int, spare: int
) -> None:
    now = sync_status(view(0, names=names, streaming=streaming), 1)
    assert (now.in_effect, now.spare) == (in_effect, spare)
    assert ("inactive" in now.text) == (in_effect == 0)
    assert ("commits are blocked" in now.text) == (spare < 0)


def test_throughput_is_the_difference_of_two_counters_and_a_new_leaders_counter_starts_anew() -> None:
    picture = with_snapshot(Picture(), snapshot(1.0, 100))
    picture = with_snapshot(picture, snapshot(2.0, 350))
    picture = with_snapshot(picture, snapshot(3.0, 600))
    picture = with_snapshot(picture, snapshot(5.0, 20))
    picture = with_snapshot(picture, snapshot(7.0, 9000, leader="n2"))
    assert [(p.at, p.tps) for p in picture.points] == [(3.0, 250.0)]


def test_a_new_leader_an_unreachable_member_and_empty_standby_names_are_events() -> None:
    picture = with_snapshot(Picture(), snapshot(1.0))
    picture = with_snapshot(picture, snapshot(2.0, leader="n2"))
    picture = with_snapshot(picture, snapshot(3.0, leader="n2", names=""))
    assert [event.text for event in picture.events] == [
        "n2 is leader",
        "n1 is unreachable",
        "synchronous replication inactive: synchronous_standby_names is empty",
    ]
    assert picture.sync.declared == 1
    assert picture.sync.in_effect == 0
    assert picture.severity == "bad"


def test_drills_faults_canaries_and_links_are_drawn_in_the_terminal() -> None:
    drill = Drill(
        1, "kill", Victim.LEADER, Level.OFF, Verdict.BROKEN, "lost", Findings(acknowledged=9, lost=3), rto_s=1.5
    )
    picture = with_snapshot(Picture(target="lab"), snapshot(1.0))
    picture = with_record_event(picture, FaultChanged(1.5, "kill", ("n1",), False))
    picture = with_record_event(picture, DrillDone(2.0, drill))
    picture = with_probe(picture, Probe(2.0, Level.ON, Outcome.ACKNOWLEDGED, 0.004))
    picture = with_links(picture, (LinkView("n1", "n2", rtt_ms=10.0), LinkView("n1", "n3", cut=True)))
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal.rendered(picture))
    text = console.export_text()
    for word in (
        "synchronous commits wait for 1 standby",
        "kill at off: broken, 3 lost",
        "4.00 ms",
        "partitioned: n1 → n3",
        "10 ms",
    ):
        assert word in text


# rows: flush, two causes, nothing, hanging, hanging beside autovacuum, no rights, not yet
@each([
    ([observed.seen(observed.group(standby=24, flush=40))], "", "a commit waits 8.00 ms: 5.00 ms for local flush", 5),
    ([observed.seen(observed.group(standby=24), level="remote_apply")], "", "a commit waits 3.00 ms: 1.50", 5),
    ([observed.seen()], "", "a commit waits 0.00 ms", 5),
    ([observed.seen(observed.group(standby=24), transaction_ids=0, commits=0)], "", "no commit that wrote ends", 0),
    ([observed.seen(observed.group(standby=24), transaction_ids=3, longest_ms=2000)], "",
     "no commit that waits for standbys ends", 0),
    ([], "app may not see it; GRANT pg_monitor", "is not known: app may not see it; GRANT pg_monitor", 0),
    ([], "", "", 0),
])  # fmt: skip
def test_what_commits_wait_for_is_drawn_live(seconds: list[WaitsSeen], unknown: str, says: str, drawn: int) -> None:
    made = observation(seconds) if seconds else None
    picture = with_waits(with_snapshot(Picture(target="lab"), snapshot(1.0)), (made, unknown))
    assert says in picture.waits and (says != "" or picture.waits == "")
    shown = json.loads(json.dumps(picture.as_json()))
    assert sum(point["waited"] is not None for point in shown["points"]) == drawn
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal.rendered(picture))
    text = console.export_text()
    assert says in text
    waited = any(one.standby or one.flush for second in seconds for one in second.groups) and drawn > 0
    assert any(mark in text for mark in ("standby: network and write  ", "local flush  ")) is waited
    assert not picture.waits.endswith(": ")
    starts = {line.index(" ms  ") for line in text.splitlines() if " ms  ▁" in line or " ms  █" in line}
    assert len(starts) == (1 if waited else 0), "the values of series stand below one another"


def test_the_collector_shows_commit_waits_and_the_reason_where_there_are_none() -> None:
    """watch: what commits wait for, live."""

    refused = threading.Event()

    class Waits:
        def watch(self, every_s: float, ended: Any) -> Iterator[WaitsSeen]:
            while not refused.wait(0.01):
                yield observed.seen(observed.group(flush=40), at=target.clock.now())
            raise TargetError("app may not see it", "GRANT pg_monitor")

    target: Any = simulated("sim?members=3")
    target.clock = RealClock()
    able = replace(target.capabilities(), commit_waits=Waits())
    target.capabilities = lambda: able
    collector = Collector(target)
    try:
        wait_for(Wait.PROGRAM_READY, lambda: "a commit waits 5.00 ms" in collector.picture.waits, RealClock())
        refused.set()
        wait_for(Wait.PROGRAM_READY, lambda: "app may not see it; GRANT pg_mon" in collector.picture.waits, RealClock())
    finally:
        collector.close()


def test_the_picture_is_plain_json_and_canary_commits_are_counted_apart_by_outcome() -> None:
    picture = with_snapshot(Picture(), snapshot(1.0))
    for outcome in (Outcome.ACKNOWLEDGED, Outcome.DOWNGRADED, Outcome.UNKNOWN, Outcome.REFUSED, Outcome.ACKNOWLEDGED):
        picture = with_probe(picture, Probe(2.0, Level.ON, outcome, 0.004))
    shown = json.loads(json.dumps(picture.as_json()))
    assert shown["probes"] == {"acknowledged": 2, "downgraded": 1, "unknown": 1, "refused": 1}
    assert [p["ms"] for p in shown["points"]] == [4.0, 4.0]
    assert [m["role"] for m in shown["members"]] == ["leader", "standby", "standby"]
    assert shown["severity"] == "good"


class _Connection:
    """A psycopg connection that answers every commit alike: with warnings, an error, or success."""

    def __init__(self, error: psycopg.Error | None, sqlstates: tuple[str, ...]) -> None:
        self.error, self.sqlstates, self.closed = error, sqlstates, error is not None and error.sqlstate is None
        self.handler: Any = None
        self.wire, _ = socket.socketpair()

    def fileno(self) -> int:
        return self.wire.fileno()

    def add_notice_handler(self, handler: Any) -> None:
        self.handler = handler

    def execute(self, _query: str, _values: tuple[str, ...]) -> None:
        for sqlstate in self.sqlstates:
            self.handler(SimpleNamespace(sqlstate=sqlstate, message_primary="annulation de l'attente"))
        if self.error:
            raise self.error


class _Severe(psycopg.errors.lookup("57P01")):  # type: ignore[misc]
    """An administrator's shutdown, as the server sends it."""

    diag = SimpleNamespace(severity_nonlocalized="FATAL")


class _Refused(psycopg.errors.lookup("53100")):  # type: ignore[misc]
    """A full disk: the transaction is aborted."""

    diag = SimpleNamespace(severity_nonlocalized="ERROR")


@each([
    (None, (), Outcome.ACKNOWLEDGED),
    (None, ("01000",), Outcome.DOWNGRADED),
    (None, ("57P01",), Outcome.DOWNGRADED),
    (None, ("00000",), Outcome.ACKNOWLEDGED),
    (psycopg.OperationalError("server closed the connection"), (), Outcome.UNKNOWN),
    (_Severe(), (), Outcome.UNKNOWN),
    (_Refused(), (), Outcome.REFUSED),
])  # fmt: skip
def test_the_canary_classifies_answers_by_sqlstate_in_any_language(
    error: psycopg.Error | None, warnings: tuple[str, ...], outcome: Outcome
) -> None:
    probes: list[Probe] = []
    canary = Canary.__new__(Canary)
    canary._closed, canary._name = threading.Event(), "0"
    canary._target, canary._pace_s = simulated("sim"), 0.0

    def report(probe: Probe) -> None:
        probes.append(probe)
        canary._closed.set()

    canary._report = report
    canary._probe_until_lost(cast(Any, _Connection(error, warnings)), Level.ON)
    assert [(p.level, p.outcome) for p in probes] == [(Level.ON, outcome)]


def test_members_rows_become_one_view_and_the_higher_timeline_leads() -> None:
    row = {"standby": False, "lsn": 500, "timeline": 2, "names": "", "commits": 7, "waiting": 1, "longest_wait_s": 2.0}
    standby = {"name": "n3", "state": "streaming", "sync_state": "async", "address": "10.0.0.3", "replayed": 400}
    rows = {
        "n1": {**row, "timeline": 1, "standbys": []},
        "n2": {**row, "standbys": [standby]},
        "n3": {**row, "standby": True, "lsn": 400, "standbys": []},
    }
    members = {n: Endpoint(((n, 5432),)) for n in ("n1", "n2", "n3", "n4")}
    seen = combined(1.0, members, rows)
    assert seen.view.leader == "n2"
    third, fourth = seen.view.member("n3"), seen.view.member("n4")
    assert third is not None and (third.lag_bytes, third.state) == (100, "streaming")
    assert fourth is not None and fourth.state == "unreachable"


def test_rules_and_dashboard_hold_the_whole_catalogue() -> None:
    rules = yaml.safe_load(alert_rules())["groups"][0]["rules"]
    assert [r["alert"] for r in rules] == [a.name for a in ALERTS]
    panels = json.loads(dashboard())["panels"]
    assert [p["title"] for p in panels] == [p.title for p in PANELS]
    assert len({p["id"] for p in panels}) == len(PANELS)


def test_every_walproof_query_of_the_catalogue_names_a_metric_the_exporter_has() -> None:
    metrics = Metrics()
    metrics.record_probe(Probe(1.0, Level.ON, Outcome.ACKNOWLEDGED, 0.001))
    metrics.record_snapshot(snapshot(1.0), 1)
    metrics.record_pool({"active": 1})
    metrics.record_waits(observation([observed.seen(observed.group(flush=40))]))
    silent = LeaseSeen(1.0, 1.0, "main", "n1", answers=False, ttl_s=30.0)
    metrics.record_silent_leader(silent_leader(None, silent))
    guard = GuardMetrics(lambda: GuardStatus(State.WATCHING, "n1"))
    exported = (generate_latest(metrics.registry) + generate_latest(guard.registry)).decode()
    names = {line.split("{")[0].split(" ")[0] for line in exported.splitlines() if not line.startswith("#")}
    queries = [*(p.query for p in PANELS), *(a.condition for a in ALERTS)]
    for query in (q for q in queries if "walproof_" in q):
        used = set(re.findall(r"\bwalproof_\w+", query))
        assert used and used <= names, query


def test_a_change_of_the_synchronous_set_is_counted_once() -> None:
    metrics = Metrics()
    metrics.record_snapshot(snapshot(1.0), 1)
    metrics.record_snapshot(Snapshot(replace(view(2.0), members=view(2.0).members[:2]), None, 0, 0.0), 1)
    metrics.record_snapshot(Snapshot(replace(view(3.0), members=view(3.0).members[:2]), None, 0, 0.0), 1)
    assert b"walproof_sync_set_changes_total 1.0" in generate_latest(metrics.registry)


@pytest.fixture
def page() -> Page:
    collector = Collector.__new__(Collector)
    collector.picture, collector.version = Picture(), 0
    return Page(collector, None, port=8080)


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    html = page_html()
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html


def test_the_page_has_the_colours_of_the_report() -> None:
    package = Path(page_module.__file__).parent.parent
    assert _colours(package / "watching/static/page.css").items() <= (
        _colours(package / "reporting/templates/report.css").items()
    )


def test_a_cause_has_the_colour_of_the_report() -> None:
    series, causes = (re.search(rf"{name} = .*?(\[.*?\])", page_html()) for name in ("SERIES", "CAUSES"))
    assert series and causes
    tones = [*json.loads(series[1])[2:], "other"]
    assert dict(zip(json.loads(causes[1]), tones, strict=True)) == TONES


def _colours(css: Path) -> dict[tuple[int, str], str]:
    """Each `--name: colour`, keyed by (0 light, 1 dark or 2 print, name)."""
    blocks = re.findall(r":root \{(.*?)\}", css.read_text(), re.DOTALL)
    return {
        (i, name): value for i, block in enumerate(blocks) for name, value in re.findall(r"(--\w+): ([^;]+);", block)
    }


def test_an_action_ends_done_or_with_the_targets_error(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[TimelineEvent] = []
    target = simulated("sim?members=3")
    running = Actions(target, events.append)
    with pytest.raises(UsageError, match="no member 'n9'"):
        running.start("kill", "n9")
    with pytest.raises(UsageError, match="not available"):
        running.start("format", "n1")
    ends = ((None, "done", 1), (TargetError("no answer", "try again"), "failed", 3))
    for number, (broken, state, count) in enumerate(ends, 1):

        def inject(*_: object, broken: Error | None = broken, **__: object) -> None:
            if broken:
                raise broken

        monkeypatch.setattr(actions, "inject", inject)
        running.start("power-cut", "n2")
        wanted = (state, count)
        wait_for(Wait.PROGRAM_READY, lambda want=wanted: (running.last.state, len(events)) == want, RealClock())  # type: ignore[misc]
        assert running.last == ActionStatus(number, "power-cut n2", state, "no answer; try again" if broken else "")
    assert [e.text for e in events] == ["power-cut on n2", "power-cut on n2", "power-cut n2 failed"]


def test_foreign_hosts_and_origins_are_refused(page: Page) -> None:
    client = TestClient(page.app, base_url="http://127.0.0.1:8080")
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.post("/act", headers={"origin": "http://evil.example"}, json={}).status_code == 403


def test_beyond_loopback_reading_needs_the_token() -> None:
    collector = Collector.__new__(Collector)
    collector.picture, collector.version = Picture(), 0
    client = TestClient(Page(collector, None, host="192.0.2.7").app, base_url="http://192.0.2.7:8080")
    refused = client.get("/events", headers={"x-walproof-token": "guess"})
    assert refused.status_code == 403
    assert "token" in refused.json()["error"]


def test_without_its_token_no_action_is_taken(page: Page) -> None:
    client = TestClient(page.app, base_url="http://127.0.0.1:8080")
    assert client.post("/act", json={"action": "kill", "member": "n1"}).status_code == 403
    wrong = client.post("/act", headers={"x-walproof-token": "guess"}, json={"action": "kill", "member": "n1"})
    assert wrong.status_code == 403
    right = client.post("/act", headers={"x-walproof-token": page.token}, json={"action": "kill", "member": "n1"})
    assert right.status_code == 404
