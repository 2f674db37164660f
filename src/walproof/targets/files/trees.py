"""Texts as names and values with the place of every name: YAML, and lines of name = value with what they include.

No tag of YAML is obeyed, depth and size are bounded; what is no line is skipped with the reason, the rest is read."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import yaml

from walproof.machine.untrusted import DEEPEST, one_line
from walproof.model.declared import Place
from walproof.targets.files.reading import Reading
from walproof.targets.files.settings import LINE
from walproof.targets.files.sources import IS_TEMPLATE, TEMPLATE, Group, Source

MOST_VALUES = 50_000
"""Values of a document once its aliases are followed: a Cluster has a few hundred."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
_FILLED_IN = re.compile(r"\$[({]\w|" + TEMPLATE.pattern)
_MARKER = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_INI_LINE = re.compile(
    r"\[(?P<section>[^\]]+)\].*|(?P<key>%include(?=\s)|(?:\"[^\"]*\"|[^=\s]+)(?=\s*=))\s*=?\s*(?P<value>.*)"
)
_OF_ENV = re.compile(r"(['\"])(.*?)\1|(.*?)(?:\s#|$)")
"""A value of a variable: in quotes, or up to a comment."""
_GRAMMARS = {
    "conf": (LINE, "#", "PostgreSQL's configuration (name = value)"),
    "pgbouncer": (_INI_LINE, "#;", "PgBouncer's configuration (key = value)"),
    "service": (_INI_LINE, "#", "a connection service file (key = value)"),
    "env": (re.compile(r"(?:export\s+)?(?P<key>\w+)=(?P<value>.*)|.*"), "#", "NAME=VALUE"),
}
"""Of one line without the space around it; where a comment begins; and what it is called (guc-file.l, cfparser.c)."""


class Tree(dict[str, Any]):
    """Names and values, where they begin, and where each name stands."""

    section = ""
    """Of lines that are being read."""

    def __init__(self, start: Place) -> None:
        super().__init__()
        self.start, self.at = start, dict[str, Place]()

    def put(self, name: str, value: Any, place: Place) -> None:
        self[name], self.at[name] = value, place

    def below(self, *path: str) -> "Tree":
        """The names and values at this path; none where there is something else."""
        tree = self
        for name in path:
            inner = tree.get(name)
            tree = inner if isinstance(inner, Tree) else Tree(tree.at.get(name, tree.start))
        return tree

    def trees(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], "Tree"]]:
        """Itself and every one below with its path; those of a list have the list's."""
        yield path, self
        for name, value in self.items():
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, Tree):
                    yield from inner.trees((*path, name))

    def without_placeholders(self) -> "Tree":
        """Itself; ValueError where another program fills in a value, quoted or not; commands may have variables."""
        for name, value in (one for _, tree in self.trees() for one in tree.items()):
            if isinstance(value, str) and _FILLED_IN.search(value) and "command" not in name:
                raise ValueError(f"it is a template: another program fills in {name}: fill it in first")
        return self


def tree_of(source: Source, grammar: str, group: Group, tree: Tree | None = None) -> Tree:
    """All that is in effect of a file of lines and of what it includes, where the last one wins: by section, if any.

    >>> made = tree_of(Source("p", "Fsync off # no\\nlog_line_prefix = '%m''s '\\n#x = 1"), "conf", Group())
    >>> made, made.at["fsync"].text
    ({'fsync': 'off', 'log_line_prefix': "%m's "}, 'p:1:1')
    """
    tree, (pattern, comments, what) = Tree(source.place(1, 1)) if tree is None else tree, _GRAMMARS[grammar]
    for line, place in group.reading.lines(source):
        if line[0] in comments:
            continue
        match = pattern.fullmatch(line)
        parts = match.groupdict() if match else {}
        if match is None:
            group.reading.skipped[place] = f"this line is none of {what}"
        elif parts.get("section"):
            tree.section = parts["section"].lower()
        elif name := parts["key"]:
            value, directive = _unquoted(parts["value"], grammar), name.lower().lstrip("%")
            if directive in ("include", "include_if_exists", "include_dir"):
                for inner in group.includes(source, directive, value, place):
                    tree_of(inner, grammar, group, tree)
                continue
            if tree.section and tree.section not in tree:
                tree.put(tree.section, Tree(place), place)
            part = tree[tree.section] if tree.section else tree
            part.put(name.lower() if grammar == "conf" else name, value, place)
    return tree


def _unquoted(value: str, grammar: str) -> str:
    if value[:1] == "'" and grammar == "conf":
        return re.sub(r"\\(.)", r"\1", value[1:-1].replace("''", "'"))
    match = _OF_ENV.match(value) if grammar == "env" else None
    return (match[2] or match[3] or "").strip() if match else value


def parts_of(source: Source, ours: re.Pattern[str]) -> Iterator[Source]:
    """The documents of a YAML stream that match."""
    text, before = source.text, source.lines
    for start, end in pairwise([0, *(match.start() for match in _MARKER.finditer(text)), len(text)]):
        if ours.search(text, start, end):
            yield replace(source, text=text[start:end], lines=before)
        before += text.count("\n", start, end)


def documents(source: Source, reading: Reading) -> list[Any]:
    """The documents of a text; ValueError in one sentence, of the reading's time too."""
    reading.check()
    try:
        roots = [root for root in yaml.compose_all(source.text, Loader=_LOADER) if root is not None]
    except (yaml.YAMLError, RecursionError) as wrong:
        if TEMPLATE.search(source.text):
            raise ValueError(IS_TEMPLATE) from None
        mark = getattr(wrong, "problem_mark", None)
        place = source.place(mark.line + 1, mark.column + 1) if mark else None
        where = f"line {place.line}, column {place.column}: " if place else ""
        raise ValueError(f"it is no YAML: {where}{one_line(getattr(wrong, 'problem', None) or wrong, 200)}") from None
    return [_Reader(source, reading).value(root, root) for root in roots]


class _Reader:
    """Reads one document's nodes; an alias is the node that it stands for."""

    def __init__(self, source: Source, reading: Reading) -> None:
        self.source, self.reading, self.values = source, reading, 0
        self.constructor = yaml.constructor.SafeConstructor()

    def place(self, node: yaml.Node) -> Place:
        return self.source.place(node.start_mark.line + 1, node.start_mark.column + 1)

    def value(self, node: yaml.Node, marked: yaml.Node, above: tuple[yaml.Node, ...] = ()) -> Any:
        """Its value; `marked` is the key, or the item of a list, where it stands."""
        self._count()
        if isinstance(node, yaml.ScalarNode):
            if not node.style and TEMPLATE.search(node.value):
                raise ValueError(IS_TEMPLATE)
            try:
                return self.constructor.construct_object(node) if node.tag in _SCALARS else node.value
            except ValueError:  # a number of too many digits
                return node.value
        if node in above or len(above) > DEEPEST:
            raise ValueError("one of its aliases holds itself" if node in above else f"it has over {DEEPEST} levels")
        above, tree = (*above, node), Tree(self.place(marked))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, tree, above)
        items = [self.value(one, one, above) for one in node.value]
        if marked.value not in ("env", "environment"):
            return items
        for one, item in zip(node.value, items, strict=True):  # a container's variables: NAME=VALUE, or a name, a value
            if isinstance(item, Tree):
                tree.put(str(item.get("name")), str(item.get("value") or ""), item.at.get("value", item.start))
            else:
                name, _, text = str(item).partition("=")
                tree.put(name, text, self.place(one))
        return tree

    def _count(self) -> None:
        self.values += 1
        if self.values % 1000 == 0:
            self.reading.check()
        if self.values > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values once its aliases are followed")

    def mapping(self, node: yaml.MappingNode, tree: Tree, above: tuple[yaml.Node, ...]) -> Tree:
        merge = "tag:yaml.org,2002:merge"
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != merge):
            if key.tag == merge:
                parts = self.value(value, value, above)
                for part in reversed(parts if isinstance(parts, list) else [parts]):
                    for name, inner in part.items() if isinstance(part, Tree) else ():
                        tree.put(name, inner, part.at[name])
            elif isinstance(key, yaml.MappingNode):  # x: {{ y }}
                raise ValueError(IS_TEMPLATE)
            elif isinstance(key, yaml.ScalarNode):
                tree.put(key.value, self.value(value, key, above), self.place(key))
        return tree
