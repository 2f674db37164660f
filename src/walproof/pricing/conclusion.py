"""The conclusion of a price table, in one sentence."""

import math

from walproof.model.guarantee import Level
from walproof.model.units import counted
from walproof.pricing.design import AGAIN
from walproof.pricing.estimates import ArmPrice, PriceTable


def conclusion(table: PriceTable) -> str:
    """What the strongest level costs against the baseline, with its interval; or that nothing was measured."""
    priced = [p for p in table.arms if math.isfinite(p.ratio.value) and p.arm.rate is None]
    again = next((p for p in priced if p.arm.label == AGAIN), None)
    if again is not None:
        covers = "covers 1, as it should" if again.ratio.covers(1.0) else "does not cover 1: this machine is not steady"
        return f"{table.baseline} against itself: {_ratio(again, table)}, which {covers}."
    others = [p for p in priced if p.arm.level is not table.baseline or p.arm.mix]
    if not others:
        return _alone(table)
    most = max(p.arm.clients for p in others)
    at_most = [p for p in others if p.arm.clients == most]
    shown = max(at_most, key=lambda p: (p.arm.level is Level.ON, p.arm.level.strength))
    cost = 1 - shown.ratio.value
    verb = "costs" if cost >= 0 else "gains"
    name = "this mix" if shown.arm.mix else f"the level {shown.arm.level}"
    clear = "" if not shown.ratio.covers(1.0) else ", which may be nothing at all"
    return (
        f"With {counted(most, 'client')} {name} {verb} {abs(cost):.0%} of {table.baseline}'s throughput{clear} "
        f"({_ratio(shown, table)}), p95 {shown.latency.p95.value:.2f} ms."
    )


def _alone(table: PriceTable) -> str:
    if not table.arms or not math.isfinite(table.arms[0].tps.value):
        return "Nothing was measured."
    best = max(table.arms, key=lambda p: p.tps.value)
    return f"{best.arm.level} with {counted(best.arm.clients, 'client')}: {best.tps.value:.0f} transactions per second."


def _ratio(price: ArmPrice, table: PriceTable) -> str:
    ratio = price.ratio
    return f"ratio to {table.baseline} {ratio.value:.3f}, 95 % CI {ratio.low:.3f}–{ratio.high:.3f}"
