"""A workload that goes on beside a drill: pgbench, started again whenever a fault took its clients away.

pgbench ends a client whose connection breaks, and waits for ever for a server that is silent. So it is started anew
when clients are missing, and when clients of a leader that was replaced still wait for it."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from walproof.errors import Error
from walproof.load.driver import CONNECT_S
from walproof.load.pgbench import RunningLoad, logs_in
from walproof.load.pgbench_log import Summary, summary
from walproof.model.load import LoadFigures, Workspace
from walproof.model.ports import Clock
from walproof.model.sample import Arm

_FIRST_S = 0.5
"""A script that the server refuses has ended its clients by then."""
_LASTING_S = 2.5
"""Clients are back when all have been connected for so long: longer than one tries to connect."""
_GRACE_S = 0.5


class BackgroundLoad:
    """pgbench in places that it closes in the end; kept up by one thread and ended by another."""

    def __init__(
        self, start: Callable[[int], RunningLoad], places: Sequence[Workspace], arm: Arm, clock: Clock
    ) -> None:
        """`start` starts it for the nth time. An Error where its clients do not connect or end at once."""
        self._start, self._places, self._arm, self._clock = start, places, arm, clock
        self._lock = threading.Lock()
        self._over, self._lost = False, False
        self._starts = self._reconnects = 0
        self._led: object = None
        self._there_since = self._hangs_at = float("inf")
        self._load: RunningLoad | None = None
        try:
            self._load = start(0)
            self._load.await_connected(arm.clients, CONNECT_S)
            self._began = clock.now()
            clock.pause(_FIRST_S)
            if self._load.ended:
                raise self._load.error()
        except BaseException:
            self.close()
            raise

    def keep_up(self, led: object, patience_s: float) -> str:
        with self._lock:
            now = self._clock.now()
            if led not in (None, self._led):
                # Clients that connected since they were lost found a server that answers.
                self._hangs_at = float("inf") if self._led is None or self._lost else now + patience_s
                self._led = led
            load, hang = self._load, now >= self._hangs_at
            there = load is not None and not load.ended and load.connected() >= self._arm.clients
            if self._over or (there and not hang):
                return self._connected(now)
            self._there_since = float("inf")
            connecting = self._lost and load is not None and not load.ended
            if connecting and not hang:
                return ""
            why = "no answer of the leader before" if load is None or there else load.error().message
            self._again()
            first, self._lost = not self._lost, True
            self._reconnects += first
            return f"its clients are gone ({why})" if first else ""

    def _connected(self, now: float) -> str:
        self._there_since = min(self._there_since, now)
        back = self._lost and now >= self._there_since + _LASTING_S
        self._lost = self._lost and not back
        return "its clients are connected again" if back and not self._over else ""

    def _again(self) -> None:
        self._end()
        self._load, self._hangs_at = None, float("inf")
        self._starts += 1
        # Without a leader just now, or without its pod, there is nothing to start.
        with suppress(Error, OSError):
            self._load = self._start(self._starts)

    def _end(self) -> None:
        if self._load is not None:
            self._load.end(_GRACE_S, lambda: None)

    def seen(self, fault_at: float) -> LoadFigures:
        with self._lock:
            self._over = True
            until = self._clock.now()
            self._end()
        whole = self._within(self._began, until)
        gaps = [gap for gap in whole.stalls(self._began, until) if gap[1] > fault_at]
        gone, back = max(gaps, key=lambda gap: gap[1] - gap[0], default=(fault_at, fault_at))
        return LoadFigures(
            before_tps=self._within(self._began, fault_at).credit / max(fault_at - self._began, 1e-3),
            outage_s=back - gone,
            after_tps=self._within(back, until).credit / (until - back) if until - back > 0.1 else 0.0,
            failed=whole.failed,
            reconnects=self._reconnects,
        )

    def _within(self, since: float, until: float) -> Summary:
        ahead = logs_in(self._places)
        return summary(list(ahead), since, until, paced=self._arm.rate is not None, ahead=ahead)

    def close(self) -> None:
        with self._lock:
            self._over = True
            self._end()
        for place in self._places:
            place.close()
