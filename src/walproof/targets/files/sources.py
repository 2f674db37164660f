"""Files, folders, globs and standard input as texts, by groups that belong together, with what they include.

What cannot be read is skipped with a reason, never left out in silence."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from walproof.errors import Error
from walproof.machine.untrusted import entries
from walproof.model.declared import Place
from walproof.targets.files.reading import MOST_BYTES, Reading, decoded

MOST_INCLUDES, DEEPEST_INCLUDE = 1000, 10
"""Of all files; and of files in one another, as PostgreSQL and PgBouncer have it (conffiles.h, cfparser.c)."""
TEMPLATE = re.compile(r"\{\{|\{%|<%")
IS_TEMPLATE = "it is a template: fill it in first (helm template, kustomize build, ansible --diff)"


@dataclass(frozen=True, slots=True)
class Source:
    """A text: its name as the user gave it, and where it lies (None: standard input, or a text within a text)."""

    name: str
    text: str
    path: Path | None = None
    lines: int = 0
    indent: int = 0
    """Lines of the file before it, and columns before each of its own."""
    above: tuple[Path | None, ...] = ()
    """The files that include it, or hold it as a value."""
    top: Path = Path()
    """The folder that the user named, or the file's own: no link below it is followed."""

    def place(self, line: int, column: int) -> Place:
        """In its file."""
        return Place(self.name, line + self.lines, column + self.indent)

    def numbered(self) -> Iterator[tuple[str, Place]]:
        """Its lines without the space around them, but empty ones, and where each begins."""
        for number, line in enumerate(self.text.split("\n"), 1):
            if bare := line.strip():
                yield bare, self.place(number, line.index(bare) + 1)

    def within(self, value: str, at: Place) -> "Source":
        """A text that is the value at this place: of several lines it begins on the next one, as they are indented."""
        first = at.line - self.lines
        following = _lines_of(self.text)[first : first + 1] if "\n" in value else []
        indent = len(following[0]) - len(following[0].lstrip()) if following else 0
        return Source(self.name, value, None, at.line - ("\n" not in value), self.indent + indent, (self.path,))


@lru_cache(maxsize=1)
def _lines_of(text: str) -> tuple[str, ...]:
    """Kept for the next value of the same text: a ConfigMap may hold thousands."""
    return tuple(text.splitlines())


@dataclass(slots=True)
class Group:
    """Texts that belong together, and the reading that they are of."""

    reading: Reading = field(default_factory=Reading)
    sources: dict[Path | None, Source] = field(default_factory=dict)

    def read(self, path: Path | None, name: str, top: Path) -> None:
        """Add one; None is standard input."""
        try:
            text = self.reading.text_of(path, top) if path else decoded(sys.stdin.buffer.read(MOST_BYTES + 1))
            self.sources[path] = Source(name, text, path, top=top)
        except OSError as wrong:
            self.reading.leave_out(Place(name, 0), wrong)

    @contextmanager
    def or_skipped(self, place: Place, tree: object = "") -> Iterator[None]:
        """The place is skipped where what is inside errs, with the reason: a template, if the tree holds one."""
        try:
            yield
        except (Error, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as wrong:
            words = wrong.message if isinstance(wrong, Error) else str(wrong)
            why = words if isinstance(wrong, Error | ValueError) else "its keys hold other kinds of values"
            self.reading.skipped[place] = IS_TEMPLATE if TEMPLATE.search(str(tree)) else why

    def includes(self, source: Source, directive: str, value: str, place: Place) -> Iterator[Source]:
        """The files that a line includes, below the folder of the one that has it or named too; the rest is skipped."""
        folder, above = source.path.parent if source.path else Path(), (*source.above, source.path)
        inner = Path(os.path.normpath(folder / value))
        below = source.path is not None and inner.is_relative_to(folder)
        paths = [inner]
        if below and directive == "include_dir":
            with suppress(OSError):
                names = [name for name, kind in entries(source.top, inner) if kind != "folder"]
                paths = [inner / name for name in names if name.endswith(".conf") and name[0] != "."]
        for path in paths:
            known = self.sources.get(path)
            try:
                if path in above:
                    raise OSError(0, "it goes round in a circle")
                if len(self.reading.included) > MOST_INCLUDES or len(above) > DEEPEST_INCLUDE:
                    raise OSError(0, f"over {MOST_INCLUDES} are included, or {DEEPEST_INCLUDE} levels of them")
                if not known and not below:
                    raise OSError(0, "it is outside of this file's folder; name it too")
                name = known.name if known else str(Path(source.name).parent / path.relative_to(folder))
                text = known.text if known else self.reading.text_of(path, source.top)
                inside = Source(name, text, path, above=above, top=source.top)
            except OSError as wrong:
                if directive != "include_if_exists" or not isinstance(wrong, FileNotFoundError):
                    self.reading.skipped[place] = f"{value}, which it includes: {wrong.strerror or wrong}"
                continue
            self.reading.included.append(path)
            yield inside


def gathered(arguments: Iterable[str], reading: Reading) -> list[Group]:
    """Everything that the arguments name: the files named one by one are a group, and those of each folder.

    A file or a folder that the user named may be a link: Kubernetes mounts each file of a ConfigMap as one.
    """
    groups = {"": Group(reading)}
    for argument in dict.fromkeys(arguments):
        if argument == "-":
            groups[""].read(None, "standard input", Path())
            continue
        for folder, path, name, top in _named(argument, reading):
            groups.setdefault(folder, Group(reading)).read(path, name, top)
    reading.name_links()
    return list(groups.values())


def _named(argument: str, reading: Reading) -> Iterator[tuple[str, Path, str, Path]]:
    """Each file that an argument names: its folder where a folder or pattern was named, path, name and top folder."""
    if os.path.lexists(argument):
        real = Path(os.path.realpath(argument))
        if not real.is_dir():
            yield "", real, str(Path(argument)), real.parent
        for folder, path, name in reading.below(Path(argument), real) if real.is_dir() else ():
            yield folder, path, name, real
        return
    parts = Path(argument).parts
    plain = next((number for number, part in enumerate(parts) if re.search(r"[*?\[]", part)), len(parts))
    named, found = Path(*parts[:plain]), False
    top = Path(os.path.realpath(named))
    for path, kind in sorted(reading.matching(named, top, parts[plain:])) if parts[plain:] and top.is_dir() else ():
        found = True
        if kind == "folder":
            for folder, inner, name in reading.below(named / path, top / path):
                yield folder, inner, name, top
        else:
            yield "", top / path, str(named / path), top
    if not found:
        reading.skipped[Place(argument, 0)] = "there is no such file"
