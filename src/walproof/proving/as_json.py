"""Drills as the object that `walproof prove --json` prints: finite numbers or null."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from walproof.model.verdict import Drill
from walproof.proving.bounds import bounds, controls, worst_bounds
from walproof.proving.conclusion import conclusion
from walproof.proving.gate import Gate, exceeded
from walproof.proving.guard_comparison import compare_guard
from walproof.proving.matrix import matrix
from walproof.proving.options import ProveOptions


def finite(value: Any) -> Any:
    """The same value with every number that JSON cannot express as None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value


def drill_as_json(drill: Drill) -> dict[str, Any]:
    """The keys of the schema first, then everything else that is known."""
    counts = asdict(drill.findings)
    first = {
        "fault": drill.fault,
        "level": str(drill.level),
        **{name: counts[name] for name in ("acknowledged", "downgraded", "unknown", "refused", "lost", "recovered")},
        "rto_s": drill.rto_s,
        "rpo_s": drill.rpo_s,
        "leader_before": drill.leader_before,
        "leader_after": drill.leader_after,
        "timeline_before": drill.timeline_before,
        "timeline_after": drill.timeline_after,
        "verdict": str(drill.verdict),
        "why": drill.why,
    }
    more = {
        "number": drill.number,
        "victim": str(drill.victim),
        "victims": list(drill.victims),
        "loss": drill.loss,
        "unavailable_s": drill.unavailable_s,
        "writers_rto_s": drill.writers_rto_s,
        "writers": drill.writers,
        "guarded": drill.guarded,
        "strikes": list(drill.strikes),
        "route": drill.route,
        "promised": drill.promised,
        "recovery": asdict(drill.recovery),
        "findings": counts,
        "assumptions": drill.assumptions,
        "evidence": drill.evidence,
        "marks": [asdict(mark) for mark in drill.marks],
    }
    shaped: dict[str, Any] = finite({**first, **more})
    return shaped


def bounds_as_json(drills: Sequence[Drill]) -> list[dict[str, Any]]:
    """One object a kind of drill: level, fault, victim, loss, drills, losing, undecided, upper."""
    return [{**asdict(kind), **asdict(bound)} for kind, bound in bounds(drills).items()]


def answer_as_json(
    options: ProveOptions, drills: Sequence[Drill], record: str | None, limits: Gate | None = None
) -> dict[str, Any]:
    """{"record", "drills", "loss_bound", …}."""
    answer: dict[str, Any] = {
        "record": record,
        "drills": [drill_as_json(drill) for drill in drills],
        "loss_bound": finite(worst_bounds(drills)),
        "bounds": bounds_as_json(drills),
        "positive_control": {
            f"{kind.what} {kind.level}": control or None for kind, control in controls(drills).items()
        },
        "guard": [finite(asdict(compared)) for compared in compare_guard(drills)],
        "conclusion": conclusion(drills),
    }
    if options.matrix:
        table = matrix(drills, options.levels)
        answer["matrix"] = {str(lv): {c: asdict(one) for c, one in row.items()} for lv, row in table.items()}
    if limits is not None:
        answer["exceeded"] = [f"drill {d.number}: {over}" for d in drills if (over := exceeded(limits, d))]
    return answer
