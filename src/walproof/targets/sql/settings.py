"""Settings over SQL: those a record keeps, whether two values are one, and ALTER SYSTEM on each member.

A change is journaled before, awaited, its value put back as it was; what another operator has changed since stays."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from walproof.errors import ODD, Error, TargetError, UsageError
from walproof.machine.quoting import pasted
from walproof.machine.sql_file import statements
from walproof.machine.untrusted import one_line
from walproof.model.guarantee import SERVER, WHEN, Difference
from walproof.model.ports import Clock, Notebook, Reverting
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.connection import connected, connection_error

Connected: TypeAlias = "psycopg.Connection[dict[str, Any]]"

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


AUTO = "alter-system"
"""What a journal calls such a change, before the member's name."""
_STATEMENTS = statements("walproof.targets.sql", "observe.sql")
_AUTO = _STATEMENTS["auto_conf"].encode()
_IN_EFFECT = _STATEMENTS["in_effect"].encode()
_MAY_LOOK, _MADE, _PLACE = (_STATEMENTS[name].encode() for name in ("may_look", "made", "place"))
_LEADS = re.compile(r"(.*), leader of timeline (\d+)")


def auto_conf(connection: Connected) -> dict[str, str]:
    """postgresql.auto.conf as name → value, names in small letters; TargetError names the right that is missing."""
    try:
        return {row["name"]: row["value"] for row in connection.execute(_AUTO).fetchall()}
    except psycopg.Error as wrong:
        if isinstance(wrong, psycopg.errors.InsufficientPrivilege):
            user = connection.info.user
            raise TargetError(
                f"role {user} may not read postgresql.auto.conf or change settings",
                pasted(
                    "use a superuser, or as one: GRANT pg_read_all_settings TO {user:sql_name}; "
                    "GRANT SELECT ON pg_file_settings TO {user:sql_name}; "
                    "GRANT EXECUTE ON FUNCTION pg_show_all_file_settings(), pg_reload_conf() TO {user:sql_name}; "
                    "GRANT ALTER SYSTEM ON PARAMETER … TO {user:sql_name}",
                    user=user,
                ),
            ) from None
        raise connection_error(wrong) from None


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


def _as_error(member: str, wrong: Exception) -> Error:
    if isinstance(wrong, psycopg.Error):
        return connection_error(wrong)
    if isinstance(wrong, Error):
        return wrong
    return TargetError(f"{member} answers oddly: {one_line(wrong, 200)}", "is it that member?")


class AutoConf:
    """Changes parameters of servers without a manager, by ALTER SYSTEM on each member."""

    def __init__(self, target: str, clock: Clock, members: Mapping[str, Endpoint]) -> None:
        self._target, self._clock, self._members = target, clock, members

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
        """Set on every member, each change journaled before, and wait until every one is in effect."""
        for member, endpoint in self._members.items():
            with connected(endpoint) as connection:
                self._refuse_restart(connection, wanted)
                now, what = auto_conf(connection), f"{AUTO} {member}{SERVER}{WHEN.join(_server(connection))}"
                for name, value in wanted.items():
                    before = now.get(name)
                    change = journal.note(self._clock.now(), self._target, what, name, before=before, after=value)
                    if auto_conf(connection).get(name) != before:
                        # By a revert that ended just before it was noted: what it put back would be lost.
                        journal.undone(change)
                        raise TargetError(f"{name} of {member} was changed meanwhile", "do it once more")
                    alter(connection, name, value)
            self._reload(member, list(wanted))

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

    def _reload(self, member: str, names: list[str]) -> None:
        """Reload and wait until new sessions of that member say that every entry is applied."""
        with connected(self._members[member]) as connection:
            row = connection.execute("SELECT clock_timestamp() AS asked, pg_reload_conf()").fetchone()
        asked = row["asked"] if row else None

        def in_effect() -> bool:
            with connected(self._members[member]) as fresh:
                row = fresh.execute(_IN_EFFECT, {"asked": asked, "names": names}).fetchone()
            return bool(row and row["in_effect"])

        wait_for(Wait.SETTING_IN_EFFECT, in_effect, self._clock)

    def undo(self, changes: Sequence[Any], done: Callable[[Any], None], reverting: Reverting) -> list[str]:
        """Revert, newest first; sentences about what was left because another user changed it since.

        What is not walproof's is never set again, nor is the order of the file, which means nothing to PostgreSQL. A
        member that is gone keeps no other from being reverted; its error comes last.
        """
        left: list[str] = []
        failed: Error | None = None
        servers = self._servers() if any(change.server for change in changes) else {}
        where = [(change, self._where(change, servers)) for change in changes]
        for member, endpoint in self._members.items():
            mine = [change for change, there in where if there == member]
            if not mine:
                continue
            try:
                with connected(endpoint) as connection:
                    _check_system(connection, member, mine)
                    here = _server(connection) if any(one.server for one in mine) else ("", "")
                    over = [one for one in mine if _reverted(connection, (member, *here), one, reverting, left)]
                self._reload(member, [c.name for c in mine])
            except (psycopg.Error, *ODD) as wrong:
                failed = failed or _as_error(member, wrong)
            else:
                for change in over:
                    done(change)
        left += [
            f"{change.kind} {change.name}: no such member here, stays in the journal until [members] names it"
            for change, there in where
            if there is None
        ]
        if failed is not None:
            # These are forgotten now: the next revert finds nothing of them.
            raise TargetError("; ".join([failed.message, *left]), failed.hint)
        return left

    def _servers(self) -> dict[str, str]:
        """What tells the servers of those members that answer."""
        servers = {}
        for member, endpoint in self._members.items():
            with suppress(psycopg.Error, *ODD), connected(endpoint) as connection:
                servers[member] = _server(connection)[0]
        return servers

    def _where(self, change: Any, servers: Mapping[str, str]) -> str | None:
        """Where the server that was changed answers now, by whatever name, or else the member of the name then."""
        name = change.kind.removeprefix(f"{AUTO} ")
        there = [member for member, server in servers.items() if server == change.server]
        return there[0] if len(there) == 1 else name if name in self._members else None


def _check_system(connection: Connected, member: str, changes: Sequence[Any]) -> None:
    """TargetError where who answers as that member is a server of another cluster than the one that was changed."""
    noted_on = {change.cluster for change in changes} - {""}
    if not noted_on:
        return
    row = connection.execute("SELECT system_identifier::text AS system FROM pg_control_system()").fetchone()
    if others := noted_on - {row["system"] if row else ""}:
        raise TargetError(
            f"{member} is a server of another cluster now, and was changed on {min(others)}: left alone",
            "name that server again under [members] or in the DSN",
        )


def _reverted(
    connection: Connected, at: tuple[str, str, str], change: Any, reverting: Reverting, left: list[str]
) -> bool:
    """Whether it is over: as it was, or set by another user since, which is said in `left`; else it stays pending.
    `at`: the member's name, and as `_server` tells it, "" where no change was noted with that.

    Also where another server answers than was changed, which may have it still: a name, and an address that follows
    the leader, move with a failover.
    """
    (member, *here), now = at, auto_conf(connection).get(change.name)
    if reverting.stays(change, lambda newer: now == newer.after):
        return False
    if now == change.before == change.after:
        return True
    if change.server and (elsewhere := _may_be_another(change, now, *here)):
        left.append(
            f"{member} is {elsewhere} now, and {change.name} was changed on {change.server}, {change.when}: nothing is"
            f" set here, where it is {now!r}; name that server under [members], or look into its postgresql.auto.conf"
            " and remove the journal"
        )
        return False
    if now == change.after:
        alter(connection, change.name, change.before)
        reverting.tell("setting", f"{change.name} on {member}")
    elif now != change.before:
        if reverting.keeps:
            return False
        left.append(f"{member}: {change.name} is {now!r} now, set by another user since: left alone")
    return True


def _may_be_another(change: Any, value: str | None, server: str, when: str) -> str:
    """The server that answers with that value, where that may be another one than was changed; "" else.

    A name, or an address that follows the leader, moves with a failover: then both lead, on two timelines. One that
    was made anew, or whose files changed their owner, is the one of its name. One that leads again is known by what
    tells it, its address, and the value that it was given.
    """
    then, now = _LEADS.fullmatch(change.when), _LEADS.fullmatch(when)
    if then is None or now is None or then[2] == now[2]:
        return ""
    is_known = value == change.after and (change.server, then[1]) == (server, now[1])
    return "" if is_known else f"{server}, {when}"


def _server(connection: Connected) -> tuple[str, str]:
    """What tells it from the cluster's others: when its directory was made; where it is, and whether it leads.

    PG_VERSION is written once, and the time of its entry is copied by nothing but an image of the disk; so is the
    machine's /etc/machine-id, whose time tells two that were made in one second.
    """
    made = None
    with suppress(psycopg.Error):  # SELinux may forbid the server to look
        may_look = connection.execute(_MAY_LOOK).fetchone() or {}
        made = connection.execute(_MADE).fetchone() if may_look.get("may") else None
    place = connection.execute(_PLACE).fetchone() or {"place": "", "folder": "", "leads": ""}
    server = made["server"] if made and made["server"] else f"{place['place']} {place['folder']}"
    return str(server), f"{place['place']}{place['leads']}"


def _shown(connection: Connected, name: str) -> str | None:
    row = connection.execute("SELECT current_setting(%s, true) AS value", (name,)).fetchone()
    if row is None or row["value"] is None:
        version = connection.info.server_version // 10000
        raise UsageError(f"PostgreSQL {version} has no parameter {name}", "leave it out")
    return str(row["value"])
