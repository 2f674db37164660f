"""The ledger of the simulated cluster: what each writer tried, which answer it got, and which rows really survived."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from walproof.model.guarantee import Level
from walproof.model.load import Attempts, LedgerOrder, Outcome, Progress, Rows, WitnessReport

LATENCY_S = {
    Level.OFF: 0.002,
    Level.LOCAL: 0.004,
    Level.REMOTE_WRITE: 0.005,
    Level.ON: 0.006,
    Level.REMOTE_APPLY: 0.0065,
}
_RETRY_S = 0.5
_WAL_WRITER_DELAY_S = 0.2
_NEVER = float("inf")
_COLUMNS = {
    "writer": np.int32,
    "number": np.int64,
    "started": np.float64,
    "ended": np.float64,
    "outcome": np.int8,
    "server": np.int16,
    "timeline": np.int32,
    "lsn": np.uint64,
    "names": np.int16,
    "checksum": np.uint32,
    "committed": np.float64,
    "flushed": np.float64,
    "received": np.float64,
    "received_flushed": np.float64,
    "kept": np.bool_,
}


class Rule(StrEnum):
    """What the survivor holds of the commits before a break."""

    ALL = "all"
    LOCAL = "flushed on the old leader"
    RECEIVED = "received by the standby"
    FLUSHED = "flushed by the standby"


@dataclass(frozen=True, slots=True)
class Serving:
    """How the leader serves just now. `waits`: whether commits at a remote level can be acknowledged at all."""

    server: str
    timeline: int
    names: str
    waits: bool = True
    replicates: bool = True
    slow_local_s: float = 0.0
    slow_standby_s: float = 0.0


def _next_flush(committed: NDArray[np.float64]) -> NDArray[np.float64]:
    """When the WAL writer flushes what was committed at `off`: every 0.2 s, all of it."""
    return np.floor(committed / _WAL_WRITER_DELAY_S + 1.05) * _WAL_WRITER_DELAY_S


def _no_later_than_the_next(times: NDArray[np.float64], in_wal: NDArray[np.intp]) -> NDArray[np.float64]:
    """WAL is flushed and received in its order: a member with a commit has every earlier one. `in_wal`: that order."""
    capped = times.copy()
    capped[in_wal] = np.minimum.accumulate(times[in_wal][::-1])[::-1]
    return capped


class SimulatedLedger:
    """Writers in a closed loop on virtual time; columns grow as time passes."""

    def __init__(self, order: LedgerOrder, rng: np.random.Generator, *, slowness: float, rtt_s: float) -> None:
        self.order = order
        self._rng = rng
        self._latency_s = LATENCY_S[order.level] * slowness
        self._rtt_s = rtt_s
        self.servers: list[str] = []
        self.names: list[str] = []
        self.columns: dict[str, NDArray[np.generic]] = {n: np.empty(0, dtype=t) for n, t in _COLUMNS.items()}
        self._free: NDArray[np.float64] | None = None
        self._next = np.zeros(order.writers, dtype=np.int64)
        self.stopped_at: float | None = None
        self._resolved = 0
        """Attempts before this index already have their fate."""

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self.columns[name]

    def _index(self, among: list[str], text: str) -> int:
        if text not in among:
            among.append(text)
        return among.index(text)

    def advance(self, begin: float, end: float, serving: Serving | None) -> None:
        """Let the writers work from `begin` to `end` under one state of the cluster."""
        if self.stopped_at is not None or end <= begin:
            return
        if self._free is None:
            self._free = begin + self._rng.uniform(0, 0.01, self.order.writers)
        free = np.maximum(self._free, begin)
        if free.min() >= end:
            return
        if serving is None:
            self._refused(free, end)
        elif self.order.level.remote and not serving.waits and serving.names:
            self._stalled(free, end, serving)
        else:
            self._served(free, end, serving)

    def _add(
        self, free: NDArray[np.float64], writer: NDArray[np.intp], started: NDArray[np.float64], **more: object
    ) -> None:
        """Append attempts; numbers follow per writer in order of `started`."""
        self._free = free
        size = len(writer)
        order = np.lexsort((started, writer))
        sorted_writer = writer[order]
        place = np.arange(size) - np.searchsorted(sorted_writer, sorted_writer)
        number = np.empty(size, dtype=np.int64)
        number[order] = self._next[sorted_writer] + place
        np.add.at(self._next, writer, 1)
        given: dict[str, object] = {"writer": writer, "started": started, "number": number, **more}
        given["checksum"] = self._rng.integers(0, 1 << 32, size, dtype=np.uint32)
        for name, kind in _COLUMNS.items():
            value: NDArray[np.generic] = np.broadcast_to(np.asarray(given[name]).astype(kind), (size,))
            self.columns[name] = np.concatenate([self.columns[name], value])

    def _refused(self, free: NDArray[np.float64], end: float) -> None:
        tries = max(0, int(np.ceil((end - free.min()) / _RETRY_S)))
        started = free[:, None] + _RETRY_S * np.arange(tries)[None, :]
        writer, place = np.nonzero(started < end)
        chosen = started[writer, place]
        after = free + _RETRY_S * (started < end).sum(axis=1)
        self._add(
            after, writer, chosen, ended=chosen + 0.001, outcome=Outcome.REFUSED, server=-1, timeline=0, lsn=0,
            names=-1, committed=_NEVER, flushed=_NEVER, received=_NEVER, received_flushed=_NEVER, kept=False,
        )  # fmt: skip

    def _stalled(self, free: NDArray[np.float64], end: float, serving: Serving) -> None:
        writer = np.flatnonzero(free < end)
        started = free[writer]
        free[writer] = _NEVER
        committed = started + 0.4 * self._latency_s
        self._add(
            free, writer, started, ended=_NEVER, outcome=Outcome.ACKNOWLEDGED, committed=committed,
            flushed=committed + 0.001, received=_NEVER, received_flushed=_NEVER, kept=False,
            **self._where(serving, started),
        )  # fmt: skip

    def _where(self, serving: Serving, started: NDArray[np.float64]) -> dict[str, object]:
        return {
            "server": self._index(self.servers, serving.server),
            "timeline": serving.timeline,
            "names": self._index(self.names, serving.names),
            "lsn": ((started - 1_799_999_000.0) * 1e5).astype(np.uint64),
        }

    def _served(self, free: NDArray[np.float64], end: float, serving: Serving) -> None:
        level, rng = self.order.level, self._rng
        remote = level.remote and bool(serving.names)
        base = self._latency_s + (self._rtt_s if remote else 0.0)
        base += serving.slow_local_s * (level is not Level.OFF) + serving.slow_standby_s * (
            remote and level is not Level.REMOTE_WRITE
        )
        tries = max(0, int(np.ceil((end - free.min()) / (base * 0.5))) + 1)
        latency = base * rng.uniform(0.5, 1.5, (len(free), tries))
        ended = free[:, None] + np.cumsum(latency, axis=1)
        started = ended - latency
        writer, place = np.nonzero(started < end)
        counts = (started < end).sum(axis=1)
        after = np.where(counts > 0, ended[np.arange(len(free)), np.maximum(counts - 1, 0)], free)
        start, answered = started[writer, place], ended[writer, place]
        committed = start + 0.4 * (answered - start)
        flushed = _next_flush(committed) if level is Level.OFF else 0.5 * committed + 0.5 * answered
        received = 0.4 * committed + 0.6 * answered if remote else flushed + self._rtt_s / 2 + 0.001
        received_flushed = received + serving.slow_standby_s
        if remote and level is not Level.REMOTE_WRITE:
            received_flushed = 0.2 * received + 0.8 * answered
        if not serving.replicates:
            received = received_flushed = np.full(len(start), _NEVER)
        in_wal = np.argsort(committed, kind="stable")
        self._add(
            after, writer, start, ended=answered, outcome=Outcome.ACKNOWLEDGED, committed=committed,
            flushed=_no_later_than_the_next(flushed, in_wal),
            received=_no_later_than_the_next(received, in_wal),
            received_flushed=_no_later_than_the_next(received_flushed, in_wal),
            kept=True, **self._where(serving, start),
        )  # fmt: skip

    def _floats(self, name: str) -> NDArray[np.float64]:
        return self.columns[name].astype(np.float64, copy=False)

    def break_off(self, at: float, *, success: bool = False) -> None:
        """Every answer not given yet is never given; the lie `success` tells waiting commits that they succeeded."""
        ended = self._floats("ended")
        open_ones = (ended > at) & (self.columns["outcome"] == Outcome.ACKNOWLEDGED)
        if success:
            self.columns["ended"] = np.where(open_ones, at + 0.01, ended)
            lying = self._floats("received")
            self.columns["received"] = np.where(open_ones, _NEVER, lying)
        else:
            self.columns["ended"] = np.where(open_ones, np.nan, ended)
            self.columns["outcome"] = np.where(open_ones, Outcome.UNKNOWN, self.columns["outcome"]).astype(np.int8)
        assert self._free is not None or len(open_ones) == 0
        if self._free is not None:
            self._free = np.where(self._free > at, at + self._rng.uniform(0.01, 0.1, len(self._free)), self._free)

    def stall(self, at: float) -> None:
        """No standby answers from now: at a remote level what is under way waits, and none has received it."""
        if not self.order.level.remote or self._free is None:
            return
        waiting = (self._floats("ended") > at) & (self.columns["outcome"] == Outcome.ACKNOWLEDGED)
        for name in ("ended", "received", "received_flushed"):
            self.columns[name] = np.where(waiting, _NEVER, self._floats(name))
        self.columns["kept"] = np.where(waiting, False, self.columns["kept"])
        self._free[self.columns["writer"][waiting].astype(np.intp)] = _NEVER

    def release(self, at: float) -> None:
        """Commits that wait get success now, though no standby has them: what emptying the standby names does."""
        ended = self._floats("ended")
        waiting = np.isinf(ended)
        self.columns["ended"] = np.where(waiting, at + 0.001, ended)
        self.columns["names"] = np.where(waiting, self._index(self.names, ""), self.columns["names"]).astype(np.int16)
        self.columns["kept"] = np.where(waiting, True, self.columns["kept"])
        if self._free is not None:
            self._free = np.where(np.isinf(self._free), at + 0.002, self._free)

    def acknowledge_waiting(self, at: float) -> None:
        """Standbys are back: what waited has arrived and gets success."""
        waiting = np.isinf(self._floats("ended"))
        for name in ("ended", "received", "received_flushed"):
            self.columns[name] = np.where(waiting, at, self._floats(name))
        self.columns["kept"] = np.where(waiting, True, self.columns["kept"])
        if self._free is not None:
            self._free = np.where(np.isinf(self._free), at + 0.001, self._free)

    def caught_up(self, at: float) -> None:
        """Standbys stream again: everything committed by now reaches them, and what is under way once it is flushed."""
        sent = np.maximum(at, self._floats("flushed") + self._rtt_s / 2 + 0.001)
        for name in ("received", "received_flushed"):
            column = self._floats(name)
            late = np.isinf(column) & self.columns["kept"].astype(bool)
            self.columns[name] = np.where(late, sent, column)

    def resolve(self, at: float, rule: Rule) -> None:
        """A survivor took over (or the old leader came back): decide which commits before the break exist now."""
        column = {
            Rule.ALL: "committed",
            Rule.LOCAL: "flushed",
            Rule.RECEIVED: "received",
            Rule.FLUSHED: "received_flushed",
        }[rule]
        fresh = np.arange(len(self.columns["writer"])) >= self._resolved
        has = self._floats(column) <= at
        if rule is not Rule.LOCAL:
            has &= self._floats("committed") <= at
        kept = self.columns["kept"].astype(bool)
        waited = np.isinf(self._floats("received")) & fresh & (self.columns["outcome"] == Outcome.UNKNOWN)
        revived = waited & has & (rule in (Rule.ALL, Rule.LOCAL))
        self.columns["kept"] = np.where(fresh, (kept & has) | revived, kept)
        self._resolved = len(self.columns["writer"])

    def progress(self, now: float) -> Progress:
        ended = self._floats("ended")
        acknowledged = (self.columns["outcome"] == Outcome.ACKNOWLEDGED) & (ended <= now)
        last = float(ended[acknowledged].max()) if acknowledged.any() else None
        return Progress(int(acknowledged.sum()), last, self.order.writers, connected=self.order.writers)

    def stop(self, now: float) -> Attempts:
        """End the writers: answers not given by now are unknown."""
        if self.stopped_at is None:
            if len(self.columns["writer"]):
                keep = self.columns["kept"]
                self.break_off(now)
                self.columns["kept"] = keep
            self.stopped_at = now
        outcome = self.columns["outcome"]
        returned = (outcome == Outcome.ACKNOWLEDGED) | (outcome == Outcome.DOWNGRADED)
        level = np.where(returned, list(Level).index(self.order.level), -1).astype(np.int8)
        picked = {n: self.columns[n] for n in Attempts.__dataclass_fields__ if n in self.columns}
        picked["names"] = np.where(returned, picked["names"], -1).astype(np.int16)
        empty = Attempts(**picked, level=level)  # type: ignore[arg-type]
        return replace(empty, servers=tuple(self.servers), standby_names=tuple(self.names))

    def rows(self, member: str) -> Rows:
        """The rows that exist on a healthy member."""
        there = np.flatnonzero(self.columns["kept"].astype(bool) & (self.columns["outcome"] != Outcome.REFUSED))
        checksum = self.columns["checksum"][there].astype(np.uint32)
        writer, number = self.columns["writer"][there].astype(np.int32), self.columns["number"][there].astype(np.int64)
        return Rows(member, writer, number, checksum, checksum.copy())

    def witnessed(self, synchronous: tuple[str, ...], others: tuple[str, ...], k: int) -> WitnessReport:
        """Readers find acknowledged rows at once on every waited-for standby at remote_apply, elsewhere mostly."""
        rng, reads = self._rng, 200
        sure = self.order.level is Level.REMOTE_APPLY and 0 < len(synchronous) <= k
        fresh = {}
        for name in (*synchronous, *others):
            stale = 0 if sure and name in synchronous else int(rng.integers(1, 60))
            fresh[name] = (reads - stale, stale)
        acknowledged = (self.columns["outcome"] == Outcome.ACKNOWLEDGED) & self.columns["kept"].astype(bool)
        some = np.flatnonzero(acknowledged)[:: max(1, int(acknowledged.sum()) // 50)]
        seen = tuple((int(self.columns["writer"][i]), int(self.columns["number"][i])) for i in some)
        forks, stale_ms = int(rng.integers(0, 2)), tuple(float(x) for x in rng.exponential(3.0, 20))
        nowhere = 0 if self.order.level is Level.REMOTE_APPLY and synchronous else int(rng.integers(1, 60))
        return WitnessReport(fresh, seen, forks, stale_ms, (reads - nowhere, nowhere))
