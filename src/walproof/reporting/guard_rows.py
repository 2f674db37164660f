"""Drills with a guard against the same drills without, as rows of text for the terminal and the report."""

from collections.abc import Sequence

from walproof.proving.guard_comparison import GuardComparison
from walproof.reporting.wording import LOSS_BOUND, count, outage_interval, percent, seconds

TITLE = "with a guard and without"
HEADS = ("fault", "level", "guard", ">RTO, median (95 % CI)", ">worst", ">lost", f">{LOSS_BOUND}", ">drills")


def guard_rows(compared: Sequence[GuardComparison]) -> list[list[str]]:
    """Two rows of each fault at a level: outage's median with its interval and worst, commits lost, bound, drills."""
    rows = []
    for c in compared:
        for name, arm in (("with", c.with_guard), ("without", c.without)):
            times = [outage_interval(arm.rto_s), seconds(arm.worst_s)]
            counts = [count(arm.lost), percent(arm.loss_bound), str(arm.drills)]
            rows.append([c.victim.with_fault(c.fault), str(c.level), name, *times, *counts])
    return rows
