"""The new primary: who it is, where its timeline forked, read-only sessions. Reads only."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from walproof.errors import Error
from walproof.model.units import lsn_text
from walproof.salvaging.data_directory import small_text
from walproof.salvaging.refusals import refused
from walproof.salvaging.server import QUERIES, SESSION
from walproof.salvaging.timelines import PAGE, Span, read_history

_OF_SUPERUSERS = ("session_preload_libraries", "dynamic_library_path")


@contextmanager
def session(dsn: str, **more: str) -> Iterator["psycopg.Connection[Any]"]:
    """A session in autocommit, read-only; a refusal for what is no DSN, where nobody answers or refuses."""
    ours = (f"-c {name}={value}" for name, value in SESSION.items() if name not in _OF_SUPERUSERS)
    try:
        words = make_conninfo(dsn, **{"application_name": "walproof salvage", "connect_timeout": "10", **more})
    except psycopg.ProgrammingError:
        raise refused("no-dsn") from None
    try:
        with closing(psycopg.connect(words, options=" ".join(ours), autocommit=True)) as opened:
            if "replication" not in more:
                # A database's owner may have set another for all sessions: that of a superuser would seem to be none.
                opened.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(opened.info.user)))
            yield opened
    except psycopg.Error as wrong:
        raise refused("no-answer", why=wrong) from None


def identity(dsn: str) -> tuple[int, int, int]:
    """System identifier, timeline and major version of a primary; a refusal for a standby."""
    with session(dsn) as asked:
        (system, is_standby, major, is_superuser), *_ = asked.execute(QUERIES["identity"]).fetchall()
        if is_standby:
            raise refused("standby")
        if is_superuser:
            # Planning a query runs the functions of a table's index predicates, which its owner wrote.
            raise refused("superuser")
        (name,), *_ = asked.execute("SELECT pg_walfile_name(pg_current_wal_insert_lsn())").fetchall()
    return int(system), int(str(name)[:8], 16), int(major)


def history(dsn: str, timeline: int, archive: Path | None) -> tuple[Span, ...]:
    """The spans of its history: from the archive, or over the replication protocol, which asks for REPLICATION."""
    name = f"{timeline:08X}.history"
    text = small_text(archive, name) if archive else ""
    if not text and timeline > 1:
        with suppress(Error), session(dsn, replication="database") as opened:
            result = opened.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
            text = (result.get_value(0, 1) or b"").decode(errors="replace") if result.ntuples else ""
    if not text and timeline > 1:
        raise refused("history-refused", what=name)
    return read_history(timeline, text)


def wal_before(dsn: str, timeline: int, end: int) -> bytes:
    """The last WAL of a timeline before a position, as the new primary holds it; b"" where it does not hand it out."""
    start = max(end - PAGE, 0)
    with suppress(Error), session(dsn, replication="database") as opened:
        opened.pgconn.exec_(f"START_REPLICATION PHYSICAL {lsn_text(start)} TIMELINE {timeline}".encode())
        _, message = opened.pgconn.get_copy_data(0)
        content = bytes(message[25:])[: end - start]  # XLogData: w, two positions and a time before it
        return content if len(content) == end - start else b""
    return b""
