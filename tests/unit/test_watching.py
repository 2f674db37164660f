"""The live picture, the catalogue and the page's manners, without a cluster."""

import doctest
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from rich.console import Console
from starlette.testclient import TestClient

from walproof.model.event import DrillDone, FaultChanged
from walproof.model.guarantee import Level
from walproof.model.topology import ClusterView, Endpoint, LinkView, MemberView, Role, Snapshot
from walproof.model.verdict import Drill, Findings, Verdict, Victim
from walproof.targets.sql.observe import combined
from walproof.watching import terminal
from walproof.watching.canary import Chirp
from walproof.watching.catalogue import ALERTS, PANELS, Source
from walproof.watching.collector import Gathering
from walproof.watching.exporter import Metrics
from walproof.watching.metrics import promise
from walproof.watching.page import Page, page_html
from walproof.watching.picture import Picture, happened, heard, linked, looked
from walproof.watching.rules import alert_rules, dashboard


def view(at: float, leader: str | None = "n1", names: str = 'ANY 1 ("n2","n3")', streaming: int = 2) -> ClusterView:
    members = [MemberView("n1", Role.LEADER if leader == "n1" else Role.UNKNOWN, "running", 1, 100, 0)]
    for i, name in enumerate(("n2", "n3")):
        role = Role.LEADER if leader == name else Role.STANDBY
        state = "streaming" if i < streaming else "stopped"
        members.append(MemberView(name, role, state, 1, 90, 10, sync_state="quorum"))
    return ClusterView(at, tuple(members), leader, names)


def glance(at: float, commits: int | None = None, **more: Any) -> Snapshot:
    return Snapshot(view(at, **more), commits, 0, 0.0)


def test_the_examples_are_true() -> None:
    assert doctest.testmod(terminal).failed == 0


@pytest.mark.parametrize(
    ("names", "streaming", "in_effect", "left"),
    [('ANY 1 ("n2","n3")', 2, 1, 1), ('ANY 2 ("n2","n3")', 1, 2, -1), ("", 2, 0, 0), ("*", 2, 1, 1)],
)
def test_the_promise_is_what_the_names_say(names: str, streaming: int, in_effect: int, left: int) -> None:
    now = promise(view(0, names=names, streaming=streaming), 1)
    assert (now.in_effect, now.left) == (in_effect, left)
    assert ("local" in now.words) == (in_effect == 0)
    assert ("commits wait" in now.words) == (left < 0)


def test_throughput_is_the_difference_of_two_counters_and_a_new_leaders_counter_starts_anew() -> None:
    picture = looked(Picture(), glance(1.0, 100))
    picture = looked(picture, glance(2.0, 350))
    picture = looked(picture, glance(3.0, 600))
    picture = looked(picture, glance(5.0, 20))
    assert [(p.at, p.tps) for p in picture.points] == [(3.0, 250.0)]


def test_a_new_leader_a_silent_member_and_empty_names_are_told() -> None:
    picture = looked(Picture(), glance(1.0))
    picture = looked(picture, glance(2.0, leader="n2"))
    picture = looked(picture, glance(3.0, leader="n2", names=""))
    told = [h.text for h in picture.happenings]
    assert told == ["n2 leads", "n1 is silent", "standby names are empty: remote levels are local"]
    assert picture.declared == 1
    assert picture.in_effect == 0


def test_drills_faults_canaries_and_links_are_drawn_in_the_terminal() -> None:
    drill = Drill(
        1, "kill", Victim.LEADER, Level.OFF, Verdict.BROKEN, "lost", Findings(acknowledged=9, lost=3), rto_s=1.5
    )
    picture = looked(Picture(target="lab"), glance(1.0))
    picture = happened(picture, FaultChanged(1.5, "kill", ("n1",), False))
    picture = happened(picture, DrillDone(2.0, drill))
    picture = heard(picture, Chirp(2.0, Level.ON, "acknowledged", 0.004))
    picture = linked(picture, (LinkView("n1", "n2", rtt_ms=10.0), LinkView("n1", "n3", cut=True)))
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal.drawn(picture))
    text = console.export_text()
    for word in (
        "1 standby before each remote commit",
        "kill at off: broken, 3 lost",
        "4.00 ms",
        "cut: n1 → n3",
        "10 ms",
    ):
        assert word in text


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
    metrics.heard(Chirp(1.0, Level.ON, "acknowledged", 0.001))
    metrics.looked(glance(1.0), 1)
    metrics.pooled({"active": 1})
    exported = generate_latest(metrics.registry).decode()
    names = {line.split("{")[0].split(" ")[0] for line in exported.splitlines() if not line.startswith("#")}
    queries = [p.query for p in PANELS if p.source in (Source.WALPROOF, Source.PGBOUNCER)] + [
        a.condition for a in ALERTS
    ]
    for query in queries:
        used = {
            word.split("[")[0]
            for word in query.replace("(", " ").replace(")", " ").split()
            if word.startswith("walproof_")
        }
        assert used and used <= names, query


def test_a_change_of_the_synchronous_set_is_counted_once() -> None:
    metrics = Metrics()
    metrics.looked(glance(1.0), 1)
    metrics.looked(Snapshot(replace(view(2.0), members=view(2.0).members[:2]), None, 0, 0.0), 1)
    metrics.looked(Snapshot(replace(view(3.0), members=view(3.0).members[:2]), None, 0, 0.0), 1)
    assert b"walproof_sync_set_changes_total 1.0" in generate_latest(metrics.registry)


@pytest.fixture
def page() -> Page:
    gathering = Gathering.__new__(Gathering)
    gathering.picture, gathering.version = Picture(), 0
    return Page(gathering, None, port=8080)


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    html = page_html()
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html


def test_foreign_hosts_and_origins_are_refused(page: Page) -> None:
    client = TestClient(page.app, base_url="http://127.0.0.1:8080")
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.post("/act", headers={"origin": "http://evil.example"}, json={}).status_code == 403


def test_without_its_token_no_action_is_taken(page: Page) -> None:
    client = TestClient(page.app, base_url="http://127.0.0.1:8080")
    assert client.post("/act", json={"word": "kill", "member": "n1"}).status_code == 403
    wrong = client.post("/act", headers={"x-walproof-token": "guess"}, json={"word": "kill", "member": "n1"})
    assert wrong.status_code == 403
    right = client.post("/act", headers={"x-walproof-token": page.token}, json={"word": "kill", "member": "n1"})
    assert right.status_code == 404
