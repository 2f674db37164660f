"""The page of a forecast: every configuration, which of them no other beats, every source; all text escaped."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fixtures.forecasts import ANY_1, failure, failures, model
from walproof.cli.main import walproof
from walproof.errors import UsageError
from walproof.forecasting.forecast import Forecast, forecast
from walproof.forecasting.outages_from_drills import Losses, Measured
from walproof.forecasting.topology import Configuration
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.reporting.forecast_page import forecast_outline
from walproof.reporting.html_and_markdown import page
from walproof.reporting.outline import Figure, ScatterChart, ScatterPoint
from walproof.reporting.svg_charts import draw

pytestmark = pytest.mark.usefixtures("quick_forecasts")
KINDS = failures(failure("<b>crash</b>", 1.0), failure("fire", 0.1))


def _made(what: Configuration, tps: float | None = None) -> Forecast:
    here = model(what, KINDS, takeover_s=20.0)
    drilled = {(kind.name, level): Losses(0, 10, "kill") for kind in KINDS.kinds for level in Level}
    known = Measured(here.measured.takeovers, drilled, {})
    one = forecast(replace(here, measured=known), "z1,z2,z3", years=1000, seed=1)
    return one if tps is None else replace(one, tps=Estimate(tps, tps, float("inf")), p95_ms=Estimate(2.0, 1.0, 3.0))


def _figure(*made: Forecast) -> Figure:
    outline = forecast_outline([(one, ()) for one in made], KINDS, ("r",), 1)
    return next(b for s in outline.sections for b in s.blocks if isinstance(b, Figure))


def test_without_a_price_there_is_one_picture_with_one_there_are_four() -> None:
    unpriced = _figure(_made(ANY_1), _made(Configuration(Level.LOCAL)))
    assert [chart.title for chart in unpriced.charts] == ["two risks"]
    priced = _figure(_made(ANY_1, 900.0), _made(Configuration(Level.LOCAL)))
    assert len(priced.charts) == 4
    through = priced.charts[1]
    assert isinstance(through, ScatterChart)
    assert [p.label for p in through.points] == ["1"]  # what has no price is not in the picture of prices


def test_more_throughput_beats_less_at_the_same_risk() -> None:
    slow, fast = (_made(ANY_1, tps) for tps in (100.0, 900.0))
    chart = _figure(slow, fast).charts[1]
    assert isinstance(chart, ScatterChart)
    assert [p.best for p in chart.points] == [False, True]


def test_points_that_lie_on_one_another_share_a_label() -> None:
    at = Estimate(3.0, 2.0, 4.0)
    points = tuple(ScatterPoint(n, "on", at, at, f"tip {n}") for n in ("1", "2"))
    drawn = str(draw(ScatterChart("two", "x", "y", points)))
    assert ">1, 2</text>" in drawn
    assert drawn.count("<title>tip") == 2


@pytest.mark.parametrize("value", [0.0, 1e-12, 0.5])
def test_a_picture_of_one_value_is_drawn(value: float) -> None:
    same = Estimate(value, value, value)
    assert "nan" not in draw(ScatterChart("one", "x", "y", (ScatterPoint("1", "on", same, same, "tip"),)))


def test_the_page_names_every_source_and_escapes_what_a_file_says() -> None:
    text = page(forecast_outline([(_made(ANY_1), ())], KINDS, ("<script>",), 1))
    assert "<b>crash" not in text
    assert "&lt;b&gt;crash" in text
    assert text.count("<script>") == 1
    assert "failure rates and their sources" in text


@pytest.mark.parametrize(
    ("drilled", "said", "unsaid"),
    [
        ({}, "never drilled: <b>crash</b>, fire; after one clean drill each of kill at most in", "would halve"),
        ({"fire": 1}, "1 clean drill of 1 fault does not exclude one in 1 year in 40, 2 more would", "as drilled"),
        ({"fire": 3}, "after one clean drill each of kill at most in", "as drilled"),
        ({"<b>crash</b>": 1, "fire": 1}, "1 clean drill of 1 fault does not exclude one in", "after one"),
        ({"<b>crash</b>": 10, "fire": 10}, "10 clean drills of 1 fault do not exclude one in", "never drilled"),
    ],
    ids=["nothing", "one of one", "three of one", "one of each", "ten of each"],
)  # fmt: skip
def test_the_conclusion_says_what_drills_leave_open_and_which_further_ones_give(
    drilled: dict[str, int], said: str, unsaid: str
) -> None:
    """One drill of many: "at most in 75 % of years" alone is no answer."""
    here = model(ANY_1, KINDS, takeover_s=20.0)
    known = {(name, level): Losses(0, n, "kill") for name, n in drilled.items() for level in Level}
    one = forecast(replace(here, measured=Measured(here.measured.takeovers, known, {})), "z1", years=1000, seed=1)
    (sentence,) = forecast_outline([(one, ())], KINDS, ("r",), 1).sentences
    assert said in sentence and unsaid not in sentence
    assert (0 < one.undrilled.less < one.losses.value) is ("never drilled" in sentence)


def _run(*words: str) -> tuple[str, str, object]:
    asked = ("forecast", "tests/replay/records/prove-matrix", "--years", "1000", *words)
    result = CliRunner().invoke(walproof, asked, standalone_mode=False)
    return result.stdout, result.stderr, result.exception


def test_the_command_writes_a_page_and_still_prints(tmp_path: Path) -> None:
    out, err, wrong = _run("--html", str(tmp_path / "f.html"))
    assert wrong is None
    assert "minutes without writes" in " ".join(out.split())
    assert "f.html" in err
    assert (tmp_path / "f.html").read_text().startswith("<!doctype html>")
    out, _, _ = _run("--html", "-")
    assert out.startswith("<!doctype html>")


def test_two_things_on_standard_output_are_refused() -> None:
    _, _, wrong = _run("--html", "-", "--json")
    assert isinstance(wrong, UsageError)
