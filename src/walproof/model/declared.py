"""What files declare of a cluster: the doctor's facts, where each value is written, and what no file says. Values."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

from walproof.model.facts import Facts

_KEY = re.compile(r"\*(?=:)|[A-Za-z_-][A-Za-z0-9_.-]*+")
"""A key, perhaps with what ends a sentence or a range after it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is written: a file as it was named, and its line and column from 1; line 0 is the whole file."""

    file: str
    line: int = 1
    column: int = 1

    @property
    def text(self) -> str:
        """As compilers write it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


Skipped = dict[Place, str]
"""What was not read, each with the reason."""


class Places(dict[tuple[str, str], Place]):
    """Places by a member ("": of any) and a key, its whole path or any end of it: the first one written."""

    def add(self, path: tuple[str, ...], place: Place, member: str = "", *, over: bool = False) -> None:
        """Remember it for every end of the path; `over`: in the place of what is known."""
        for owner, start in product({member, ""}, range(len(path))):
            key = (owner, ".".join(path[start:]))
            self[key] = place if over else self.get(key, place)

    def of(self, texts: Iterable[str], members: Iterable[str] = ()) -> Place | None:
        """The place of the first key that one of the texts is or else names, the earlier texts first.

        >>> places = Places(); places.add(("bootstrap", "dcs", "ttl"), Place("p.yml", 4, 5))
        >>> places.of(["the ttl = 20 s"])
        Place(file='p.yml', line=4, column=5)
        """
        texts, owners = list(texts), [*members, ""]
        keys = (word.rstrip("_.-") for text in texts for word in _KEY.findall(text))
        words = [*(text for text in texts if ":" in text), *keys]
        known = (self.get((owner, word)) for word in words for owner in owners)
        return next((place for place in known if place is not None), None)


@dataclass(frozen=True, slots=True)
class Declared:
    """One cluster as files declare it. absent: what no file says, by the part of the facts, each with the reason."""

    facts: Facts
    start: Place
    """Where a finding points to whose key is not written: the beginning of what declares the cluster."""
    places: Places = field(default_factory=Places)
    absent: dict[str, str] = field(default_factory=dict)
