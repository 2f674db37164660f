"""JSON and TOML that others wrote: files, records, answers of servers. What cannot be read is a ValueError.

Deep nesting cannot be read either: reading it, or walking what was read, would exhaust Python's stack.
"""

import json
import re
import tomllib
from typing import Any

DEEPEST = 100
"""Levels of lists and objects; what walproof, Patroni and Kubernetes write has a dozen or two."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def from_json(text: str | bytes) -> Any:
    """What the JSON says; ValueError where it is none, or nested more than DEEPEST levels deep.

    >>> from_json('{"a": [1]}')
    {'a': [1]}
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        tree = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Most lines of a record have fewer brackets than that, and need no walk.
    if text.count("[") + text.count("{") > DEEPEST and _too_deep(tree):
        raise ValueError(_TOO_DEEP)
    return tree


def from_toml(text: str) -> dict[str, Any]:
    """What the TOML says; tomllib.TOMLDecodeError where it is none, or nested more than DEEPEST levels deep."""
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    if _too_deep(tree):
        raise tomllib.TOMLDecodeError(_TOO_DEEP)
    return tree


def printable(tree: Any) -> Any:
    r"""A tree of JSON whose texts move no terminal: control characters are replaced, line ends and tabs stay.

    >>> printable({"a": ["x\x1b[2J"]})
    {'a': ['x�[2J']}
    """
    if isinstance(tree, str):
        return _CONTROLS.sub("\ufffd", tree)
    if isinstance(tree, dict):
        return {printable(key): printable(value) for key, value in tree.items()}
    return [printable(one) for one in tree] if isinstance(tree, list) else tree


def one_line(text: object, most: int | None = None) -> str:
    """Another's words on one line, without what a terminal obeys; `most`: characters that are taken of them.

    >>> one_line("no" + chr(27) + "[2J" + chr(10) + "space")
    'no?[2J space'
    """
    words = " ".join(str(text)[:most].split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def _too_deep(tree: Any) -> bool:
    level = [tree]
    for _ in range(DEEPEST):
        inner = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [one for nodes in inner for one in nodes]
    return any(isinstance(node, dict | list) for node in level)
