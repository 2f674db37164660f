"""walproof's own database on an external cluster: made, marked, removed.

It is made under a random name that the journal holds beforehand, and gets its own name and the mark in one transaction:
whenever a run is killed, what it left is known by that random name or by the mark. One without our mark stays."""

import re
import secrets
from contextlib import suppress
from functools import partial
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from walproof.errors import MachineError, TargetError, WaitTimeout
from walproof.machine.sql_file import statements
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.connection import connected, connection_error

MARK = "made by walproof; safe to drop"
_DRAFT = "walproof_draft_"
_END = """\
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
 WHERE pid <> pg_backend_pid() AND usename = current_user AND query LIKE %(statement)s"""
_WHOSE = statements("walproof.targets.sql", "ledger.sql")["database_mark"].encode()


def _row(endpoint: Endpoint, name: str) -> dict[str, Any] | None:
    return _asked(endpoint, _WHOSE, {"name": name})


def _asked(endpoint: Endpoint, query: LiteralString | bytes, words: dict[str, str]) -> dict[str, Any] | None:
    """The first row; TargetError where the server ends meanwhile."""
    with connected(endpoint) as connection:
        try:
            return connection.execute(query, words).fetchone()
        except psycopg.Error as wrong:
            raise connection_error(wrong) from None


def whose(endpoint: Endpoint, name: str) -> str | None:
    """The comment of the database of that name, "" when it has none, None when there is no such database."""
    row = _row(endpoint, name)
    return None if row is None else str(row["comment"] or "")


def draft_name() -> str:
    """A name no other database has, for ours while it is being made."""
    return f"{_DRAFT}{secrets.token_hex(16)}"


def is_missing(leader: Endpoint, name: str) -> bool:
    """Whether it has to be made; MachineError when one without our mark is there, or one of another run's role."""
    row = _row(leader, name)
    if row is None:
        return True
    if not str(row["comment"]).startswith(MARK):
        raise MachineError(
            f"the database {name} is not walproof's, so it is left alone",
            'rename it, or name another one: database = "…" in the target file',
        )
    if not row["ours"]:
        raise MachineError(
            f"another run of walproof is at work on this cluster, or was killed: the database {name} is its role's"
            f" ({row['owner']})",
            "wait for its end; where it was killed: walproof revert",
        )
    return False


def make(leader: Endpoint, name: str, draft: str) -> None:
    """Make it, as `draft` until it carries our mark; TargetError when the role may not, or the name is taken."""
    with connected(leader) as connection:
        try:
            # Its own commits wait for no standby: where one is missing it must not hang.
            connection.execute("SET synchronous_commit = local")
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(draft)))
            ours, mark = sql.Identifier(draft), sql.Literal(f"{MARK}: {draft}")
            with connection.transaction():
                connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(ours, mark))
                connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(ours, sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            user = connection.info.user
            raise TargetError(
                f"role {user} may not make walproof's own database", f'as superuser: ALTER ROLE "{user}" CREATEDB'
            ) from None
        except psycopg.Error as wrong:
            with suppress(psycopg.Error):
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(draft)))
            raise TargetError(f"walproof's database cannot be made: {' '.join(str(wrong).split())}", "") from None


def arrived(standbys: dict[str, Endpoint], name: str, clock: Clock) -> None:
    """Wait until every standby has replayed its making; WaitTimeout names the one that has not."""
    for member, endpoint in standbys.items():
        try:
            wait_for(Wait.SETTING_IN_EFFECT, partial(_there, endpoint, name), clock)
        except WaitTimeout as wrong:
            raise WaitTimeout(
                f"the standby {member} has not replayed the making of the database {name}: {wrong.message}",
                f"on {member}: SELECT pg_get_wal_replay_pause_state(), pg_last_wal_receive_lsn(), "
                "pg_last_wal_replay_lsn(); its log says why it does not go on",
            ) from None


def _there(endpoint: Endpoint, name: str) -> bool:
    return whose(endpoint, name) is not None


def remove_draft(leader: Endpoint, draft: str) -> bool:
    """Drop what a killed run left under the random name of its journal; whether there was one. No other name."""
    if not re.fullmatch(f"{_DRAFT}[0-9a-f]{{32}}", draft):
        return False
    # The server may still be at it: without the client, but with the statement.
    _asked(leader, _END, {"statement": f"%{draft}%"})
    if whose(leader, draft) is None:
        return False
    _drop(leader, draft)
    return True


def remove(leader: Endpoint, name: str, draft: str | None = None) -> bool:
    """Drop it with everything in it, where it carries our mark; `draft`: and was made under that name.

    Returns whether there was one.
    """
    mark = whose(leader, name) or ""
    # The mark of earlier versions is alone.
    if not mark.startswith(MARK) or (draft is not None and mark not in (MARK, f"{MARK}: {draft}")):
        return False
    _drop(leader, name)
    return True


def _drop(leader: Endpoint, name: str) -> None:
    with connected(leader) as connection:
        try:
            connection.execute("SET synchronous_commit = local")
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        except psycopg.Error as wrong:
            is_refused = isinstance(wrong, psycopg.errors.InsufficientPrivilege)
            raise (MachineError if is_refused else TargetError)(
                f"walproof's database {name} stays: {' '.join(str(wrong).split())}",
                f"DROP DATABASE {name} WITH (FORCE)",
            ) from None
