"""Records of format 1 in today's names: kinds, fields and values that were renamed. Pure; a line in, a line out."""

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
FAULTS = {"cut": "partition", "cut-one-way": "partition-one-way"}
_FIELDS = {
    "setting-entered": {"setting": "scenario"},
    "slice-done": {},
    "fault-changed": {"healed": "cleared"},
}
OPTIONS = {"slice": "sample"}
_TRIED = {"setting": "scenario", "contestant": "candidate"}
_RESULT = {"slice": "sample"}
_FINDINGS = {
    "from_nowhere": "phantom",
    "doubled": "duplicate",
    "altered": "corrupted",
    "not_in_force_s": "not_in_effect_s",
}
_ASSUMPTIONS = {
    "cluster whole before": "cluster healthy before",
    "level in force": "level in effect",
    "cluster healed": "cluster recovered",
}


def _renamed(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in tree.items()}


def upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """An event of format 1 as format 2 writes it; one that is not of format 1 comes back as it is.

    >>> upgraded({"kind": "noted", "at": 1.0, "text": "x"})
    {'kind': 'note', 'at': 1.0, 'text': 'x'}
    """
    kind = str(raw.get("kind"))
    tree = _renamed(raw, _FIELDS.get(kind, {}))
    tree["kind"] = KINDS.get(kind, kind)
    if kind == "slice-done" and isinstance(tree.get("result"), dict):
        tree["result"] = _renamed(tree["result"], _RESULT)
        if isinstance(tree["result"].get("sample"), dict):
            tree["result"]["sample"] = _renamed(tree["result"]["sample"], {"setting": "scenario"})
    if kind == "begun" and isinstance(tree.get("question"), dict):
        tree["question"] = _renamed(tree["question"], OPTIONS)
    if kind == "search-step" and isinstance(tree.get("tried"), dict):
        tree["tried"] = _renamed(tree["tried"], _TRIED)
    if kind == "drill-done" and isinstance(tree.get("drill"), dict):
        tree["drill"] = _drill(tree["drill"])
    if "fault" in tree:
        tree["fault"] = FAULTS.get(str(tree["fault"]), tree["fault"])
    return tree


def _drill(drill: dict[str, Any]) -> dict[str, Any]:
    found = dict(drill)
    if isinstance(found.get("findings"), dict):
        found["findings"] = _renamed(found["findings"], _FINDINGS)
    if isinstance(found.get("assumptions"), dict):
        found["assumptions"] = _renamed(found["assumptions"], _ASSUMPTIONS)
    found["fault"] = FAULTS.get(str(found.get("fault")), found.get("fault"))
    return found
