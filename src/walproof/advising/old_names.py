"""Advice files of the first format in today's names. Pure."""

from typing import Any

_NAMES = {
    "wish": "requirements",
    "surroundings": "environment",
    "place": "cluster",
    "doubts": "caveats",
    "dropped": "dominated",
    "gives_up": "trade_offs",
    "asked": "rto_required",
}


def upgraded(tree: Any) -> Any:
    """The same JSON with keys of the first format renamed, at any depth.

    >>> upgraded({"doubts": [], "refused": [{"wish": "--rpo 0s", "nearest": ""}]})
    {'caveats': [], 'refused': [{'requirement': '--rpo 0s', 'nearest': ''}]}
    """
    if isinstance(tree, list):
        return [upgraded(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    names = {**_NAMES, "wish": "requirement"} if "nearest" in tree else _NAMES
    return {names.get(key, key): upgraded(value) for key, value in tree.items()}
