"""Observes members over SQL: the cluster's view once or polled, and the signs of a fault that each member shows.

Each is asked in a thread or over a connection of its own, so that one that does not answer delays no other."""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import psycopg
from psycopg.rows import dict_row
from pydantic import BaseModel, Field, FiniteFloat

from walproof.errors import ODD, Error
from walproof.load.open_session import open_session
from walproof.load.repeated_logins import LOGIN, first_answer
from walproof.machine.answering import answering
from walproof.machine.quoting import pasted
from walproof.machine.sql_file import statements
from walproof.model.ports import Clock
from walproof.model.standby_names import NO_STANDBYS, folded
from walproof.model.topology import ClusterView, Endpoint, LedgerTable, MemberState, MemberView, Role, Snapshot
from walproof.targets.sql.connection import asked, streams_as

_STATEMENTS = statements("walproof.targets.sql", "observe.sql")
OBSERVE = _STATEMENTS["observe"].encode()
NOT_STREAMING, NOT_KNOWN, LEADS_TOO = "not streaming", "not known", "leads too (split brain)"
ANOTHERS = "a server of another cluster"
_LONGEST_S = 5


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of members besides where they are.

    `found`: names of those that nobody named, but that streamed once; `unasked`: of those that have not said yet whose
    they are; `system`: the identifier of their cluster, "" where it is not known.
    """

    found: frozenset[str] = frozenset()
    unasked: frozenset[str] = frozenset()
    system: str = ""


NOTHING = Known()
Row = dict[str, Any]
_Count = Annotated[int, Field(ge=0, le=2**64)]


class _Sender(BaseModel):
    name: str | None
    state: str | None
    sync_state: str | None
    address: str | None
    replayed: _Count | None


class _Observed(BaseModel):
    standby: bool
    lsn: _Count
    timeline: _Count | None
    names: str
    version: _Count
    system: str
    cluster_name: str
    receiver_conninfo: str | None
    commits: _Count
    hidden_from: str | None
    waiting: _Count
    longest_wait_s: FiniteFloat
    standbys: list[_Sender]


def observe(connection: psycopg.Connection[Row]) -> Row:
    """The member's row; ValueError where it is not of this shape: whoever answers at its address declares the types."""
    with answering(connection, _LONGEST_S):
        return _Observed.model_validate(connection.execute(OBSERVE).fetchone()).model_dump()


def rows_of(members: Mapping[str, Endpoint]) -> dict[str, Row]:
    """The row of each member that answers within a few seconds, by name."""
    rows: dict[str, Row] = {}

    def ask(name: str, endpoint: Endpoint) -> None:
        try:
            # Connecting takes 2 s at most: no thread outlives this call, so that no second one asks meanwhile.
            with asked(endpoint, _LONGEST_S - 2, application_name="walproof observe") as connection:
                rows[name] = observe(connection)
        except (psycopg.Error, *ODD):
            return

    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in members.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=_LONGEST_S)
    return dict(rows)


def observed(members: Mapping[str, Endpoint], clock: Clock, known: Known = NOTHING) -> ClusterView:
    """One observation of these members and, as the leader sees them, of standbys that could not be addressed."""
    rows = rows_of(members)
    view = combined(clock.now(), members, rows, known).view
    addresses = {m.address for m in view.members}
    others = tuple(
        MemberView(
            s["name"] or s["address"] or "no name",
            Role.STANDBY,
            s["state"],
            address=s["address"] or "",
            sync_state=s["sync_state"],
            streams_as=s["name"],
        )
        for s in _senders(members, rows, view.leader)[1]
        if s["name"] not in NO_STANDBYS and s["state"] == "streaming" and s["address"] not in addresses
    )
    return replace(view, members=(*view.members, *others))


def _senders(
    members: Mapping[str, Endpoint], rows: Mapping[str, Row], leader: str | None
) -> tuple[dict[str, Row], list[Row]]:
    """The leader's row of pg_stat_replication for each member it is of, and the rows of no member.

    By the name a member streams under and its address, by that name alone, by what it is called here, by address.
    """
    addresses = addresses_of(members)
    every = rows[leader]["standbys"] if leader is not None and leader in rows else []
    left = sorted(every, key=lambda s: s["state"] != "streaming")
    found: dict[str, Row] = {}

    def take(matches: Callable[[str, Row], bool]) -> None:
        for member in (m for m in members if m != leader and m not in found):
            sender = next((s for s in left if matches(member, s)), None)
            if sender is not None:
                found[member] = sender
                left.remove(sender)

    def named(member: str, sender: Row) -> bool:
        name = streams_as(rows[member]) if member in rows else ""
        return name != "" and folded(name) == folded(sender["name"])

    def there(member: str, sender: Row) -> bool:
        return bool(sender["address"]) and sender["address"] == addresses[member]

    take(lambda member, sender: named(member, sender) and there(member, sender))
    take(named)
    take(lambda member, sender: folded(member) == folded(sender["name"]))
    take(there)
    return found, left


def addresses_of(members: Mapping[str, Endpoint]) -> dict[str, str]:
    """Host per member, with the port where several share a host: an address must not stand for two."""
    hosts = [e.hosts[0][0] for e in members.values()]
    places = {name: e.hosts[0] for name, e in members.items()}
    return {name: f"{host}:{port}" if hosts.count(host) > 1 else host for name, (host, port) in places.items()}


def combined(now: float, members: Mapping[str, Endpoint], rows: Mapping[str, Row], known: Known = NOTHING) -> Snapshot:
    """Members' rows as one snapshot: the leader is the one not in recovery on the highest timeline. Pure.

    Those of `known.found`, once promoted, lead only where no named one does, for whoever may replicate has a copy, and
    may promote it. Who is not of the cluster `known.system` is none of its members, whatever its address is.
    """
    addresses, answering = addresses_of(members), rows
    rows = {name: row for name, row in rows.items() if known.system in ("", row.get("system"))}
    leaders = [n for n, r in rows.items() if not r["standby"]]
    leader = max(leaders, key=lambda n: (n not in known.found, rows[n]["timeline"] or 0), default=None)
    first = rows[leader] if leader else None
    senders, _ = _senders(members, rows, leader)
    head = int(first["lsn"]) if first else None
    hidden_from = first.get("hidden_from") if first else None
    unseen = pasted("GRANT pg_monitor TO {role:sql_name}", role=hidden_from) if hidden_from else ""

    def state(row: Row, sender: Row) -> str:
        if row["standby"]:
            return str(sender.get("state") or (NOT_KNOWN if unseen else NOT_STREAMING))
        return "running" if first is None or row["timeline"] == first["timeline"] else LEADS_TOO

    def member(name: str) -> MemberView:
        row = rows.get(name)
        if row is None:
            state_of_it = ANOTHERS if name in answering else "unreachable"
            return MemberView(name, Role.UNKNOWN, state_of_it, address=addresses[name])
        sender = senders.get(name, {})
        lsn = int(row["lsn"])
        return MemberView(
            name,
            Role.STANDBY if row["standby"] else Role.LEADER,
            state(row, sender),
            timeline=row["timeline"],
            lsn=lsn,
            lag_bytes=None if head is None else max(0, head - lsn),
            address=addresses[name],
            sync_state=str(sender.get("sync_state") or ""),
            standby_names=row["names"],
            identity=name,
            streams_as=streams_as(row) or None if name == leader else sender.get("name"),
        )

    view = ClusterView(now, tuple(map(member, members)), leader, first["names"] if first else "", unseen)
    if first is None or unseen:
        return Snapshot(view, int(first["commits"]) if first else None)
    return Snapshot(view, int(first["commits"]), int(first["waiting"]), float(first["longest_wait_s"]))


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

    def __init__(
        self,
        members: Members,
        clock: Clock,
        *,
        pace_s: float = 0.5,
        silent_s: float = 0.9,
        known: Callable[[], Known] = Known,
    ) -> None:
        self._members, self._known = members, known
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
        return combined(now, members, fresh, self._known())

    def _refresh(self) -> None:
        while not self._closed.wait(_REFRESH_S):
            with suppress(*ODD):
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
            endpoint = self._current[name]
            conninfo = endpoint.conninfo(
                **LOGIN,
                application_name="walproof poller",
                options=f"-c statement_timeout={int(1000 * _LONGEST_S)}",
                target_session_attrs="",
            )
            try:
                with ExitStack() as opened:
                    with first_answer(endpoint):
                        connection = opened.enter_context(open_session(conninfo, dict_row, prepare_threshold=1))
                        self._ask(name, connection)
                    while not self._closed.wait(self._pace_s) and name in self._current:
                        self._ask(name, connection)
            except (psycopg.Error, *ODD):
                self._answers.pop(name, None)
                self._closed.wait(self._pace_s / 2)

    def _ask(self, name: str, connection: psycopg.Connection[Row]) -> None:
        self._answers[name] = _Answer(self._clock.now(), observe(connection))


_QUERY = _STATEMENTS["member_state"].encode()
_LONGEST_STATE_S = 2.0
_BY_MACHINE = (
    "postmaster", "processes", "disk", "dcs", "container", "manager", "hangs", "stressed", "chaos", "deaf_to",
)  # fmt: skip
"""What a member's machine tells of it; the rest is what SQL answers."""


class SqlMemberStates:
    """The members that `members` names; `machine` adds what a member's machine tells, where it can be asked."""

    def __init__(
        self,
        members: Callable[[], Mapping[str, Endpoint]],
        clock: Clock,
        machine: Callable[[MemberState], MemberState] = lambda state: state,
    ) -> None:
        self._members, self._clock, self._machine = members, clock, machine

    def states(self) -> tuple[MemberState, ...]:
        """Every member now, within about two seconds."""
        endpoints = self._members()
        states = {name: MemberState(name, self._clock.now()) for name in endpoints}

        def ask(name: str, endpoint: Endpoint) -> None:
            with suppress(*ODD):
                if (row := _answer(endpoint)) is not None:
                    states[name] = state_of(name, self._clock.now(), row)

        threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in endpoints.items()]
        # The machines are asked meanwhile: what they tell is of the same moment.
        machines: dict[str, MemberState] = {}
        for thread in threads:
            thread.start()
        for name, bare in dict(states).items():
            machines[name] = self._shown(bare)
        until = self._clock.now() + _LONGEST_STATE_S
        for thread in threads:
            thread.join(timeout=max(0.0, until - self._clock.now()))
        answered = dict(states)
        return tuple(
            replace(answered[name], **{told: getattr(machines[name], told) for told in _BY_MACHINE})
            for name in endpoints
        )

    def _shown(self, bare: MemberState) -> MemberState:
        try:
            return self._machine(bare)
        except (Error, OSError):
            return bare


def _answer(endpoint: Endpoint) -> dict[str, Any] | None:
    """Asked whatever came of the last login: that it does not answer is evidence about a fault."""
    own = {"application_name": "walproof signs", "options": f"-c statement_timeout={int(1000 * _LONGEST_STATE_S)}"}
    conninfo = endpoint.conninfo(**LOGIN, **own, target_session_attrs="any")
    try:
        with open_session(conninfo, dict_row) as connection, answering(connection):
            return connection.execute(_QUERY).fetchone()
    except psycopg.Error:
        return None


def state_of(member: str, at: float, row: Mapping[str, Any]) -> MemberState:
    """The row of member_state.sql as a state. Pure."""
    table = LedgerTable(str(row["persistence"]), tuple(row["triggers"]), bool(row["row_security"]))
    return MemberState(
        member,
        at,
        answers=True,
        in_recovery=bool(row["in_recovery"]),
        started=str(row["started"] or ""),
        stats_reset=str(row["stats_reset"] or ""),
        system=str(row["system"] or ""),
        timeline=row["timeline"],
        lsn=None if row["lsn"] is None else int(row["lsn"]),
        settings={str(name): str(value) for name, value in (row["settings"] or {}).items()},
        overrides=tuple(row["overrides"]),
        checksum_failures=row["checksum_failures"],
        senders=tuple(row["senders"]),
        receives=bool(row["receives"]),
        replay_paused=row["replay_paused"],
        table=None if row["persistence"] is None else table,
    )
