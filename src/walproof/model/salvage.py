"""The disks of old leaders after a drill, as a target hands them out, what salvage read of them, and its judgement."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from walproof.model.drill import Verdict
from walproof.model.units import counted


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What salvage read of the disks of old leaders after a drill: rows of its ledger as (writer, number).

    `written_to`: WAL position (bytes) where reading ended, or a crash before. `undecided`: why there may be more rows.
    """

    rows: frozenset[tuple[int, int]] = frozenset()
    written_to: int = 0
    undecided: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SalvageJudged:
    """What `prove --salvage` found of a drill's lost commits on the disks of `members`; the ledger judges it.

    `found`, `unwritten` (at off, in no server's WAL) and `not_found` add up to `lost`. `not_lost`: rows found that the
    new leader holds, or of no attempt. `rows`: some of the lost ones, writer/number, those that were not found first.
    """

    at: float
    number: int
    verdict: Verdict
    members: tuple[str, ...] = ()
    lost: int = 0
    found: int = 0
    unwritten: int = 0
    not_found: int = 0
    not_lost: int = 0
    rows: tuple[str, ...] = ()
    why: str = ""
    kind: Literal["salvage-judged"] = "salvage-judged"

    @property
    def text(self) -> str:
        disks = ", ".join(f"{name}'s" for name in self.members)
        again = f"{self.found:,} found again" + (f" on {disks} disk" if disks else "")
        more = {"in no server's WAL": self.unwritten, "not found": self.not_found, "found, not lost": self.not_lost}
        parts = [counted(self.lost, "lost commit"), again, *(f"{n:,} {words}" for words, n in more.items() if n)]
        left = self.lost - len(self.rows)
        rows = f"; rows: {', '.join(self.rows)}{f' and {left:,} more' if left else ''}" if self.rows else ""
        why = f"; {self.verdict}: {self.why}" if self.why else ""
        return f"drill {self.number}, salvage: {self.verdict.mark} {', '.join(parts)}{why}{rows}"


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
