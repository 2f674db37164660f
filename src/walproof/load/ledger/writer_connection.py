"""One non-blocking connection of a writer: connect, ask which server it is, send attempts, read answers.

Uses libpq itself (psycopg.pq) because a Python object per statement would cost more than the server's own work."""

import ctypes
import re
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from walproof.load.ledger.commit_outcome import SUCCESS, Answer
from walproof.load.ledger.task_and_attempt_files import PendingAttempt, WriterTask
from walproof.machine.sql_file import statements

_STATEMENTS = statements("walproof.load.ledger", "ledger.sql")
FACTS = _STATEMENTS["facts"].encode()
INSERT = _STATEMENTS["insert"]
INSERT_POOLED = _STATEMENTS["insert_pooled"]
_INT8 = struct.Struct(">q").pack
_LSN = struct.Struct(">Q").unpack
_BINARY = [pq.Format.BINARY] * 3
_INT8_OID, _BYTEA_OID = 20, 17
_OIDS = [_INT8_OID, _INT8_OID, _BYTEA_OID]
NO_DATA = "02000"
"""no_data of the SQL standard: the statement succeeded and no row came of it."""
SWALLOWED = "the INSERT succeeded but gave no row: a trigger or a rule dropped it"
NO_SESSION_LEFT = "53300"
"""too_many_connections."""
_SET_VERBOSITY = None
"""psycopg has no name for it; what its module is linked with is found through that, where it is a library."""
with suppress(OSError, AttributeError):
    _SET_VERBOSITY = ctypes.CDLL(sys.modules[pq.PGconn.__module__].__file__).PQsetErrorVerbosity
    _SET_VERBOSITY.argtypes = (ctypes.c_void_p, ctypes.c_int)
_DEFAULT, _VERBOSE = 1, 2
_REFUSED = re.compile(r"(:  )([0-9A-Z]{5}): (.*?)(\n[^\n]*, \w+\.c:\d+)?\s*\Z", re.DOTALL)
"""What a server says that lets nobody in, in any language: FATAL:  53300: why, and where in its source."""
_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Stage(Enum):
    CONNECTING = "connecting"
    ASKING = "asking which server it is"
    PREPARING = "preparing"
    IDLE = "idle"
    WAITING = "waiting for an answer"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Returned:
    """What came back with a row: WAL position, standby names and level of its commit; pooled: server and timeline."""

    lsn: int
    names: bytes
    level: bytes
    server: bytes | None = None
    timeline: bytes | None = None


def _field(result: PGresult, field: pq.DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode(errors="replace")


def refused(message: str) -> tuple[str, str]:
    """SQLSTATE of a login that failed, "" where no server gave one, and its words without what is for developers.

    >>> refused("failed: FATAL:  53300: sorry, too many clients already\\nLOCATION:  InitProcess, proc.c:1")
    ('53300', 'failed: FATAL:  sorry, too many clients already')
    """
    found = _REFUSED.search(message)
    return ("", message) if found is None else (found[2], message[: found.start()] + found[1] + found[3])


class WriterConnection:
    """A connection in one of the stages; `on_ready` is called when its socket is ready."""

    def __init__(self, conninfo: str, task: WriterTask, writer: int, host: int) -> None:
        self.writer = writer
        self.host = host
        self.stage = Stage.CONNECTING
        self.since = 0.0
        self.attempt: PendingAttempt | None = None
        self.server = self.timeline = b""
        self.returned: Returned | None = None
        self.error = self.sqlstate = ""
        self.wants_write = True
        self._pooled = task.endpoint.pooled
        template = INSERT_POOLED if self._pooled else INSERT
        self._insert = template.format(drill=task.drill, writer=writer, level=task.level).encode()
        self._results: list[PGresult] = []
        self._warnings: list[str] = []
        self._pg = pq.PGconn.connect_start(conninfo.encode())
        self._tell(_VERBOSE)
        if self._pg.status == pq.ConnStatus.BAD:
            self.close()

    @property
    def socket(self) -> int:
        """The file descriptor; it may change while connecting."""
        return self._pg.socket

    def close(self) -> None:
        """Close the connection; its last error stays in `error`."""
        self.error = self.error or self._pg.get_error_message()
        self.stage = Stage.LOST
        self._pg.finish()

    def on_ready(self) -> Answer | None:
        """Read and write; an Answer when the outstanding attempt is answered or its connection broke (no SQLSTATE)."""
        waiting = self.stage is Stage.WAITING
        try:
            if self.stage is Stage.CONNECTING:
                self._connect()
                return None
            if self.wants_write:
                self.wants_write = bool(self._pg.flush())
            self._pg.consume_input()
            if self.stage is Stage.IDLE:
                return None  # a notice or a changed setting; a lost connection raises psycopg.Error
            while not self._pg.is_busy():
                result = self._pg.get_result()
                if result is None:
                    return self._complete()
                self._results.append(result)
                if self._pg.status == pq.ConnStatus.BAD:
                    return self._broken(waiting)
        except psycopg.Error as error:
            self.error = self.error or str(error)
            return self._broken(waiting)
        return None

    def send(self, number: int, stated: int, payload: bytes) -> bool:
        """Send an attempt; False when the connection broke doing so (the attempt is unknown then)."""
        self.stage = Stage.WAITING
        params = [_INT8(number), _INT8(stated), payload]
        try:
            if self._pooled:
                self._pg.send_query_params(self._insert, params, _OIDS, _BINARY, pq.Format.BINARY)
            else:
                self._pg.send_query_prepared(b"w", params, _BINARY, pq.Format.BINARY)
            self.wants_write = bool(self._pg.flush())
        except psycopg.Error as error:
            self.error = str(error)
            self.close()
            return False
        return True

    def _broken(self, waiting: bool) -> Answer | None:
        """The connection broke: what its last results say about the outstanding attempt, if there is one."""
        answer = self._answer() if waiting else None
        self._results.clear()
        self.close()
        # Success received without ReadyForQuery is not yet a commit: in the extended protocol the commit follows Sync.
        return Answer("") if answer is not None and answer.success else answer

    def _connect(self) -> None:
        status = self._pg.connect_poll()
        self.wants_write = status == pq.PollingStatus.WRITING
        if status == pq.PollingStatus.FAILED:
            self.sqlstate, self.error = refused(self._pg.get_error_message())
            self.close()
        elif status == pq.PollingStatus.OK:
            self._tell(_DEFAULT)
            self._pg.nonblocking = 1
            self._pg.notice_handler = self._on_notice
            self.stage = Stage.ASKING
            self._pg.send_query(FACTS)
            self.wants_write = bool(self._pg.flush())

    def _tell(self, verbosity: int) -> None:
        if _SET_VERBOSITY is not None:
            _SET_VERBOSITY(self._pg.pgconn_ptr, verbosity)  # type: ignore[attr-defined]

    def _on_notice(self, result: PGresult) -> None:
        self._warnings.append(_field(result, pq.DiagnosticField.SQLSTATE))

    def _complete(self) -> Answer | None:
        """Every result of the command is in, ReadyForQuery too."""
        stage, self.stage = self.stage, Stage.IDLE
        answer = self._answer()
        last = self._results[-1] if self._results else None
        self._results.clear()
        if stage is Stage.WAITING:
            if answer.success and last is not None and last.ntuples == 0:
                self.error = SWALLOWED
                return Answer(NO_DATA, "ERROR", answer.warnings)
            self.returned = self._read(last) if answer.success and last is not None else None
            return answer
        if not answer.success or last is None:
            self.close()
        elif stage is Stage.ASKING:
            self.server, self.timeline = (last.get_value(0, i) or b"" for i in range(2))
            if not self._pooled and not self.timeline:
                self.error = "the server is still in recovery"  # its timeline would not be known when it is promoted
                self.close()
            elif not self._pooled:
                self.stage = Stage.PREPARING
                self._pg.send_prepare(b"w", self._insert, _OIDS)
                self.wants_write = bool(self._pg.flush())
        return None

    def _answer(self) -> Answer:
        warnings = tuple(self._warnings)
        self._warnings.clear()
        for result in self._results:
            if result.status not in _GOOD:
                self.error = result.get_error_message()
                sqlstate = _field(result, pq.DiagnosticField.SQLSTATE)
                severity = _field(result, pq.DiagnosticField.SEVERITY_NONLOCALIZED)
                return Answer(sqlstate, severity, warnings)
        return Answer(SUCCESS if self._results else "", warnings=warnings)

    def _read(self, result: PGresult) -> Returned:
        lsn = _LSN(result.get_value(0, 0) or bytes(8))[0]
        names = result.get_value(0, 1) or b""
        level = result.get_value(0, 2) or b""
        if not self._pooled:
            return Returned(lsn, names, level)
        return Returned(lsn, names, level, result.get_value(0, 3), result.get_value(0, 4))
