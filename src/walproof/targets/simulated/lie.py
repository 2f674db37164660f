"""What a lying cluster does differently: hooks that change what it shows or does, each with its sentence."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from walproof.model.attempt import Attempts, Outcome, Rows
from walproof.model.guarantee import Level
from walproof.model.load import WitnessReport
from walproof.model.member_state import LedgerTable, MemberState
from walproof.model.ports import Capability
from walproof.model.topology import ClusterView

Shown = tuple[MemberState, ...]


@dataclass(frozen=True, slots=True)
class Lie:
    """One lie. `fault`, `level` and `sync` are the drill in which it shows; a hook is None where nothing changes.

    Of one without any hook the simulated cluster itself behaves so (cluster.py, faults.py).
    """

    what: str
    fault: str = "kill"
    level: Level = Level.ON
    sync: str = ""
    instead: tuple[Capability, Capability | None] | None = None
    """A fault that is replaced by another, or by nothing."""
    rows: Callable[[Rows, bool], Rows] | None = None
    """Rows of a member; whether it leads."""
    attempts: Callable[[Attempts], Attempts] | None = None
    states: Callable[[Shown, Shown], Shown] | None = None
    """States now; those that were asked first."""
    view: Callable[[ClusterView], ClusterView] | None = None
    witness: Callable[[WitnessReport], WitnessReport] | None = None
    incomplete: str = ""
    """How the writers or readers ended."""


def picked(rows: Rows, places: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Rows:
    """The rows at these places."""
    return Rows(rows.member, rows.writer[places], rows.number[places], rows.checksum[places], rows.stated[places])


def without(rows: Rows, first: int, last: int) -> Rows:
    """The rows but for those from `first` to before `last`; negative ones count from the end."""
    return rows if len(rows) < 100 else picked(rows, np.delete(np.arange(len(rows)), slice(first, last)))


def twice(rows: Rows, _leads: bool) -> Rows:
    """One row a second time."""
    return picked(rows, np.append(np.arange(len(rows)), 30)) if len(rows) >= 100 else rows


def invented(rows: Rows, _leads: bool) -> Rows:
    """One row that nobody wrote."""
    return Rows(
        rows.member,
        np.append(rows.writer, np.int32(99)),
        np.append(rows.number, np.int64(1)),
        np.append(rows.checksum, np.uint32(5)),
        np.append(rows.stated, np.uint32(5)),
    )


def changed(rows: Rows, _leads: bool) -> Rows:
    """One payload, and the checksum stored with it, are others."""
    if len(rows) < 100:
        return rows
    checksum = rows.checksum.copy()
    checksum[40] ^= np.uint32(1)
    return replace(rows, checksum=checksum, stated=checksum)


def ran_at(level: Level) -> Callable[[Attempts], Attempts]:
    """Commits that ran at another level than was asked, by what came back with each row."""

    def other(attempts: Attempts) -> Attempts:
        index = np.int8(list(Level).index(level))
        return replace(attempts, level=np.where(attempts.level >= 0, index, attempts.level).astype(np.int8))

    return other


def waited_for(names: str, *, share: float = 1.0) -> Callable[[Attempts], Attempts]:
    """Commits of the first `share` of the attempts that waited for other standbys."""

    def other(attempts: Attempts) -> Attempts:
        known = attempts.standby_names
        chosen = (np.arange(len(attempts)) < share * len(attempts)) & (attempts.names >= 0)
        index = np.where(chosen, len(known), attempts.names).astype(np.int16)
        return replace(attempts, names=index, standby_names=(*known, names))

    return other


def swallowed(attempts: Attempts) -> Attempts:
    """Every tenth INSERT was answered without a row: the writers count it as refused."""
    chosen = (np.arange(len(attempts)) % 10 == 0) & (attempts.outcome == Outcome.ACKNOWLEDGED)
    return replace(attempts, outcome=np.where(chosen, Outcome.REFUSED, attempts.outcome).astype(np.int8))


def table(**more: object) -> Callable[[Shown, Shown], Shown]:
    """The ledger's table is another one."""
    odd = LedgerTable(**more)  # type: ignore[arg-type]
    return lambda now, _first: tuple(replace(s, table=odd if s.table else None) for s in now)


def settings(**more: str) -> Callable[[Shown, Shown], Shown]:
    """Settings in effect on every member."""
    return lambda now, _first: tuple(replace(s, settings={**s.settings, **more}) if s.answers else s for s in now)


def overridden(text: str) -> Callable[[Shown, Shown], Shown]:
    """A role, database or function sets the level."""
    return lambda now, _first: tuple(replace(s, overrides=(text,)) if s.answers else s for s in now)


def later(change: Callable[[MemberState], MemberState]) -> Callable[[Shown, Shown], Shown]:
    """Every state but those asked first is changed."""
    return lambda now, first: now if now is first else tuple(change(s) if s.answers else s for s in now)


def same_timeline(view: ClusterView) -> ClusterView:
    """Nobody ever gets a timeline of its own."""
    return replace(view, members=tuple(replace(m, timeline=1 if m.timeline else None) for m in view.members))


def backwards(report: WitnessReport) -> WitnessReport:
    """A standby showed less than it had shown before."""
    return replace(report, backward_by_member=dict.fromkeys(report.fresh_by_member, 2))


def stale(report: WitnessReport) -> WitnessReport:
    """A standby that every commit waited for did not show the row."""
    return replace(report, fresh_by_member={m: (f, 3) for m, (f, _) in report.fresh_by_member.items()})
