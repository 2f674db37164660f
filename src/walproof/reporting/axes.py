"""From numbers to positions in a chart: scales, round ticks, labels that do not touch. Knows no SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps low–high onto start–end, linearly or by logarithm; values outside are clipped to the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value, one decimal.

        >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 100, log=True)(10)
        (150.0, 50.0)
        """
        low, high, at = (math.log(max(v, 1e-12)) if self.log else v for v in (self.low, self.high, value))
        share = min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within low–high.

    >>> round_ticks(0, 1.2, 4)
    [0.0, 0.5, 1.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 … within low–high; only powers of ten when that is more than six.

    >>> log_ticks(0.8, 30)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [f * 10.0**p for p in powers for f in (1, 2, 5) if low <= f * 10.0**p <= high]
    tens = [t for t in ticks if f"{t:e}".startswith("1.0")]
    return ticks if len(ticks) <= 6 else tens


def spread_rows(spans: Sequence[tuple[float, float]]) -> list[int]:
    """A row for each label (left, right), so that labels of one row do not touch; spans in order of their left end.

    >>> spread_rows([(0, 50), (40, 90), (60, 100)])
    [0, 1, 0]
    """
    ends: list[float] = []
    rows = []
    for left, right in spans:
        found = next((i for i, end in enumerate(ends) if end < left), len(ends))
        ends[found : found + 1] = [right]
        rows.append(found)
    return rows


def tick_text(value: float) -> str:
    """A tick's label.

    >>> tick_text(0.5), tick_text(2000.0), tick_text(20000.0), tick_text(3e6)
    ('0.5', '2000', '20k', '3M')
    """
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:g}{name}"
    return f"{value:g}"
