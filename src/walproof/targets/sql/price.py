"""Prices any target that speaks SQL: loads what workloads need, runs pgbench for a sample, observes meanwhile."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from walproof.errors import MachineError, TargetError
from walproof.load.background import BackgroundLoad
from walproof.load.driver import CONNECT_S, Load, LoadRequest, start_load, start_pgbench
from walproof.load.local_runner import LocalRunner
from walproof.load.pgbench import RunningLoad, check_workload
from walproof.load.pgbench_log import Summary
from walproof.load.sampler import Pids, Polled, Sampler, window
from walproof.machine.answering import BoundedLogin, answering
from walproof.model.estimate import pooled
from walproof.model.load import LoadRunner
from walproof.model.ports import Target
from walproof.model.sample import NO_SERIES, PGBENCH, Arm, Checkpoints, Sample, SampleCut, SampleResult, Workload
from walproof.model.topology import ClusterView, Endpoint
from walproof.targets.sql.connection import session
from walproof.targets.sql.room import need_room
from walproof.targets.sql.workloads import last_checkpoint, ready

_POLL_S = 0.1
_LONGEST_S = 3600.0
"""A workload beside a drill ends by itself then, where nothing else ended it."""
_MARK_S = 0.9
_GRACE_S = 5.0
_SETTLE_S = 1.0
"""How long a sample waits for what the one before it left to be flushed and replayed."""
LINK_TOLERANCE = 0.25
"""Share by which a measured round trip may miss the one asked for; 0.5 ms are always forgiven."""


class SqlPricer:
    """Prepares and runs samples on any target that speaks SQL; outer factors are the target's own."""

    def __init__(
        self,
        target: Target,
        *,
        pgbench: Path | None = None,
        pids: Pids | None = None,
        others: Callable[[], Iterable[int]] | None = None,
        runner: LoadRunner | None = None,
        outside: bool = False,
    ) -> None:
        """`outside`: load comes from where the target's own clients are not."""
        self._target = target
        self._runner: LoadRunner = runner or LocalRunner()
        self._pgbench, self._outside, self._most = pgbench, outside, 0
        self._pids = pids
        self._others = others
        self._current_sampler: Sampler | None = None
        self._rtt_ms: float | None = None
        self._verified: bool | None = None
        self._warming: dict[int, float] = {}
        """Seconds that this many clients took to get warm, when last seen."""

    def disconnect(self) -> None:
        """Close what is kept open to members between samples: a PostgreSQL that shuts down waits for its clients."""
        if self._current_sampler is not None:
            self._current_sampler.close()
            self._current_sampler = None

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs; idempotent. Tables of these names that are not ours are never touched."""
        check_workload(workload)
        places = self._runner.open()
        try:
            ready(self._leader(), workload, self._program(), places[0])
        finally:
            for place in places:
                place.close()

    def checkpoints(self) -> Checkpoints:
        try:
            with session(self._leader()) as connection:
                return last_checkpoint(connection)
        except psycopg.Error as error:
            raise TargetError(f"the checkpoints cannot be read: {str(error).strip()}", "leave --steady out") from None

    def checkpoint_now(self) -> None:
        """One now, so that no member that fails later replays or rewinds what was measured; none without a leader."""
        with contextlib.suppress(psycopg.Error), session(self._leader()) as connection:
            connection.execute("CHECKPOINT")

    def link_measured(self, round_trips_ms: Mapping[str, Sequence[float]], asked_ms: float | None) -> None:
        """Note what `enter` measured, for the windows of the samples to come."""
        measured = {pair: median(trips) for pair, trips in round_trips_ms.items()}
        self._rtt_ms = max(measured.values()) if measured else None
        self._verified = link_verified(measured, asked_ms)

    def _need_room(self, arm: Arm) -> None:
        """Asked before the first sample of so many clients: a burst of others' sessions ends no run."""
        if arm.clients > self._most:
            need_room(self._target.endpoint(arm.route), arm.clients)
            self._most = arm.clients

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        arm = planned.arm
        view = self._target.observe()
        if view.leader is None:
            raise TargetError("there is no leader just now", "walproof lab status")
        self._sampler(view).connect()
        sampler = self._sampler(view)
        settled_s, others = sampler.settle(view.leader, _SETTLE_S), sampler.others_ids
        self._need_room(arm)
        places = self._runner.open()
        try:
            request = LoadRequest(arm, self._target.endpoint(arm.route), seconds, seed, self._program())
            with start_load(request, places, self._target.clock) as load:
                result = self._measure(load, planned, seconds, view)
                seen = replace(result.window, settled_s=settled_s, outside=self._outside, others_ids=others)
                return replace(result, window=seen)
        except OSError as error:
            raise MachineError(f"{arm.workload.driver} cannot be run: {error}", "make install") from None
        finally:
            for place in places:
                place.close()

    def open_load(self, arm: Arm, seed: int) -> BackgroundLoad:
        self._need_room(arm)
        places = self._runner.open()

        def start(number: int) -> RunningLoad:
            endpoint = self._target.endpoint(arm.route)
            request = LoadRequest(arm, endpoint, _LONGEST_S, 1000 * seed + number, self._program())
            return start_pgbench(request, places, self._target.clock)

        return BackgroundLoad(start, places, arm, self._target.clock)

    def _measure(self, load: Load, planned: Sample, seconds: float, view: ClusterView) -> SampleResult:
        clock, sampler, leader = self._target.clock, self._sampler(view), view.leader or ""
        load.await_connected(planned.arm.clients, CONNECT_S)
        # Snapshots lie outside what is measured: reading hundreds of files in /proc would cost the sample.
        before = sampler.snapshot(clock.now(), load.pids)
        since = clock.now()
        until = since + seconds + self._warming.get(planned.arm.clients, 0.0)
        if load.self_timed_s is not None:
            until = since + load.self_timed_s + CONNECT_S
        polled, cut = self._polled(load, planned, until, view)
        until = clock.now()
        after, died = replace(sampler.snapshot(until, ()), client=load.used()), load.ended
        load.end(_GRACE_S, lambda: sampler.end_load(leader))
        sampler.load_ended(leader)
        summary, warm = load.summary(since, until)
        self._warming[planned.arm.clients] = min(warm - since, seconds)
        # Clients that all ended before their time met an outage: a sample with half of it is no price. A soak keeps it.
        cut_off = died and not planned.series
        if load.self_timed_s is None and (cut_off or (not summary.transactions and (died or load.aborted))):
            raise load.error()
        seen = replace(window(before, after, polled, leader), link_verified=self._verified, rtt_ms=self._rtt_ms)
        series = load.series(summary, (warm, until), polled.marks) if planned.series else NO_SERIES
        levels = [level for level, _ in planned.arm.mix]
        result = replace(
            _result(planned, summary, (warm, until), load.aborted),
            window=seen,
            per_level=_per_level(summary, levels),
            series=series,
            retries=load.retries,
        )
        if cut:
            raise SampleCut(result)
        return result

    def _polled(self, load: Load, planned: Sample, until: float, view: ClusterView) -> tuple[Polled, bool]:
        """What was polled until then or the load's end; whether Ctrl-C cut a sample short that keeps its series."""
        clock, sampler, leader = self._target.clock, self._sampler(view), view.leader or ""
        polled, cut = Polled(), False
        try:
            while not load.ended:
                clock.pause(max(0.0, min(_POLL_S, until - clock.now())))
                if clock.now() >= until and polled.count:
                    break
                sampler.poll(leader, polled)
                if planned.series and (not polled.marks or clock.now() >= polled.marks[-1].at + _MARK_S):
                    sampler.mark(leader, polled)
        except KeyboardInterrupt:
            if not planned.series:
                raise
            cut = True
        if planned.series:
            sampler.mark(leader, polled)
        return polled, cut

    def _sampler(self, view: ClusterView) -> Sampler:
        """The sampler of the members there are now: made anew when they are others than before."""
        names = {m.name for m in view.members if m.lsn is not None}
        if self._current_sampler is None or not names <= self._current_sampler.names:
            self.disconnect()
            members = {name: self._target.member_endpoint(name) for name in names}
            self._current_sampler = Sampler(members, self._target.clock, self._pids, self._others)
        return self._current_sampler

    def _program(self) -> Path:
        return self._pgbench or self._runner.pgbench()

    def _leader(self) -> Endpoint:
        """The leader by a route on which a session is the client's own, following it where there is such a one."""
        plain = [route for route in self._target.routes() if not route.pools]
        return self._target.endpoint(next((route.name for route in plain if route.follows), plain[0].name))


@contextlib.contextmanager
def pooler_console(endpoint: Endpoint) -> "Iterator[psycopg.Connection[Any]]":
    """The console of the PgBouncer at that endpoint; psycopg.Error."""
    words = endpoint.conninfo(dbname="pgbouncer")
    with (
        BoundedLogin.connect(words, autocommit=True, cursor_factory=psycopg.ClientCursor) as console,
        answering(console),
    ):
        yield console


def pool_size(endpoint: Endpoint) -> str | None:
    """PgBouncer's default_pool_size as it is; None where this user may not look, or another program answers."""
    with contextlib.suppress(psycopg.Error), pooler_console(endpoint) as console:
        rows = console.execute(b"SHOW CONFIG").fetchall()
        return next((str(row[1]) for row in rows if row[0] == "default_pool_size"), None)
    return None


def link_verified(measured: dict[str, float], asked_ms: float | None) -> bool | None:
    """Whether every measured round trip is near the one asked for; None when none was asked.

    >>> link_verified({"n1-n2": 10.6}, 10.0), link_verified({}, 10.0), link_verified({"n1-n2": 0.1}, None)
    (True, False, None)
    """
    if asked_ms is None:
        return None
    allowed = max(0.5, LINK_TOLERANCE * asked_ms)
    return bool(measured) and all(abs(ms - asked_ms) <= allowed for ms in measured.values())


def _per_level(summary: Summary, levels: Sequence[str]) -> dict[str, dict[int, int]]:
    """Histograms by level: scripts are numbered level by level."""
    each = len(summary.per_script) // max(1, len(levels))
    return {
        str(level): pooled(summary.per_script.get(number, {}) for number in range(at * each, (at + 1) * each))
        for at, level in enumerate(levels)
    }


def _result(planned: Sample, summary: Summary, within: tuple[float, float], aborted: int) -> SampleResult:
    """Throughput between two times, every client being warm."""
    since, until = within
    seconds = max(until - since, 1e-3)
    logged = planned.arm.workload.driver == PGBENCH
    return SampleResult(
        sample=planned,
        started_at=since,
        seconds=seconds,
        transactions=summary.transactions,
        failed=summary.failed + aborted,
        credit=summary.credit,
        mean_ms=summary.mean_ms if summary.histogram else 0.0,
        histogram=summary.histogram,
        stalled_s=summary.stalled_s(since, until) if logged else math.nan,
        lag_ms=1000 * summary.lag.mean_s if logged and planned.arm.rate is not None else None,
        backlog=summary.lag.rise if logged and planned.arm.rate is not None else None,
    )
