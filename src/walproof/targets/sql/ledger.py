"""The ledger on any target that speaks SQL: makes its own table, starts the writers, reads members back.

Never touches a table of that name that does not carry our mark.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files

import psycopg

from walproof.errors import MachineError, TargetError
from walproof.load.ledger.processes import RunningLedger
from walproof.model.attempt import Rows
from walproof.model.load import NO_LIMITS, LedgerOrder, LedgerRun, LoadLimits, LoadRunner
from walproof.model.ports import Target
from walproof.model.topology import Endpoint
from walproof.targets.sql.connection import session
from walproof.targets.sql.rows import payload_rows, summed_rows

MARK = "written by walproof; safe to drop"
_CREATE = (files("walproof.load.ledger") / "create.sql").read_bytes()
_HERE = files("walproof.targets.sql.queries")
_ROWS = (_HERE / "ledger_rows.sql").read_text(encoding="utf-8")
_ROWS_17 = (_HERE / "ledger_rows_17.sql").read_text(encoding="utf-8")
_WHOSE = (_HERE / "ledger_mark.sql").read_bytes()
_CHECK = (_HERE / "ledger_check.sql").read_bytes()
_BUSY = b"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walproof-ledger'"
_AMCHECK = b"SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'"


def _connected(endpoint: Endpoint, what: str) -> psycopg.Connection:
    """A connection in autocommit whose own commits wait for nobody: DDL must not hang where standbys are missing."""
    try:
        connection = session(endpoint)
        connection.execute("SET synchronous_commit = local")
    except psycopg.Error as error:
        raise TargetError(f"{what} does not answer: {str(error).strip()}", "is the cluster up?") from None
    return connection


def _nothing() -> None:
    """There is no database of its own to make or remove."""


def granting_amcheck(user: str) -> str:
    """What lets a role check data files in databases that are made from now on.

    >>> granting_amcheck("app").rpartition("; ")[2]
    'GRANT EXECUTE ON FUNCTION bt_index_check(regclass, boolean), verify_heapam TO "app"'
    """
    functions = "bt_index_check(regclass, boolean), verify_heapam"
    return (
        "as superuser in template1: CREATE EXTENSION IF NOT EXISTS amcheck; "
        f'GRANT EXECUTE ON FUNCTION {functions} TO "{user}"'
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
    """The ledger of any target that speaks SQL; `route` is how the table itself is made and dropped."""

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
        self._open, self._close, self._limits, self._grant = database.open, database.close, limits, grant

    def open_ledger(self, order: LedgerOrder) -> LedgerRun:
        """Create the ledger's own table when missing (never touch one that is not ours) and start the writers."""
        self._limits.check(order.writers)
        self._open()
        self._make(order.drill)
        order = replace(order, rate=min(filter(None, (order.rate, self._limits.rate)), default=None))
        names = [m.name for m in self._target.observe().members]
        members = tuple((name, endpoint) for name in names if (endpoint := _endpoint(self._target, name)) is not None)
        return RunningLedger(order, self._target.endpoint(order.route), members, self._runner)

    def _make(self, drill: int) -> None:
        with _connected(self._target.endpoint(self._route), "the leader") as connection:
            try:
                if not self._ours(connection):
                    connection.execute(_CREATE)
                elif connection.execute(_BUSY).fetchone() == (0,):
                    connection.execute("TRUNCATE walproof.walproof_ledger")
                else:  # another ledger writes too
                    connection.execute("DELETE FROM walproof.walproof_ledger WHERE drill = %s", (drill,))
                if connection.execute(_AMCHECK).fetchone() == (1,):
                    # Where only a superuser may make it, rows are compared all the same; check_data then says so.
                    with suppress(psycopg.errors.InsufficientPrivilege):
                        connection.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
            except psycopg.Error as error:
                raise TargetError(
                    f"the ledger's table cannot be made: {str(error).strip()}",
                    "the user needs CREATE in the database",
                ) from None

    def _ours(self, connection: psycopg.Connection) -> bool:
        """Whether our table is there; MachineError when somebody else's is."""
        found = connection.execute(_WHOSE).fetchone()
        if found is None:
            return False
        if found[1] != MARK:
            raise MachineError(
                f"the table {found[0]} is not walproof's, so it is left alone",
                "rename it, or give walproof another database",
            )
        return True

    def read_ledger(self, member: str, drill: int) -> Rows:
        """The rows of one drill as that member holds them."""
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
        """What amcheck finds wrong with the ledger on that member, "" when nothing; TargetError without the right."""
        with _connected(self._target.member_endpoint(member), member) as connection:
            try:
                if connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'amcheck'").fetchone():
                    return "; ".join(str(row[0]) for row in self._amcheck(connection))
            except psycopg.errors.InsufficientPrivilege:
                # The extension is there and this user may not use it: nothing was checked.
                pass
            except psycopg.Error as error:
                return str(error).strip().splitlines()[0]
            user = connection.info.user
        raise TargetError(f"role {user} may not use amcheck", self._grant(user))

    @staticmethod
    def _amcheck(connection: psycopg.Connection) -> list[tuple[str]]:
        if connection.execute("SELECT to_regclass('walproof.walproof_ledger_attempt')").fetchone() == (None,):
            return []
        connection.execute("SELECT bt_index_check('walproof.walproof_ledger_attempt'::regclass, true)")
        return connection.execute(_CHECK).fetchall()

    def drop_ledger(self) -> None:
        """Remove the ledger's own table, its schema when nothing else is in it, and walproof's own database."""
        self._drop_table()
        self._close()

    def _drop_table(self) -> None:
        with _connected(self._target.endpoint(self._route), "the leader") as connection:
            if not self._ours(connection):
                return
            try:
                connection.execute("DROP TABLE walproof.walproof_ledger")
                others = connection.execute(
                    "SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass"
                    " AND refobjid = to_regnamespace('walproof')"
                ).fetchone()
                if others == (0,):
                    connection.execute("DROP SCHEMA walproof")
            except psycopg.Error as error:
                raise TargetError(f"the ledger's table stays: {str(error).strip()}", "drop it by hand") from None
