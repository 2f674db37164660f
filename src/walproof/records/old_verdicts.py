"""Verdicts of records written before an expected loss had a name of its own. Pure."""

from collections.abc import Mapping
from typing import Any

_OTHERS = ("phantom", "duplicate", "corrupted", "two_leaders_s", "broken_freshness")
"""What else could have broken a drill then, besides damaged data, which its evidence names."""


def upgraded(event: Mapping[str, Any]) -> dict[str, Any]:
    """A decoded line in which a drill that lost what its level never promised is an expected loss.

    Drills that say what was gone (`loss`) were judged since then and come back unchanged.

    >>> lost = {"verdict": "broken", "promised": False, "findings": {"lost": 3, "phantom": 0}}
    >>> upgraded({"kind": "drill-done", "drill": lost})["drill"]["verdict"]
    'expected loss'
    """
    drill = event.get("drill")
    if event.get("kind") != "drill-done" or not isinstance(drill, Mapping) or "loss" in drill:
        return dict(event)
    findings = drill.get("findings")
    counts = findings if isinstance(findings, Mapping) else {}
    evidence = drill.get("evidence")
    damaged = isinstance(evidence, Mapping) and any(str(name).startswith("data of ") for name in evidence)
    lost_only = bool(counts.get("lost")) and not damaged and not any(counts.get(name) for name in _OTHERS)
    if drill.get("verdict") != "broken" or drill.get("promised") is not False or not lost_only:
        return dict(event)
    return {**event, "drill": {**drill, "verdict": "expected loss"}}
