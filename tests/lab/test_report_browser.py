"""The report in Debian's Chromium: opened, hovered, clicked, walked by keys; nothing complains, nothing leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.fixtures.browsers import CHROMIUM, Watched, chromium
from tests.fixtures.records import HOSTILE, SETTINGS, full_record
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.reporting.compose import composed
from walproof.reporting.html import page as page_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Debian's chromium is not installed (make test installs it)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with Writer(folder / "record", "study") as emit:
        for event in full_record(SETTINGS[:2], (1, 4, 16), 6, 44):
            emit(event)
    path = folder / "report.html"
    path.write_text(page_of(composed(read(folder / "record"))), "utf-8")
    return path


@pytest.fixture
def opened(report: Path) -> Iterator[Watched]:
    with chromium() as watched:
        watched.page.goto(report.as_uri())
        yield watched


def test_the_report_hovers_clicks_and_stays_at_home(opened: Watched) -> None:
    page = opened.page
    page.locator("#price svg.chart .hit").nth(3).hover(force=True)
    expect(page.locator("#tip")).to_be_visible()
    assert "clients" in page.locator("#tip").inner_text()
    opened.picture("report-hover")

    cell = page.locator("table.matrix a").first
    target = cell.get_attribute("href")
    assert target
    assert not page.locator(target).evaluate("e => e.open")
    cell.click()
    expect(page.locator(target)).to_have_attribute("open", "")
    assert page.locator(f"{target} .drill").first.is_visible()
    assert page.locator(f"{target} svg.timeline").first.is_visible()
    opened.picture("report-evidence")

    page.locator("#price svg.chart").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()

    assert HOSTILE in page.inner_text("#evidence") or HOSTILE in page.inner_text("#environment")
    assert page.locator("script").count() == 1
    assert opened.complaints == []
    assert opened.outside == []


@pytest.mark.parametrize(("dark", "width"), [(True, 1280), (False, 390)], ids=["dark", "phone"])
def test_the_report_fits_dark_rooms_and_phones(report: Path, dark: bool, width: int) -> None:
    with chromium(dark=dark, width=width) as watched:
        watched.page.goto(report.as_uri())
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
        red = watched.page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
        assert (red < 80) == dark
        watched.picture("report-dark" if dark else "report-phone", full_page=True)
        assert watched.complaints == []


def test_the_report_is_whole_without_scripts(report: Path) -> None:
    with chromium(scripts=False) as watched:
        watched.page.goto(report.as_uri())
        assert watched.page.locator("#price svg.chart").first.is_visible()
        assert watched.page.locator(".conclusion p").first.is_visible()
