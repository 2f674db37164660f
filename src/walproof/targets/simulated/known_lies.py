"""The known lies that a simulated cluster tells on demand (`sim?lie=NAME`): the judge must not call any of them held.

Each is a sentence and hooks that change what the cluster shows or does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from walproof.model.drill import Capability
from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome, Rows, WitnessReport
from walproof.model.topology import ClusterView, LedgerTable, MemberState

Shown = tuple[MemberState, ...]
T = TypeVar("T")


def as_it_is(shown: T, *_: object) -> T:
    """The hook of a lie that changes nothing there."""
    return shown


@dataclass(frozen=True, slots=True)
class Lie:
    """One lie. `fault`, `level` and `sync` are the drill in which it shows; each hook changes what is shown there.

    Of one that leaves every hook as it is the simulated cluster itself behaves so (cluster.py, faults.py).
    """

    what: str
    fault: str = "kill"
    level: Level = Level.ON
    sync: str = ""
    instead: tuple[Capability | None, Capability | None] = (None, None)
    """A fault that is replaced by another, or by nothing."""
    rows: Callable[[Rows, bool], Rows] = as_it_is
    """Rows of a member; whether it leads."""
    attempts: Callable[[Attempts], Attempts] = as_it_is
    states: Callable[[Shown, Shown], Shown] = as_it_is
    """States now; those that were asked first."""
    view: Callable[[ClusterView], ClusterView] = as_it_is
    witness: Callable[[WitnessReport], WitnessReport] = as_it_is
    incomplete: str = ""
    """How the writers or readers ended."""


def picked(rows: Rows, places: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Rows:
    return Rows(rows.member, rows.writer[places], rows.number[places], rows.checksum[places], rows.stated[places])


def without(rows: Rows, first: int, last: int) -> Rows:
    """The rows but for those from `first` to before `last`; negative ones count from the end."""
    return rows if len(rows) < 100 else picked(rows, np.delete(np.arange(len(rows)), slice(first, last)))


def twice(rows: Rows, _leads: bool) -> Rows:
    """One row a second time."""
    return picked(rows, np.append(np.arange(len(rows)), 30)) if len(rows) >= 100 else rows


def invented(rows: Rows, _leads: bool) -> Rows:
    """One row that no client wrote."""
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
    """No leader ever gets a timeline of its own."""
    return replace(view, members=tuple(replace(m, timeline=1 if m.timeline else None) for m in view.members))


def backwards(report: WitnessReport) -> WitnessReport:
    """A standby showed less than it had shown before."""
    return replace(report, backward_by_member=dict.fromkeys(report.fresh_by_member, 2))


def stale(report: WitnessReport) -> WitnessReport:
    """A standby that every commit waited for did not show the row."""
    return replace(report, fresh_by_member={m: (f, 3) for m, (f, _) in report.fresh_by_member.items()})


_REPLACED = (
    *((fault, None) for fault in (
        Capability.KILL, Capability.STOP, Capability.KILL_MEMBER, Capability.FREEZE, Capability.POWER_CUT,
        Capability.PARTITION, Capability.ISOLATE, Capability.FAILING_DISK, Capability.FULL_DISK,
        Capability.PARTITION_ONE_WAY, Capability.SLOW_DISK, Capability.DCS_LOSS, Capability.RESTART,
        Capability.SWITCHOVER, Capability.CRASH_RESTART, Capability.PARTITION_WAL, Capability.PARTITION_ACKS,
        Capability.PAUSE_REPLAY, Capability.HANG_POSTMASTER, Capability.HANG_MANAGER, Capability.HANG_REST,
    )),
    (Capability.KILL, Capability.RESTART),
    (Capability.KILL_MEMBER, Capability.KILL),
    (Capability.POWER_CUT, Capability.KILL_MEMBER),
    (Capability.FREEZE, Capability.KILL),
    (Capability.HANG_POSTMASTER, Capability.FREEZE),
    (Capability.HANG_MANAGER, Capability.FREEZE),
    (Capability.HANG_REST, Capability.HANG_MANAGER),
    (Capability.ISOLATE, Capability.PARTITION),
    (Capability.PARTITION, Capability.FREEZE),
    (Capability.CRASH_RESTART, Capability.RESTART),
    (Capability.PARTITION_WAL, Capability.PARTITION),
    (Capability.PARTITION_ACKS, Capability.PAUSE_REPLAY),
    (Capability.PAUSE_REPLAY, Capability.PARTITION_WAL),
)  # fmt: skip


_NO_FAULTS = {
    (f"no-{fault}" if other is None else f"{fault}-is-{other}"): Lie(
        f"{fault} does nothing" if other is None else f"{fault} is a {other}", str(fault), instead=(fault, other)
    )
    for fault, other in _REPLACED
}
_ROWS = {
    "lost": Lie("rows of acknowledged commits disappear", rows=lambda rows, _: without(rows, 20, 25)),
    "duplicate": Lie("a row is there twice", rows=twice),
    "corrupted": Lie("a row's payload is another one", rows=changed),
    "nowhere": Lie("a row is there that no client wrote", rows=invented),
    "lagging-read": Lie(
        "the leader is read before it has all rows",
        rows=lambda rows, leads: without(rows, -6, -1) if leads else rows,
    ),
    "divergence": Lie(
        "a standby lacks rows although it has replayed everything",
        "restart",
        rows=lambda rows, leads: rows if leads else without(rows, 20, 25),
    ),
    "fork": Lie(
        "the leader was promoted from a fork that lacks rows a standby has",
        rows=lambda rows, leads: without(rows, -8, -2) if leads else rows,
    ),
}
_LEVELS = {
    "trigger-sets-level": Lie("a trigger sets the level to off", attempts=ran_at(Level.OFF)),
    "pooler-drops-options": Lie("a pooler drops the start-up options", attempts=ran_at(Level.LOCAL)),
    "role-default": Lie(
        "the role has a level of its own",
        attempts=ran_at(Level.OFF),
        states=overridden("postgres in every database: synchronous_commit=off"),
    ),
    "database-default": Lie(
        "the database has a level of its own",
        attempts=ran_at(Level.LOCAL),
        states=overridden("every role in postgres: synchronous_commit=local"),
    ),
    "function-override": Lie(
        "a function called by every INSERT sets the level",
        attempts=ran_at(Level.LOCAL),
        states=overridden("function walproof.touch: synchronous_commit=local"),
    ),
    "level-unknown": Lie(
        "nothing says at which level commits ran",
        attempts=lambda attempts: replace(attempts, level=attempts.level * 0 - 1),
    ),
    "names": Lie("the standby names are emptied, and the cluster says they are not"),
    "names-reduced": Lie(
        "ANY 2 became ANY 1 for a while", sync="quorum=2", attempts=waited_for('ANY 1 ("n2", "n3")', share=0.2)
    ),
    "names-any": Lie(
        "the standby names are *, and a backup counts",
        attempts=waited_for("*"),
        states=later(lambda s: replace(s, senders=(*s.senders, "pg_receivewal")) if s.senders else s),
    ),
    "fsync-off": Lie("fsync is off", states=settings(fsync="off")),
    "full-page-writes-off": Lie("full_page_writes is off", states=settings(full_page_writes="off")),
}
_LEDGER = {
    "trigger-drops-rows": Lie(
        "a trigger drops every tenth row", attempts=swallowed, states=table(triggers=("drops_rows",))
    ),
    "deferred-trigger": Lie(
        "a deferred trigger sets the level after the row came back", states=table(triggers=("sets_level",))
    ),
    "unlogged": Lie("the ledger's table is unlogged", states=table(persistence="u")),
    "row-security": Lie("row security hides rows", states=table(row_security=True)),
    "dead-writer": Lie("a writer was killed", incomplete="writer process 1 of 2 was killed by SIGKILL"),
    "dead-reader": Lie("the readers were killed", incomplete="the readers' process was killed by SIGKILL"),
    "full-disk-of-ledger": Lie("the ledger's disk is full", incomplete="writer process 2 of 2 failed: no space left"),
}
_CLUSTER = {
    "two-leaders": Lie("the old leader goes on acknowledging although there is a new one"),
    "downgraded": Lie("a cancelled wait for the standby is reported as plain success"),
    "same-timeline": Lie("another member leads without having been promoted", view=same_timeline),
    "new-damage": Lie(
        "pages fail their checksum since the fault",
        states=later(lambda s: replace(s, checksum_failures=(s.checksum_failures or 0) + 3)),
    ),
    "other-cluster": Lie(
        "a member is of another cluster",
        states=later(lambda s: replace(s, system="8") if s.member == "n3" else s),
    ),
    "stale-read": Lie(
        "a standby waited for does not show the row", "none", Level.REMOTE_APPLY, "sync=on", witness=stale
    ),
    "backward-read": Lie(
        "a standby shows less than it had shown", "none", Level.REMOTE_APPLY, "sync=on", witness=backwards
    ),
}
LIES: dict[str, Lie] = {**_ROWS, **_LEVELS, **_LEDGER, **_CLUSTER, **_NO_FAULTS}
HONEST = Lie("no lie")


ODDITIES = {
    "late": "a leader is announced long before it takes commits",
    "in-place": "a killed leader is started again in place, on the same timeline",
    "damaged": "pages had failed their checksum before",
    "unnamed": "a new leader serves a moment before it names a standby",
    "twice": "a leader that is back serves for a moment and is restarted once more",
}
"""What an honest cluster may do (`sim?odd=NAME`): never broken because of it."""
