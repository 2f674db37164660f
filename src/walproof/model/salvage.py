"""The disks of old leaders after a drill, as a target hands them out, and what salvage read of them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What salvage read of the disks of old leaders after a drill: rows of its ledger as (writer, number).

    `written_to`: WAL position (bytes) where reading ended, or a crash before. `undecided`: why there may be more rows.
    """

    rows: frozenset[tuple[int, int]] = frozenset()
    written_to: int = 0
    undecided: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


class OldDisks(Protocol):
    """Data directories of old leaders, copied before the manager rewinds them."""

    @property
    def programs(self) -> Path:
        """The folder of PostgreSQL's programs."""

    def kept(self, script: str) -> AbstractContextManager[None]:
        """The manager runs the script, which copies, in place of pg_rewind meanwhile; `dsn` can log in."""

    def copies(self) -> Iterator[tuple[str, Path]]:
        """Members and copies of their data directories, a member's oldest first; each is removed when it was used."""

    def dsn(self) -> str:
        """Of the leader now, as a role that may read it; TargetError when no member leads."""
