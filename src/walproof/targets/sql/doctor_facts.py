"""Gathers the doctor's facts: read-only, every member at once, each statement limited to two seconds."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from walproof.errors import ODD, Error, TargetError
from walproof.load.open_session import open_session
from walproof.machine.answering import answering
from walproof.machine.sql_file import statements
from walproof.machine.untrusted import one_line
from walproof.model.access_path import AccessPath
from walproof.model.facts import Facts, MemberFacts, Override, PatroniFacts, Sender, SettingFact, Slot, Waiter
from walproof.model.topology import Endpoint
from walproof.targets.sql.connection import streams_as
from walproof.targets.sql.levels_of_functions import levels_set

_OPTIONS = (
    "-c default_transaction_read_only=on -c statement_timeout=2000 -c lock_timeout=500 -c jit=off "
    r"-c default_transaction_isolation=read\ committed"
)
"""A role may have others of its own: a standby refuses serializable."""
_MOST_DATABASES = 8
_LONGEST_S = 15
Row = dict[str, Any]
_STATEMENTS = statements("walproof.targets.sql", "doctor.sql")


def query(name: str) -> bytes:
    """A question of the doctor, as a DBA may paste it."""
    return _STATEMENTS[name].encode()


def _connect(endpoint: Endpoint, **more: str) -> "psycopg.Connection[Row]":
    ours = {"application_name": "walproof doctor", "connect_timeout": "2", "options": _OPTIONS}
    words = endpoint.conninfo(target_session_attrs="any", **ours, **more)
    return open_session(words, dict_row)


@dataclass(frozen=True, slots=True)
class Inspector:
    """The doctor's facts about a cluster: members asked anew each time, and the manager where there is one."""

    target: str
    members: Callable[[], Mapping[str, Endpoint]]
    manager: Callable[[], PatroniFacts] | None = None
    access: Callable[[], AccessPath] = AccessPath
    """Proxies and pools, where the target has their configuration."""

    def facts(self) -> Facts:
        facts = gathered(self.target, self.members(), self.manager)
        if not facts.inspected:
            reason = facts.members[0].error if facts.members else "it has no members"
            raise TargetError(
                f"no member of {self.target} answers the doctor: {reason}", "is it up, are the DSN and password right?"
            )
        return replace(facts, access=self.access())


def gathered(target: str, members: Mapping[str, Endpoint], manager: Callable[[], PatroniFacts] | None) -> Facts:
    """One snapshot of all members and the manager, inspected at once; who does not answer says why."""
    started = time.monotonic()
    inspections: dict[str, tuple[MemberFacts, tuple[str, ...]]] = {}
    managed: list[PatroniFacts | Error] = []

    def inspect(name: str, endpoint: Endpoint) -> None:
        inspections[name] = _member(name, endpoint)

    def ask() -> None:
        try:
            if manager is not None:
                managed.append(manager())
        except Error as error:
            managed.append(error)
        except ODD as odd:
            managed.append(TargetError(f"what the manager of {target} answers cannot be read: {one_line(odd, 200)}"))

    threads = [threading.Thread(target=inspect, args=pair, daemon=True) for pair in members.items()]
    threads.append(threading.Thread(target=ask, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=_LONGEST_S)
    seen = tuple(
        inspections[name][0]
        if name in inspections
        else MemberFacts(name, _place(e), f"did not answer within {_LONGEST_S} s")
        for name, e in members.items()
    )
    unseen = tuple(dict.fromkeys(db for _, left in inspections.values() for db in left))
    if manager is not None and not managed:
        raise TargetError(f"the manager of {target} did not answer within {_LONGEST_S} s", "walproof doctor, once more")
    patroni = managed[0] if managed else None
    if isinstance(patroni, Error):
        raise patroni
    return Facts(target, seen, patroni, time.monotonic() - started, unseen)


def _place(endpoint: Endpoint) -> str:
    return ":".join(map(str, endpoint.hosts[0]))


def _member(name: str, endpoint: Endpoint) -> tuple[MemberFacts, tuple[str, ...]]:
    try:
        with _connect(endpoint) as connection, answering(connection, _LONGEST_S):
            return _inspected(connection, name, endpoint)
    except (psycopg.Error, *ODD) as wrong:
        words = " ".join(str(wrong).split())
        return MemberFacts(name, _place(endpoint), words), ()


def _rows(connection: "psycopg.Connection[Row]", name: str) -> list[Row]:
    return connection.execute(query(name)).fetchall()


def _settings(connection: "psycopg.Connection[Row]") -> dict[str, SettingFact]:
    """pg_settings as sessions of others have it: without what the doctor's own role or database changes."""
    places: dict[str, Row] = {row["name"]: row for row in _rows(connection, "own_settings")}
    if places:
        with suppress(psycopg.Error):  # Without the right to read the files, a default is the best guess.
            places |= {row["name"]: row for row in _rows(connection, "file_settings") if row["name"] in places}
    for name, place in places.items():
        with suppress(psycopg.Error):
            connection.execute("SELECT set_config(%s, %s, false)", (name, place.pop("value")))
    rows = [{**row, **places.get(row["name"], {})} for row in _rows(connection, "settings")]
    return {row["name"]: SettingFact(**row) for row in rows}


_ITSELF = (
    "version", "leader", "timeline", "replay_paused", "oldest_prepared_s", "checksum_failures", "archive_failing",
    "unlogged_tables", "user",
)  # fmt: skip
"""Columns of the question `self` that are fields of MemberFacts as they are."""


def _inspected(
    connection: "psycopg.Connection[Row]", name: str, endpoint: Endpoint
) -> tuple[MemberFacts, tuple[str, ...]]:
    itself = _rows(connection, "self")[0]
    settings = _settings(connection)
    overrides: list[Override] = []
    unseen: tuple[str, ...] = ()
    if itself["leader"]:
        overrides = [Override(**row) for row in _rows(connection, "overrides")]
        functions, unseen = _functions(connection, endpoint)
        overrides += functions
    monitor = bool(itself["superuser"] or itself["monitor"])
    facts = MemberFacts(
        name,
        _place(endpoint),
        **{column: itself[column] for column in _ITSELF},
        settings=settings,
        senders=tuple(Sender(**row) for row in _rows(connection, "senders")),
        receiver_status="unseen" if itself["receivers"] and not monitor else (itself["receiver_status"] or ""),
        receiver_slot=itself["receiver_slot"] or "",
        receiver_name=streams_as(itself),
        slots=tuple(Slot(**row) for row in _rows(connection, "slots")),
        overrides=tuple(overrides),
        waiters=tuple(Waiter(**row) for row in _rows(connection, "waiters")),
        system_identifier=itself["system_identifier"] or "",
        oldest_query_s=0.0 if itself["leader"] else itself["oldest_query_s"],
        superuser=bool(itself["superuser"]),
        monitor=monitor,
    )
    return facts, unseen


def _of_database(connection: "psycopg.Connection[Row]") -> list[Override]:
    """Functions of this database with a SET clause, and those whose source sets the level of their transaction."""
    clauses = [Override(**row) for row in _rows(connection, "functions")]
    return clauses + [
        Override("source", row["name"], value, row["database"], f"take it out of {row['name']}: CREATE OR REPLACE …")
        for row in _rows(connection, "sources")
        for value in levels_set(row["source"], row["language"])
    ]


def _functions(connection: "psycopg.Connection[Row]", endpoint: Endpoint) -> tuple[list[Override], tuple[str, ...]]:
    """Functions of every database the role may enter, at most eight; names of those not entered."""
    databases = _rows(connection, "databases")
    functions = _of_database(connection)
    current = connection.info.dbname
    others = [d["name"] for d in databases if d["name"] != current]
    allowed = {d["name"] for d in databases if d["may"]}
    unseen = [name for i, name in enumerate(others) if name not in allowed or i >= _MOST_DATABASES]
    for name in others:
        if name in unseen:
            continue
        try:
            with _connect(endpoint, dbname=name) as inside, answering(inside, _LONGEST_S):
                functions += _of_database(inside)
        except psycopg.Error:
            unseen.append(name)
    return functions, tuple(unseen)
