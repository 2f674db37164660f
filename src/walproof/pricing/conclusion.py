"""The conclusion of a price table, in one sentence."""

import math

from walproof.model.guarantee import Level
from walproof.model.units import counted
from walproof.pricing.design import AGAIN
from walproof.pricing.estimates import ArmPrice, PriceTable


def conclusion(table: PriceTable) -> str:
    """What `on` (else the strongest level) costs with the fewest and the most clients; or that nothing was measured."""
    priced = [p for p in table.arms if math.isfinite(p.ratio.value) and p.arm.rate is None]
    again = next((p for p in priced if p.arm.label == AGAIN), None)
    if again is not None:
        covers = "covers 1, as it should" if again.ratio.covers(1.0) else "does not cover 1: this machine is not steady"
        return f"{table.baseline} against itself: {_ratio(again, table)}, which {covers}."
    others = [p for p in priced if p.arm.level is not table.baseline or p.arm.mix]
    if not others:
        return _alone(table)
    levels = [p for p in others if not p.arm.mix] or others
    strongest = max(levels, key=lambda p: (p.arm.level is Level.ON, p.arm.level.strength)).arm
    shown = [p for p in levels if p.arm.level is strongest.level and p.scenario == levels[0].scenario]
    ends = {p.arm.clients: p for p in sorted(shown, key=lambda p: p.arm.clients)}
    fewest, most = next(iter(ends)), next(reversed(ends))
    name = "this mix" if strongest.mix else f"the level {strongest.level}"
    parts = [_cost(ends[clients], table, clients == fewest) for clients in dict.fromkeys((fewest, most))]
    return f"{name[:1].upper()}{name[1:]} {'; '.join(parts)}."


def _cost(price: ArmPrice, table: PriceTable, first: bool) -> str:
    """What the arm costs of the baseline's throughput with its clients, and whether that may be nothing."""
    cost = 1 - price.ratio.value
    verb = "costs" if cost >= 0 else "gains"
    of = f" of {table.baseline}'s throughput" if first else ""
    clear = ", which may be nothing" if price.ratio.covers(1.0) or not price.ratio.known else ""
    clients = counted(price.arm.clients, "client")
    return f"{verb} {100 * abs(cost):.0f} %{of} with {clients}{clear} ({_ratio(price, table)})"


def _alone(table: PriceTable) -> str:
    if not table.arms or not math.isfinite(table.arms[0].tps.value):
        return "Nothing was measured."
    best = max(table.arms, key=lambda p: p.tps.value)
    return f"{best.arm.level} with {counted(best.arm.clients, 'client')}: {best.tps.value:.0f} transactions per second."


def _ratio(price: ArmPrice, table: PriceTable) -> str:
    ratio = price.ratio
    interval = f"95 % CI {ratio.low:.3f}–{ratio.high:.3f}" if ratio.known else "no interval from one block"
    return f"ratio to {table.baseline} {ratio.value:.3f}, {interval}"
