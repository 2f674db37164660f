"""The machine's own clock: what the lab and real targets live by."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from walproof.errors import UsageError


def patience() -> float:
    """The multiplier of every named wait: WALPROOF_PATIENCE, at least 0.1; UsageError when it is not a number."""
    try:
        return max(0.1, float(os.environ.get("WALPROOF_PATIENCE", "1")))
    except ValueError:
        raise UsageError("WALPROOF_PATIENCE is not a number", "for instance WALPROOF_PATIENCE=2") from None


OFFSET = time.time() - time.monotonic()
"""Seconds to add to the monotonic clock: fixed when the process begins, so that no step of the wall clock counts."""


def now(offset: float = OFFSET) -> float:
    """Seconds since the epoch as they go by, even when the wall clock is set meanwhile.

    `offset`: that of the process whose times these must fit; the monotonic clock is the whole machine's.
    """
    return time.monotonic() + offset


class RealClock:
    """Seconds since the epoch, real pauses, and the patience of this machine; UsageError where that is no number."""

    def __init__(self, waits: Mapping[str, float] | None = None) -> None:
        self.patience = patience()
        self.waits = waits or {}

    def now(self) -> float:
        return now()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def every(self, seconds: float, act: Callable[[], None]) -> "Repeating":
        return Repeating(seconds, act)

    def together(self, acts: Sequence[Callable[[], None]]) -> None:
        if len(acts) == 1:
            acts[0]()
            return
        with ThreadPoolExecutor(max(1, len(acts))) as pool:
            for done in [pool.submit(act) for act in acts]:
                done.result()


class Repeating:
    """A thread that calls a function again and again; an error of the function ends it and is shown by threading."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._seconds, self._act = seconds, act
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repeating", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._act()
            self._closed.wait(self._seconds)

    @property
    def failed(self) -> bool:
        return not self._closed.is_set() and not self._thread.is_alive()

    def close(self) -> None:
        """End it; waits for a call under way."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=30)
