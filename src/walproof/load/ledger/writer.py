"""A writer process: many connections, one loop. Notes every attempt before it is sent and after it is answered.

Started as `python -m walproof.load.ledger.writer ORDER.json`; ends when its standard input closes (the parent
stopped it, or died) or on SIGTERM.
"""

import os
import select
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from walproof.load.ledger.attempt_file import Note, NoteFile
from walproof.load.ledger.outcome import Answer, leave_server, outcome
from walproof.load.ledger.protocol import Stage, Wire
from walproof.load.ledger.task import WriterOrder, read_writer_order
from walproof.model.attempt import Outcome
from walproof.model.guarantee import Level
from walproof.model.topology import Endpoint

_TICK_S = 0.02
_BACKOFF_S = 0.05
_AT_ONCE = 8
"""Connections opened at a time to a server known to be good: each costs both sides milliseconds of SCRAM."""
_POOL_BYTES = 1 << 20


def conninfos(order: WriterOrder) -> list[str]:
    """One connection string per host: hosts are tried by the writer itself, so that a dead one delays nobody."""
    given = order.endpoint
    options = "" if order.pooled else f"-c synchronous_commit={order.level}"
    more = {
        "application_name": "walproof-ledger",
        "gssencmode": "disable",
        "keepalives_idle": "1",
        "keepalives_interval": "1",
        "keepalives_count": "3",
        "tcp_user_timeout": "3000",
        **({"options": options} if options else {}),
    }
    return [
        Endpoint((host,), given.database, given.user, given.passfile, given.options).conninfo(**more)
        for host in given.hosts
    ]


def payloads(size: int, seed: int) -> Iterator[tuple[bytes, int]]:
    """Endless random payloads of that many bytes with their CRC-32, cut from one megabyte of randomness."""
    pool = os.urandom(_POOL_BYTES + size)
    at = seed % _POOL_BYTES
    while True:
        at = (at + 7919) % _POOL_BYTES
        payload = pool[at : at + size]
        yield payload, zlib.crc32(payload)


class Crew:
    """Every writer of the process: which connection serves whom, who is waiting for one, whom we only listen to."""

    def __init__(self, order: WriterOrder, notes: NoteFile) -> None:
        self.order = order
        self.notes = notes
        self.stopping_since: float | None = None
        self._level = list(Level).index(order.level)
        self._conninfos = conninfos(order)
        self._poll = select.epoll()
        self._wires: dict[int, Wire] = {}
        """By file descriptor."""
        self._idle = list(range(order.first, order.first + order.count))
        self._numbers = dict.fromkeys(self._idle, 0)
        self._orphans: dict[int, Wire] = {}
        """By writer: connections given up whose answer may still come."""
        self._good: int | None = None
        self._not_before = [0.0] * len(self._conninfos)
        self._payloads = payloads(order.payload_bytes, order.first)

    def run(self) -> None:
        """Write until standard input closes or `stopping_since` is set; then await answers for `grace_s`."""
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
        next_tick = 0.0
        while not self._finished():
            for fd, _ in self._poll.poll(_TICK_S):
                if fd == sys.stdin.fileno():
                    self._poll.unregister(fd)
                    self.stopping_since = self.stopping_since or time.time()
                elif fd in self._wires:
                    self._wake(self._wires[fd], fd)
            now = time.time()
            if now >= next_tick:
                next_tick = now + _TICK_S
                self._tick(now)

    def _finished(self) -> bool:
        if self.stopping_since is None:
            return False
        waiting = any(w.stage is Stage.WAITING for w in self._wires.values())
        return not waiting or time.time() > self.stopping_since + self.order.grace_s

    def _wake(self, wire: Wire, fd: int) -> None:
        unsettled = wire.stage is Stage.CONNECTING or wire.wants_write
        answer = wire.on_ready()
        if answer is not None:
            self._note(wire, answer)
        if wire.stage is Stage.IDLE:
            self._idle_wire(wire, answer, fd)
        elif wire.stage is Stage.LOST:
            self._lost(wire, fd)
        if unsettled and wire.stage is not Stage.LOST:
            self._rewatch(wire, fd)

    def _idle_wire(self, wire: Wire, answer: Answer | None, fd: int) -> None:
        if self._orphans.get(wire.writer) is wire or (answer is not None and leave_server(answer)):
            wire.lose()
            self._lost(wire, fd)
            return
        if self._good is None and self.notes.acknowledged == 0:
            self.notes.error("")  # what scouts heard from standbys is no news once the leader is found
        self._good = wire.host
        if answer is not None and not answer.success:
            wire.since = time.time()
        elif answer is not None or wire.note is None:
            self._send(wire, fd)

    def _send(self, wire: Wire, fd: int) -> None:
        if self.stopping_since is not None:
            return
        number = self._numbers[wire.writer]
        self._numbers[wire.writer] = number + 1
        payload, checksum = next(self._payloads)
        timeline = int(wire.timeline, 16) if wire.timeline else 0
        server = self.notes.word("servers", wire.server)
        names = self.notes.word("names", wire.names)
        wire.note = Note(0, wire.writer, timeline, checksum, server, names)
        wire.since = time.time()
        self.notes.before(number, wire.since, wire.note)
        if not wire.send(number, checksum, payload):
            self._lost(wire, fd)
        elif wire.wants_write or wire.socket not in self._wires:
            self._rewatch(wire, fd)

    def _note(self, wire: Wire, answer: Answer) -> None:
        note, wire.note = wire.note, None
        if note is None:
            return
        result, lsn = outcome(answer), 0
        returned = wire.returned if answer.success else None
        if returned is not None:
            lsn, wire.names = returned.lsn, returned.names
            if returned.server is not None and returned.timeline is not None:
                wire.server, wire.timeline = returned.server, returned.timeline
                note.server = self.notes.word("servers", wire.server)
                note.timeline = int(wire.timeline, 16) if wire.timeline else 0
            note.names = self.notes.word("names", wire.names)
        if result is not Outcome.UNKNOWN:
            self.notes.after(note, time.time(), result, lsn)
        if not answer.success:
            self.notes.error(wire.error)

    def _lost(self, wire: Wire, fd: int) -> None:
        self._wires.pop(fd, None)
        if self._good in (None, wire.host):  # a scout's "session is read-only" is no news once a leader is found
            self.notes.error(wire.error)
        if self._orphans.get(wire.writer) is wire:
            del self._orphans[wire.writer]
            return
        if self._good == wire.host:
            self._good = None
        self._not_before[wire.host] = time.time() + _BACKOFF_S
        self._idle.append(wire.writer)

    def _rewatch(self, wire: Wire, fd: int) -> None:
        """libpq may have changed its socket while connecting (next address, no SSL)."""
        if wire.socket != fd:
            self._wires.pop(fd, None)
        known = wire.socket in self._wires
        self._wires[wire.socket] = wire
        events = select.EPOLLIN | (select.EPOLLOUT if wire.wants_write else 0)
        if known and wire.socket == fd:
            try:
                self._poll.modify(fd, events)
                return
            except FileNotFoundError:  # the same number, but a new socket
                pass
        self._poll.register(wire.socket, events)

    def _tick(self, now: float) -> None:
        for fd, wire in list(self._wires.items()):
            if wire.stage in (Stage.CONNECTING, Stage.ASKING, Stage.PREPARING):
                if now > wire.since + self.order.connect_s:
                    wire.error = f"no connection within {self.order.connect_s:g} s"
                    wire.lose()
                    self._lost(wire, fd)
            elif wire.stage is Stage.IDLE and now > wire.since + _BACKOFF_S:
                self._send(wire, fd)
            elif wire.stage is Stage.WAITING and now > wire.since + self.order.patience_s:
                self._give_up(wire)
        if self.stopping_since is None:
            self._connect_some(now)
        self.notes.connected = sum(w.stage in (Stage.IDLE, Stage.WAITING) for w in self._wires.values())
        self.notes.state()

    def _give_up(self, wire: Wire) -> None:
        """Go elsewhere, but keep listening: a thawed leader may still acknowledge, and that must be on file."""
        if wire.writer in self._orphans:
            return
        self._orphans[wire.writer] = wire
        self.notes.error(f"no answer within {self.order.patience_s:g} s")
        if self._good == wire.host:
            self._good = None
        self._idle.append(wire.writer)

    def _connect_some(self, now: float) -> None:
        """To a known good server several at a time; else one scout per host, so that no dead host is waited for."""
        busy = [0] * len(self._conninfos)
        for wire in self._wires.values():
            if wire.stage in (Stage.CONNECTING, Stage.ASKING, Stage.PREPARING):
                busy[wire.host] += 1
        for host, conninfo in enumerate(self._conninfos):
            room = (_AT_ONCE if host == self._good else 1 if self._good is None else 0) - busy[host]
            while self._idle and room > 0 and now >= self._not_before[host]:
                room -= 1
                self._open(conninfo, host, now)

    def _open(self, conninfo: str, host: int, now: float) -> None:
        wire = Wire(conninfo, self.order, self._idle.pop(0), host)
        wire.since = now
        if wire.stage is Stage.LOST:
            self._lost(wire, -1)
            return
        self._wires[wire.socket] = wire
        self._poll.register(wire.socket, select.EPOLLOUT)


def main() -> int:
    """Read the order, write until told to stop."""
    order = read_writer_order(Path(sys.argv[1]))
    notes = NoteFile(Path(order.path), list(Level).index(order.level))
    crew = Crew(order, notes)

    def stop(_signal: int, _frame: object) -> None:
        crew.stopping_since = crew.stopping_since or time.time()

    signal.signal(signal.SIGTERM, stop)
    try:
        crew.run()
    finally:
        notes.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
