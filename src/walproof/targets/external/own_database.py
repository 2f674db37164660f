"""walproof's own database on an external cluster: made anew in each run, closed to others, removed.

Its name is random, and in this user's journal before the database is made: no other role can have made it beforehand.
What is dropped is what the journal names, and only where the role owns it that made it. A comment decides nothing.

Template: template1, because administrators put extensions there (amcheck). On PostgreSQL 14 every role may create in
its schema public, so the copy is looked at while only its maker and superusers may enter: where a role that is no
superuser owns anything in it, it is dropped unused, and one of template0, which nobody can change, is made instead."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from walproof.errors import MachineError, TargetError, WaitTimeout
from walproof.load.own_tables import refuse_shared
from walproof.machine.quoting import pasted
from walproof.machine.sql_file import statements
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.connection import connected, connection_error
from walproof.targets.sql.known_servers import Connected, check_meant, system_of

_NAME = re.compile(r"walproof_[0-9a-f]{32}")
_COMMENT = "made by walproof; safe to drop"
"""For people; earlier versions decided by it."""
_ROLE = re.compile(r"walproof_[0-9a-f]{8}")
"""A role of walproof's own, on CloudNativePG."""
_DRAFT = re.compile(r"walproof_draft_[0-9a-f]{32}")
"""What earlier versions called theirs while it was being made."""
_END = """\
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
 WHERE pid <> pg_backend_pid() AND usename = current_user AND query LIKE %(statement)s"""
_STATEMENTS = {name: text.encode() for name, text in statements("walproof.targets.sql", "ledger.sql").items()}
_STRANGERS = sql.SQL(statements("walproof.targets.sql", "ledger.sql")["strangers"])
_TEMPLATES = ("template1", "template0")


def new_name() -> str:
    """A name no other database has, and nobody can guess."""
    return f"walproof_{secrets.token_hex(16)}"


def is_there(endpoint: Endpoint, name: str) -> bool:
    with _session(endpoint) as connection:
        return _row(connection, name) is not None


def check_system(endpoint: Endpoint, system: str) -> None:
    """TargetError where another cluster's server answers there; `system`: see `remove`."""
    with _session(endpoint, system):
        pass


def make(leader: Endpoint, name: str, system: str) -> None:
    """Make it, so that no role but this one and superusers can ever connect; TargetError when the role may not, or
    another cluster's server answers there; `system`: see `remove`.
    """
    with _session(leader, system) as connection:
        refuse_shared(connection)
        try:
            # Its own commits wait for no standby: where one is missing it must not hang.
            connection.execute("SET synchronous_commit = local")
            for template in _TEMPLATES:
                with suppress(psycopg.errors.ObjectInUse):
                    _create(connection, name, template)
                    if not _strangers(replace(leader, database=name)):
                        return
                    _drop(connection, name)
        except psycopg.errors.InsufficientPrivilege:
            user = connection.info.user
            raise TargetError(
                f"role {user} may not make walproof's own database",
                pasted("as superuser: ALTER ROLE {user:sql_name} CREATEDB", user=user),
            ) from None
        except psycopg.Error as wrong:
            raise TargetError(f"walproof's database cannot be made: {' '.join(str(wrong).split())}", "") from None
    raise TargetError(
        "walproof's database cannot be made: other sessions are in its templates, or other roles made things in both",
        "end these sessions; drop what roles that are no superusers own in template1",
    )


def _create(connection: "psycopg.Connection[Any]", name: str, template: str) -> None:
    """Nobody connects before PUBLIC's right to do so is gone."""
    own = sql.Identifier(name)
    for statement in (
        sql.SQL("CREATE DATABASE {} TEMPLATE {} ALLOW_CONNECTIONS false").format(own, sql.Identifier(template)),
        sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(own),
        # A DSN may ask for another role than the one that logs in, which then owns it.
        sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO SESSION_USER").format(own),
        sql.SQL("COMMENT ON DATABASE {} IS {}").format(own, sql.Literal(_COMMENT)),
        sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(own),
    ):
        connection.execute(statement)
    row = connection.execute(_STATEMENTS["database"], {"name": name}).fetchone()
    if row is None or row["owner"] != row["me"]:
        raise TargetError("walproof's database was replaced while it was being made", "who else is superuser there?")


def _strangers(inside: Endpoint) -> list[str]:
    """Roles that are no superusers and own something in it; TargetError where it cannot be entered."""
    with connected(inside) as connection:
        columns = connection.execute(_STATEMENTS["owned"]).fetchall()
        one = sql.SQL("SELECT {0}, to_jsonb(c) FROM {1} c WHERE {0} <> 10")  # the bootstrap superuser
        owned = [one.format(sql.Identifier(row["owner"]), sql.Identifier(row["catalog"])) for row in columns]
        asked = _STRANGERS.format(owned=sql.SQL("({})").format(sql.SQL(" UNION ").join(owned)))
        return [str(row["name"]) for row in connection.execute(asked).fetchall()]


def arrived(standbys: dict[str, Endpoint], name: str, clock: Clock) -> None:
    """Wait until every standby has replayed its making; WaitTimeout names the one that has not."""
    for member, endpoint in standbys.items():
        try:
            wait_for(Wait.SETTING_IN_EFFECT, partial(is_there, endpoint, name), clock)
        except WaitTimeout as wrong:
            raise WaitTimeout(
                f"the standby {member} has not replayed the making of the database {name}: {wrong.message}",
                pasted(
                    "on {member:words}: SELECT pg_get_wal_replay_pause_state(), pg_last_wal_receive_lsn(), "
                    "pg_last_wal_replay_lsn(); its log says why it does not go on",
                    member=member,
                ),
            ) from None


def remove(leader: Endpoint, name: str, after: str | None, system: str = "") -> tuple[list[str], list[str]]:
    """Drop what a journal's entry names, with everything in it, whoever is connected.

    The names of what was dropped, and sentences about what is there and not dropped: only what the role owns that asks
    is, or, where a superuser asks, what the role owns that the entry names. What is gone is in neither. TargetError
    where the server is not of the cluster of that system identifier: nothing is gone there ("", or what is none: any).
    """
    dropped, stay = [], []
    with _session(leader, system) as connection:
        for database, maker in _noted(connection, name, after):
            # The server may still be making it, for a client that was killed.
            connection.execute(_END, {"statement": f"%{database}%"})
            row = _row(connection, database)
            if row is None:
                continue
            if row["owner"] == row["me"] or (row["superuser"] and row["owner"] == maker):
                _drop_now(connection, database)
                dropped.append(database)
            else:
                statement = pasted("DROP DATABASE {name:sql_name} WITH (FORCE)", name=database)
                owner = row["owner"]
                stay.append(f"database {database} stays: {owner} owns it, not {row['me']}; as {owner}: {statement}")
    return dropped, stay


def _noted(connection: Connected, name: str, after: str | None) -> Iterator[tuple[str, str | None]]:
    """The databases that a journal's entry means, each with the role that made it, None for the one that asks.

    `name` is a database of the role `after`, or a role of walproof's own whose journal is lost. Entries of earlier
    versions name the database and, as `after`, the random name under which it was made; the comment, made in one
    transaction with the renaming, held that name too: it keeps a database that another run has made since.
    """
    if _NAME.fullmatch(name):
        yield name, after
    elif _ROLE.fullmatch(name):
        yield from ((one, name) for one in _owned(connection, name))
    else:
        if after and _DRAFT.fullmatch(after):
            yield after, None
        if (_row(connection, name) or {}).get("comment") in (_COMMENT, f"{_COMMENT}: {after}"):
            yield name, None


def left(endpoint: Endpoint, name: str) -> list[str]:
    """The databases there of a journal's entry of that name."""
    with _session(endpoint) as connection:
        if _ROLE.fullmatch(name):
            return _owned(connection, name)
        return [name] if _row(connection, name) else []


def _owned(connection: Connected, role: str) -> list[str]:
    rows = connection.execute(_STATEMENTS["databases_of_role"], {"role": role}).fetchall()
    return [str(row["name"]) for row in rows]


def _row(connection: Connected, name: str) -> dict[str, Any] | None:
    return connection.execute(_STATEMENTS["database"], {"name": name}).fetchone()


@contextmanager
def _session(endpoint: Endpoint, system: str = "") -> Iterator[Connected]:
    """TargetError where the server ends meanwhile, or is of another cluster than `system`, see `remove`."""
    with connected(endpoint) as connection:
        try:
            if system.isdecimal():
                check_meant(":".join(map(str, endpoint.hosts[0])), system_of(connection), system)
            yield connection
        except psycopg.Error as wrong:
            raise connection_error(wrong) from None


def _drop_now(connection: Connected, name: str) -> None:
    try:
        connection.execute("SET synchronous_commit = local")
        _drop(connection, name)
    except psycopg.Error as wrong:
        is_refused = isinstance(wrong, psycopg.errors.InsufficientPrivilege)
        raise (MachineError if is_refused else TargetError)(
            f"walproof's database {name} stays: {' '.join(str(wrong).split())}",
            f"DROP DATABASE {name} WITH (FORCE)",
        ) from None


def _drop(connection: "psycopg.Connection[Any]", name: str) -> None:
    connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
