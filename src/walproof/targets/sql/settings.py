"""Settings over SQL: those a record keeps, whether two values are one, and ALTER SYSTEM on each member.

A change is journaled before, awaited, its value put back as it was; what another operator has changed since stays."""

import hashlib
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from walproof.errors import ODD, Error, TargetError, UsageError
from walproof.machine.quoting import pasted
from walproof.machine.sql_file import statements
from walproof.model.guarantee import SERVER, Difference
from walproof.model.ports import Clock, Notebook, Reverting
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.connection import connected
from walproof.targets.sql.known_servers import (
    AUTO,
    Connected,
    Server,
    answering,
    as_error,
    auto_conf,
    copies,
    server_of,
    session_of,
    system_of,
    told_apart,
    unplaced,
    where_is,
)

SHOWN = (
    "synchronous_standby_names",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_sync_method",
    "commit_delay",
    "commit_siblings",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_sender_timeout",
    "max_connections",
    "data_checksums",
)
_QUERY = "SELECT name, setting || coalesce(unit, '') FROM pg_show_all_settings() WHERE name = ANY(%s) ORDER BY name"


def settings_of(connection: psycopg.Connection) -> dict[str, str]:
    """Name → value with its unit, of the settings that matter to a commit."""
    return {str(name): str(value) for name, value in connection.execute(_QUERY, (list(SHOWN),)).fetchall()}


_TIME_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_ON = {"on", "true", "yes", "1"}
_OFF = {"off", "false", "no", "0"}


def _measure(text: str, unit: str) -> tuple[str, float] | None:
    """(dimension, amount in its smallest unit) of a number with a unit; a bare number counts in `unit`."""
    match = re.fullmatch(r"\s*+([+-]?\d+(?:\.\d+)?)\s*+([A-Za-z]*+)\s*+", text)
    if match is None:
        return None
    number, word = float(match[1]), match[2].lower()
    if not word:
        block = re.fullmatch(r"(\d*)\s*([A-Za-z]*)", unit)
        times, word = (float(block[1] or 1), block[2].lower()) if block else (1.0, "")
        number *= times
    if word in _TIME_US:
        return "time", number * _TIME_US[word]
    if word in _BYTES:
        return "bytes", number * _BYTES[word]
    return ("number", number) if not word else None


def same_value(written: str, setting: str, unit: str) -> bool:
    """Whether `written` (postgresql.conf) and `setting` in `unit` (pg_settings) are one value.

    >>> same_value("15s", "15000", "ms"), same_value("1GB", "131072", "8kB"), same_value("true", "on", "")
    (True, True, True)
    >>> same_value("15s", "5000", "ms"), same_value("on", "off", "")
    (False, False)
    """
    if written == setting:
        return True
    if setting in ("on", "off"):
        return written.lower() in (_ON if setting == "on" else _OFF)
    one, other = _measure(written, unit), _measure(setting, unit)
    return one is not None and one == other


_IN_EFFECT = statements("walproof.targets.sql", "observe.sql")["in_effect"].encode()


def alter(connection: Connected, name: str, value: str | None) -> None:
    """ALTER SYSTEM SET, or RESET for None."""
    statement = sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name))
    if value is not None:
        statement = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        user = connection.info.user
        raise TargetError(
            f"role {user} may not set {name}",
            pasted(
                "as superuser: GRANT ALTER SYSTEM ON PARAMETER {name:sql_name} TO {user:sql_name} (15 or later)",
                name=name,
                user=user,
            ),
        ) from None
    except psycopg.Error as wrong:
        raise UsageError(
            f"{name} = {value!r} is refused: {' '.join(str(wrong).split())}",
            pasted("see SHOW {name:sql_name}", name=name),
        ) from None


Sessions: TypeAlias = "Callable[[], AbstractContextManager[Connected]]"


class AutoConf:
    """Changes parameters of servers without a manager, by ALTER SYSTEM on each. `named`: members the user named;
    `system`: the identifier of their cluster, since all their names may lead to another one by now; "" where none is.
    """

    def __init__(
        self,
        target: str,
        clock: Clock,
        members: Mapping[str, Endpoint],
        named: Container[str] = frozenset(),
        system: str = "",
    ) -> None:
        self._target, self._clock, self._members = target, clock, members
        self._named, self._system = named, system

    def differences(self, wanted: Mapping[str, str | None]) -> tuple[Difference, ...]:
        """What setting these would change, per member; nothing is touched."""
        differences = []
        for member, endpoint in self._members.items():
            with connected(endpoint) as connection:
                now = auto_conf(connection)
                shown = {name: _shown(connection, name) for name in wanted}
            for name, value in wanted.items():
                if now.get(name) != value and not (name not in now and shown[name] == value):
                    differences.append(Difference(member, name, now.get(name, shown[name]), value))
        return tuple(differences)

    def version(self) -> str:
        """A token of every member's postgresql.auto.conf as it is now."""
        entries = []
        for member, endpoint in self._members.items():
            with connected(endpoint) as connection:
                entries.append((member, auto_conf(connection)))
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()

    def set(self, wanted: Mapping[str, str | None], journal: Notebook) -> None:
        """Set on every server, each change journaled before, and wait until every one is in effect."""
        for names, server in told_apart(self._members, self._named, self._system):
            member, sessions = names[0], self._sessions(names, server)
            with sessions() as connection:
                self._refuse_restart(connection, wanted)
                now, what = auto_conf(connection), f"{AUTO} {member}" + (server.made and f"{SERVER}{server.made}")
                for name, value in wanted.items():
                    before = now.get(name)
                    change = journal.note(self._clock.now(), self._target, what, name, before=before, after=value)
                    if auto_conf(connection).get(name) != before:
                        # By a revert that ended just before it was noted: what it put back would be lost.
                        journal.undone(change)
                        raise TargetError(f"{name} of {member} was changed meanwhile", "do it once more")
                    alter(connection, name, value)
            self._reload(sessions, list(wanted))

    @staticmethod
    def _refuse_restart(connection: Connected, wanted: Mapping[str, str | None]) -> None:
        rows = connection.execute(
            "SELECT name FROM pg_show_all_settings() WHERE context = 'postmaster' AND name = ANY(%s)", (list(wanted),)
        ).fetchall()
        if rows:
            names = ", ".join(str(r["name"]) for r in rows)
            raise UsageError(
                f"{names} takes effect only at a restart, which walproof does not do without a manager",
                "set it yourself, restart, and apply the rest",
            )

    def _sessions(self, names: Sequence[str], server: Server | None) -> Sessions:
        """What opens sessions of that server, which had these names a moment ago; None: of whoever answers."""
        return partial(session_of, [self._members[name] for name in names], server.started if server else None)

    def _reload(self, sessions: Sessions, names: list[str]) -> None:
        """Reload and wait until new sessions of that server say that every entry is applied."""
        with sessions() as connection:
            row = connection.execute("SELECT clock_timestamp() AS asked, pg_reload_conf()").fetchone()
        asked = row["asked"] if row else None

        def in_effect() -> bool:
            with sessions() as fresh:
                row = fresh.execute(_IN_EFFECT, {"asked": asked, "names": names}).fetchone()
            return bool(row and row["in_effect"])

        wait_for(Wait.SETTING_IN_EFFECT, in_effect, self._clock)

    def _undone_at(
        self,
        member: str,
        mine: Sequence[Any],
        servers: dict[str, Server],
        place: Callable[[Any], str],
        reverted: Callable[[Connected, str, Any], bool],
    ) -> list[Any]:
        """Those of the changes that are over then; none of another server: who was silent at first is asked here."""
        at = servers.get(member)
        names = [member, *(one for one, server in servers.items() if at and server.started == at.started)]
        sessions = self._sessions(list(dict.fromkeys(names)), at)
        with sessions() as connection:
            if at is None:
                servers[member] = server_of(connection)
                sessions = self._sessions([member], servers[member])
            ours = [one for one in mine if place(one) == member]
            _check_system(connection, member, ours)
            over = [one for one in ours if reverted(connection, member, one)]
        if ours:
            self._reload(sessions, [one.name for one in ours])
        return over

    def undo(
        self,
        changes: Sequence[Any],
        done: Callable[[Any], None],
        reverting: Reverting,
        known: frozenset[str] = frozenset(),
    ) -> list[str]:
        """Revert, newest first; sentences about what was left because another user changed it since. `known`: servers
        on which the journal has ever noted a change.

        What is not walproof's is never set again, nor is the order of the file, which means nothing to PostgreSQL. A
        member that is gone keeps no other from being reverted; its error comes last.
        """
        left: list[str] = []
        for change in (one for one in changes if one.before == one.after):
            done(change)  # wherever its server is: a plan names what is so already too
        noted = {one.server for one in changes}
        changes = [one for one in changes if one.before != one.after]
        servers, silent = answering(self._members)
        failed: Error | None = None

        def place(change: Any) -> str:
            return where_is(change, servers, self._members, self._named, known)

        places = {member: [one for one in changes if place(one) == member] for member in map(place, changes) if member}
        rest = [one for one in changes if not place(one)]
        for member, mine in places.items():
            try:
                over = self._undone_at(member, mine, servers, place, partial(_reverted, reverting=reverting, left=left))
            except (psycopg.Error, *ODD) as wrong:
                failed = failed or as_error(member, wrong)
            else:
                rest += [one for one in mine if place(one) != member]
                for change in over:
                    done(change)
        if nowhere := dict.fromkeys(unplaced(one, servers.values(), self._named, place(one)) for one in rest):
            left += nowhere
            failed = failed or silent
        left += copies(changes, servers, places, noted)
        if failed is not None:
            # These are forgotten now: the next revert finds nothing of them.
            raise TargetError("; ".join([failed.message, *left]), failed.hint)
        return left


def _check_system(connection: Connected, member: str, changes: Sequence[Any]) -> None:
    """TargetError where who answers as that member is a server of another cluster than the one that was changed."""
    noted_on = {change.cluster for change in changes} - {""}
    if not noted_on:
        return
    if others := noted_on - {system_of(connection)}:
        raise TargetError(
            f"{member} is a server of another cluster now, and was changed on {min(others)}: left alone",
            "name that server again under [members] or in the DSN",
        )


def _reverted(connection: Connected, member: str, change: Any, *, reverting: Reverting, left: list[str]) -> bool:
    """Whether it is over: as it was, or set by another user since, which is said in `left`; else it stays pending."""
    now = auto_conf(connection).get(change.name)
    if reverting.stays(change, lambda newer: now == newer.after):
        return False
    if now == change.before:
        return True
    if now == change.after:
        alter(connection, change.name, change.before)
        reverting.tell("setting", f"{change.name} on {member}")
        return True
    if not reverting.keeps:
        left.append(f"{member}: {change.name} is {now!r} now, set by another user since: left alone")
    return not reverting.keeps


def _shown(connection: Connected, name: str) -> str | None:
    row = connection.execute("SELECT current_setting(%s, true) AS value", (name,)).fetchone()
    if row is None or row["value"] is None:
        version = connection.info.server_version // 10000
        raise UsageError(f"PostgreSQL {version} has no parameter {name}", "leave it out")
    return str(row["value"])
