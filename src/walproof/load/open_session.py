"""Opens a session of walproof's own: no setting of the database's owner or of the role ends it or names what it runs.

What PostgreSQL 14 knows comes with the connection (`model.session_settings`); an unknown name there would refuse it.
So transaction_timeout, which 17 added, is taken back first of all once the server has said its version. A pooler may
drop what comes with the connection without a word: that it is in effect is asked before anything else is."""

import secrets
from time import monotonic
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import RowFactory, tuple_row

from walproof.machine.answering import BoundedLogin, answering

_SINCE = 170000
_ANSWER_S = 2.0
_NO_SUCH_DATABASE = "no such database"
_ENDED = "due to transaction timeout"
_NO_LIMIT = "-c transaction_timeout=0"
_PATH = "-c search_path=pg_catalog"
_PROOF = "walproof.session"
_DROPPED = "the startup parameter options was dropped (ignore_startup_parameters of PgBouncer)"


def open_session(
    conninfo: str, row_factory: RowFactory[Any] = tuple_row, *, prepare_threshold: int | None = 5
) -> "psycopg.Connection[Any]":
    """A connection in autocommit; psycopg.Error where there is none, or where its options do not arrive.

    Whoever drops them, a pooler, cannot show what nobody else knows; a search_path that fits may be the owner's.
    """
    options, proof = str(conninfo_to_dict(conninfo).get("options") or ""), ""
    if _PATH in options:
        proof = secrets.token_hex(8)
        options = f"{options} -c {_PROOF}={proof}"
        conninfo = make_conninfo(conninfo, options=options)

    def connection(words: str) -> "psycopg.Connection[Any]":
        return BoundedLogin.connect(
            words, autocommit=True, row_factory=row_factory, prepare_threshold=prepare_threshold
        )

    opened, version, began = None, 0, monotonic()
    try:
        opened = connection(conninfo)
        version = opened.info.server_version
        _prepare(opened, proof)
    except psycopg.Error as wrong:
        # A reset takes the server's last words along.
        is_limit = version >= _SINCE and opened is not None and opened.broken and monotonic() - began < _ANSWER_S
        if opened is not None:
            opened.close()
        if not (is_limit or isinstance(wrong, errors.TransactionTimeout) or _ENDED in str(wrong)):
            raise
        # So short that it has ended the login, or this very statement: the server is known by now to have the setting.
        opened = connection(make_conninfo(conninfo, options=f"{options} {_NO_LIMIT}".strip()))
        try:
            _prepare(opened, proof)
        except BaseException:
            opened.close()
            raise
    return opened


def _prepare(opened: "psycopg.Connection[Any]", proof: str) -> None:
    """Statements that look no name up: what a database's owner has put into his search_path would run."""
    with answering(opened, _ANSWER_S), opened.cursor(row_factory=tuple_row) as cursor:
        if opened.info.server_version >= _SINCE:
            cursor.execute("SET transaction_timeout = 0")
        if proof and not _has_arrived(cursor, proof):
            opened.close()
            raise psycopg.OperationalError(_DROPPED)


def _has_arrived(cursor: "psycopg.Cursor[Any]", proof: str) -> bool:
    try:
        return cursor.execute(f"SHOW {_PROOF}".encode()).fetchall() in ([(proof,)], [(proof.encode(),)])
    except errors.UndefinedObject:
        return False


def hint_of_refused_database(printed: str) -> str | None:
    """What to type where PgBouncer refuses a database (client.c: "no such database"): it must take any name.

    >>> hint_of_refused_database("FATAL:  no such database: walproof_0") is not None
    True
    """
    if _NO_SUCH_DATABASE not in printed:
        return None
    return "walproof's own database has a new name in each run: in pgbouncer.ini, [databases] * = host=… port=…"
