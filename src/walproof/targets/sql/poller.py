"""Polls every member over a connection of its own, so that one that does not answer delays no other."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from walproof.model.ports import Clock
from walproof.model.topology import Endpoint, Snapshot
from walproof.targets.sql.observe import OBSERVE, combined

_REFRESH_S = 2.0
"""How often the members are asked for anew: they come and go."""
Members = Callable[[], Mapping[str, Endpoint]]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A member's last row, and when it came (seconds since the epoch)."""

    at: float
    row: dict[str, Any]


class SqlPoller:
    """Polls the members that `members` names, asked anew every two seconds, each `pace_s` until closed."""

    def __init__(self, members: Members, clock: Clock, *, pace_s: float = 0.5, silent_s: float = 0.9) -> None:
        self._members = members
        self._clock = clock
        self._pace_s = pace_s
        self._silent_s = silent_s
        self._current: Mapping[str, Endpoint] = members()
        self._answers: dict[str, _Answer] = {}
        self._polled: dict[str, threading.Thread] = {}
        self._closed = threading.Event()
        self._start_missing()
        self._refresher = threading.Thread(target=self._refresh, name="poller members", daemon=True)
        self._refresher.start()

    def close(self) -> None:
        """Stop polling; connections close as their threads notice."""
        self._closed.set()
        for thread in (*self._polled.values(), self._refresher):
            thread.join(timeout=2)

    def snapshot(self) -> Snapshot:
        """What is known now, from answers young enough."""
        now = self._clock.now()
        members, oldest = self._current, now - self._pace_s - self._silent_s
        fresh = {n: a.row for n, a in list(self._answers.items()) if a.at >= oldest and n in members}
        return combined(now, members, fresh)

    def _refresh(self) -> None:
        while not self._closed.wait(_REFRESH_S):
            self._current = self._members()
            self._start_missing()

    def _start_missing(self) -> None:
        for name in self._current:
            thread = self._polled.get(name)
            if thread is None or not thread.is_alive():
                self._polled[name] = threading.Thread(target=self._poll, args=(name,), daemon=True)
                self._polled[name].start()

    def _poll(self, name: str) -> None:
        """Until closed, or until the member is no longer one."""
        while not self._closed.is_set() and name in self._current:
            options = self._current[name].conninfo(
                connect_timeout="1",
                application_name="walproof poller",
                tcp_user_timeout="1500",
                target_session_attrs="",
            )
            try:
                with psycopg.connect(options, autocommit=True, row_factory=dict_row, prepare_threshold=1) as connection:
                    while not self._closed.is_set() and name in self._current:
                        row = connection.execute(OBSERVE).fetchone()
                        if row is not None:
                            self._answers[name] = _Answer(self._clock.now(), row)
                        self._closed.wait(self._pace_s)
            except psycopg.Error:
                self._answers.pop(name, None)
                self._closed.wait(self._pace_s / 2)
