"""Records of format 1 in the names of format 2: kinds of events, fields, and the values that are names. Pure.

Sentences are left as they were written. What is already in format 2 comes back unchanged, so that a record of
format 1 may be continued in format 2.
"""

import re
from collections.abc import Mapping
from typing import Any

KINDS = {
    "begun": "started",
    "looked": "observed",
    "setting-entered": "scenario-entered",
    "slice-done": "sample-done",
    "drill-begun": "drill-started",
    "figure-beside": "figure-compared",
    "noted": "note",
}
FIELDS: dict[str, dict[str, str]] = {
    "started.question": {"slice": "sample"},
    "search-step.tried": {"setting": "scenario", "contestant": "candidate"},
    "scenario-entered": {"setting": "scenario"},
    "sample-done.result": {"slice": "sample"},
    "sample-done.result.sample": {"setting": "scenario"},
    "fault-changed": {"healed": "cleared"},
    "drill-done.drill.findings": {
        "from_nowhere": "phantom",
        "doubled": "duplicate",
        "altered": "corrupted",
        "not_in_force_s": "not_in_effect_s",
    },
    "drill-done.drill.assumptions": {
        "cluster whole before": "cluster healthy before",
        "level in force": "level in effect",
        "cluster healed": "cluster recovered",
    },
    "drill-done.drill.evidence": {"trouble": "error", "not in force": "not in effect"},
}
"""Where an object lies in an event (kind, then fields, in format 2) → its renamed fields."""

_FAULT = {"cut": "partition", "cut-one-way": "partition-one-way"}
_DEFAULT = {"as it is": "default settings"}
_CANDIDATE = {**_DEFAULT, "1 clients": "1 client"}
VALUES: dict[str, dict[str, str]] = {
    "started.question.fault": _FAULT,
    "drill-started.fault": _FAULT,
    "fault-changed.fault": _FAULT,
    "drill-done.drill.fault": _FAULT,
    "drill-done.drill.marks.what": {**_FAULT, "healing": "fault cleared"},
    "search-step.conclusion": _DEFAULT,
    "search-step.tried.scenario": _DEFAULT,
    "search-step.tried.candidate": _CANDIDATE,
    "search-step.tried.final": _CANDIDATE,
}
"""Where a text lies → its renamed words."""

_PLACES = {".".join(place.split(".")[:n]) for place in (*FIELDS, *VALUES) for n in range(1, place.count(".") + 2)}


def upgraded(event: Mapping[str, Any]) -> dict[str, Any]:
    """A decoded line of format 1 as format 2 writes it.

    >>> upgraded({"kind": "fault-changed", "fault": "cut-one-way", "healed": True})
    {'kind': 'fault-changed', 'fault': 'partition-one-way', 'cleared': True}
    """
    kind = str(event.get("kind"))
    kind = KINDS.get(kind, kind)
    return {**_upgraded(event, kind), "kind": kind}


def _upgraded(value: Any, place: str) -> Any:
    if place not in _PLACES:
        return value
    if isinstance(value, Mapping):
        fields = {FIELDS.get(place, {}).get(name, name): below for name, below in value.items()}
        return {name: _upgraded(below, f"{place}.{name}") for name, below in fields.items()}
    if isinstance(value, list):
        return [_upgraded(below, place) for below in value]
    if isinstance(value, str):
        for old, new in VALUES.get(place, {}).items():
            value = re.sub(rf"(?<![\w-]){old}(?![\w-])", new, value)
    return value
