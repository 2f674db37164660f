"""Texts as values with the place of every key: YAML, and lines of key = value with what they include.

No tag of YAML is obeyed, depth and size are bounded; what is no line is skipped with the reason, the rest is read."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import yaml

from walproof.machine.untrusted import DEEPEST, one_line
from walproof.model.declared import Place
from walproof.targets.files.sources import Includes, Source

MOST_VALUES = 50_000
"""Values of a document once its aliases are followed: a Cluster has a few hundred."""
TEMPLATE = re.compile(r"\{\{|\{%|<%")
IS_TEMPLATE = "it is a template: fill it in first (helm template, kustomize build, ansible --diff)"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
_FILLED_IN = re.compile(r"\$[({]\w|" + TEMPLATE.pattern)
_MARKER = re.compile(r"^---(?=\s|$)", re.MULTILINE)
CONF_LINE = re.compile(r"(?P<key>[A-Za-z_][\w.$]*)\s*=?\s*(?P<value>'(?:[^'\\]|''|\\.)*'|[^\s#']+)\s*(?:#.*)?")
_GRAMMARS = {
    "conf": (CONF_LINE, "#", "PostgreSQL's configuration (name = value)"),
    "pgbouncer": (
        re.compile(
            r"\[(?P<section>[^\]]+)\].*|(?P<key>%include(?=\s)|(?:\"[^\"]*\"|[^=\s]+)(?=\s*=))\s*=?\s*(?P<value>.*)"
        ),
        "#;",
        "PgBouncer's configuration (key = value)",
    ),
    "env": (re.compile(r"(?:export\s+)?(?P<key>\w+)=(?P<value>.*)|.*"), "#", "NAME=VALUE"),
}
"""Of one line without the space around it; where a comment begins; and what it is called (guc-file.l, cfparser.c)."""
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

    def over(self, other: "Document") -> "Document":
        """With the other's values over its own."""
        return Document(self.value | other.value, self.start, self.places | other.places)

    def mapping(self, *path: str) -> dict[str, Any]:
        """The names and values at this path; none where there is something else."""
        value = self.value
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}


def lines_of(
    source: Source, grammar: str, includes: Includes, section: str = ""
) -> Generator[tuple[str, str, str, Place], None, str]:
    """Section, key, value and place of each line, with those of included files where they are; the last section."""
    pattern, comments, what = _GRAMMARS[grammar]
    for number, line in enumerate(source.text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare[0] in comments:
            continue
        place, match = Place(source.name, number, line.index(bare) + 1), pattern.fullmatch(bare)
        parts = match.groupdict() if match else {}
        if match is None:
            includes.skipped[place] = f"this line is none of {what}"
        elif parts.get("section"):
            section = parts["section"].lower()
        elif key := parts["key"]:
            value = parts["value"]
            if value[:1] == "'" and grammar == "conf":
                value = re.sub(r"\\(.)", r"\1", value[1:-1].replace("''", "'"))
            if (directive := key.lower().lstrip("%")) in ("include", "include_if_exists", "include_dir"):
                for inner in includes.of(source, directive, value, place):
                    section = yield from lines_of(inner, grammar, includes, section)
            else:
                yield section, key.lower() if grammar == "conf" else key, value, place
    return section


def key_values(source: Source, grammar: str, includes: Includes) -> Document:
    """All that is in effect of a file of lines, where the last one wins: by section, if it has them.

    >>> made = key_values(Source("p", "Fsync off # no\\nlog_line_prefix = '%m''s '\\n#x = 1"), "conf", Includes({}, {}))
    >>> made.value, made.places["fsync",].text
    ({'fsync': 'off', 'log_line_prefix': "%m's "}, 'p:1:1')
    """
    made = Document({}, Place(source.name))
    for section, key, value, place in lines_of(source, grammar, includes):
        (made.value.setdefault(section, {}) if section else made.value)[key] = value
        made.places[(section, key) if section else (key,)] = place
    return made


def yaml_parts(text: str, ours: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The documents of a YAML stream that match, and how many lines are before each."""
    starts = [0, *(match.start() for match in _MARKER.finditer(text)), len(text)]
    before = 0
    for start, end in pairwise(starts):
        if ours.search(text, start, end):
            yield before, text[start:end]
        before += text.count("\n", start, end)


def documents(name: str, text: str, before: int = 0) -> list[Document]:
    """The documents of a text that begins after so many lines of its file; ValueError in one sentence."""
    try:
        roots = [root for root in yaml.compose_all(text, Loader=_LOADER) if root is not None]
    except (yaml.YAMLError, RecursionError) as wrong:
        if TEMPLATE.search(text):
            raise ValueError(IS_TEMPLATE) from None
        mark = getattr(wrong, "problem_mark", None)
        where = f"line {mark.line + 1 + before}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"it is no YAML: {where}{one_line(getattr(wrong, 'problem', None) or wrong, 200)}") from None
    return [_Reader(name, before).document(root) for root in roots]


def containers(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every mapping and list of a tree, with its path."""
    yield path, tree
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from containers(value, (*path, str(key)))


def without_placeholders(tree: Any) -> None:
    """ValueError where another program fills in one of its values, quoted or not; commands may have variables."""
    for _, inner in containers(tree):
        for key, value in inner.items() if isinstance(inner, dict) else ():
            if isinstance(value, str) and _FILLED_IN.search(value) and "command" not in key:
                raise ValueError(f"it is a template: another program fills in {key}: fill it in first")


class _Reader:
    """Reads one document's nodes; an alias is the node that it stands for."""

    def __init__(self, name: str, before: int) -> None:
        self.name, self.before, self.values, self.above = name, before, 0, set[int]()
        self.places: dict[Path, Place] = {}
        self.constructor = yaml.constructor.SafeConstructor()

    def document(self, root: yaml.Node) -> Document:
        value = self.plain(root, (), root)
        return Document(value, self.places.pop(()), self.places)

    def plain(self, node: yaml.Node, path: Path, marked: yaml.Node | None = None) -> Any:
        """Its value; `marked` is the key, or the item of a list, where it stands."""
        if marked is not None:
            mark = marked.start_mark
            self.places[path] = Place(self.name, mark.line + 1 + self.before, mark.column + 1)
        self.values += 1
        if self.values > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values once its aliases are followed")
        if isinstance(node, yaml.ScalarNode):
            if not node.style and TEMPLATE.search(node.value):
                raise ValueError(IS_TEMPLATE)
            try:
                return self.constructor.construct_object(node) if node.tag in _SCALARS else node.value
            except ValueError:  # a number of too many digits
                return node.value
        if id(node) in self.above or len(path) > DEEPEST:
            wrong = "one of its aliases holds itself" if id(node) in self.above else f"it has over {DEEPEST} levels"
            raise ValueError(wrong)
        self.above.add(id(node))
        items = enumerate(node.value) if isinstance(node, yaml.SequenceNode) else ()
        made: Any = [self.plain(one, (*path, str(at)), one) for at, one in items]
        made = self.mapping(node, path) if isinstance(node, yaml.MappingNode) else made
        self.above.discard(id(node))
        return made

    def mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                parts = self.plain(value, path)
                for part in reversed(parts if isinstance(parts, list) else [parts]):
                    merged |= part if isinstance(part, dict) else {}
            elif isinstance(key, yaml.MappingNode):  # x: {{ y }}
                raise ValueError(IS_TEMPLATE)
            elif isinstance(key, yaml.ScalarNode):
                own[key.value] = self.plain(value, (*path, key.value), key)
        return merged | own
