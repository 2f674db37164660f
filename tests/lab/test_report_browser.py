"""The report in Debian's Chromium: tooltips by pointer and keyboard, width, navigation, print; nothing leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.fixtures.browsers import CHROMIUM, Watched, chromium
from tests.fixtures.records import HOSTILE, SETTINGS, full_record, price_events, recorded
from walproof.records.reader import read
from walproof.reporting.comparison import compared
from walproof.reporting.html_and_markdown import page as page_of
from walproof.reporting.record_outline import composed

DEMO = Path(__file__).parents[1] / "replay" / "records" / "demo"
WIDTHS = (1400, 900, 390)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.usefixtures("one_chromium"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Debian's chromium is not installed (make test installs it)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    recorded(folder / "record", "study", full_record(SETTINGS[:2], (1, 4, 16), 6, 44))
    path = folder / "report.html"
    path.write_text(page_of(composed(read(folder / "record"))), "utf-8")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the saved demo: one scenario, two numbers of clients, two drills."""
    path = tmp_path_factory.mktemp("small") / "report.html"
    path.write_text(page_of(composed(read(DEMO))), "utf-8")
    return path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of nine records with long names side by side."""
    folder = tmp_path_factory.mktemp("comparison")
    records = []
    for number in range(9):
        directory = folder / f"a-record-with-a-rather-long-name-of-its-own-{number}"
        records.append(read(recorded(directory, "price", price_events(seed=number))))
    path = folder / "report.html"
    path.write_text(page_of(compared(records)), "utf-8")
    return path


@pytest.fixture
def opened(report: Path) -> Iterator[Watched]:
    with chromium(report.as_uri()) as watched:
        yield watched


def test_the_report_hovers_clicks_and_stays_at_home(opened: Watched) -> None:
    page = opened.page
    page.locator("#price svg.chart .hit").nth(3).hover(force=True)
    expect(page.locator("#tip")).to_be_visible()
    assert "1 client:" in page.locator("#tip").inner_text()
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


@pytest.mark.nightly
def test_a_tooltip_is_announced_follows_the_keys_and_goes_on_escape(opened: Watched) -> None:
    page = opened.page
    tip = page.locator("#tip")
    assert tip.get_attribute("role") == "status"
    chart = page.locator("#price svg.chart").first
    values = chart.locator("desc").text_content()
    chart.focus()
    shown = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        shown.append(tip.inner_text())
    assert shown[0] == shown[2] != shown[1]
    assert values
    assert set(shown) <= set(values.split("; ")) or all(text in values for text in shown)
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    expect(tip).to_be_hidden()
    # The name of a chart is an attribute by now: its <title> would be shown on top of the tooltip.
    assert page.locator("svg > title").count() == 0
    assert page.locator("svg[role=img]:not([aria-label])").count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("width", WIDTHS)
def test_the_navigation_shows_every_section(report: Path, small: Path, comparison: Path, width: int) -> None:
    for path in (report, small, comparison):
        with chromium(path.as_uri(), width=width, height=844) as watched:
            page = watched.page
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            clipped = "nav => [nav, nav.firstElementChild].some(e => e.scrollWidth > e.clientWidth + 1)"
            assert not page.locator("nav").evaluate(clipped)
            links = page.locator("nav a").all()
            assert links
            for link in links:
                box = link.bounding_box()
                assert box
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
            nav = page.locator("nav").bounding_box()
            assert nav
            sticky = page.locator("nav").evaluate("nav => getComputedStyle(nav).position") == "sticky"
            assert sticky == (nav["height"] < 844 / 8)


@pytest.mark.nightly
def test_a_link_of_the_navigation_leads_to_a_heading_that_is_not_covered(report: Path) -> None:
    with chromium(report.as_uri(), width=1400) as watched:
        page = watched.page
        page.locator("nav a[href='#survival']").click()
        nav, heading = page.locator("nav").bounding_box(), page.locator("#survival-title").bounding_box()
        assert nav
        assert heading
        assert heading["y"] >= nav["y"] + nav["height"]


@pytest.mark.nightly
def test_a_small_run_uses_the_width_of_its_first_page(small: Path) -> None:
    with chromium(small.as_uri(), width=1400) as watched:
        page = watched.page
        for selector in ("#summary table", "nav", "#price .single"):
            box = page.locator(selector).bounding_box()
            assert box
            assert box["width"] > 0.9 * 1400
        chart, table = (page.locator(f"#price .single > {kind}").bounding_box() for kind in (".panel", ".scroll"))
        assert chart
        assert table
        assert table["x"] > chart["x"] + chart["width"] - 1
        assert abs(table["y"] - chart["y"]) < 10
        for one in page.locator(".single > .scroll").all():
            assert one.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
        lines = "e => { const text = new Range(); text.selectNodeContents(e); return text.getClientRects().length; }"
        assert {cell.evaluate(lines) for cell in page.locator("#breakdown td.t-unresolved").all()} == {1}
        watched.picture("report-small", full_page=True)


@pytest.mark.nightly
def test_everything_collapsed_is_printed_and_collapsed_again(report: Path) -> None:
    with chromium(report.as_uri(), width=1000) as watched:
        page = watched.page
        before = page.locator("details[open]").count()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details[open]").count() == before


@pytest.mark.nightly
def test_evidence_is_printed_without_scripts_too(report: Path) -> None:
    with chromium(report.as_uri(), width=800, scripts=False) as watched:
        page = watched.page
        assert not page.locator("details.evidence .drill").first.is_visible()
        page.emulate_media(media="print")
        assert page.locator("details.evidence .drill").first.is_visible()
        assert page.locator("details.numbers table").first.is_visible()
        assert not page.locator("nav").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 800


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["report", "small"])
def test_nothing_is_cut_off_on_paper(request: pytest.FixtureRequest, name: str) -> None:
    paper = 700  # CSS pixels of an A4 page within its margins
    with chromium(request.getfixturevalue(name).as_uri(), width=paper) as watched:
        page = watched.page
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        tables = page.locator("table:not(.wide)")
        widths = tables.evaluate_all("all => all.map(t => t.getBoundingClientRect().right)")
        assert widths
        assert max(widths) <= paper + 1


@pytest.mark.nightly
@pytest.mark.parametrize(("dark", "width"), [(True, 1280), (False, 390)], ids=["dark", "phone"])
def test_the_report_fits_dark_mode_and_phones(report: Path, dark: bool, width: int) -> None:
    with chromium(report.as_uri(), dark=dark, width=width) as watched:
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
        red = watched.page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
        assert (red < 80) == dark
        watched.picture("report-dark" if dark else "report-phone", full_page=True)
        assert watched.complaints == []


@pytest.mark.nightly
def test_the_report_is_complete_without_scripts(report: Path) -> None:
    with chromium(report.as_uri(), scripts=False) as watched:
        assert watched.page.locator("#price svg.chart").first.is_visible()
        assert watched.page.locator(".conclusion p").first.is_visible()
