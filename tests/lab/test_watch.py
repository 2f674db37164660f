"""The live page of a real lab in a real browser: what it shows, and a fault pressed by its button."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import expect

from tests.fixtures.browsers import CHROMIUM, chromium
from tests.fixtures.served_sockets import running
from walproof.lab.blueprint import Blueprint
from walproof.targets.lab.faults import partition_one_way
from walproof.targets.lab.target import LabTarget
from walproof.watching.collector import Collector
from walproof.watching.page import Page

pytestmark = [
    pytest.mark.lab,
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Debian's chromium is not installed (make test installs it)"),
]
PATIENT_MS = 90_000


@pytest.fixture
def target(lab: Blueprint) -> Iterator[LabTarget]:
    target = LabTarget(lab)
    try:
        yield target
    finally:
        target.operations.recover()


@pytest.fixture
def url(target: LabTarget) -> Iterator[str]:
    with closing(Collector(target)) as collector, running(Page(collector, target)) as address:
        yield address


def test_a_fault_pressed_on_the_page_shows_the_new_leader(target: LabTarget, url: str) -> None:
    leader = target.observe().leader
    assert leader is not None
    partition_one_way(target.blueprint).inject(*[m for m in target.blueprint.members if m != leader])
    with chromium(url) as opened:
        page = opened.page
        expect(page.locator("#summary")).to_contain_text("synchronous commits wait for 1 standby", timeout=PATIENT_MS)
        expect(page.locator("#map")).to_contain_text("partitioned one way", timeout=PATIENT_MS)
        assert "#" not in page.url
        page.hover("#map")
        opened.picture("live-page-cut", full_page=True)
        page.get_by_role("button", name="Recover", exact=True).click()
        expect(page.locator("#map")).not_to_contain_text("partitioned one way", timeout=PATIENT_MS)
        expect(page.locator("#action")).to_contain_text("recover: done", timeout=PATIENT_MS)
        page.get_by_role("button", name=f"kill {leader}", exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text(f"kill {leader} (leader)?")
        page.get_by_role("dialog").get_by_role("button", name=f"kill {leader}").click()
        others = [m for m in target.blueprint.members if m != leader]
        new = page.locator("tr", has=page.locator("td.leader")).locator("th")
        expect(new).to_have_text(_any_of(others), timeout=PATIENT_MS)
        expect(page.locator("#events")).to_contain_text("is leader", timeout=PATIENT_MS)
        opened.picture("live-page-new-leader", full_page=True)
        assert opened.complaints == []
        assert opened.outside == []


def _any_of(names: list[str]) -> re.Pattern[str]:
    return re.compile("^(" + "|".join(names) + ")$")
