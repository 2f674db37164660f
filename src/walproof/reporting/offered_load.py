"""Latency at equal offered rate: the rows of one table. The numbers are pricing's."""

from walproof.model.estimate import Caveat
from walproof.pricing.estimates import ArmPrice, PriceTable
from walproof.reporting.wording import arm_name, interval, number, plus_minus

OFFERED_TITLE = "latency at equal offered rate"
OFFERED_CAPTION = (
    "Open loop: levels in neighbouring rows are offered the same transactions per second, and latency counts from "
    "when a transaction was due, so waiting for one's turn is in it. Where the offered rate was not carried, the "
    "backlog grew and there is no latency to show."
)


def offered_rows(table: PriceTable) -> tuple[tuple[str, ...], list[tuple[ArmPrice, list[str]]]]:
    """Headings, and each open-loop arm with its row: what was offered, carried, and latencies with intervals in ms."""
    heads = ("scenario", "level", ">clients", ">offered tps", ">carried tps", ">p50 ms", ">p95 ms", ">p99 ms",
             ">p99.9 ms")  # fmt: skip
    opened = [p for p in table.arms if p.arm.rate]
    opened.sort(key=lambda p: (p.scenario.text, p.arm.clients, p.arm.route, p.arm.workload.text, p.arm.rate or 0.0))
    return heads, [(p, _row(p)) for p in opened]


def _row(p: ArmPrice) -> list[str]:
    where = [p.scenario.text, arm_name(p).partition(" at ")[0], str(p.arm.clients)]
    rates = [number(p.arm.rate), plus_minus(p.tps)]
    if Caveat.OVERLOAD in p.caveats:
        return [*where, *rates, "overload", *3 * ["–"]]
    latency = p.latency
    return [*where, *rates, *(interval(e) for e in (latency.p50, latency.p95, latency.p99, latency.p999))]
