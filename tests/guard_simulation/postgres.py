"""Simulated PostgreSQL: a leader's WAL and acknowledgements, standbys that receive, replay, restart and reconnect.

WAL positions are whole numbers on a branch (a timeline); every one of them is a commit. By the source of PostgreSQL 18:
walreceiverfuncs.c (RequestXLogStreaming), xlogrecovery.c (WaitForWALToBecomeAvailable, StartupRereadConfig).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.guard_simulation.wal import Branch, Names, Sender
from tests.guard_simulation.world import Process, World

SEGMENT = 100
FIRST = 1050
_BUSY_S = 10.0
"""After that time clients commit less often: a run is quicker then."""
_OUTSTANDING = 8
"""How many commits wait for a standby before the clients do."""


@dataclass(eq=False)
class Postgres:
    """One server. role: primary, standby, starting, stopped."""

    world: World
    name: str
    process: Process
    branch: Branch
    others: Mapping[str, "Postgres"] = field(default_factory=dict)
    acknowledge: Callable[["Postgres", int], None] = lambda _server, _position: None
    interval_s: float = 0.2
    retry_s: float = 0.5
    """wal_retrieve_retry_interval."""
    receiver_timeout_s: float = 5.0
    role: str = "standby"
    flushed: int = FIRST
    received: int | None = None
    """What pg_last_wal_receive_lsn() says."""
    conninfo: str = ""
    """Which member primary_conninfo names."""
    receiver: str = ""
    """"", connecting, streaming."""
    source: str = ""
    heard: float = 0.0
    started: float = 0.0
    names: Names = field(default_factory=Names)
    senders: dict[str, Sender] = field(default_factory=dict)
    slow_s: float = 0.0
    """How much longer what it receives takes."""
    delay_s: float = 0.0
    """recovery_min_apply_delay."""
    promoting: bool = False
    streamed: tuple[str, float] = ("", 0.0)
    """The source of its last stream, and when that ended."""

    def __post_init__(self) -> None:
        self._random = self.world.random(f"postgres {self.name}")
        self._startup_conninfo = ""
        self._restart = False
        self._retry_at = 0.0
        self._receiving = ""
        """The branch of the last request for WAL."""
        self._connection = 0
        self._paused: int | None = None
        self._recovery: tuple[float, int, float] = (0.0, 0, 0.0)
        self._arrived: deque[tuple[float, int]] = deque()
        self._delayed = self.flushed

    # What it answers.

    @property
    def alive(self) -> bool:
        """Whether it answers SQL."""
        return self.role in ("primary", "standby") and not self.process.frozen and not self.process.dead

    @property
    def paused(self) -> bool:
        """Whether replay is paused."""
        return self._paused is not None

    @property
    def replayed(self) -> int:
        """What pg_last_wal_replay_lsn() says."""
        if self._paused is not None:
            return self._paused
        position, (began, start, ends) = self.flushed, self._recovery
        if self.world.now < ends:
            position = start + int((position - start) * (self.world.now - began) / (ends - began))
        if self.delay_s:
            while self._arrived and self._arrived[0][0] <= self.world.now - self.delay_s:
                self._delayed = self._arrived.popleft()[1]
            position = min(position, self._delayed)
        return position

    @property
    def position(self) -> int:
        """What Patroni compares: the greater of received and replayed."""
        return self.flushed if self.role == "primary" else max(self.received or 0, self.replayed)

    @property
    def hinders(self) -> str:
        """Why the startup process may not come to wait, as receiver.sql answers."""
        return "its replay is paused" if self.paused else "recovery_min_apply_delay is set" if self.delay_s else ""

    @property
    def waits(self) -> bool:
        """Whether the startup process has replayed all it has, and waits before it looks for more."""
        return self.role == "standby" and not self.receiver and not self.paused and self.replayed >= self.flushed

    # The leader.

    def lead(self) -> None:
        """Begin to take commits."""
        self.role, self.promoting, self.receiver, self.source = "primary", False, "", ""
        self.conninfo = self._startup_conninfo = ""
        self._restart = False
        self._write()

    def _write(self) -> None:
        branch = self.branch
        if self.role != "primary":
            return
        if self.flushed - max(branch.acknowledged, branch.fork) < _OUTSTANDING or not self.names.number:
            self.flushed += 1
            self._acknowledge()
            self._send_all()
        pause = self.interval_s * (0.5 + self._random.random()) * (1.0 if self.world.now < _BUSY_S else 3.0)
        self.world.after(pause, lambda: self._write() if self.branch is branch else None, self.process)

    def set_names(self, names: Names) -> None:
        """Change synchronous_standby_names."""
        self.names = names
        self.world.tell(self.name, f"synchronous_standby_names: {names}")
        if self.role == "primary":
            self._acknowledge()

    def synced(self) -> list[str]:
        """The standbys that commits wait for, in order."""
        return [n for n in (self.senders if self.names.star else self.names.names) if n in self.senders]

    def _acknowledge(self) -> None:
        names = self.names
        flushed = [self.senders[n].flushed for n in self.synced()]
        if names.number == 0 or len(flushed) < names.number:
            return
        if names.any_of:
            flushed.sort(reverse=True)
        position = min(*flushed[: names.number], self.flushed)
        if position > self.branch.acknowledged:
            self.branch.acknowledged = position
            self.acknowledge(self, position)

    def _send_all(self) -> None:
        for name in self.senders:
            self._send(name)

    def _send(self, name: str) -> None:
        sender, standby = self.senders.get(name), self.others[name]
        if sender is None or sender.busy:
            return
        sender.busy = True
        connection = standby._connection
        self.world.after(standby._latency(), lambda: self._arrive(name, sender, connection))

    def _arrive(self, name: str, sender: Sender, connection: int) -> None:
        """What was sent reaches the standby; TCP tries again where the network or one of the two stands still."""
        standby = self.others[name]
        sender.busy = False
        if self.senders.get(name) is not sender or standby._connection != connection or self.process.dead:
            return
        if not self._flows(standby):
            sender.busy = True
            self.world.after(0.2, lambda: self._arrive(name, sender, connection))
            return
        position = standby.receive(self)
        back = 0.001 + 0.004 * self._random.random()
        self.world.after(back, lambda: self._reply(name, sender, position), self.process)
        if position < self.flushed:
            self._send(name)

    def _flows(self, standby: "Postgres") -> bool:
        still = self.process.frozen or standby.process.frozen
        reaches = self.world.reaches(self.process.host, standby.process.host)
        return not still and reaches and self.world.reaches(f"stream {self.name}", f"stream {standby.name}")

    def _reply(self, name: str, sender: Sender, position: int) -> None:
        standby = self.others[name]
        if self.senders.get(name) is not sender:
            return
        if not self._flows(standby):
            self.world.after(0.2, lambda: self._reply(name, sender, position), self.process)
            return
        if position > sender.flushed:
            sender.flushed = position
            if self.role == "primary":
                self._acknowledge()

    # The standby.

    def _latency(self) -> float:
        return 0.001 + 0.01 * self._random.random() + self.slow_s * self._random.random()

    def receive(self, source: "Postgres") -> int:
        """WAL arrives from a walsender; the position that is flushed now."""
        self.heard = self.world.now
        position = source.flushed
        if self.received is not None and position - self.received > 3 and self._random.random() < 0.3:
            position = self.received + (position - self.received) // 2
        self.received = max(self.received or 0, position)
        if position > self.flushed:
            self.flushed = position
            if self.delay_s:
                self._arrived.append((self.world.now, position))
            self._send_all()
        if source.branch is not self.branch and position >= source.branch.fork:
            self.branch = source.branch
        return position

    def reload(self, source: str) -> None:
        """Patroni writes primary_conninfo and reloads; the startup process reads it again a little later."""
        if self.conninfo == source:
            return
        self.conninfo = source
        self.world.tell(self.name, f"primary_conninfo: {source or 'empty'}")
        self.world.after(0.005 + 0.08 * self._random.random(), self._reread, self.process)

    def _reread(self) -> None:
        if self.role == "standby" and self._startup_conninfo != self.conninfo:
            self._startup_conninfo = self.conninfo
            self._restart = bool(self.receiver)
            self._retry_at = 0.0
            self.startup()

    def startup(self) -> None:
        """The startup process looks for WAL: only once everything it has is replayed does it touch the walreceiver."""
        if self.role != "standby" or self.promoting:
            return
        if self.process.frozen:
            self.world.after(0.0, self.startup, self.process)
            return
        if self.paused:
            return
        if self.replayed < self.flushed:
            self.world.after(0.1, self.startup, self.process)
            return
        if self._restart:
            self._restart = False
            self._disconnect()
        if self.receiver or not self._startup_conninfo:
            return
        if self.world.now < self._retry_at:
            self.world.after(self._retry_at - self.world.now, self.startup, self.process)
            return
        self._connect()

    def _connect(self) -> None:
        world, source = self.world, self.others[self._startup_conninfo]
        self._retry_at = world.now + self.retry_s
        request = f"{source.branch.number if source.branch.has(self.branch, self.flushed) else self.branch.number}"
        if self.received is None or self._receiving != request:
            self.received = self.flushed // SEGMENT * SEGMENT
        self._receiving = request
        self.receiver, self.source = "connecting", source.name
        self._connection += 1
        connection = self._connection
        world.after(0.005 + 0.02 * self._random.random(), lambda: self._connected(source, connection), self.process)

    def _connected(self, source: "Postgres", connection: int) -> None:
        if self._connection != connection or self.receiver != "connecting":
            return
        absent = source.process.dead or source.role not in ("primary", "standby")
        if source._flows(self) and not absent and source.branch.has(self.branch, self.flushed):
            self._stream(source)
            return
        answers = self.world.reaches(self.process.host, source.process.host) and (absent or source._flows(self))
        if answers or self.world.now - self._retry_at > 2.0:
            self._disconnect()
            self.startup()
        else:
            self.world.after(0.3, lambda: self._connected(source, connection), self.process)

    def _stream(self, source: "Postgres") -> None:
        self.receiver, self.heard = "streaming", self.world.now
        source.senders[self.name] = Sender(0, self.world.now)
        source._send(self.name)
        self._watch_stream(self._connection)

    def _watch_stream(self, connection: int) -> None:
        """It asks the leader for an answer after half of wal_receiver_timeout; after all of it it ends."""
        if self._connection != connection or self.receiver != "streaming":
            return
        source, now = self.others[self.source], self.world.now
        if now - self.heard >= self.receiver_timeout_s / 2 and source._flows(self) and source.role != "stopped":
            self.heard = now
        if now - self.heard > self.receiver_timeout_s:
            self._disconnect()
            self.startup()
            return
        pause = max(0.2, self.heard + self.receiver_timeout_s / 2 - now)
        self.world.after(pause, lambda: self._watch_stream(connection), self.process)

    def _disconnect(self) -> None:
        if self.receiver == "streaming":
            self.streamed = (self.source, self.world.now)
        if self.receiver:
            sender = self.others[self.source].senders
            sender.pop(self.name, None)
        self.receiver, self.source = "", ""
        self._connection += 1

    # Life and death.

    def stop(self) -> None:
        """It ends; those that stream from it notice where they can."""
        self.role, self.promoting = "stopped", False
        self._disconnect()
        for name in list(self.senders):
            standby = self.others[name]
            if self.world.reaches(self.process.host, standby.process.host):
                self.world.after(0.002, standby._lost(self.name), standby.process)
        self.senders.clear()

    def _lost(self, source: str) -> Callable[[], None]:
        connection = self._connection

        def act() -> None:
            if self._connection == connection and self.source == source:
                self._disconnect()
                self.startup()

        return act

    def begin(self, source: str, recovery_s: float = 0.0) -> None:
        """Start as a standby; crash recovery takes that long before it answers, and again until all is replayed."""
        now = self.world.now
        self.role, self.received, self._paused, self.conninfo = "starting", None, None, source
        self._receiving = ""
        replayed = max(self.flushed - self._random.randrange(60), 0)
        self._recovery = (now, replayed, now + 2 * recovery_s)
        if self.delay_s:
            # What it had received counts from then on; when that was is written in the WAL.
            last = self._arrived[-1][0] if self._arrived else now - self.delay_s
            self._delayed, self._arrived = min(self._delayed, replayed), deque([(last, self.flushed)])
        self.world.after(0.05 + recovery_s, self._started, self.process)

    def _started(self) -> None:
        if self.role != "starting":
            return
        self.role, self.started = "standby", self.world.now
        self._startup_conninfo = self.conninfo
        self._restart, self._retry_at = False, 0.0
        self.startup()

    def crash(self) -> None:
        """A crash that the postmaster recovers from: walreceiver and shared memory are gone, the disk is not."""
        if self.role != "standby" or self.promoting:
            return
        self.world.tell(self.name, f"crash-restarts, having flushed {self.flushed}")
        self._disconnect()
        for name in list(self.senders):
            standby = self.others[name]
            self.world.after(0.002, standby._lost(self.name), standby.process)
        self.senders.clear()
        self.begin(self.conninfo, 0.05 + 0.5 * self._random.random() ** 2)

    def pause_replay(self) -> None:
        """pg_wal_replay_pause()."""
        if self.role == "standby" and self._paused is None:
            self._paused = self.replayed

    def resume_replay(self) -> None:
        """pg_wal_replay_resume()."""
        self._paused = None
        self.startup()

    def promote(self, done: Callable[[], None]) -> None:
        """Replay what is there, then lead on a branch of its own."""
        self.promoting = True
        self._disconnect()
        self._paused = None
        began = self.started

        def act() -> None:
            if self.role == "standby" and self.promoting and self.started == began:
                done()

        self.world.after(0.15 + 0.4 * self._random.random(), act, self.process)

    def rewind(self, leader: "Postgres") -> None:
        """pg_rewind: its WAL is the leader's up to some point of now."""
        self.branch, self.flushed, self._delayed = leader.branch, leader.flushed, leader.flushed
