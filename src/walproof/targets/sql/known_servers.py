"""Servers of a cluster without a manager: who answers as a member, and whether it is the one that was changed.

A name or an address moves with a failover, so a server is known by when its data directory was made, and by a name
only where the user gave it one (`named`)."""

import socket
import struct
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias, cast

import psycopg

from walproof.errors import ODD, Error, TargetError
from walproof.machine.quoting import pasted
from walproof.machine.sql_file import statements
from walproof.machine.untrusted import one_line
from walproof.model.guarantee import MACHINE, same_server
from walproof.model.topology import Endpoint
from walproof.targets.sql.connection import connected, connection_error

Connected: TypeAlias = "psycopg.Connection[dict[str, Any]]"
AUTO = "alter-system"
"""What a journal calls such a change, before the member's name."""
_STATEMENTS = statements("walproof.targets.sql", "observe.sql")
_AUTO, _STARTED = (_STATEMENTS[name].encode() for name in ("auto_conf", "started"))
_MADE = _STATEMENTS["may_look"].encode(), _STATEMENTS["made"].encode()
_MACHINE = _STATEMENTS["may_look_around"].encode(), _STATEMENTS["machine"].encode()
_LOOK_S = 10.0
UNTOLD = "a server that does not tell which it is"
MAY_LOOK = "GRANT EXECUTE ON FUNCTION pg_stat_file(text) TO that role"
_NAME_IT = "or name the members under [members] of a target file"


@dataclass(frozen=True, slots=True)
class Server:
    """One that answers, by whatever name."""

    made: str
    """What tells it from its cluster's others, "" where nothing does."""
    started: datetime
    conf: Mapping[str, str]
    """Its postgresql.auto.conf."""
    system: str
    """The identifier of its cluster."""


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
                    "GRANT EXECUTE ON FUNCTION pg_show_all_file_settings(), pg_reload_conf(), pg_stat_file(text) "
                    "TO {user:sql_name}; "
                    "GRANT ALTER SYSTEM ON PARAMETER … TO {user:sql_name}",
                    user=user,
                ),
            ) from None
        raise connection_error(wrong) from None


def server_of(connection: Connected) -> Server:
    """The server of that session."""
    return Server(_made(connection), _started(connection), auto_conf(connection), system_of(connection))


def system_of(connection: Connected) -> str:
    """The system identifier of that session's cluster; copies of it have the same."""
    row = connection.execute("SELECT system_identifier::text AS system FROM pg_control_system()").fetchone() or {}
    return str(row["system"])


def check_one_cluster(systems: Mapping[str, str]) -> None:
    """TargetError where places (place → system identifier) are of more than one cluster: an address may have moved."""
    if len(set(systems.values())) > 1:
        raise TargetError(
            "these are servers of different clusters: " + ", ".join(f"{at} of {one}" for at, one in systems.items()),
            "leave in the DSN and under [members] the hosts of one: what is set or loaded would reach the other too",
        )


def check_meant(at: str, system: str, meant: str) -> None:
    """TargetError where the server there, of that system identifier, is of another cluster than the one that is meant;
    "", or what is none: any.
    """
    if meant.isdecimal() and system != meant:
        raise TargetError(
            f"{at} is a server of another cluster, {system}, not {meant}",
            "let that name or address mean the cluster again",
        )


def _started(connection: Connected) -> datetime:
    row = connection.execute(_STARTED).fetchone() or {}
    return cast(datetime, row["started"])


@contextmanager
def session_of(endpoints: Sequence[Endpoint], started: datetime | None) -> Iterator[Connected]:
    """A session of the server that was started then, by the first of these addresses that is its own just now;
    TargetError where none is. None: whoever answers.
    """
    failed: Error | None = None
    for endpoint in endpoints:
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(connected(endpoint))
                same = started is None or _started(connection) == started
            except (psycopg.Error, *ODD) as wrong:
                failed = failed or as_error(str(endpoint.hosts[0][0]), wrong)
                continue
            if same:
                yield connection
                return
    address, port = endpoints[0].hosts[0]
    raise failed or TargetError(f"another server answers at {address}:{port} than a moment ago", "do it once more")


def _made(connection: Connected) -> str:
    """PG_VERSION is written once, by pg_rewind neither, and the time of its entry is copied by nothing but an image of
    the disk.
    """
    made, machine = (_looked(connection, *statements) for statements in (_MADE, _MACHINE))
    return f"{made}{MACHINE}{machine}" if made and machine else made


def _looked(connection: Connected, may: bytes, look: bytes) -> str:
    """What it answers, "" where the role may not look."""
    with suppress(psycopg.Error):  # SELinux may forbid the server to look
        may_look = connection.execute(may).fetchone() or {}
        found = connection.execute(look).fetchone() if may_look.get("may") else None
        return str((found or {}).get("server") or "")
    return ""


def made_of(endpoint: Endpoint) -> str:
    """What tells the server that answers there; "" where none does in two seconds, `UNTOLD` where nothing tells it."""
    made = ""
    with suppress(psycopg.Error, *ODD), connected(endpoint, 2.0) as connection:
        made = _made(connection)
    return made or (UNTOLD if _answers(*endpoint.hosts[0]) else "")


def _answers(host: str, port: int) -> bool:
    """Whether a server there says a byte to a request for TLS, as one does that lets nobody in."""
    with suppress(OSError), socket.create_connection((host, port), timeout=2.0) as server:
        server.sendall(struct.pack("!II", 8, 80877103))
        return bool(server.recv(1))
    return False


def as_error(member: str, wrong: Exception) -> Error:
    if isinstance(wrong, psycopg.Error):
        return connection_error(wrong)
    if isinstance(wrong, Error):
        return wrong
    return TargetError(f"{member} answers oddly: {one_line(wrong, 200)}", "is it that member?")


def told_apart(
    members: Mapping[str, Endpoint], named: Container[str], system: str = ""
) -> list[tuple[list[str], Server]]:
    """Every server with its names, that the user gave first; TargetError where one would not be known again, or is
    of another cluster than the others or `system`. `made` is "" where nothing tells it but that name.
    """
    servers: dict[datetime, tuple[list[str], Server]] = {}
    for member, endpoint in members.items():
        with connected(endpoint) as connection:
            one, user = server_of(connection), connection.info.user
        if not one.made and member not in named:
            raise TargetError(
                f"role {user} cannot tell {member} from other servers, to which its name may move, so nothing is set",
                pasted("as superuser: GRANT EXECUTE ON FUNCTION pg_stat_file(text) TO {user:sql_name}", user=user)
                + f"; {_NAME_IT}",
            )
        names, _ = servers.setdefault(one.started, ([], one))
        names.insert(0 if member in named else len(names), member)
    check_one_cluster({names[0]: one.system for names, one in servers.values()})
    for names, one in servers.values():
        check_meant(names[0], one.system, system)
    alike = Counter(one.made for _, one in servers.values())
    told = [(names, one if alike[one.made] == 1 else replace(one, made="")) for names, one in servers.values()]
    if unknown := [names[0] for names, one in told if not one.made and names[0] not in named]:
        raise TargetError(
            f"nothing tells {' from '.join(unknown)}: both were made in one second, in folders of one name",
            f"{_NAME_IT}; or run chmod 0600 PG_VERSION in the data directory of one",
        )
    return told


def answering(members: Mapping[str, Endpoint]) -> tuple[dict[str, Server], Error | None]:
    """Servers of the members that answer, and the first error."""
    servers, failed = {}, None
    for member, endpoint in members.items():
        try:
            with connected(endpoint, _LOOK_S) as connection:
                servers[member] = server_of(connection)
        except (psycopg.Error, *ODD) as wrong:
            failed = failed or as_error(member, wrong)
    return servers, failed


def where_is(
    change: Any, servers: Mapping[str, Server], members: Container[str], named: Container[str], known: Iterable[str]
) -> str:
    """Where the server that was changed answers now, by whatever name; else the member that the user named so, who may
    have made it anew, unless one of the `known` others answers so; "" else. What 1.0.0 noted tells no server: the
    member of that name.
    """
    name = _member(change)
    there = [(one.started, member) for member, one in servers.items() if same_server(one.made, change.server)]
    if len({started for started, _ in there}) == 1:
        return there[0][1]
    here = servers[name].made if name in servers else ""
    if change.server and any(same_server(here, other) and not same_server(here, change.server) for other in known):
        return ""
    return name if name in named or (not change.server and name in members) else ""


def _member(change: Any) -> str:
    return str(change.kind.removeprefix(f"{AUTO} "))


def unplaced(change: Any, servers: Iterable[Server], named: Container[str], since: str) -> str:
    """The sentence about a change whose server does not answer, or is not known to; `since`: or does so as by now."""
    if since:
        return f"{_member(change)}: {change.name} was not reverted yet: its server answers as {since} by now, once more"
    if not change.server:
        return f"{change.kind} {change.name}: no such member here, stays in the journal until [members] names it"
    again = "Let that name under [members] mean it again" if _member(change) in named else "Name it under [members]"
    may_look = "" if all(one.made for one in servers) else " (this role may not call pg_stat_file(text))"
    return (
        f"{_member(change)}: {change.name} was changed on {change.server}, and no server that answers is known to be"
        f" that one{may_look}: nothing is set. {again}; or set it to {change.before!r} there, and"
        " remove the journal"
    )


def copies(
    changes: Sequence[Any], servers: Mapping[str, Server], undone: Iterable[str], known: Iterable[str]
) -> Iterator[str]:
    """Sentences about servers that are not `known`, of any change, and have what was set: made of one that had it."""
    reverted = {servers[member].started for member in undone if member in servers}
    others = {
        member: one
        for member, one in servers.items()
        if one.started not in reverted and not any(same_server(one.made, other) for other in known)
    }
    for name, value in dict.fromkeys((change.name, change.after) for change in changes):
        for member in (m for m, one in others.items() if value is not None and one.conf.get(name) == value):
            yield f"{member}: {name} is {value!r} too, which was not set there; it may be a copy: left alone"
