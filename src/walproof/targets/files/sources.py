"""Files, folders, globs and standard input as texts: regular files of a bounded size, no link followed in a folder.

What cannot be read is skipped with a reason, never left out in silence."""

import glob
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from walproof.machine.untrusted import bounded, regular

MOST_BYTES = 4 << 20
"""Of one file."""
_ENDINGS = (".yml", ".yaml", ".json", ".conf", ".cfg", ".ini", ".env", ".j2", ".tpl", ".tmpl", ".template", ".erb")


@dataclass(frozen=True, slots=True)
class Source:
    """One text: its name as the user gave it, and where it lies (None: standard input)."""

    name: str
    text: str
    path: Path | None = None


@dataclass(slots=True)
class Sources:
    """Groups of texts that belong together: those named one by one, and each folder's; and what could not be read."""

    groups: list[list[Source]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def take(self, group: list[Source], name: str, path: Path | None) -> None:
        """Read one; a file that the user named may be a link: Kubernetes mounts each of a ConfigMap as one."""
        try:
            real = path.resolve() if path else None
            group.append(Source(name, text_of(real) if real else _decoded(sys.stdin.buffer.read(MOST_BYTES + 1)), real))
        except UnicodeDecodeError:
            self.skipped[name] = "it is no UTF-8 text"
        except OSError as wrong:
            self.skipped[name] = wrong.strerror or str(wrong)

    def walk(self, folder: Path) -> None:
        """The files of each folder from here down, but hidden ones, links, and other endings."""
        for at, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
            group: list[Source] = []
            for path in (Path(at, name) for name in sorted(files)):
                if path.suffix.lower() in _ENDINGS and not path.is_symlink():
                    self.take(group, str(path), path)
            self.groups += [group] if group else []


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
            sources.skipped[argument] = "there is no such file"
        for path in map(Path, paths):
            if path.is_dir():
                sources.walk(path)
            else:
                sources.take(together, str(path), path)
    return Sources([together] * bool(together) + sources.groups, sources.skipped)
