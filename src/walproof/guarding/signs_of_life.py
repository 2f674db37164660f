"""Asks every member over SQL and over Patroni's REST, each in threads of its own: what a guard goes by."""

import itertools
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

import httpx2
import psycopg
from psycopg.rows import dict_row

from walproof.errors import Error
from walproof.machine.untrusted import from_json
from walproof.model.ports import Clock
from walproof.model.takeover import MemberSigns, Receiver
from walproof.model.topology import Endpoint
from walproof.patroni.rest import MOST_MEMBERS

_QUERY = (resources.files("walproof.guarding") / "receiver.sql").read_bytes()
_PACE_S = 0.1
_FIT_PACE_S = 0.4
_REFRESH_S = 2.0
_TIMEOUT_S = 1.0
_LONGEST = 1 << 18
"""Bytes of an answer to GET /patroni."""
_NO_ANSWER = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)
"""ValueError: an address that is none, which another member's REST may have given."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a member answers: SQL, and the URL of its Patroni; host:port as its cluster lists it."""

    sql: Endpoint
    rest: str
    listed: str


Members = Callable[[], Mapping[str, Addresses]]


@dataclass(slots=True)
class Known:
    """What is known of one member; each thread writes its own part."""

    rest_at: float | None = None
    sql_at: float | None = None
    receivers: tuple[Receiver, ...] = ()
    fit: tuple[float | None, str] = (None, "")
    refused_at: float | None = None
    listed: str = ""

    def signs(self) -> MemberSigns:
        """As the guard decides by it."""
        return MemberSigns(self.rest_at, self.sql_at, self.receivers, *self.fit, self.refused_at, self.listed)


def why_unfit(status: object) -> str:
    """Why a member could not lead, by its Patroni's answer to GET /patroni; "" where it could.

    Patroni releases the leader key at once where a required watchdog cannot be opened (ha.py, enforce_primary_role).
    """
    if not isinstance(status, dict) or status.get("state") != "running":
        return "its Patroni does not say that PostgreSQL is running"
    if status.get("watchdog_failed"):
        return "its watchdog is required and cannot be used"
    return "its Patroni is paused" if status.get("pause") else ""


class PatroniSignsOfLife:
    """Asks the members that `members` names, named anew every two seconds, ten times a second until closed."""

    def __init__(self, members: Members, client: httpx2.Client, clock: Clock) -> None:
        self._members, self._client, self._clock = members, client, clock
        self._current: Mapping[str, Addresses] = members()
        self._asked: dict[str, Addresses] = {}
        self._known: dict[str, Known] = {}
        self._threads: list[threading.Thread] = []
        self._ended: set[threading.Thread] = set()
        self._closed = threading.Event()
        self._start_missing()
        self._run(self._refresh)

    def signs(self) -> Mapping[str, MemberSigns]:
        """What is known now."""
        return {name: known.signs() for name, known in list(self._known.items()) if name in self._current}

    def failed(self) -> bool:
        """Whether a thread that asks was ended by an error."""
        return any(not thread.is_alive() and thread not in self._ended for thread in self._threads)

    def close(self) -> None:
        """Stop asking; a question under way ends by itself."""
        self._closed.set()
        end = self._clock.now() + _TIMEOUT_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, end - self._clock.now()))

    def _run(self, task: Callable[..., None], *args: object) -> None:
        def run() -> None:
            task(*args)
            self._ended.add(threading.current_thread())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _refresh(self) -> None:
        while not self._closed.wait(_REFRESH_S):
            # A leader whose lock was taken is not listed any more: it is asked all the same.
            with suppress(Error):
                members = {**self._current, **self._members()}
                # New names without end would be threads without end.
                self._current = dict(itertools.islice(members.items(), MOST_MEMBERS))
            self._start_missing()

    def _start_missing(self) -> None:
        for name, addresses in self._current.items():
            if self._asked.get(name) != addresses:
                self._asked[name] = addresses
                self._known.setdefault(name, Known()).listed = addresses.listed
                self._run(self._ask_rest, name, addresses)
                self._run(self._ask_whether_fit, name, addresses)
                self._run(self._ask_sql, name, addresses)

    def _pause(self, name: str, addresses: Addresses, pace_s: float = _PACE_S) -> bool:
        """Wait until the next question is due; whether there is one: not closed, and the member still there."""
        return not self._closed.wait(pace_s) and self._asked[name] is addresses

    def _ask_whether_fit(self, name: str, addresses: Addresses) -> None:
        known = self._known[name]
        while self._pause(name, addresses, _FIT_PACE_S):
            asked_at = self._clock.now()
            # An answer that is no JSON, or longer than Patroni's ever are, says nothing.
            with suppress(*_NO_ANSWER):
                answer = self._client.get(f"{addresses.rest}/patroni", timeout=_TIMEOUT_S)
                if len(answer.content) <= _LONGEST:
                    known.fit = (asked_at, why_unfit(from_json(answer.content)))

    def _ask_rest(self, name: str, addresses: Addresses) -> None:
        known = self._known[name]
        while self._pause(name, addresses):
            with suppress(*_NO_ANSWER):
                # Any answer shows that Patroni's process is alive, a refusal of the status too.
                self._client.get(f"{addresses.rest}/liveness", timeout=_TIMEOUT_S)
                known.rest_at = self._clock.now()

    def _ask_sql(self, name: str, addresses: Addresses) -> None:
        known = self._known[name]
        words = addresses.sql.conninfo(
            connect_timeout="1",
            application_name="walproof guard",
            tcp_user_timeout="1000",
            keepalives_idle="1",
            keepalives_interval="1",
            keepalives_count="2",
            target_session_attrs="",
        )
        while self._pause(name, addresses):
            try:
                with psycopg.connect(words, autocommit=True, row_factory=dict_row, prepare_threshold=1) as connection:
                    while self._pause(name, addresses):
                        self._ask_once(connection, known)
            except psycopg.OperationalError as wrong:
                # PostgreSQL itself answers so while it shuts down, starts, or has no free connection.
                if "FATAL" in str(wrong):
                    known.refused_at = self._clock.now()
            except (psycopg.Error, *_NO_ANSWER):
                continue

    def _ask_once(self, connection: "psycopg.Connection[dict[str, Any]]", known: Known) -> None:
        asked_at = self._clock.now()
        row = connection.execute(_QUERY).fetchone()
        assert row is not None
        known.sql_at = self._clock.now()
        if not row["in_recovery"]:
            known.receivers = ()
            return
        receiver = Receiver(asked_at, **{name: value for name, value in row.items() if name != "in_recovery"})
        known.receivers = (*known.receivers[-1:], receiver)
