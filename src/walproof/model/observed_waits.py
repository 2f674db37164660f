"""What sessions of a leader waited for, as polled over a second or so: plain sums, from which everything is derived."""

from dataclasses import dataclass, field
from typing import Literal

from walproof.model.guarantee import Level


@dataclass(frozen=True, slots=True)
class SessionSums:
    """Sessions of one database, role, application and statement (its query_id, "" unknown), added up over polls.

    standby: in wait for a standby; flush: for the local flush of WAL, or behind another's; lock: for a heavyweight
    lock. writing: those with a transaction id whose transaction was younger than a second, writing_s: the sum of these
    ages in seconds. wal: bytes written meanwhile, known from PostgreSQL 18 on and for no statement. Background workers
    count, but as sessions and busy ones: those are clients.
    """

    database: str
    role: str
    application: str
    statement: str
    sessions: float
    busy: float
    writing: float
    writing_s: float
    standby: float
    flush: float
    lock: float
    wal: float = 0.0


@dataclass(frozen=True, slots=True)
class StandbySeen:
    """A standby as the leader saw it, in (written, flushed, replayed): mean lags in ms over polls, None where none was
    reported (unknown, not 0); bytes that the leader has flushed and the standby at last had not.
    """

    name: str
    state: str
    lags_ms: tuple[float | None, float | None, float | None] = (None, None, None)
    behind: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class WaitsSeen:
    """What `polls` polls within `seconds` before `at` saw, and what the leader's counters rose by meanwhile.

    level: synchronous_commit of the observing session's own defaults; overrides: of roles and databases, as
    (role, database, level), "" for every one. committed, aborted: how many of the transaction ids picked at random
    ended so. blocked: lock waiters, added up over looks at what blocks them; of these blocked_by_flush behind sessions
    that themselves waited for the local flush (a share, where several block one), blockers behind those of that
    application in wait for a standby. longest_ms: age of the oldest statement seen waiting for a standby. ages: by
    floor(4 log2(ms since its statement began)), how often a session was seen waiting for the flush or a standby.
    """

    at: float
    seconds: float
    polls: int
    leader: str
    level: Level
    standby_names: str
    groups: tuple[SessionSums, ...]
    standbys: tuple[StandbySeen, ...]
    transaction_ids: int
    commits: int
    rollbacks: int
    committed: int = 0
    aborted: int = 0
    blocked: float = 0.0
    blocked_by_flush: float = 0.0
    blockers: dict[str, float] = field(default_factory=dict)
    longest_ms: float = 0.0
    ages: dict[int, float] = field(default_factory=dict)
    checkpoint: bool = False
    overrides: tuple[tuple[str, str, Level], ...] = field(default=())
    kind: Literal["waits-seen"] = "waits-seen"

    @property
    def poll_s(self) -> float:
        """Seconds that one poll stands for."""
        return self.seconds / max(1, self.polls)

    @property
    def stuck(self) -> bool:
        """Whether the statement that waits longest for a standby began before this stretch."""
        return self.longest_ms > 1000 * self.seconds
