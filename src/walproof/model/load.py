"""Load on a target: what the ledger's writers shall do and how they stand, and where load runs (ports).

Commit attempts as the client saw them: four outcomes, kept as columns so that ten million fit in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from walproof.errors import UsageError
from walproof.model.guarantee import Level
from walproof.model.topology import Endpoint, Route


class Outcome(IntEnum):
    """What the client knows. DOWNGRADED is success with PostgreSQL's warning that the wait was cancelled."""

    UNKNOWN = 0
    ACKNOWLEDGED = 1
    DOWNGRADED = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class Attempts:
    """The ledger as columns of one length. Times are seconds since the epoch on the client's clock.

    writer, number: identify an attempt (int32, int64). started, ended: float64, ended NaN while unknown.
    outcome: int8 of Outcome. level: int8, index into Level of what the row's own commit had, -1 where none came back.
    server: int16, index into `servers`, -1 unknown: its address and since when it has not crashed, so that the same
    index means the same unbroken run of WAL.
    timeline: int32, 0 unknown. lsn: uint64, 0 unknown. names: int16, index into `standby_names`, -1 unknown.
    checksum: uint32, CRC-32 of the payload sent.
    """

    writer: NDArray[np.int32]
    number: NDArray[np.int64]
    started: NDArray[np.float64]
    ended: NDArray[np.float64]
    outcome: NDArray[np.int8]
    level: NDArray[np.int8]
    server: NDArray[np.int16]
    timeline: NDArray[np.int32]
    lsn: NDArray[np.uint64]
    names: NDArray[np.int16]
    checksum: NDArray[np.uint32]
    servers: tuple[str, ...] = ()
    standby_names: tuple[str, ...] = ()
    clocks_apart_s: float = 0.0
    """By how much the times of two writers may be wrong against each other, 0 where one clock gave them all."""

    def __len__(self) -> int:
        return len(self.writer)


@dataclass(frozen=True, slots=True)
class Rows:
    """The ledger table as one member holds it: columns of one length; checksum is of the payload read back."""

    member: str
    writer: NDArray[np.int32]
    number: NDArray[np.int64]
    checksum: NDArray[np.uint32]
    stated: NDArray[np.uint32]
    """The checksum stored with the payload; differs from `checksum` when a row was torn or corrupted."""

    def __len__(self) -> int:
        return len(self.writer)


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Most connections that write, and most transactions per second, that a target bears; None: no limit."""

    clients: int | None = None
    rate: float | None = None

    def check(self, clients: int) -> None:
        """UsageError when so many at a time are more than may be.

        >>> LoadLimits(clients=4).check(4)
        """
        if self.clients is not None and clients > self.clients:
            raise UsageError(
                f"{clients} clients are more than this target's max_clients = {self.clients}",
                "ask for fewer (--clients, --writers, --levels), or raise max_clients below [caps] in the target file; "
                "by a proxy or a pooler a writer whose commit hangs connects once more, so each of them counts twice",
            )


NO_LIMITS = LoadLimits()


def connections(writers: int, route: Route, hosts: int) -> int:
    """How many so many writers have at a time: each has another one where its commit hangs at one address.

    >>> [connections(4, Route(name), hosts) for name, hosts in (("multi-host", 3), ("haproxy", 1), ("multi-host", 1))]
    [4, 8, 8]
    """
    return 2 * writers if route.one_address(hosts) else writers


@dataclass(frozen=True, slots=True)
class LedgerOrder:
    """What the ledger shall do: writers in all, level of their commits, the route, readers alongside.

    `rate`: commits per second of all writers together at most; None: as fast as they can.
    """

    level: Level
    writers: int = 16
    route: str = "multi-host"
    witnesses: bool = True
    drill: int = 0
    rate: float | None = None
    answer_timeout_s: float = 3.0
    """After so long without an answer a writer tries another server, and only listens on the old connection."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How the ledger stands: acknowledged so far, time of the last acknowledgement, last error in words.

    `writers_alive` counts writers of living processes, `connected` those that have a session now.
    """

    acknowledged: int
    last_acknowledged_at: float | None
    writers_alive: int
    last_error: str = ""
    connected: int = 0


@dataclass(frozen=True, slots=True)
class WitnessReport:
    """What readers saw alongside the writers: reads by staleness, rows seen on the leader (writer, number), long forks.

    `backward_by_member` counts reads of a standby that showed less of a writer than an earlier one did, while it stayed
    the same server. `fresh_by_member` maps a standby to (reads that found the acknowledged row, reads that did not);
    `fresh_somewhere` counts the same with every standby asked at once: found on at least one, found on none.
    """

    fresh_by_member: dict[str, tuple[int, int]]
    seen_on_leader: tuple[tuple[int, int], ...] = ()
    long_forks: int = 0
    stale_ms: tuple[float, ...] = ()
    fresh_somewhere: tuple[int, int] = (0, 0)
    backward_by_member: dict[str, int] = field(default_factory=dict)


class LedgerRun(Protocol):
    """Writers at work, in processes of their own."""

    def progress(self) -> Progress:
        """How it stands now."""

    def stop(self) -> Attempts:
        """End the writers and give the ledger; safe to call twice."""

    def witnessed(self) -> WitnessReport:
        """What the readers saw; after stop."""

    def incomplete(self) -> str:
        """Why the ledger or the readers' report is incomplete (a writer was killed, the disk was full), or "".

        After stop.
        """


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What the clients of a workload beside a drill saw: transactions per second before the fault and once it was over.

    outage_s: the longest time after the fault in which none ended. failed: that pgbench gave up. reconnects: how often
    clients were lost and pgbench was started again.
    """

    before_tps: float
    outage_s: float
    after_tps: float
    failed: int = 0
    reconnects: int = 0


class LoadRun(Protocol):
    """A workload at work beside a drill."""

    def keep_up(self, led: object, patience_s: float) -> str:
        """Start it again where its clients are gone, or hang; what they saw just now, "" for nothing new.

        `led`: who leads on which timeline, None where that is not known; clients of a leader before have so long.
        """

    def seen(self, fault_at: float) -> LoadFigures:
        """What its clients saw until now, when it ends; `fault_at`: when the fault began, seconds since the epoch."""

    def close(self) -> None:
        """End it; safe to call twice."""


class LoadProcess(Protocol):
    """One program that puts load on a target."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process ids on this machine; () where it runs elsewhere."""

    def cpu_s(self) -> float:
        """Processor seconds it used so far, as far as that is known."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""

    def sockets(self) -> int:
        """How many connections it holds."""

    def finish(self) -> None:
        """Tell it that its time is over; it ends by itself."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it still runs after that many seconds."""

    def kill(self) -> None:
        """End it at once; safe when it has ended."""


@dataclass(frozen=True, slots=True)
class PlaceClock:
    """A place's clocks against ours: what to add to its monotonic clock, by how much its wall clock is ahead; s.

    `uncertainty_s`: by how much both may be wrong, 0 where they are ours.
    """

    offset_s: float
    ahead_s: float = 0.0
    uncertainty_s: float = 0.0


class Workspace(Protocol):
    """A directory in a place where load runs, and how to get what it wrote there."""

    directory: str
    """Its path as the programs see it."""

    @property
    def lost(self) -> str:
        """Why what was written there cannot be had any more, ""."""

    def clock(self) -> PlaceClock:
        """The clocks there, as they are now."""

    def seen_from_there(self, endpoint: Endpoint) -> Endpoint:
        """The same endpoint with the addresses and the password file that lead to it from there."""

    def put(self, name: str, text: str) -> None:
        """Write a file there."""

    def start(self, argv: Sequence[str], log: str) -> LoadProcess:
        """Start a program there, its output into the file `log`; `finish` sends SIGALRM. OSError."""

    def start_module(self, module: str, argument: str, log: str) -> LoadProcess:
        """Start a module of walproof; `finish`, and the end of this process, close its standard input. OSError."""

    def fetch(self, pattern: str, *, head: int | None = None) -> tuple[Path, ...]:
        """Files there that match a pattern of names, as they are now, at paths of this machine; () when it is lost.

        `head`: that many bytes of each are enough.
        """

    def close(self) -> None:
        """Remove the directory; safe to call twice."""


class LoadRunner(Protocol):
    """Where load runs: processes on this machine, or pods of a Job in a cluster."""

    def pgbench(self) -> Path:
        """pgbench as the programs of these places are named."""

    def open(self) -> tuple[Workspace, ...]:
        """A new work directory in each place, all of them ready."""
