"""Collects snapshots, commit waits, canary probes, links and a growing record into the picture, on its own thread.

Reads only."""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from walproof.errors import ODD, Error
from walproof.estimating.observed_waits import Observation, observation
from walproof.machine.clock import now
from walproof.machine.untrusted import one_line
from walproof.model.leader_lease import LeaseSeen
from walproof.model.observed_waits import WaitsSeen
from walproof.model.ports import Clock, CommitWaits, LeaderLease, Target
from walproof.records.reader import Tail
from walproof.watching import picture as pictures
from walproof.watching.canary import Probe
from walproof.watching.picture import Picture, TimelineEvent
from walproof.watching.silent_leader import SilentLeader, silent_leader, told

PACE_S = 0.25
LINKS_EVERY = 4
LOOK_EVERY_S = 1.0
_KEPT, _SHOWN = 30, 5
"""Seconds of commit waits, and the last of them that the picture shows."""
_AGAIN_S = 30.0
"""How soon it is tried again where rights are missing, no leader answers, or the server is in distress."""
News = TypeVar("News")


class RecentWaits:
    """What commits waited for in the last _KEPT seconds, observed in a thread until closed; nothing is written.

    unknown: why that is not known now, else "".
    """

    def __init__(self, waits: CommitWaits, clock: Clock) -> None:
        self._waits, self._clock, self._closed, self.unknown = waits, clock, threading.Event(), ""
        self._seen: deque[WaitsSeen] = deque(maxlen=_KEPT)
        self._thread = threading.Thread(target=self._run, name="commit waits", daemon=True)
        self._thread.start()

    def observed(self, seconds: int = _KEPT) -> Observation | None:
        """Of the last seconds; None where nothing is known, as while a leader is looked for."""
        since = self._clock.now() - seconds
        seen = [one for one in self._seen.copy() if one.at > since - one.seconds]
        return observation(seen) if seen else None

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                for one in self._waits.watch(1.0, self._closed.is_set):
                    self._seen.append(one)
                    self.unknown = ""
            except ODD as wrong:
                self._seen.clear()
                self.unknown = one_line(f"{wrong.message}; {wrong.hint}" if isinstance(wrong, Error) else wrong, 200)
                self._closed.wait(_AGAIN_S)


class LeaseWatch:
    """Looks at the leader's lease once a second in a thread until closed; reads only."""

    def __init__(self, lease: LeaderLease) -> None:
        self._lease, self._closed = lease, threading.Event()
        self.silent: SilentLeader | None = None
        """The leader where it is to be told of, else None."""
        self._thread = threading.Thread(target=self._run, name="leader lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        seen: SilentLeader | None = None
        while not self._closed.wait(LOOK_EVERY_S):
            seen = silent_leader(seen, self._look())
            self.silent = told(seen)

    def _look(self) -> LeaseSeen | None:
        try:
            return self._lease.look()
        except ODD:
            return None


class Collector:
    """Keeps the picture current until closed; `version` grows with every change of it."""

    def __init__(self, target: Target | None, *, record: Path | None = None, pace_s: float = 0.5) -> None:
        self.picture = Picture(target=target.name if target else str(record))
        self.version = 0
        self._lock = threading.Lock()
        self._poller = target.poller(pace_s=pace_s) if target else None
        self._tail = Tail(record) if record else None
        able = target.capabilities() if target else None
        self._links = able.links if able else None
        self._waits = RecentWaits(able.commit_waits, target.clock) if target and able and able.commit_waits else None
        self._lease = LeaseWatch(able.leader_lease) if able and able.leader_lease else None
        self._renewed, self._unread = now(), ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def stale_s(self) -> float | None:
        """How long ago the cluster was last looked at, s; None where there is none."""
        return now() - self._renewed if self._poller else None

    def add_probe(self, probe: Probe) -> None:
        self.update(pictures.with_probe, probe)

    def update(self, step: Callable[[Picture, News], Picture], news: News) -> None:
        """Replace the picture by step(picture, news); safe from any thread."""
        with self._lock:
            changed = step(self.picture, news)
            if changed is not self.picture:
                self.picture, self.version = changed, self.version + 1

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=3)
        for part in (self._poller, self._waits, self._lease):
            if part:
                part.close()

    def _run(self) -> None:
        passes = 0
        while not self._closed.wait(PACE_S):
            try:
                self._look(passes)
            except ODD as wrong:
                if (unread := one_line(f"not read: {wrong}", 200)) != self._unread:
                    self._unread = unread
                    self.update(pictures.with_timeline_event, TimelineEvent(now(), "cluster", unread))
            passes += 1

    def _look(self, passes: int) -> None:
        if self._poller:
            self.update(pictures.with_snapshot, self._poller.snapshot())
            self._renewed = now()
        if self._links and passes % LINKS_EVERY == 0:
            self.update(pictures.with_links, self._links.links())
        if self._lease:
            self.update(pictures.with_silent_leader, self._lease.silent)
        if self._waits and passes % LINKS_EVERY == 0:
            self.update(pictures.with_waits, (self._waits.observed(_SHOWN), self._waits.unknown))
        for event in self._tail.more() if self._tail else ():
            self.update(pictures.with_record_event, event)
