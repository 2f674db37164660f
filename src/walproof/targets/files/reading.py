"""One reading of files and folders: regular files alone, no link followed below what the user named, all of it bounded.

Every folder and file below a top folder is opened component by component without following a link. What is not read is
named with the reason, a limit that is reached once."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from walproof.machine import untrusted
from walproof.machine.untrusted import bounded, regular
from walproof.model.declared import Place, Skipped

MOST_BYTES, MOST_ALL = 4 << 20, 256 << 20
"""Of one file, and of all files together."""
MOST_LINE = 16 << 10
"""Characters of a line, and of a setting's value."""
MOST_CLUSTERS, MOST_SERVERS = 1000, 10_000
"""Clusters, and servers of HAProxy, in all that is read."""
MOST_FILES, MOST_ENTRIES, DEEPEST = 20_000, 200_000, 40
"""Files that are read; names in folders that are looked at; folders in one another."""
MOST_SECONDS = 120.0
"""For all of a reading: a folder of ten thousand configurations takes a few."""
TOOK_TOO_LONG = "reading took too long, and ended before this: name fewer files"
_LINK = "it is a link, and no link in a folder is followed: name what it leads to"
_TEMPLATES = (".j2", ".tpl", ".tmpl", ".template", ".erb")
_ENDINGS = (".yml", ".yaml", ".json", ".conf", ".cfg", ".ini", ".env", ".properties", *_TEMPLATES)


def _is_ours(name: str) -> bool:
    return Path(name).suffix.lower() in _ENDINGS


class Lines(Protocol):
    """A text that has lines."""

    def numbered(self) -> Iterator[tuple[str, Place]]: ...


class _Full(OSError):
    """A limit of the whole reading is reached."""


@dataclass(slots=True)
class Reading:
    """What a reading has used of its limits, and what it left out; its clock gives seconds."""

    now: Callable[[], float] = time.monotonic
    skipped: Skipped = field(default_factory=dict)
    included: list[Path] = field(default_factory=list)
    links: dict[Place, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Real paths of the files and folders that were read."""
    files: int = 0
    looked: int = 0
    bytes: int = 0
    clusters: int = 0
    servers: int = 0
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends = self.now() + MOST_SECONDS

    @property
    def late(self) -> bool:
        return self.now() > self.ends

    def check(self) -> None:
        """ValueError once the time for all of the reading is over."""
        if self.late:
            raise ValueError(TOOK_TOO_LONG)

    def lines(self, source: Lines) -> Iterator[tuple[str, Place]]:
        """The lines of a text and where each begins, but those that are too long; ValueError as `check`."""
        for number, (line, place) in enumerate(source.numbered()):
            if number % 1000 == 999:
                self.check()
            if len(line) > MOST_LINE:
                self.skipped[place] = f"this line has over {MOST_LINE:,} characters"
            else:
                yield line, place

    def add_clusters(self, count: int) -> None:
        """ValueError where the clusters of the whole reading would be too many."""
        if self.clusters + count > MOST_CLUSTERS:
            raise ValueError(f"there are over {MOST_CLUSTERS:,} clusters in all that is read: name fewer files")
        self.clusters += count

    def add_servers(self, count: int) -> None:
        """ValueError where HAProxy's servers of the whole reading would be too many, whatever templates make of one."""
        if self.servers + count > MOST_SERVERS:
            raise ValueError(f"there would be over {MOST_SERVERS:,} servers in all that is read: name fewer files")
        self.servers += count

    def text_of(self, path: Path, top: Path) -> str:
        """The text of a regular file below `top`; OSError for anything else, a link, or too much of it."""
        if self.late:
            raise _Full(0, TOOK_TOO_LONG)
        if self.files >= MOST_FILES:
            raise _Full(0, f"there are over {MOST_FILES:,} files: name fewer")
        with regular(top, path) as file:
            data = bounded(file, MOST_BYTES)
        self.files, self.bytes = self.files + 1, self.bytes + len(data)
        if self.bytes > MOST_ALL:
            raise _Full(0, f"the files hold over {MOST_ALL:,} bytes: name fewer")
        self.seen.add(str(path))
        return decoded(data)

    def below(self, named: Path, top: Path) -> Iterator[tuple[str, Path, str]]:
        """The files of a folder from here down, but hidden ones and those of other endings: folder, path and name."""
        pending = [Path()]
        while pending:
            at = pending.pop()
            folders = []
            for name, kind in self._listed(named, top, at):
                if name.startswith(".") or name == "node_modules":
                    continue
                ours = _is_ours(name)
                if kind == "folder":
                    folders.append(at / name)
                elif kind == "link" and (ours or os.path.isdir(top / at / name)):
                    self.links[Place(str(named / at / name), 0)] = os.path.realpath(top / at / name)
                elif ours and kind == "file":
                    yield str(named / at), top / at / name, str(named / at / name)
                elif ours and kind == "other":
                    self.skipped[Place(str(named / at / name), 0)] = "it is not a regular file"
            pending += reversed(folders)

    def matching(self, named: Path, top: Path, parts: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
        """What a pattern matches below a folder, "file" or "folder" each; ** is any number of folders."""
        pending = [(Path(), parts)]
        while pending:
            at, (part, *rest) = pending.pop()
            if part == "**":
                pending += [(at, tuple(rest))] if rest else []
            for name, kind in self._listed(named, top, at):
                if name.startswith(".") and not part.startswith("."):
                    continue
                if not fnmatchcase(name, "*" if part == "**" else part):
                    continue
                if kind == "link":
                    self.links[Place(str(named / at / name), 0)] = os.path.realpath(top / at / name)
                elif kind == "folder" and (part == "**" or rest):
                    pending.append((at / name, (part, *rest) if part == "**" else tuple(rest)))
                elif not rest:
                    yield at / name, kind

    def _listed(self, named: Path, top: Path, at: Path) -> list[tuple[str, str]]:
        """The names in a folder with their kinds; none where it cannot be read, which is named."""
        place = Place(str(named / at), 0)
        try:
            if self.late:
                raise _Full(0, TOOK_TOO_LONG)
            if len(at.parts) > DEEPEST:
                raise OSError(0, f"its folders are over {DEEPEST} deep")
            found = untrusted.entries(top, top / at)
            self.looked += len(found)
            if self.looked > MOST_ENTRIES:
                raise _Full(0, f"there are over {MOST_ENTRIES:,} names: name fewer folders")
        except OSError as wrong:
            self.leave_out(place, wrong)
            return []
        self.seen.add(str(top / at))
        odd = [name for name, kind in found if not name.isprintable() and (kind == "folder" or _is_ours(name))]
        for name in odd:
            shown = Path(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
            self.skipped[Place(str(named / at / shown), 0)] = "its name holds what no file's name should: rename it"
        return [(name, kind) for name, kind in found if name not in odd]

    def leave_out(self, place: Place, wrong: OSError) -> None:
        """Name what is not read; what a limit of the whole reading leaves out has one line for all of it."""
        why = wrong.strerror or str(wrong)
        if not isinstance(wrong, _Full) or why not in self.skipped.values():
            self.skipped[place] = why

    def name_links(self) -> None:
        """Name the links that lead to what was not read."""
        self.skipped.update({place: _LINK for place, real in self.links.items() if real not in self.seen})


def decoded(data: bytes) -> str:
    """The text of a file's bytes; OSError where they are none or too many."""
    if b"\0" in data or len(data) > MOST_BYTES:
        raise OSError(0, "it is binary" if b"\0" in data else f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OSError(0, "it is no UTF-8 text") from None
