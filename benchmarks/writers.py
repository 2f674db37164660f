"""Clients that only insert and remember what was acknowledged; as simple as can be, so that a loss is certain."""

import contextlib
import random
import threading
from dataclasses import dataclass, field
from types import TracebackType

import psycopg
from psycopg.pq import ExecStatus

from walproof.model.topology import Endpoint

TABLE = "acknowledged"


@dataclass(slots=True)
class Writers:
    """`count` connections, each in a thread of its own, committing one row after the other at one level."""

    endpoint: Endpoint
    level: str
    count: int = 16
    think_s: float = 0.0
    """The longest think time before each commit; with 0 all writers commit in step with the standby's flushes."""
    acknowledged: list[list[int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Writers":
        with psycopg.connect(self.endpoint.conninfo(), autocommit=True) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
            connection.execute(f"CREATE TABLE {TABLE} (writer int, number int, PRIMARY KEY (writer, number))")
        self.acknowledged = [[] for _ in range(self.count)]
        self._threads = [threading.Thread(target=self._write, args=(w,), daemon=True) for w in range(self.count)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def total(self) -> int:
        """Acknowledged commits so far."""
        return sum(map(len, self.acknowledged))

    def lost(self, rows: set[tuple[int, int]]) -> int:
        """Acknowledged commits that are not among these rows."""
        return sum((writer, number) not in rows for writer, done in enumerate(self.acknowledged) for number in done)

    def _write(self, writer: int) -> None:
        # A server that stops answering ends a writer, as it ends any client: what it waited for was never acknowledged.
        conninfo = self.endpoint.conninfo(tcp_user_timeout="5000", keepalives_idle="2", keepalives_interval="1")
        done = self.acknowledged[writer]
        with contextlib.suppress(psycopg.Error), psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(f"SET synchronous_commit = {self.level}".encode())
            # libpq itself: 16 threads share one interpreter, which must not be the bottleneck.
            pgconn = connection.pgconn
            generator = random.Random(writer)
            pgconn.prepare(b"one", f"INSERT INTO {TABLE} VALUES ({writer}, $1)".encode())
            while not self._stop.is_set():
                if self.think_s:
                    self._stop.wait(generator.uniform(0.0, self.think_s))
                result = pgconn.exec_prepared(b"one", [str(len(done)).encode()])
                if result.status != ExecStatus.COMMAND_OK:
                    return
                done.append(len(done))


def rows_at(endpoint: Endpoint) -> set[tuple[int, int]]:
    """Every row that is there."""
    with psycopg.connect(endpoint.conninfo(), autocommit=True) as connection:
        return {(int(w), int(n)) for w, n in connection.execute(f"SELECT writer, number FROM {TABLE}")}
