"""The commit latency breakdown: what part of its latency each guarantee adds, from paired differences.

Within one block the levels are run at the same clients close together, so the difference of neighbouring levels is
the price of the one step between them. The differences telescope: they add up to the strongest level's latency.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from walproof.estimating.intervals import duration_interval, stopped_interval
from walproof.model.estimate import Estimate
from walproof.model.event import Event
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, SampleResult, Scenario
from walproof.model.units import counted
from walproof.pricing.estimates import Blocks, samples_of
from walproof.pricing.level_in_effect import contradictions, round_trip
from walproof.pricing.results_and_gate import interval
from walproof.pricing.sampling import group

STEPS = {
    Level.OFF: "transaction",
    Level.LOCAL: "local flush",
    Level.REMOTE_WRITE: "network and remote write",
    Level.ON: "remote flush",
    Level.REMOTE_APPLY: "remote apply",
}
"""What a level adds to the next weaker one."""
BUSY = 0.9
"""Share of the machine's processors in use from which they are named as the bottleneck."""


@dataclass(frozen=True, slots=True)
class LatencyPart:
    """One part of a commit: ms with its 95 % interval over blocks."""

    name: str
    ms: Estimate


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The parts of a commit at `level` under one scenario and number of clients, and the latency measured for it.

    measured is the mean over every block of that level; parts come from blocks that hold all levels. metrics are
    independent measurements in ms (flushes, lags) and shares (waits, processors); bottleneck is a sentence.
    """

    scenario: Scenario
    level: Level
    clients: int
    blocks: int
    parts: tuple[LatencyPart, ...]
    measured: Estimate
    metrics: dict[str, float]
    bottleneck: str

    @property
    def sum_ms(self) -> float:
        return sum(part.ms.value for part in self.parts)


def breakdowns(events: Sequence[Event]) -> tuple[Breakdown, ...]:
    """One breakdown for every scenario and group of arms in which at least two neighbouring levels share two blocks.

    None at all where an arm did not run at its level: its latency is no part of that level's.
    """
    of_groups: list[Breakdown] = []
    if contradictions(events):
        return ()
    for scenario, blocks in samples_of(events).items():
        groups = {group(a): None for measured in blocks.values() for a in measured if a.rate is None and not a.label}
        for one in sorted(groups, key=lambda g: (g.route, g.workload.text, g.clients)):
            made = _breakdown(scenario, blocks, one, round_trip(events, scenario))
            if made is not None:
                of_groups.append(made)
    return tuple(of_groups)


def _breakdown(scenario: Scenario, blocks: Blocks, one: Arm, network: Estimate | None) -> Breakdown | None:
    by_level = [
        {a.level: r for a, r in measured.items() if group(a) == one and not a.mix and not a.label and r.mean_ms > 0}
        for _, measured in sorted(blocks.items())
    ]
    levels = [level for level in Level if any(level in block for block in by_level)]
    complete = [block for block in by_level if all(level in block for level in levels)]
    if len(levels) < 2 or len(complete) < 2:
        return None
    latencies = {level: np.array([block[level].mean_ms for block in complete]) for level in levels}
    parts = _split(_telescope(levels, latencies), network)
    strongest = levels[-1]
    every = [block[strongest] for block in by_level if strongest in block]
    measured = duration_interval(np.array([r.mean_ms for r in every]))
    return Breakdown(
        scenario,
        strongest,
        one.clients,
        blocks=len(complete),
        parts=parts,
        measured=measured,
        metrics=_metrics(every),
        bottleneck=_bottleneck(strongest, one.clients, parts, measured, every),
    )


def _telescope(levels: Sequence[Level], latencies: dict[Level, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Names and per-block ms of each step; levels that were not measured are merged into the next one that was."""
    steps = []
    before = np.zeros_like(latencies[levels[0]])
    skipped: list[str] = []
    for level in Level:
        skipped.append(STEPS[level])
        if level in levels:
            steps.append((" + ".join(skipped), latencies[level] - before))
            before, skipped = latencies[level], []
    return steps


def _split(steps: Sequence[tuple[str, np.ndarray]], network: Estimate | None) -> tuple[LatencyPart, ...]:
    """Estimates of the steps; the round trip, where known, is taken out of the step that holds the network.

    What is left may be below zero: a step that costs less than its round trip overlaps with something else. Its error
    and the round trip's, where that is known, add as squares.
    """
    parts: list[LatencyPart] = []
    for name, values in steps:
        step = stopped_interval(values)
        if "network" not in name or network is None:
            parts.append(LatencyPart(name, step))
            continue
        rest = step.value - network.value
        shortest, longest = (network.low, network.high) if network.known else (network.value, network.value)
        low = rest - math.hypot(step.value - step.low, longest - network.value)
        high = rest + math.hypot(step.high - step.value, network.value - shortest)
        parts.append(LatencyPart("network", network))
        parts.append(LatencyPart(name.replace("network and ", ""), Estimate(rest, low, high)))
    return tuple(parts)


def _metrics(results: Sequence[SampleResult]) -> dict[str, float]:
    """Observed with these samples: mean flush and lags over members in ms, shares of waits of at least 2 %."""
    members = [m for r in results for m in r.window.members.values()]
    seen: dict[str, float] = {}
    for name in ("wal_flush_ms", "write_lag_ms", "flush_lag_ms", "replay_lag_ms"):
        values = [v for m in members if (v := getattr(m, name)) is not None]
        if values:
            seen[name] = round(fmean(values), 4)
    events = {event for r in results for event in r.window.waits}
    shares = {event: fmean(r.window.waits.get(event, 0.0) for r in results) for event in events}
    ordered = sorted(shares.items(), key=lambda share: (-share[1], share[0]))
    seen.update({f"wait {event}": round(share, 4) for event, share in ordered if share >= 0.02})
    busy = fmean(r.window.machine_busy for r in results)
    if busy > 0:
        seen["machine_busy"] = round(busy, 4)
    return seen


def _bottleneck(
    level: Level, clients: int, parts: Sequence[LatencyPart], measured: Estimate, results: Sequence[SampleResult]
) -> str:
    """One sentence naming what most of a commit's time goes to, and whether the processors are the reason."""
    largest = max(parts, key=lambda part: part.ms.value)
    within = f" (95 % CI {largest.ms.low:.2f}–{largest.ms.high:.2f})" if largest.ms.known else ""
    within = f" (not distinguishable from 0, at most {largest.ms.high:.2f} ms)" if largest.ms.covers(0.0) else within
    busy = fmean(r.window.machine_busy for r in results)
    why = f"; the processors are {busy:.0%} busy, so every part also waits for a processor" if busy >= BUSY else ""
    return (
        f"A commit at {level} with {counted(clients, 'client')} takes {measured.value:.2f} ms; its largest part "
        f"is {largest.name}, {largest.ms.value:.2f} ms{within}{why}."
    )


def breakdown_as_json(breakdown: Breakdown) -> dict[str, Any]:
    return {
        "scenario": breakdown.scenario.text,
        "level": str(breakdown.level),
        "clients": breakdown.clients,
        "blocks": breakdown.blocks,
        "parts_ms": {part.name: interval(part.ms) for part in breakdown.parts},
        "sum_ms": round(breakdown.sum_ms, 4),
        "measured_ms": interval(breakdown.measured),
        "metrics": breakdown.metrics,
        "bottleneck": breakdown.bottleneck,
    }
