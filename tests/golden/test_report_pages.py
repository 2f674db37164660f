"""The report's page, Markdown and CSV of synthetic records: complete, escaped, accessible; and comparisons."""

import csv
import html.parser
import io
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.fixtures.records import HOSTILE, SETTINGS, full_record, price_events, prove_events
from walproof.cli.main import walproof
from walproof.estimating import intervals
from walproof.model.drill import Verdict
from walproof.model.estimate import Estimate
from walproof.model.event import Described, DrillDone, Event
from walproof.model.topology import Description
from walproof.pricing.estimates import ClassPrice, PriceTable, price_table
from walproof.records.reader import Record, read
from walproof.records.writer import Writer
from walproof.reporting import json_csv_hdrhistogram
from walproof.reporting.comparison import compared
from walproof.reporting.html_and_markdown import markdown, page
from walproof.reporting.outline import Evidence, Figure, Section, Table
from walproof.reporting.record_outline import composed
from walproof.reporting.terminal import tables

VOID = {"meta", "br", "hr", "img", "input", "link"}


def recorded(directory: Path, events: tuple[Event, ...]) -> Record:
    with Writer(directory, "price") as emit:
        for event in events:
            emit(event)
    return read(directory)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return recorded(tmp_path_factory.mktemp("full") / "record", full_record(SETTINGS[:2], (1, 16), 5, 30))


@pytest.fixture(scope="module")
def html_text(full: Record) -> str:
    return page(composed(full))


class Tags(html.parser.HTMLParser):
    """Collects tags and checks that they close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID and not (tag in ("path", "rect", "circle") and self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def tags(html_text: str) -> Tags:
    parsed = Tags()
    parsed.feed(html_text)
    return parsed


def test_the_outline_puts_conclusion_first_and_the_command_last(full: Record) -> None:
    made = composed(full)
    assert 1 <= len(made.sentences) <= 3
    keys = [s.key for s in made.sections]
    assert keys == [
        "studies", "summary", "price", "latency", "breakdown", "searches", "survival", "outage", "evidence", "notes",
        "environment",
    ]  # fmt: skip


def test_every_cell_of_the_matrix_leads_to_its_evidence(full: Record) -> None:
    blocks = [b for s in composed(full).sections for b in s.blocks]
    matrix = next(b for b in blocks if isinstance(b, Table) and b.key == "matrix")
    links = {cell.link for row in matrix.rows for cell in row if cell.link}
    evidence = {b.key: b for b in blocks if isinstance(b, Evidence)}
    assert links == evidence.keys()
    assert sum(len(e.drills) for e in evidence.values()) == 30


def test_every_figure_has_its_numbers_as_a_table(full: Record) -> None:
    figures = [b for s in composed(full).sections for b in s.blocks if isinstance(b, Figure)]
    assert {"throughput", "percentiles", "latency-breakdown", "outage-parts"} <= {f.key for f in figures}
    assert all(f.table.rows and f.charts for f in figures)


def test_throughput_has_a_panel_a_scenario_and_a_line_a_level(full: Record) -> None:
    blocks = [b for s in composed(full).sections for b in s.blocks]
    figure = next(b for b in blocks if isinstance(b, Figure) and b.key == "throughput")
    assert len(figure.charts) == 2
    assert [name for name, _ in figure.legend] == ["off", "local", "remote_write", "on", "remote_apply"]
    assert figure.caveats


def test_tags_nest_and_ids_are_unique(tags: Tags) -> None:
    assert tags.open == []
    ids = [attrs["id"] for _, attrs in tags.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {str(attrs["href"])[1:] for tag, attrs in tags.seen if tag == "a"}
    assert targets <= set(ids)


def test_nothing_of_the_target_becomes_markup(html_text: str) -> None:
    assert html_text.count("<script>") == 1
    assert html_text.count("</script>") == 1
    assert "alert(&#39;pwned&#39;)" in html_text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html_text)
    assert policy
    assert "default-src &#39;none&#39;" in policy[1]
    assert "script-src &#39;sha256-" in policy[1]


def test_the_page_asks_for_nothing_from_elsewhere(html_text: str, tags: Tags) -> None:
    for tag, attrs in tags.seen:
        assert tag not in ("img", "link", "iframe", "object", "embed", "base")
        assert not {"src", "srcset", "style", "onclick", "onload"} & attrs.keys()
    assert "url(" not in html_text
    assert "@import" not in html_text


def test_screen_readers_get_landmarks_and_text_alternatives(html_text: str, tags: Tags) -> None:
    assert {"header", "nav", "main", "footer", "h1"} <= {tag for tag, _ in tags.seen}
    charts = [attrs for tag, attrs in tags.seen if tag == "svg" and attrs.get("aria-hidden") != "true"]
    assert charts
    assert all(attrs["role"] == "img" and attrs["tabindex"] == "0" for attrs in charts)
    named = re.findall(r'<svg[^>]*role="img"[^>]*><title>([^<]+)</title><desc>([^<]+)</desc>', html_text)
    assert len(named) == len(charts)


def test_every_table_has_a_caption_and_headings_with_a_scope(html_text: str, tags: Tags) -> None:
    assert sum(tag == "caption" for tag, _ in tags.seen) == sum(tag == "table" for tag, _ in tags.seen)
    headings = [attrs for tag, attrs in tags.seen if tag == "th"]
    assert {attrs["scope"] for attrs in headings} == {"col", "row"}
    assert not re.search(r"<th[^>]*></th>", html_text)


def test_headings_skip_no_level(html_text: str) -> None:
    levels = [int(level) for level in re.findall(r"<h([1-6])", html_text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_what_scrolls_is_reached_by_keyboard_and_has_a_name(tags: Tags) -> None:
    scrolling = [attrs for _, attrs in tags.seen if attrs.get("class") == "scroll"]
    assert scrolling
    assert all(attrs["tabindex"] == "0" and attrs["role"] == "group" and attrs["aria-label"] for attrs in scrolling)


def test_a_small_run_has_its_numbers_next_to_its_chart(tmp_path: Path) -> None:
    small = page(composed(recorded(tmp_path / "small", price_events(SETTINGS[:1], (1, 16), 5))))
    assert small.count('<div class="single">') == 3
    assert "The same as a table" not in small
    large = page(composed(recorded(tmp_path / "large", price_events(SETTINGS[:3], (1, 16), 5))))
    assert large.count('<div class="panels">') == 3
    assert large.count("The same as a table") == 3


def test_what_is_the_same_in_every_row_stands_in_the_title(tmp_path: Path) -> None:
    def prices(directory: str, scenarios: int) -> Table:
        made = composed(recorded(tmp_path / directory, price_events(SETTINGS[:scenarios], (1, 16), 9)))
        figures = [b for s in made.sections for b in s.blocks if isinstance(b, Figure)]
        return next(f.table for f in figures if f.key == "throughput")

    one, two = prices("one", 1), prices("two", 2)
    assert one.title == "price · ANY 1, rtt 0 ms · tpcb-like"
    assert one.columns[0].name == "level"
    assert two.title == "price · tpcb-like"
    assert [c.name for c in two.columns[:2]] == ["scenario", "level"]


def test_a_loss_without_a_guarantee_is_an_expected_loss(full: Record) -> None:
    drills = {
        d.number: d for s in composed(full).sections for b in s.blocks if isinstance(b, Evidence) for d in b.drills
    }
    expected = [d for d in drills.values() if d.findings.lost and d.promised is False]
    assert expected
    text = page(composed(full))
    assert text.count("✘ expected loss") == len(expected)
    assert "expected loss" in markdown(composed(full))


FEW = price_events(SETTINGS[:1], (1, 16), 3)
"""So few transactions that 99.9th percentiles have no upper end."""


def test_intervals_have_both_ends_or_are_at_least_their_lower_one(tmp_path: Path, full: Record) -> None:
    few = recorded(tmp_path / "few", FEW)
    for record in (few, full):
        for shown in (page(composed(record)), markdown(composed(record))):
            assert not re.search(r"\d ± \d|∞", shown)
    assert "≥ " in markdown(composed(few)) and "≥ " in page(composed(few))
    arms = json_csv_hdrhistogram.price_json(few.events, None)["arms"]
    endless = [a["latency_interval_ms"]["p999"] for a in arms if a["latency_interval_ms"]["p999"]["high"] == math.inf]
    assert endless and all(one["low"] > 0 for one in endless)


@pytest.mark.parametrize("endless", [("p999",), ("p99", "p999"), ("p95", "p99", "p999")], ids=len)
def test_a_quantile_without_an_upper_end_is_nowhere_shown_as_if_it_were_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endless: tuple[str, ...]
) -> None:
    """Price, summary, percentiles, tooltips; a class of a mix too."""

    def priced(events: Sequence[Event]) -> PriceTable:
        table = price_table(events)
        beyond: dict[str, Any] = {name: Estimate(98765.4, 4.0123, math.inf) for name in endless}
        arms = [replace(one, latency=replace(one.latency, **beyond)) for one in table.arms]
        arms[0] = replace(arms[0], classes=(ClassPrice("off", arms[0].tps, arms[0].latency),))
        return replace(table, arms=tuple(arms))

    record = recorded(tmp_path / "r", price_events(SETTINGS[:1], (1, 16), 9))
    monkeypatch.setattr("walproof.reporting.record_outline.price_table", priced)
    outline = composed(record)
    for shown in (page(outline), markdown(outline), terminal(outline.sections)):
        assert "98,765" not in shown
        assert shown.count("≥ 4.01") >= 10 * len(endless)


def terminal(sections: Sequence[Section]) -> str:
    """What a wide terminal shows of them."""
    console = Console(file=io.StringIO(), width=240, color_system=None)
    console.print(*tables(sections))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_part_that_is_not_resolved_is_said_to_be_at_most_its_upper_end(tmp_path: Path) -> None:
    few = recorded(tmp_path / "few", FEW)
    shown = markdown(composed(few))
    (one, *_) = re.findall(r"\| ≤ ([\d.]+) \|", shown)
    parts = [p for a in json_csv_hdrhistogram.price_json(few.events, None)["breakdown"] for p in a["parts_ms"].values()]
    assert any(p["low"] < 0 < p["high"] and f"{p['high']:.3g}" == f"{float(one):.3g}" for p in parts)


@pytest.mark.parametrize("events", [(), price_events()[:2], price_events()[:4], prove_events(1)], ids=range(4))
def test_a_record_of_almost_nothing_still_gives_a_page(tmp_path: Path, events: tuple[Event, ...]) -> None:
    record = recorded(tmp_path / "r", events)
    tags = Tags()
    tags.feed(page(composed(record)))
    assert tags.open == []
    assert markdown(composed(record)).startswith("# ")


def test_notices_of_a_damaged_record_stand_at_the_top(tmp_path: Path) -> None:
    recorded(tmp_path / "r", full_record(drills=4, blocks=2))
    path = tmp_path / "r" / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-900])
    text = page(composed(read(tmp_path / "r")))
    assert text.index("the last line is torn") < text.index("<main ")


def test_a_simulated_record_is_marked_as_one(tmp_path: Path) -> None:
    place = Description("sim", ("n1",), {"kind": "simulated, not a measurement"})
    record = recorded(tmp_path / "r", (*price_events()[:1], Described(1.0, place), *price_events()[2:]))
    assert "nothing was measured" in composed(record).notices[0]


def test_markdown_has_the_tables_and_no_live_markup(full: Record) -> None:
    text = markdown(composed(full))
    assert HOSTILE not in re.sub(r"(?s)```.*?```", "", text)
    assert "## What it survives" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
    rows = [line for line in text.splitlines() if "| remote\\_apply | 16 |" in line]
    assert rows and all(row.count("|") > 4 for row in rows)
    assert "\n@" not in text


def test_csv_has_a_number_a_row(full: Record) -> None:
    rows = list(csv.DictReader(io.StringIO(json_csv_hdrhistogram.table_csv([("=evil", full.events)]))))
    assert {row["kind"] for row in rows} == {"price", "drill", "bound"}
    assert all(row["record"] == "'=evil" for row in rows)
    ratios = [row for row in rows if row["measure"] == "ratio" and row["level"] == "on"]
    assert len(ratios) == 4
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in ratios)
    assert sum(row["measure"] == "lost" for row in rows) == 30


def test_a_comparison_finds_the_real_change_and_only_that(tmp_path: Path) -> None:
    before = recorded(tmp_path / "before", price_events(blocks=9, seed=1))
    same = recorded(tmp_path / "same", price_events(blocks=9, seed=2))
    slower = recorded(tmp_path / "slower", price_events(blocks=9, seed=3, slower=4.0))
    made = compared([before, same, slower])
    table = next(b for s in made.sections for b in s.blocks if isinstance(b, Table) and b.key == "prices")
    assert len(table.rows) == 10
    for row in table.rows:
        assert "no real difference" in row[-2].text
        remote = row[0].text in ("remote_write", "on", "remote_apply")
        assert ("slower" in row[-1].text) == remote
    assert "6 worse beyond chance" in made.sentences[0]


def test_a_comparison_of_drills_needs_enough_of_them(tmp_path: Path) -> None:
    few = [recorded(tmp_path / f"few{i}", prove_events(10, seed=i)) for i in (1, 2)]
    assert "too few drills to say" in markdown(compared(few))
    assert intervals.shares_differ((0, 12), (12, 12))
    assert not intervals.shares_differ((0, 12), (1, 12))


@pytest.mark.parametrize(
    ("undecided", "shown"),
    [((0, 1), (False, True)), ((2, 0), (True, False)), ((1, 1), (True, True)), ((9, 0), (True, False))],
)
def test_a_comparison_shows_undecided_drills_beside_the_others(
    tmp_path: Path, undecided: tuple[int, int], shown: tuple[bool, bool]
) -> None:
    """Nine of nine: the second record alone has decided ones."""
    events, records = prove_events(1), []
    (done,) = [e for e in events if isinstance(e, DrillDone)]
    held = replace(done.drill, verdict=Verdict.HELD, findings=replace(done.drill.findings, lost=0))
    for number, left in enumerate(undecided):
        drills = [*[replace(held, verdict=Verdict.UNDECIDED)] * left, *[held] * (9 - left)]
        others = tuple(e for e in events if e is not done)
        records.append(recorded(tmp_path / f"{number}", (*others, *(DrillDone(done.at, one) for one in drills))))
    made = compared(records)
    (cells,) = next(b for s in made.sections for b in s.blocks if isinstance(b, Table) and b.key == "drills").rows
    for cell, left, is_shown in zip(cells[2:4], undecided, shown, strict=True):
        assert (f", {left} undecided" in cell.text) is is_shown
        assert (f"lost in 0 of {9 - left} (0)" in cell.text) is (left < 9)


def invoke(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(walproof, ["report", *words], standalone_mode=False)
    assert result.exception is None, result.exception
    return int(result.return_value or 0), result.stdout, result.stderr


def test_the_command_writes_a_page(full: Record, tmp_path: Path) -> None:
    code, out, err = invoke(str(full.directory), "--html", str(tmp_path / "x.html"))
    assert (code, out) == (0, "")
    assert "x.html" in err
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("option", ["--json", "--csv", "--markdown", None])
def test_the_command_prints_one_thing(full: Record, option: str | None) -> None:
    code, out, _ = invoke(str(full.directory), *([option] if option else []))
    assert code == 0
    if option == "--json":
        wanted = {"arms", "drills", "claims", "searches", "environment", "notices", "conclusion"}
        assert wanted <= json.loads(out).keys()
    assert {"--json": "{", "--csv": "record,kind", "--markdown": "# ", None: "Of 3 published"}[option] in out[:200]


def test_the_command_compares_several(tmp_path: Path) -> None:
    recorded(tmp_path / "a", price_events(seed=1))
    recorded(tmp_path / "b", price_events(seed=2))
    assert "no real difference" in " ".join(invoke(str(tmp_path / "a"), str(tmp_path / "b"), "--markdown")[1].split())
    found = json.loads(invoke(str(tmp_path / "a"), str(tmp_path / "b"), "--json")[1])
    assert len(found["records"]) == 2
    assert found["comparison"]["prices"]
