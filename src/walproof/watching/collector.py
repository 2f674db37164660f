"""Collects snapshots, canary probes, links and a growing record into the picture, on its own thread. Reads only."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from walproof.model.ports import Target
from walproof.records.reader import Tail
from walproof.watching.canary import Probe
from walproof.watching.picture import Picture, with_guard, with_links, with_probe, with_record_event, with_snapshot

PACE_S = 0.25
LINKS_EVERY = 4
News = TypeVar("News")


class Collector:
    """Keeps the picture current until closed; `version` grows with every change of it."""

    def __init__(self, target: Target | None, *, record: Path | None = None, pace_s: float = 0.5) -> None:
        self.picture = Picture(target=target.name if target else str(record))
        self.version = 0
        self._lock = threading.Lock()
        self._poller = target.poller(pace_s=pace_s) if target else None
        self._tail = Tail(record) if record else None
        self._links = target.capabilities().links if target else None
        self._guard = target.capabilities().guard if target else None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add_probe(self, probe: Probe) -> None:
        self.update(with_probe, probe)

    def update(self, step: Callable[[Picture, News], Picture], news: News) -> None:
        """Replace the picture by step(picture, news); safe from any thread."""
        with self._lock:
            changed = step(self.picture, news)
            if changed is not self.picture:
                self.picture, self.version = changed, self.version + 1

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=3)
        if self._poller:
            self._poller.close()

    def _run(self) -> None:
        passes = 0
        while not self._closed.wait(PACE_S):
            if self._poller:
                self.update(with_snapshot, self._poller.snapshot())
            if self._links and passes % LINKS_EVERY == 0:
                self.update(with_links, self._links.links())
            if self._guard and passes % LINKS_EVERY == 0:
                self.update(with_guard, self._guard.status())
            for event in self._tail.more() if self._tail else ():
                self.update(with_record_event, event)
            passes += 1
