"""Commit waits of the last half minute, observed in a thread, for the exporter: no canary, nothing written."""

import threading
from collections import deque

from walproof.errors import Error
from walproof.estimating.observed_waits import Cause, observation
from walproof.model.observed_waits import WaitsSeen
from walproof.model.ports import CommitWaits

_KEPT = 30
_AGAIN_S = 30.0
"""How soon it is tried again where rights are missing, no leader answers, or the server is in distress."""


class RecentWaits:
    """The waits of the last _KEPT seconds until closed."""

    def __init__(self, waits: CommitWaits) -> None:
        self._waits, self._closed = waits, threading.Event()
        self._seen: deque[WaitsSeen] = deque(maxlen=_KEPT)
        self._thread = threading.Thread(target=self._run, name="commit waits", daemon=True)
        self._thread.start()

    def mean_ms(self) -> dict[Cause, float]:
        """Milliseconds per commit by cause; {} where nothing is known."""
        seen = list(self._seen.copy())
        return {cause: ms.value for cause, ms in observation(seen).causes_ms.items()} if seen else {}

    def close(self) -> None:
        """Stop observing."""
        self._closed.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                for one in self._waits.watch(1.0, self._closed.is_set):
                    self._seen.append(one)
            except Error:
                self._seen.clear()
                self._closed.wait(_AGAIN_S)
