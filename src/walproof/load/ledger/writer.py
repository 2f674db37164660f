"""A writer process: many connections, one loop. Records every attempt before it is sent and after it is answered.

Started as `python -m walproof.load.ledger.writer TASK.json`; ends when its standard input closes (the parent
stopped it, or died) or on SIGTERM.
"""

import os
import select
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from walproof.load.ledger.commit_outcome import Answer
from walproof.load.ledger.task_and_attempt_files import (
    UNKNOWN,
    AttemptFile,
    PendingAttempt,
    WriterTask,
    read_writer_task,
)
from walproof.load.ledger.writer_connection import NO_SESSION_LEFT, Stage, WriterConnection
from walproof.model.guarantee import Level
from walproof.model.load import Outcome

_POLL_S = 0.02
_RETRY_S = 0.05
_FULL_S, _LONGEST_FULL_S = 1.0, 10.0
"""A server with no session left is asked again after so long, then after twice that: others want to log in too."""
_AT_ONCE = 8
"""Connections opened at a time to a known leader: each costs both sides milliseconds of SCRAM."""
_POOL_BYTES = 1 << 20
_PAYLOAD_BYTES = 100
_LEVELS = {level.value.encode(): index for index, level in enumerate(Level)}


def conninfos(task: WriterTask) -> list[str]:
    """One connection string per host: hosts are tried by the writer itself, so that a dead one delays no writer."""
    endpoint = task.endpoint
    parameters = {
        "application_name": "walproof-ledger",
        "gssencmode": "disable",
        "keepalives_idle": "1",
        "keepalives_interval": "1",
        "keepalives_count": "3",
        "tcp_user_timeout": "3000",
        "options": f"-c synchronous_commit={task.level}",
    }
    return [replace(endpoint, hosts=(host,)).conninfo(**parameters) for host in endpoint.hosts]


def payloads(size: int, seed: int) -> Iterator[tuple[bytes, int]]:
    """Endless random payloads of that many bytes with their CRC-32, cut from one megabyte of randomness."""
    pool = os.urandom(_POOL_BYTES + size)
    at = seed % _POOL_BYTES
    while True:
        at = (at + 7919) % _POOL_BYTES
        payload = pool[at : at + size]
        yield payload, zlib.crc32(payload)


class Writers:
    """All writers of the process: which have a connection, which wait for one, which only listen on an old one."""

    def __init__(self, task: WriterTask, file: AttemptFile) -> None:
        self.task = task
        self.file = file
        self.stopping_since: float | None = None
        self._conninfos = conninfos(task)
        self._epoll = select.epoll()
        self._connections: dict[int, WriterConnection] = {}
        """By file descriptor."""
        self._unconnected = list(range(task.first, task.first + task.count))
        self._numbers = dict.fromkeys(self._unconnected, 0)
        self._abandoned: dict[int, WriterConnection] = {}
        """By writer: timed-out connections whose answer may still come."""
        self._leader_host: int | None = None
        self._interval_s = task.count / task.rate if task.rate else 0.0
        self._due_at: dict[int, float] = {}
        """By writer: not to send before this time, to stay below the rate or after a refusal."""
        self._retry_at = [0.0] * len(self._conninfos)
        self._pause_s = [_RETRY_S] * len(self._conninfos)
        self._payloads = payloads(_PAYLOAD_BYTES, task.first)

    def run(self) -> None:
        """Write until standard input closes or `stopping_since` is set; then await answers for `grace_s`."""
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
        next_check = 0.0
        while not self._finished():
            for fd, _ in self._epoll.poll(_POLL_S):
                if fd == sys.stdin.fileno():
                    self._epoll.unregister(fd)
                    self.stopping_since = self.stopping_since or time.monotonic()
                elif fd in self._connections:
                    self._on_ready(self._connections[fd], fd)
            now = time.monotonic()
            if now >= next_check:
                next_check = now + _POLL_S
                self._check_timeouts(now)

    def _finished(self) -> bool:
        if self.stopping_since is None:
            return False
        waiting = any(w.stage is Stage.WAITING for w in self._connections.values())
        return not waiting or time.monotonic() > self.stopping_since + self.task.grace_s

    def _on_ready(self, connection: WriterConnection, fd: int) -> None:
        unsettled = connection.stage is Stage.CONNECTING or connection.wants_write
        answer = connection.on_ready()
        if answer is not None:
            self._record(connection, answer)
        if connection.stage is Stage.IDLE:
            self._on_idle(connection, answer, fd)
        elif connection.stage is Stage.LOST:
            self._on_lost(connection, fd)
        if unsettled and connection.stage is not Stage.LOST:
            self._watch_socket(connection, fd)

    def _on_idle(self, connection: WriterConnection, answer: Answer | None, fd: int) -> None:
        abandoned = self._abandoned.get(connection.writer) is connection and not self._taken_back(connection)
        if abandoned or (answer is not None and answer.leave_server):
            connection.close()
            self._on_lost(connection, fd)
            return
        if self._leader_host is None and self.file.acknowledged == 0:
            self.file.set_error("")  # errors of standbys no longer matter once the leader is found
        self._leader_host = connection.host
        if answer is not None and not answer.success:
            connection.since = time.monotonic()
            self._due_at[connection.writer] = connection.since + _RETRY_S
        elif answer is not None or connection.attempt is None:
            self._send(connection, fd)

    def _taken_back(self, connection: WriterConnection) -> bool:
        """Whether its writer, which found no other leader meanwhile, goes on by the connection it had abandoned."""
        if connection.writer not in self._unconnected or self._leader_host not in (None, connection.host):
            return False
        del self._abandoned[connection.writer]
        self._unconnected.remove(connection.writer)
        return True

    def _send(self, connection: WriterConnection, fd: int) -> None:
        now = time.monotonic()
        if self.stopping_since is not None or now < self._due_at.get(connection.writer, 0.0):
            return
        self._due_at[connection.writer] = now + self._interval_s
        number = self._numbers[connection.writer]
        self._numbers[connection.writer] = number + 1
        payload, checksum = next(self._payloads)
        timeline = int(connection.timeline, 16) if connection.timeline else 0
        server = self.file.index_of("servers", connection.server)
        connection.attempt = PendingAttempt(0, connection.writer, timeline, checksum, server)
        connection.since = now
        self.file.add(number, now + self.task.clock_offset, connection.attempt)
        if not connection.send(number, checksum, payload):
            self._on_lost(connection, fd)
        elif connection.wants_write or connection.socket not in self._connections:
            self._watch_socket(connection, fd)

    def _record(self, connection: WriterConnection, answer: Answer) -> None:
        attempt, connection.attempt = connection.attempt, None
        if attempt is None:
            return
        outcome, lsn = answer.outcome, 0
        returned = connection.returned if answer.success else None
        if returned is not None:
            lsn = returned.lsn
            if returned.server is not None and returned.timeline is not None:
                connection.server, connection.timeline = returned.server, returned.timeline
                attempt.server = self.file.index_of("servers", connection.server)
                attempt.timeline = int(connection.timeline, 16) if connection.timeline else 0
            attempt.names = self.file.index_of("names", returned.names)
            attempt.level = _LEVELS.get(returned.level, UNKNOWN)
        if outcome is not Outcome.UNKNOWN:
            self.file.complete(attempt, time.monotonic() + self.task.clock_offset, outcome, lsn)
        if not answer.success:
            self.file.set_error(connection.error)

    def _on_lost(self, connection: WriterConnection, fd: int) -> None:
        self._connections.pop(fd, None)
        # "session is read-only" matters only until the leader is found, and less than that a commit hangs.
        if self._leader_host == connection.host or (self._leader_host is None and not self._abandoned):
            self.file.set_error(connection.error)
        if self._abandoned.get(connection.writer) is connection:
            del self._abandoned[connection.writer]
            return
        if self._leader_host == connection.host:
            self._leader_host = None
        self._hold_off(connection)
        self._unconnected.append(connection.writer)

    def _hold_off(self, connection: WriterConnection) -> None:
        """For a moment; longer each time where the server has no session left."""
        now, host = time.monotonic(), connection.host
        if connection.sqlstate != NO_SESSION_LEFT:
            self._pause_s[host] = _RETRY_S
        elif now < self._retry_at[host]:
            return  # it was asked together with others
        else:
            self._pause_s[host] = min(_LONGEST_FULL_S, max(_FULL_S, 2 * self._pause_s[host]))
        self._retry_at[host] = now + self._pause_s[host]

    def _watch_socket(self, connection: WriterConnection, fd: int) -> None:
        """libpq may have changed its socket while connecting (next address, no SSL)."""
        if connection.socket != fd:
            self._connections.pop(fd, None)
        known = connection.socket in self._connections
        self._connections[connection.socket] = connection
        events = select.EPOLLIN | (select.EPOLLOUT if connection.wants_write else 0)
        if known and connection.socket == fd:
            try:
                self._epoll.modify(fd, events)
                return
            except FileNotFoundError:  # the same number, but a new socket
                pass
        self._epoll.register(connection.socket, events)

    def _check_timeouts(self, now: float) -> None:
        for fd, connection in list(self._connections.items()):
            if connection.stage in (Stage.CONNECTING, Stage.ASKING, Stage.PREPARING):
                if now > connection.since + self.task.connect_timeout_s:
                    connection.error = f"no connection within {self.task.connect_timeout_s:g} s"
                    connection.close()
                    self._on_lost(connection, fd)
            elif connection.stage is Stage.IDLE:
                self._send(connection, fd)
            elif connection.stage is Stage.WAITING and now > connection.since + self.task.answer_timeout_s:
                self._abandon(connection)
        if self.stopping_since is None:
            self._connect(now)
        self.file.connected = sum(w.stage in (Stage.IDLE, Stage.WAITING) for w in self._connections.values())
        self.file.write_counts()

    def _abandon(self, connection: WriterConnection) -> None:
        """Connect to another server, but keep listening: a thawed leader may still acknowledge.

        The old connection counts: its server may be in trouble because of us, and gets no second one for it.
        """
        if connection.writer in self._abandoned:
            return
        self._abandoned[connection.writer] = connection
        self.file.set_error(f"no answer within {self.task.answer_timeout_s:g} s")
        if self._leader_host == connection.host:
            self._leader_host = None
        self._unconnected.append(connection.writer)

    def _connect(self, now: float) -> None:
        """To a known leader that lets in several at a time; else one connection per host: no dead one is waited for."""
        connecting = [0] * len(self._conninfos)
        for connection in self._connections.values():
            if connection.stage in (Stage.CONNECTING, Stage.ASKING, Stage.PREPARING):
                connecting[connection.host] += 1
        for host, conninfo in enumerate(self._conninfos):
            allowed = _AT_ONCE if host == self._leader_host else 1 if self._leader_host is None else 0
            allowed = min(allowed, 1) if self._pause_s[host] > _RETRY_S else allowed
            free = allowed - connecting[host]
            while free > 0 and now >= self._retry_at[host] and (writer := self._next(host)) is not None:
                free -= 1
                self._unconnected.remove(writer)
                self._open(conninfo, host, writer, now)

    def _next(self, host: int) -> int | None:
        """The first writer without a connection that may have one there."""
        for writer in self._unconnected:
            old = self._abandoned.get(writer)
            if old is None or old.host != host or self.task.again:
                return writer
        return None

    def _open(self, conninfo: str, host: int, writer: int, now: float) -> None:
        connection = WriterConnection(conninfo, self.task, writer, host)
        connection.since = now
        if connection.stage is Stage.LOST:
            self._on_lost(connection, -1)
            return
        self._connections[connection.socket] = connection
        self._epoll.register(connection.socket, select.EPOLLOUT)


def main() -> int:
    """Read the task, write until stopped."""
    task = read_writer_task(Path(sys.argv[1]))
    file = AttemptFile(Path(task.path))
    writers = Writers(task, file)

    def stop(_signal: int, _frame: object) -> None:
        writers.stopping_since = writers.stopping_since or time.monotonic()

    signal.signal(signal.SIGTERM, stop)
    try:
        writers.run()
    except OSError as wrong:
        # The rows written so far are complete: they are closed and read as they are.
        print(f"the ledger cannot be written: {wrong.strerror}", file=sys.stderr)
        return 1
    finally:
        file.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
