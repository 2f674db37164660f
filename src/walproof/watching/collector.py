"""Gathers looks, canaries, links and a growing record into the picture, on its own thread. Never acts on a target."""

import threading
from collections.abc import Callable
from pathlib import Path

from walproof.model.ports import Target
from walproof.model.topology import LinkView
from walproof.records.reader import Tail
from walproof.watching.canary import Chirp
from walproof.watching.picture import Picture, happened, heard, linked, looked

TURN_S = 0.25
LINKS_EVERY = 4


class Gathering:
    """Keeps the picture current until closed; `version` grows with every change of it."""

    def __init__(
        self,
        target: Target | None,
        *,
        record: Path | None = None,
        links: Callable[[], tuple[LinkView, ...]] | None = None,
        pace_s: float = 0.5,
    ) -> None:
        self.picture = Picture(target=target.name if target else str(record))
        self.version = 0
        self._lock = threading.Lock()
        self._eyes = target.poller(pace_s=pace_s) if target else None
        self._tail = Tail(record) if record else None
        self._links = links
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heard(self, chirp: Chirp) -> None:
        """Take one canary in."""
        self._change(lambda picture: heard(picture, chirp))

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join(timeout=3)
        if self._eyes:
            self._eyes.close()

    def _change(self, step: Callable[[Picture], Picture]) -> None:
        with self._lock:
            changed = step(self.picture)
            if changed is not self.picture:
                self.picture, self.version = changed, self.version + 1

    def _run(self) -> None:
        turns = 0
        while not self._closed.wait(TURN_S):
            if self._eyes:
                glance = self._eyes.snapshot()
                self._change(lambda picture, seen=glance: looked(picture, seen))  # type: ignore[misc]
            if self._links and turns % LINKS_EVERY == 0:
                drawn = self._links()
                self._change(lambda picture, seen=drawn: linked(picture, seen))  # type: ignore[misc]
            for event in self._tail.more() if self._tail else ():
                self._change(lambda picture, seen=event: happened(picture, seen))  # type: ignore[misc]
            turns += 1
