"""Numbers into the words of tables and pages: units, intervals, what is not known. Computes nothing else."""

import math
from datetime import UTC, datetime

from walproof.model.estimate import Estimate
from walproof.model.verdict import Drill
from walproof.pricing.estimates import ArmPrice

NOT_KNOWN = "–"


def number(value: float | None, digits: int = 3) -> str:
    """At least `digits` significant digits, thousands apart.

    >>> number(12345.6), number(0.012345), number(3.0), number(None), number(math.inf)
    ('12,346', '0.0123', '3.00', '–', '∞')
    """
    if value is None or math.isnan(value):
        return NOT_KNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    places = max(0, min(6, digits - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{places}f}"


def whole(value: int | float | None) -> str:
    """A count, thousands apart.

    >>> whole(1234567)
    '1,234,567'
    """
    return NOT_KNOWN if value is None else f"{value:,.0f}"


def found(estimate: Estimate) -> str:
    """A value with its interval, where it has one.

    >>> found(Estimate(1.0, 0.9, 1.1)), found(Estimate(1.0, 0.9, math.inf)), found(Estimate(3.0, 3.0, 3.0))
    ('1.00 (0.900–1.10)', '1.00 (0.900–∞)', '3.00')
    """
    if estimate.low == estimate.high or math.isnan(estimate.value):
        return number(estimate.value)
    return f"{number(estimate.value)} ({number(estimate.low)}–{number(estimate.high)})"


def ratio(estimate: Estimate) -> str:
    """A ratio with its interval, two decimals.

    >>> ratio(Estimate(0.891, 0.88, 0.9)), ratio(Estimate(1.0, 1.0, 1.0))
    ('0.89 (0.88–0.90)', '1')
    """
    if not math.isfinite(estimate.value):
        return NOT_KNOWN
    if estimate.low == estimate.high == estimate.value == 1.0:
        return "1"
    return f"{estimate.value:.2f} ({estimate.low:.2f}–{estimate.high:.2f})"


def plus_minus(estimate: Estimate) -> str:
    """A value and half of its interval's width.

    >>> plus_minus(Estimate(1200.0, 1100.0, 1300.0))
    '1,200 ± 100'
    """
    if not math.isfinite(estimate.value):
        return NOT_KNOWN
    spread = number(estimate.half_width, 2) if math.isfinite(estimate.half_width) else NOT_KNOWN
    return f"{number(estimate.value)} ± {spread}"


def seconds(value: float | None) -> str:
    """Seconds with the decimals they deserve.

    >>> seconds(0.0123), seconds(3.26), seconds(125.0), seconds(None)
    ('0.012 s', '3.3 s', '125 s', '–')
    """
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 1 or value == 0 else f"{value:.3f} s"


def percent(share: float | None) -> str:
    """A share as a percentage.

    >>> percent(0.259), percent(0.0012)
    ('26 %', '0.12 %')
    """
    if share is None or not math.isfinite(share):
        return NOT_KNOWN
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def moment(at: float) -> str:
    """A time as people write it, UTC.

    >>> moment(0.0)
    '1970-01-01 00:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def arm_words(price: ArmPrice) -> str:
    """The level, and what else tells this arm from others."""
    arm = price.arm
    level = "mix " + ", ".join(f"{lv} {weight:g}" for lv, weight in arm.mix) if arm.mix else str(arm.level)
    offered = f"at {number(arm.rate)} tps" if arm.rate else ""
    return " ".join(w for w in (level, arm.label, offered) if w)


def place_words(price: ArmPrice) -> str:
    """Workload and way in, where they are not the usual ones."""
    arm = price.arm
    pool = f"pool {arm.pool}" if arm.pool else ""
    route = "" if arm.route == "direct" and not pool else str(arm.route)
    return ", ".join(w for w in (arm.workload.text, route, pool) if w)


def fault_words(drill: Drill) -> str:
    """The fault, and on whom it fell when that was not the leader."""
    return drill.fault if drill.victim in ("leader", "cluster") else f"{drill.fault} of {drill.victim}"
