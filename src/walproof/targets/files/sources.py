"""Files, folders, globs and standard input as texts: regular files of a bounded size, no link followed in a folder.

What cannot be read is skipped with a reason, never left out in silence."""

import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from walproof.errors import Error
from walproof.machine.untrusted import bounded, regular
from walproof.model.declared import Place, Skipped

MOST_BYTES = 4 << 20
"""Of one file."""
MOST_INCLUDES, DEEPEST_INCLUDE = 1000, 10
"""Of all files; and of files in one another, as PostgreSQL and PgBouncer have it (conffiles.h, cfparser.c)."""
TEMPLATE = re.compile(r"\{\{|\{%|<%")
IS_TEMPLATE = "it is a template: fill it in first (helm template, kustomize build, ansible --diff)"
_TEMPLATES = (".j2", ".tpl", ".tmpl", ".template", ".erb")
_ENDINGS = (".yml", ".yaml", ".json", ".conf", ".cfg", ".ini", ".env", ".properties", *_TEMPLATES)


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
        following = self.text.splitlines()[at.line - self.lines :] if "\n" in value else []
        indent = len(following[0]) - len(following[0].lstrip()) if following else 0
        return Source(self.name, value, None, at.line - ("\n" not in value), self.indent + indent, (self.path,))


@dataclass(slots=True)
class Group:
    """Texts that belong together, what of them was not read, and the files that they include: none of their own."""

    skipped: Skipped
    included: list[Path]
    sources: dict[Path | None, Source] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        """Add one; a file that the user named may be a link: Kubernetes mounts each of a ConfigMap as one."""
        name, real = ("standard input", None) if str(path) == "-" else (str(path), Path(os.path.realpath(path)))
        try:
            self.sources[real] = Source(name, text_of(real), real)
        except OSError as wrong:
            self.skipped[Place(name, 0)] = wrong.strerror or str(wrong)

    @contextmanager
    def or_skipped(self, place: Place, tree: object = "") -> Iterator[None]:
        """The place is skipped where what is inside errs, with the reason: a template, if the tree holds one."""
        try:
            yield
        except (Error, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as wrong:
            words = wrong.message if isinstance(wrong, Error) else str(wrong)
            why = words if isinstance(wrong, Error | ValueError) else "its keys hold other kinds of values"
            self.skipped[place] = IS_TEMPLATE if TEMPLATE.search(str(tree)) else why

    def includes(self, source: Source, directive: str, value: str, place: Place) -> Iterator[Source]:
        """The files that a line includes, below the folder of the one that has it or named too; the rest is skipped."""
        folder, above = source.path.parent if source.path else Path(), (*source.above, source.path)
        inner = Path(os.path.normpath(folder / value))
        below = source.path is not None and inner.is_relative_to(folder)
        several = below and directive == "include_dir" and os.path.isdir(inner) and not os.path.islink(inner)
        for path in sorted(inner.glob("[!.]*.conf")) if several else [inner]:
            known = self.sources.get(path)
            try:
                if path in above:
                    raise OSError(0, "it goes round in a circle")
                if len(self.included) > MOST_INCLUDES or len(above) > DEEPEST_INCLUDE:
                    raise OSError(0, f"over {MOST_INCLUDES} are included, or {DEEPEST_INCLUDE} levels of them")
                if not known and not below:
                    raise OSError(0, "it is outside of this file's folder; name it too")
                name = known.name if known else str(Path(source.name).parent / path.relative_to(folder))
                inside = Source(name, known.text if known else text_of(path), path, above=above)
            except OSError as wrong:
                if directive != "include_if_exists" or not isinstance(wrong, FileNotFoundError):
                    self.skipped[place] = f"{value}, which it includes: {wrong.strerror or wrong}"
                continue
            self.included.append(path)
            yield inside


def text_of(path: Path | None) -> str:
    """The text of a regular file or of standard input; OSError for anything else, a link, or too much of it."""
    if path is None:
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        with regular(path.parent, path) as file:
            data = bounded(file, MOST_BYTES)
    if b"\0" in data or len(data) > MOST_BYTES:
        raise OSError(0, "it is binary" if b"\0" in data else f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OSError(0, "it is no UTF-8 text") from None


def gathered(arguments: Iterable[str]) -> list[Group]:
    """Everything that the arguments name: the files named one by one are a group, and those of each folder."""
    skipped, included = Skipped(), list[Path]()
    groups = {"": Group(skipped, included)}
    for argument in dict.fromkeys(arguments):
        there = argument == "-" or os.path.lexists(argument)
        paths = [argument] if there else sorted(glob.glob(argument, recursive=True))
        for folder, file in (one for path in paths for one in _files(Path(path))):
            groups.setdefault(folder, Group(skipped, included)).read(file)
        if not paths:
            skipped[Place(argument, 0)] = "there is no such file"
    return list(groups.values())


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """A file in no folder; or those of each folder from here down, but hidden ones, links, and other endings."""
    if not path.is_dir():
        yield "", path
    for at, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for file in (Path(at, name) for name in sorted(files) if not name.startswith(".")):
            if file.suffix.lower() in _ENDINGS and not file.is_symlink():
                yield at, file
