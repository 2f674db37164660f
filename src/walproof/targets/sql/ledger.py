"""The ledger on any target that speaks SQL: makes its own table, starts the writers, reads members' rows by COPY.

Never touches a table of that name that is not this user's alone (`load.own_tables`)."""

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from walproof.errors import TargetError
from walproof.load import own_tables
from walproof.load.ledger.processes import RunningLedger
from walproof.machine.quoting import Pasted, pasted
from walproof.machine.sql_file import statements
from walproof.machine.untrusted import one_line
from walproof.model.load import NO_LIMITS, LedgerOrder, LedgerRun, LoadLimits, LoadRunner, Rows, connections
from walproof.model.ports import Target
from walproof.model.topology import Endpoint, route_of
from walproof.targets.sql.connection import session
from walproof.targets.sql.room import need_room

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER = len(_SIGNATURE) + 8
_END = b"\xff\xff"
_FIXED = [("fields", ">i2"), ("l1", ">i4"), ("writer", ">i4"), ("l2", ">i4"), ("number", ">i8")]
_STATED = [("l3", ">i4"), ("stated", ">i8"), ("l4", ">i4")]
SUMMED = np.dtype([*_FIXED, *_STATED, ("checksum", ">i8")])
"""A row of (int4, int8, int8, int8): 46 bytes."""
_PREFIX = np.dtype([*_FIXED, *_STATED])
_DAMAGE = ("XX", "22", "58")
"""Classes of SQLSTATE that say what is wrong with the data; others are of the session, a lock, a server that ends."""
_ROWS_AT_MOST = 4 << 30
"""Bytes of a drill's rows."""


def _body(raw: bytes) -> memoryview:
    """Between COPY's header and its trailer (manual, COPY, binary format)."""
    if raw[: len(_SIGNATURE)] != _SIGNATURE or raw[-2:] != _END:
        raise TargetError("a member's answer to COPY is cut short", "it may have restarted: try again")
    return memoryview(raw)[_HEADER:-2]


def summed_rows(member: str, raw: bytes) -> Rows:
    """Rows whose payload checksum the member computed."""
    body = _body(raw)
    if len(body) % SUMMED.itemsize:
        raise TargetError(f"{member} holds a ledger of another shape", "drop the table walproof.walproof_ledger")
    rows = np.frombuffer(body, SUMMED)
    return _columns(member, rows, rows["checksum"].astype(np.uint32))


def payload_rows(member: str, raw: bytes) -> Rows:
    """Rows with payloads: their CRC-32 is computed here; fast when every payload has the same length."""
    body = _body(raw)
    if not len(body):
        return _columns(member, np.empty(0, _PREFIX), np.empty(0, np.uint32))
    size = struct.unpack_from(">i", body, _PREFIX.itemsize - 4)[0]
    width = _PREFIX.itemsize + size
    if len(body) % width == 0:
        table = np.frombuffer(body, np.dtype([*_PREFIX.descr, ("payload", f"V{size}")]))
        if (table["l4"] == size).all() and (table["fields"] == 4).all():
            return _columns(member, table, _sums(body, range(_PREFIX.itemsize, len(body) + 1, width), size))
    return _uneven(member, body)


def _sums(body: memoryview, starts: range, size: int) -> NDArray[np.uint32]:
    crc = zlib.crc32
    return np.fromiter((crc(body[at : at + size]) for at in starts), np.uint32, count=len(starts))


def _uneven(member: str, body: memoryview) -> Rows:
    """Payloads of several lengths, row by row: a torn or corrupted row may be shorter than the others."""
    prefixes, sums, at = [], [], 0
    while at < len(body):
        prefix = np.frombuffer(body[at : at + _PREFIX.itemsize], _PREFIX)
        size = int(prefix["l4"][0])
        at += _PREFIX.itemsize
        sums.append(zlib.crc32(body[at : at + size]))
        prefixes.append(prefix)
        at += size
    return _columns(member, np.concatenate(prefixes), np.array(sums, np.uint32))


def _columns(member: str, rows: NDArray[Any], checksum: NDArray[np.uint32]) -> Rows:
    return Rows(
        member,
        rows["writer"].astype(np.int32),
        rows["number"].astype(np.int64),
        checksum,
        rows["stated"].astype(np.uint32),
    )


MARK = "written by walproof; safe to drop"
TABLE = "walproof.walproof_ledger"
_CREATE = statements("walproof.load.ledger", "ledger.sql")["create"].encode()
_STATEMENTS = statements("walproof.targets.sql", "ledger.sql")
_ROWS = _STATEMENTS["rows"]
_ROWS_17 = _STATEMENTS["rows_17"]
_CHECK = _STATEMENTS["check"].encode()
_BUSY = b"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walproof-ledger'"
_AMCHECK = b"SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'"
_WITH_AMCHECK = _STATEMENTS["with_amcheck"].encode()


@contextmanager
def _connected(endpoint: Endpoint, what: str) -> "Iterator[psycopg.Connection[Any]]":
    """A connection in autocommit whose own commits wait for no standby: DDL must not hang where one is missing."""
    try:
        with session(endpoint, most=_ROWS_AT_MOST) as connection:
            connection.execute("SET synchronous_commit = local")
            yield connection
    except psycopg.Error as error:
        raise TargetError(f"{what} does not answer: {str(error).strip()}", "is the cluster up?") from None


def _nothing() -> None:
    """There is no database of its own to make or remove."""


def granting_amcheck(user: str) -> Pasted:
    """What lets a role check data files in databases that are made from now on.

    >>> granting_amcheck("app").rpartition("; ")[2]
    'GRANT EXECUTE ON FUNCTION bt_index_check(regclass, boolean), verify_heapam TO "app"'
    """
    functions = "bt_index_check(regclass, boolean), verify_heapam"
    return pasted(
        "as superuser in template1: CREATE EXTENSION IF NOT EXISTS amcheck; "
        "GRANT EXECUTE ON FUNCTION {functions:statement} TO {user:sql_name}",
        functions=functions,
        user=user,
    )


@dataclass(frozen=True, slots=True)
class OwnDatabase:
    """How walproof's own database is made, and how it is removed."""

    open: Callable[[], None]
    close: Callable[[], None]


NO_DATABASE = OwnDatabase(_nothing, _nothing)


def _endpoint(target: Target, member: str) -> Endpoint | None:
    """Connection parameters of a member, None for one that cannot be addressed."""
    try:
        return target.member_endpoint(member)
    except TargetError:
        return None


class SqlLedger:
    """The ledger of any target that speaks SQL; `route` is how the table itself is made."""

    def __init__(
        self,
        target: Target,
        route: str = "multi-host",
        *,
        database: OwnDatabase = NO_DATABASE,
        limits: LoadLimits = NO_LIMITS,
        grant: Callable[[str], str] = granting_amcheck,
        runner: LoadRunner | None = None,
    ) -> None:
        """`grant` says what lets a role use amcheck."""
        self._target, self._runner = target, runner
        self._route = route
        self._open, self._limits, self._grant = database.open, limits, grant

    def open_ledger(self, order: LedgerOrder) -> LedgerRun:
        route = route_of(self._target.routes(), order.route)
        clients = self._target.endpoint(order.route)
        hosts = len(clients.hosts)
        self._limits.check(wanted := connections(order.writers, route, hosts))
        need_room(clients, wanted)
        self._open()
        self._make(order.drill)
        order = replace(order, rate=min(filter(None, (order.rate, self._limits.rate)), default=None))
        names = [m.name for m in self._target.observe().members]
        members = tuple((name, endpoint) for name in names if (endpoint := _endpoint(self._target, name)) is not None)
        again = route.one_address(hosts)
        return RunningLedger(order, self._target.endpoint(order.route), members, self._runner, again=again)

    def _make(self, drill: int) -> None:
        with _connected(self._target.endpoint(self._route), "the leader") as connection:
            try:
                with connection.transaction():
                    if own_tables.comment_on(connection, TABLE, MARK) is None:
                        own_tables.make(connection, TABLE, _CREATE)
                    elif connection.execute(_BUSY).fetchone() == (0,):
                        connection.execute("TRUNCATE walproof.walproof_ledger")
                    else:  # another ledger writes too
                        connection.execute("DELETE FROM walproof.walproof_ledger WHERE drill = %s", (drill,))
                if connection.execute(_AMCHECK).fetchone() == (1,):
                    # Where only a superuser may make it, rows are compared all the same; check_data then says so.
                    with suppress(psycopg.errors.InsufficientPrivilege):
                        connection.execute("CREATE EXTENSION IF NOT EXISTS amcheck SCHEMA walproof")
            except psycopg.Error as error:
                raise TargetError(
                    f"the ledger's table cannot be made: {str(error).strip()}",
                    "the user needs CREATE in the database",
                ) from None

    def read_ledger(self, member: str, drill: int) -> Rows:
        with _connected(self._target.member_endpoint(member), member) as connection:
            summed = connection.info.server_version >= 180000
            query = (_ROWS if summed else _ROWS_17).format(drill=int(drill))
            try:
                with connection.cursor().copy(query.encode()) as copy:
                    raw = b"".join(bytes(block) for block in copy)
            except psycopg.Error as error:
                raise TargetError(f"{member} cannot be read: {str(error).strip()}", "is it whole?") from None
        return (summed_rows if summed else payload_rows)(member, raw)

    def check_data(self, member: str) -> str:
        with _connected(self._target.member_endpoint(member), member) as connection:
            try:
                if connection.execute(_WITH_AMCHECK).fetchone():
                    return "; ".join(str(row[0]) for row in self._amcheck(connection))
            except psycopg.errors.InsufficientPrivilege:
                # The extension is there and this user may not use it: nothing was checked.
                pass
            except psycopg.Error as error:
                if (error.sqlstate or "")[:2] not in _DAMAGE:
                    raise TargetError(f"{member} was not checked to the end: {one_line(error, 200)}", "again") from None
                return str(error).strip().splitlines()[0]
            user = connection.info.user
        raise TargetError(f"role {user} may not use amcheck", self._grant(user))

    @staticmethod
    def _amcheck(connection: psycopg.Connection) -> list[tuple[str]]:
        if connection.execute("SELECT to_regclass('walproof.walproof_ledger_attempt')").fetchone() == (None,):
            return []
        connection.execute("SELECT bt_index_check('walproof.walproof_ledger_attempt'::regclass, true)")
        return connection.execute(_CHECK).fetchall()
