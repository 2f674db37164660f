"""The load of one sample, whichever program makes it: pgbench, sysbench or any command, behind one protocol."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from walproof.errors import TargetError
from walproof.load.cpu_usage import Used, ended_children_s
from walproof.load.pgbench import APPLICATION, Invocation, invocation
from walproof.load.pgbench_log import Summary
from walproof.load.pgbench_process import RunningLoad
from walproof.load.self_timed import Rate, SelfTimed, self_timed
from walproof.load.series import Mark
from walproof.load.started_program import StartedProgram
from walproof.model.load import Workspace
from walproof.model.plan import PGBENCH, Arm
from walproof.model.ports import Clock
from walproof.model.sample import NO_SERIES, Series
from walproof.model.topology import Endpoint

CONNECT_S = 30.0
_SEEDS_APART = 1_000_003


class Load(Protocol):
    """A program that puts load on a target for one sample; as a context manager it is ended."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process ids on this machine."""
        ...

    def used(self) -> Used:
        """Processor time it used so far."""
        ...

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        ...

    @property
    def self_timed_s(self) -> float | None:
        """Seconds after which it ends by itself, its own start apart; None where the caller ends it."""
        ...

    @property
    def aborted(self) -> int:
        """Clients that gave up after an error."""
        ...

    @property
    def retries(self) -> int:
        """Transactions tried again."""
        ...

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """Wait until every client is connected, where that can be seen; TargetError when it fails."""
        ...

    def end(self, grace_s: float, unblock: Callable[[], None]) -> None:
        """End it; `unblock` is called when it does not end within grace_s."""
        ...

    def summary(self, since: float, until: float) -> tuple[Summary, float]:
        """What it did, and from when that counts, between two times (epoch s)."""
        ...

    def series(self, found: Summary, within: tuple[float, float], marks: Sequence[Mark]) -> Series:
        """What it did second by second between two times (epoch s), where that is known; `found` is its summary."""
        ...

    def error(self) -> TargetError:
        """The TargetError for what it printed."""
        ...

    def __enter__(self) -> "Load": ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What to run, where, for how long and from which seed; pgbench's path."""

    arm: Arm
    endpoint: Endpoint
    seconds: float
    seed: int
    pgbench: Path


def start_load(request: LoadRequest, places: Sequence[Workspace], clock: Clock) -> Load:
    """Start the workload's driver: pgbench in every place that gets a client, any other driver in the first."""
    arm, seconds, seed = request.arm, request.seconds, request.seed
    if arm.workload.driver == PGBENCH:
        shares = [
            (share, place) for share, place in zip(shared(arm.clients, len(places)), places, strict=True) if share
        ]
        return RunningLoad(
            [_part(request, share, place, number) for number, (share, place) in enumerate(shares)], clock
        )
    endpoint = places[0].seen_from_there(request.endpoint)
    return SelfTimedLoad(self_timed(arm, endpoint, seconds, seed, application=APPLICATION), places[0])


def _part(request: LoadRequest, clients: int, place: Workspace, number: int) -> tuple[Invocation, Workspace]:
    """pgbench with a part of the clients, and of an offered rate, from a seed of its own."""
    arm, endpoint = request.arm, place.seen_from_there(request.endpoint)
    rate = None if arm.rate is None else arm.rate * clients / arm.clients
    part = replace(arm, clients=clients, rate=rate)
    directory, timeout_s = Path(place.directory), int(request.seconds + CONNECT_S + 60)
    seed = request.seed + number * _SEEDS_APART
    return invocation(part, endpoint, directory, seed, pgbench=request.pgbench, timeout_s=timeout_s), place


def shared(count: int, places: int) -> list[int]:
    """So many of something over places, as evenly as can be.

    >>> shared(5, 2), shared(1, 3)
    ([3, 2], [1, 0, 0])
    """
    return [count // places + (number < count % places) for number in range(places)]


class SelfTimedLoad(StartedProgram):
    """A program that times itself, running in a workspace."""

    def __init__(self, program: SelfTimed, workspace: Workspace) -> None:
        self._program = program
        self._children_s = ended_children_s()
        self._cut = False
        super().__init__([(program.argv, workspace)])

    def used(self) -> Used:
        """Processor time of the program and of those it started, known once it has ended."""
        cpu_s = ended_children_s() - self._children_s if self.ended else 0.0
        return Used(dict.fromkeys(self.pids[:1], cpu_s), {}, {})

    @property
    def self_timed_s(self) -> float:
        """Seconds it was asked to run."""
        return self._program.seconds

    @property
    def aborted(self) -> int:
        """Not known of such a program."""
        return 0

    @property
    def retries(self) -> int:
        """Not known of such a program."""
        return 0

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """Connections of such a program are not known by their process: nothing is waited for."""

    def end(self, grace_s: float, unblock: Callable[[], None]) -> None:
        """Kill it where it still runs: it has had its time and CONNECT_S to start."""
        if not self._processes[0].wait(grace_s):
            self._cut = True
            unblock()
            self._processes[0].kill()

    def summary(self, since: float, until: float) -> tuple[Summary, float]:
        """Its rate over the time between; TargetError when it failed, was cut off, or printed no rate."""
        rate = None if self._cut or self._processes[0].exit_code else self._program.rate(self._text())
        if rate is None:
            raise self.error()
        return _summary(rate, until - since), since

    def series(self, found: Summary, within: tuple[float, float], marks: Sequence[Mark]) -> Series:
        """Not known of such a program."""
        return NO_SERIES

    def error(self) -> TargetError:
        """The TargetError with its exit code and last line."""
        lines = self._text().strip().splitlines()
        name = next(word for word in self._program.argv[1:] if "=" not in word)
        ended = "did not end in time" if self._cut else f"ended with exit code {self._processes[0].exit_code}"
        return TargetError(
            f"{name} {ended} and printed no rate: {lines[-1] if lines else 'it printed nothing'}",
            "a driver's last line is `tps 1234.5`; run it by hand",
        )


def _summary(rate: Rate, seconds: float) -> Summary:
    count = sum(rate.histogram.values())
    return Summary(
        transactions=round(rate.tps * seconds) if rate.transactions is None else rate.transactions,
        failed=rate.failed,
        credit=rate.tps * seconds,
        sum_ms=rate.mean_ms * count if count else 0.0,
        histogram=rate.histogram,
    )
