"""Tables that walproof makes and writes to: of this user, changed by nobody else and sent nowhere, or it refuses them.

A comment proves nothing: any owner may write one. What proves is the catalogue, read under a lock: owners, triggers,
rules, policies, inheritance, defaults, rights by which another role could add one of these later, publications."""

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from walproof.errors import MachineError
from walproof.machine.sql_file import statements

SCHEMA = "walproof"
_STATEMENTS = {name: text.encode() for name, text in statements("walproof.load", "own_tables.sql").items()}
_LOCK_WITHIN = "10s"


def comment_on(connection: "psycopg.Connection[Any]", table: str, mark: str) -> str | None:
    """The comment on a table of walproof's, which begins with `mark`, looked at under a lock; None where there is none.

    Call it in a transaction: its lock is held to the end of it, so what is written in it goes where was looked. As the
    table's and its schema's owner is this user and no other role has a right to add a trigger, this holds afterwards
    too. MachineError says what is another's.
    """
    refuse_shared(connection)
    _check_schema(connection, table)
    if (before := _seen(connection, table)) is None:
        return None
    if not before[1].startswith(mark):
        # Of this user, who may have made it for another purpose.
        raise _refusal(table, f'its comment is not "{mark}"')
    connection.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", (_LOCK_WITHIN,))
    connection.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(_name(table)))
    if _seen(connection, table) != before:
        raise _refusal(table, "another session replaced it while walproof looked at it")
    return before[1]


def make(connection: "psycopg.Connection[Any]", table: str, statement: bytes) -> None:
    """Make a table of schema walproof, and the schema where there is none, in a transaction; others get no right.

    Default privileges of this user could give other roles TRIGGER on what is made here: they are taken back.
    """
    if _check_schema(connection, table) is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
    connection.execute(statement)
    for kind, place in (("SCHEMA", sql.Identifier(SCHEMA)), ("TABLE", _name(table))):
        for (grantee,) in connection.execute(_STATEMENTS[f"grantees_of_{kind.lower()}"], {"table": table}).fetchall():
            role = sql.SQL("PUBLIC") if grantee is None else sql.Identifier(grantee)
            revoke = "REVOKE ALL ON {} {} FROM {}" if kind == "TABLE" else "REVOKE CREATE ON {} {} FROM {}"
            connection.execute(sql.SQL(revoke).format(sql.SQL(kind), place, role))
    _check_schema(connection, table)
    if _seen(connection, table) is None:
        raise _refusal(table, "another session removed it while walproof made it")


def refuse_shared(connection: "psycopg.Connection[Any]") -> None:
    """MachineError where the DSN asks for a role that others may become: what they put into its tables runs as us."""
    row = connection.cursor(row_factory=tuple_row).execute(_STATEMENTS["sharer"]).fetchone()
    if row is not None:
        other, owner, login = map(str, row)
        raise MachineError(
            f"{other} may act as {owner}, which the DSN asks for, and would own what walproof makes: triggers in it"
            f" would run with the rights of {login}",
            "leave role out of the DSN's options, or ask for a role that nobody else is member of",
        )


def has_schema(connection: "psycopg.Connection[Any]") -> bool:
    """Whether there is a schema walproof; MachineError where it is another's."""
    return _check_schema(connection, f"{SCHEMA}.") is not None


def _check_schema(connection: "psycopg.Connection[Any]", table: str) -> bool | None:
    """None where there is no schema walproof, or the table has none; MachineError where another owns or fills it."""
    if not table.startswith(f"{SCHEMA}."):
        return None
    row = connection.execute(_STATEMENTS["schema"]).fetchone()
    if row is None:
        return None
    if row[0]:
        raise MachineError(
            f"the schema {SCHEMA} is not walproof's, so nothing is written to it: {row[0]}",
            "look at what is in it, then drop it or rename it",
        )
    return True


def _seen(connection: "psycopg.Connection[Any]", table: str) -> tuple[int, str] | None:
    """The table's oid and comment; None where there is none, MachineError where it is not this user's alone."""
    row = connection.execute(_STATEMENTS["table"], {"table": table}).fetchone()
    if row is None:
        return None
    if row[1]:
        raise _refusal(table, str(row[1]))
    return int(row[0]), str(row[2])


def _name(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def _refusal(table: str, why: str) -> MachineError:
    return MachineError(
        f"the table {table} is not walproof's alone, so it is left alone: {why}", "rename it, or name another database"
    )
