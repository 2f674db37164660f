"""Files, folders, globs and standard input as texts: regular files of a bounded size, no link followed in a folder.

What cannot be read is skipped with a reason, never left out in silence."""

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from walproof.machine.untrusted import bounded, regular
from walproof.model.declared import Place, Skipped

MOST_BYTES = 4 << 20
"""Of one file."""
MOST_INCLUDES = 1000
_ENDINGS = (".yml", ".yaml", ".json", ".conf", ".cfg", ".ini", ".env", ".j2", ".tpl", ".tmpl", ".template", ".erb")


@dataclass(frozen=True, slots=True)
class Source:
    """One text: its name as the user gave it, and where it lies (None: standard input)."""

    name: str
    text: str
    path: Path | None = None
    above: tuple[Path | None, ...] = ()
    """The files that include it."""


@dataclass(slots=True)
class Sources:
    """Groups of texts that belong together: those named one by one, and each folder's; and what could not be read."""

    groups: list[list[Source]] = field(default_factory=list)
    skipped: Skipped = field(default_factory=dict)

    def take(self, group: list[Source], name: str, path: Path | None) -> None:
        """Read one; a file that the user named may be a link: Kubernetes mounts each of a ConfigMap as one."""
        try:
            real = path.resolve() if path else None
            group.append(Source(name, text_of(real) if real else _decoded(sys.stdin.buffer.read(MOST_BYTES + 1)), real))
        except UnicodeDecodeError:
            self.skipped[Place(name, 0)] = "it is no UTF-8 text"
        except OSError as wrong:
            self.skipped[Place(name, 0)] = wrong.strerror or str(wrong)

    def walk(self, folder: Path) -> None:
        """The files of each folder from here down, but hidden ones, links, and other endings."""
        for at, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
            group: list[Source] = []
            for path in (Path(at, name) for name in sorted(files)):
                if path.suffix.lower() in _ENDINGS and path.name[0] != "." and not path.is_symlink():
                    self.take(group, str(path), path)
            self.groups += [group] if group else []


@dataclass(slots=True)
class Includes:
    """Follows includes to files below the folder of the one that has them, and to those that the user named too."""

    named: Mapping[Path | None, Source]
    skipped: Skipped
    used: list[Path] = field(default_factory=list)
    """Files that were included: they are none of their own."""

    def of(self, source: Source, directive: str, value: str, place: Place) -> Iterator[Source]:
        """The files that a line includes; one that is not read is skipped at that line, with the reason."""
        path = source.path or Path(os.devnull)
        inner = Path(os.path.normpath(path.parent / value))
        listed = directive == "include_dir" and inner.is_relative_to(path.parent) and inner.is_dir()
        listed = listed and not inner.is_symlink() and source.path is not None
        for one in sorted(inner.glob("[!.]*.conf")) if listed else [inner]:
            try:
                yield self._read(source, path, one)
            except (OSError, UnicodeDecodeError) as wrong:
                if directive == "include_if_exists" and isinstance(wrong, FileNotFoundError):
                    continue
                why = getattr(wrong, "strerror", None) or str(wrong)
                self.skipped[place] = f"{value}, which it includes: {why}"

    def _read(self, source: Source, path: Path, one: Path) -> Source:
        above = (*source.above, source.path)
        if one in above or len(self.used) > MOST_INCLUDES:
            raise OSError(0, "it goes round in a circle" if one in above else f"more than {MOST_INCLUDES} are included")
        known = self.named.get(one)
        if known is None and (source.path is None or not one.is_relative_to(path.parent)):
            raise OSError(0, "it is outside of this file's folder; name it too")
        text = known.text if known else text_of(one)
        self.used.append(one)
        return Source(
            known.name if known else str(Path(source.name).parent / one.relative_to(path.parent)), text, one, above
        )


def text_of(path: Path) -> str:
    """The text of a regular file; OSError for anything else, a link, or too much of it."""
    with regular(path.parent, path) as file:
        return _decoded(bounded(file, MOST_BYTES))


def _decoded(data: bytes) -> str:
    if b"\0" in data or len(data) > MOST_BYTES:
        raise OSError(0, "it is binary" if b"\0" in data else f"it is larger than {MOST_BYTES >> 20} MiB")
    return data.decode("utf-8-sig")


def gathered(arguments: Iterable[str]) -> Sources:
    """Everything that the arguments name."""
    sources, together = Sources(), list[Source]()
    for argument in dict.fromkeys(arguments):
        if argument == "-":
            sources.take(together, "standard input", None)
            continue
        paths = [argument] if os.path.lexists(argument) else sorted(glob.glob(argument, recursive=True))
        if not paths:
            sources.skipped[Place(argument, 0)] = "there is no such file"
        for path in map(Path, paths):
            if path.is_dir():
                sources.walk(path)
            else:
                sources.take(together, str(path), path)
    return Sources([together] * bool(together) + sources.groups, sources.skipped)
