"""YAML as plain values, with the place of every key. No tag of it is obeyed, and depth and size are bounded."""

from dataclasses import dataclass, field
from typing import Any

import yaml

from walproof.machine.untrusted import DEEPEST, one_line
from walproof.model.declared import Place

MOST_VALUES = 50_000
"""Values of a document once its aliases are followed: a Cluster has a few hundred."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
Path = tuple[str, ...]


@dataclass(slots=True)
class Document:
    """One document, or a part of one: its value, and the places of its keys by their path (numbers in a list)."""

    value: Any
    start: Place
    places: dict[Path, Place] = field(default_factory=dict)

    def below(self, *path: str) -> "Document":
        """The part of it at this path."""
        value, length = self.value, len(path)
        for key in path:
            value = value[int(key)] if isinstance(value, list) else value[key]
        inner = {its[length:]: place for its, place in self.places.items() if its[:length] == path and its != path}
        return Document(value, self.places.get(path, self.start), inner)

    def mapping(self, *path: str) -> dict[str, Any]:
        """The names and values at this path; none where there is something else."""
        value = self.value
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}


def documents(name: str, text: str) -> list[Document]:
    """The documents of a file's text; ValueError in one sentence."""
    try:
        roots = [root for root in yaml.compose_all(text, Loader=_LOADER) if root is not None]
    except (yaml.YAMLError, RecursionError) as wrong:
        mark = getattr(wrong, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"it is no YAML: {where}{one_line(getattr(wrong, 'problem', None) or wrong, 200)}") from None
    return [_Reader(name).document(root) for root in roots]


class _Reader:
    """Reads one document's nodes; an alias is the node that it stands for."""

    def __init__(self, name: str) -> None:
        self.name, self.values, self.above = name, 0, set[int]()
        self.places: dict[Path, Place] = {}
        self.constructor = yaml.constructor.SafeConstructor()

    def document(self, root: yaml.Node) -> Document:
        return Document(self.plain(root, ()), self.place(root), self.places)

    def place(self, node: yaml.Node) -> Place:
        return Place(self.name, node.start_mark.line + 1, node.start_mark.column + 1)

    def plain(self, node: yaml.Node, path: Path) -> Any:
        self.values += 1
        if self.values > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values once its aliases are followed")
        if isinstance(node, yaml.ScalarNode):
            try:
                return self.constructor.construct_object(node) if node.tag in _SCALARS else node.value
            except ValueError:  # a number of too many digits
                return node.value
        if id(node) in self.above or len(path) > DEEPEST:
            wrong = "one of its aliases holds itself" if id(node) in self.above else f"it has over {DEEPEST} levels"
            raise ValueError(wrong)
        self.above.add(id(node))
        made: Any = (
            [self.child(n, n, (*path, str(at))) for at, n in enumerate(node.value)]
            if (isinstance(node, yaml.SequenceNode))
            else self.mapping(node, path)
        )
        self.above.discard(id(node))
        return made

    def child(self, marked: yaml.Node, node: yaml.Node, path: Path) -> Any:
        self.places[path] = self.place(marked)
        return self.plain(node, path)

    def mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                parts = self.plain(value, path)
                for part in reversed(parts if isinstance(parts, list) else [parts]):
                    merged |= part if isinstance(part, dict) else {}
            elif isinstance(key, yaml.ScalarNode):
                own[key.value] = self.child(key, value, (*path, key.value))
        return merged | own
