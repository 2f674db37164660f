"""The live page in Debian's Chromium, fed by hand: reload, tooltips, faults that ask, errors that stay, a phone."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from math import sin
from typing import Any

import pytest
from playwright.sync_api import Page as BrowserPage
from playwright.sync_api import Route, expect

from tests.fixtures.browsers import CHROMIUM, chromium
from tests.fixtures.served_sockets import running
from walproof.errors import TargetError
from walproof.machine.clock import RealClock
from walproof.model.event import FaultChanged
from walproof.model.guarantee import Level
from walproof.model.leader_lease import LeaseSeen
from walproof.model.load import Outcome
from walproof.model.topology import ClusterView, LinkView, MemberView, Role, Snapshot
from walproof.targets.simulated.target import simulated
from walproof.watching import actions
from walproof.watching.canary import Probe
from walproof.watching.collector import Collector
from walproof.watching.page import Page
from walproof.watching.picture import (
    Picture,
    TimelineEvent,
    with_links,
    with_record_event,
    with_silent_leader,
    with_snapshot,
    with_timeline_event,
)
from walproof.watching.silent_leader import silent_leader

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.browser,
    pytest.mark.usefixtures("one_chromium"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Debian's chromium is not installed (make test installs it)"),
]
PACE_S = 0.1


@dataclass
class Served:
    """A page with invented data; `injected` notes each fault asked for, `failure` is what the target answers."""

    url: str = ""
    injected: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    failure: TargetError | None = None
    collector: Collector = field(default_factory=lambda: Collector(None))


def _view(now: float) -> ClusterView:
    members = (
        MemberView("n1", Role.LEADER, "running", 3, 10**9, 0, "10.77.1.11"),
        MemberView("n2", Role.STANDBY, "streaming", 3, 10**9, int(4000 + 4000 * sin(now)), "10.77.1.12", "quorum"),
        MemberView("n3", Role.UNKNOWN, "unreachable"),
    )
    return ClusterView(now, members, "n1", 'ANY 1 ("n2","n3")')


def _feed(collector: Collector, ended: threading.Event) -> None:
    started = now = time.time()
    for ago in range(170, 0, -1):
        _add(collector, started - ago, started)
    collector.update(with_record_event, FaultChanged(started - 124, "power-cut", ("n3",), False))
    for ago, text in ((120, "n3 is unreachable"), (70, "n1 is no longer leader"), (66, "n1 is leader")):
        collector.update(with_timeline_event, TimelineEvent(started - ago, "cluster", text))
    collector.update(with_links, (LinkView("n1", "n2", rtt_ms=10.0), LinkView("n1", "n3", cut=True)))
    while not ended.wait(PACE_S):
        now = time.time()
        _add(collector, now, started)


def _add(collector: Collector, now: float, started: float) -> None:
    commits = int(1e6 + (now - started) * 900)
    collector.update(with_snapshot, Snapshot(_view(now), commits, 2, 1.5))
    for i, level in enumerate(Level):
        outcome = Outcome.DOWNGRADED if i == 3 and int(now) % 9 == 0 else Outcome.ACKNOWLEDGED
        collector.add_probe(Probe(now, level, outcome, 0.001 * (i + 1 + 0.3 * sin(now + i))))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    state = Served()
    collector, ended = state.collector, threading.Event()

    def inject(_target: object, fault: Any, _steps: object, *, victims: tuple[str, ...], **_more: object) -> None:
        state.injected.append((fault.name, victims))
        if state.failure:
            raise state.failure

    monkeypatch.setattr(actions, "inject", inject)
    collector.picture = Picture(target="lab")
    target = simulated("sim?members=3")
    target.clock = RealClock()  # its events must lie on the time axis of those fed here
    feeding = threading.Thread(target=_feed, args=(collector, ended), daemon=True)
    feeding.start()
    with closing(collector), running(Page(collector, target)) as state.url:
        yield state
        ended.set()
        feeding.join(timeout=10)


def _later(page: BrowserPage, times: int = 5) -> None:
    """Wait until the page has drawn that many more pictures."""
    for _ in range(times):
        at = page.locator("body").get_attribute("data-at")
        expect(page.locator("body")).not_to_have_attribute("data-at", at or "")


def test_a_silent_leader_is_told_with_one_command_until_it_answers(served: Served) -> None:
    scope = "main <b>&"
    silent = silent_leader(
        None, LeaseSeen(time.time(), time.time(), scope, "n3", answers=False, synchronous=("n2",), ttl_s=30.0)
    )
    with chromium(served.url) as opened:
        told = opened.page.get_by_role("alert").filter(has_text="leader n3 silent, lease running")
        expect(opened.page.locator("#silent")).to_be_hidden()
        served.collector.update(with_silent_leader, silent)
        expect(told).to_contain_text("synchronous standbys in /sync: n2")
        expect(told.locator("code")).to_have_text("patronictl list -W -- 'main <b>&'")
        expect(told).to_contain_text("not patronictl failover")
        served.collector.update(with_silent_leader, None)
        expect(told).to_be_hidden()
        assert opened.complaints == []


def test_a_reload_keeps_the_session_and_another_tab_says_what_to_do(served: Served) -> None:
    with chromium(served.url) as opened:
        page = opened.page
        expect(page.get_by_role("button", name="kill n1")).to_be_enabled()
        assert "#" not in page.url
        page.reload()
        expect(page.get_by_role("button", name="kill n1")).to_be_enabled()
        other = page.context.new_page()
        other.goto(page.url)
        expect(other.get_by_role("button", name="kill n1")).to_be_disabled()
        expect(other.locator("#unavailable")).to_contain_text("open the whole address that walproof watch printed")
        other.goto(served.url)
        expect(other.get_by_role("button", name="kill n1")).to_be_enabled()
        assert opened.complaints == []
        assert opened.outside == []


def test_a_tooltip_stays_while_data_move_and_elements_are_changed_in_place(served: Served) -> None:
    with chromium(served.url) as opened:
        page = opened.page
        chart = page.locator("#ms svg")
        chart.hover()
        tip = page.locator("#tip")
        expect(tip).to_contain_text("remote_apply: ")
        before = [
            page.locator(css).first.element_handle() for css in ("#ms path", "#map circle", "#members td", "button")
        ]
        text = tip.inner_text()
        _later(page)
        expect(tip).to_be_visible()
        assert tip.inner_text() != text
        assert all(handle and handle.evaluate("e => e.isConnected") for handle in before)
        assert "remote_apply now" in (chart.get_attribute("aria-label") or "")
        page.mouse.move(5, 5)
        expect(tip).to_be_hidden()
        chart.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(tip).to_be_visible()
        _later(page)
        expect(tip).to_be_visible()
        assert page.locator("#spoken").inner_text()
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        assert opened.complaints == []


def test_charts_mark_events_with_labels(served: Served) -> None:
    with chromium(served.url) as opened:
        page = opened.page
        for chart in ("#tps", "#ms"):
            expect(page.locator(f"{chart} .event text", has_text="n3 is unreachable")).to_be_visible()
            expect(page.locator(f"{chart} .event.fault text", has_text="power-cut on n3")).to_be_visible()
        opened.picture("watch-page", full_page=True)


def test_a_fault_asks_once_before_it_acts(served: Served) -> None:
    with chromium(served.url) as opened:
        page, dialog = opened.page, opened.page.get_by_role("dialog")
        page.get_by_role("button", name="freeze n2").click()
        expect(dialog).to_contain_text("freeze n2 (standby)?")
        opened.picture("watch-page-confirm")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="freeze n2").press("Enter")
        page.keyboard.press("Enter")  # the focus is on Cancel
        expect(dialog).to_be_hidden()
        assert served.injected == []
        page.get_by_role("button", name="switchover").press("Enter")
        expect(dialog).to_contain_text("switchover?")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#action")).to_have_text("switchover: done")
        assert [name for name, _ in served.injected] == ["switchover"]
        page.get_by_role("button", name="power-cut n1").click()
        dialog.get_by_role("button", name="power-cut n1").click()
        expect(page.locator("#action")).to_have_text("power-cut n1: done")
        assert served.injected[1:] == [("power-cut", ("n1",))]
        expect(page.locator("#events")).to_contain_text("power-cut on n1")
        page.get_by_role("button", name="Recover").click()
        expect(page.locator("#action")).to_have_text("recover: done")
        assert opened.complaints == []


def test_every_error_of_an_action_is_shown_until_it_is_dismissed(served: Served) -> None:
    with chromium(served.url) as opened:
        page, alert = opened.page, opened.page.get_by_role("alert")

        def press(name: str) -> None:
            page.get_by_role("button", name=name).click()
            page.get_by_role("dialog").get_by_role("button", name=name).click()

        served.failure = TargetError("n2 does not answer", "walproof lab status")
        press("kill n2")
        expect(alert).to_contain_text("kill n2 failed: n2 does not answer; walproof lab status")
        for status, body, shown in (
            (403, '{"error": "no valid token"}', "isolate n1 was refused: no valid token"),
            (409, '{"error": "still running"}', "isolate n1 was refused: still running"),
            (500, "Internal Server Error", "isolate n1 was refused: 500 Internal Server Error"),
        ):
            page.route("**/act", partial(Route.fulfill, status=status, body=body))
            press("isolate n1")
            expect(alert).to_contain_text(shown)
            page.unroute("**/act")
        page.route("**/act", lambda route: route.abort())
        press("isolate n1")
        expect(alert).to_contain_text("isolate n1 was not sent: walproof watch cannot be reached")
        _later(page)
        opened.picture("watch-page-errors", full_page=True)
        dismissals = alert.get_by_role("button", name="Dismiss")
        assert dismissals.count() == 5
        for _ in range(5):
            dismissals.first.click()
        _later(page)
        expect(alert).to_be_empty()


def test_a_picture_that_is_not_renewed_says_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with chromium(served.url) as opened:
        summary, stale = opened.page.locator("#summary"), opened.page.locator("#stale")
        expect(summary).to_have_class("good")
        expect(stale).to_be_hidden()
        monkeypatch.setattr(Collector, "stale_s", 4.0)
        expect(stale).to_contain_text("not renewed since")
        expect(summary).to_have_class("bad")
        monkeypatch.setattr(Collector, "stale_s", 0.0)
        expect(stale).to_be_hidden()
        assert opened.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_works_on_a_phone(served: Served, dark: bool) -> None:
    with chromium(served.url, width=390, height=800, dark=dark) as opened:
        page = opened.page
        expect(page.locator("#ms svg")).to_be_visible()
        _later(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        opened.picture(f"watch-page-phone-{'dark' if dark else 'light'}", full_page=True)
        page.get_by_role("button", name="partition n3").click()
        box = page.get_by_role("dialog").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert opened.complaints == []
