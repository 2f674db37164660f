"""A chart of any kind as SVG."""

from typing import assert_never

from markupsafe import Markup

from walproof.reporting.outline import BarChart, Chart, LineChart, PercentileChart, ScatterChart, SeriesChart
from walproof.reporting.scatter_svg import scatter_chart
from walproof.reporting.series_svg import series_chart
from walproof.reporting.svg import bar_chart, line_chart, percentile_chart


def draw(chart: Chart) -> Markup:
    """The chart as SVG."""
    match chart:
        case LineChart():
            return line_chart(chart)
        case BarChart():
            return bar_chart(chart)
        case PercentileChart():
            return percentile_chart(chart)
        case SeriesChart():
            return series_chart(chart)
        case ScatterChart():
            return scatter_chart(chart)
        case _:
            assert_never(chart)
