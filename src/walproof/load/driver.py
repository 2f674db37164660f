"""The load of one sample, whichever program makes it: pgbench, sysbench or any command.

sysbench and commands time themselves; what they print is read into one `Rate`."""

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from walproof.errors import TargetError, UsageError
from walproof.load.local_runner import StartedProgram, Used, ended_children_s
from walproof.load.pgbench import APPLICATION, Invocation, RunningLoad, invocation
from walproof.load.pgbench_log import Mark, Summary
from walproof.model.estimate import bucketed, pooled
from walproof.model.load import Workspace
from walproof.model.ports import Clock
from walproof.model.sample import NO_SERIES, PGBENCH, SYSBENCH, Arm, Series, Workload
from walproof.model.topology import Endpoint

SYSBENCH_TABLES = 10
SYSBENCH_ROWS = 1000
"""Rows of each of sysbench's tables by unit of --scale."""
_VARIABLES = {"application_name": "PGAPPNAME", "connect_timeout": "PGCONNECT_TIMEOUT", "dbname": "PGDATABASE"}
_TPS = re.compile(r"^tps[ =:]+([0-9]+(?:\.[0-9]+)?)$", re.IGNORECASE)
_SYSBENCH_RATE = re.compile(r"^[ \t]*transactions:\s+(\d+)\s+\(([0-9.]+) per sec", re.MULTILINE)
_SYSBENCH_ERRORS = re.compile(r"^[ \t]*ignored errors:\s+(\d+)", re.MULTILINE)
_SYSBENCH_MEAN = re.compile(r"^[ \t]*avg:\s+([0-9.]+)", re.MULTILINE)
_SYSBENCH_BUCKET = re.compile(r"^[ \t]*([0-9.]+) \|\**\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rate:
    """What a program says of its run: transactions per second, how many, mean latency in ms (NaN: not known)."""

    tps: float
    transactions: int | None = None
    failed: int = 0
    mean_ms: float = math.nan
    histogram: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelfTimed:
    """A program as it is to be started, the seconds it runs by itself, and how its output is read (None: no rate)."""

    argv: tuple[str, ...]
    seconds: float
    rate: Callable[[str], Rate | None]


def environment(endpoint: Endpoint, **more: str) -> dict[str, str]:
    """The endpoint as libpq's environment variables (manual, libpq, Environment Variables); never a password.

    >>> environment(Endpoint((("h", 5432),), options=(("sslmode", "require"),)), options="-c work_mem=1MB")["PGSSLMODE"]
    'require'
    """
    words = endpoint.words(**more)
    return {_VARIABLES.get(name, "PG" + name.upper().replace("_", "")): text for name, text in words.items()}


def self_timed(arm: Arm, endpoint: Endpoint, seconds: float, seed: int, *, application: str) -> SelfTimed:
    """How to start the workload's driver for that arm; UsageError where its level could not reach the server."""
    refuse_shared_sessions(arm.workload, pooled=endpoint.pooled, mixed=bool(arm.mix))
    variables = environment(endpoint, application_name=application, options=f"-c synchronous_commit={arm.level}")
    if arm.workload.driver == SYSBENCH:
        whole = max(1, math.ceil(seconds))
        argv = (*sysbench(arm.workload), f"--threads={arm.clients}", f"--time={whole}", "--histogram")
        argv += (f"--rand-seed={seed % (1 << 31)}", *([f"--rate={arm.rate:.0f}"] if arm.rate else []), "run")
        return SelfTimed((*_env(variables), *argv), whole, sysbench_rate)
    variables |= {"WALPROOF_CLIENTS": str(arm.clients), "WALPROOF_SECONDS": f"{seconds:g}", "WALPROOF_SEED": str(seed)}
    variables |= {"WALPROOF_RATE": f"{arm.rate:g}"} if arm.rate else {}
    return SelfTimed((*_env(variables), *shlex.split(arm.workload.driver)), seconds, command_rate)


def refuse_shared_sessions(workload: Workload, *, pooled: bool, mixed: bool) -> None:
    """UsageError where sessions are shared or levels mixed: such a program's level is its session's."""
    if pooled or mixed:
        what = "a mix of levels" if mixed else "a transaction pool"
        raise UsageError(
            f"{workload.text} gets its level by PGOPTIONS, which {what} cannot pass on", "measure it with pgbench"
        )


def preparing(workload: Workload, endpoint: Endpoint, step: str) -> tuple[str, ...]:
    """Argument list for sysbench's own steps `prepare` and `cleanup`, whose commits wait for no standby."""
    options = "-c synchronous_commit=local -c client_min_messages=error"
    return (*_env(environment(endpoint, application_name="walproof", options=options)), *sysbench(workload), step)


def sysbench(workload: Workload) -> tuple[str, ...]:
    """Program, test and size of tables; the connection comes by the environment."""
    # Where these are empty, libpq reads its environment.
    connection = ("--pgsql-host=", "--pgsql-user=", "--pgsql-db=", "--pgsql-port=")
    size = (f"--tables={SYSBENCH_TABLES}", f"--table-size={SYSBENCH_ROWS * workload.scale}")
    return (SYSBENCH, str(workload.script), "--db-driver=pgsql", *connection, *size)


def _env(variables: dict[str, str]) -> tuple[str, ...]:
    return ("env", *(f"{name}={text}" for name, text in variables.items()))


def sysbench_rate(output: str) -> Rate | None:
    """The rate, errors, mean and histogram of latencies that sysbench prints at its end; None without them."""
    match = _SYSBENCH_RATE.search(output)
    if match is None:
        return None
    errors, mean = _SYSBENCH_ERRORS.search(output), _SYSBENCH_MEAN.search(output)
    buckets = ((float(value), int(count)) for value, count in _SYSBENCH_BUCKET.findall(output))
    histogram = pooled({bucket: count} for value, count in buckets for bucket in bucketed(np.array([value])))
    return Rate(
        float(match[2]),
        int(match[1]),
        int(errors[1]) if errors else 0,
        float(mean[1]) if mean else math.nan,
        histogram,
    )


def command_rate(output: str) -> Rate | None:
    """The rate of a program whose last line is `tps NUMBER`; its latency is not known.

    >>> command_rate("starting\\ntps 1234.5\\n")
    Rate(tps=1234.5, transactions=None, failed=0, mean_ms=nan, histogram={})
    """
    last = next(reversed(output.strip().splitlines()), "")
    match = _TPS.fullmatch(last.strip())
    return Rate(float(match[1])) if match else None


CONNECT_S = 30.0
_SEEDS_APART = 1_000_003


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What to run, where, for how long and from which seed; pgbench's path."""

    arm: Arm
    endpoint: Endpoint
    seconds: float
    seed: int
    pgbench: Path


def start_load(request: LoadRequest, places: Sequence[Workspace], clock: Clock) -> "Load":
    """Start the workload's driver: pgbench in every place that gets a client, any other driver in the first."""
    arm, seconds, seed = request.arm, request.seconds, request.seed
    if arm.workload.driver == PGBENCH:
        return start_pgbench(request, places, clock)
    endpoint = places[0].seen_from_there(request.endpoint)
    return SelfTimedLoad(self_timed(arm, endpoint, seconds, seed, application=APPLICATION), places[0])


def start_pgbench(request: LoadRequest, places: Sequence[Workspace], clock: Clock) -> RunningLoad:
    shares = zip(shared(request.arm.clients, len(places)), places, strict=True)
    used = [(share, place) for share, place in shares if share]
    return RunningLoad([_part(request, share, place, number) for number, (share, place) in enumerate(used)], clock)


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
    """A program that times itself, running in a workspace. It does not say what was tried again or given up."""

    aborted = retries = 0

    def __init__(self, program: SelfTimed, workspace: Workspace) -> None:
        self._program = program
        self.self_timed_s = program.seconds
        self._children_s = ended_children_s()
        self._cut = False
        super().__init__([(program.argv, workspace)])

    def used(self) -> Used:
        """Processor time of the program and of those it started, known once it has ended."""
        cpu_s = ended_children_s() - self._children_s if self.ended else 0.0
        return Used(dict.fromkeys(self.pids[:1], cpu_s), {}, {})

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

    def series(self, overall: Summary, within: tuple[float, float], marks: Sequence[Mark]) -> Series:
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


Load = RunningLoad | SelfTimedLoad
"""A program that puts load on a target for one sample; as a context manager it is ended."""


def _summary(rate: Rate, seconds: float) -> Summary:
    count = sum(rate.histogram.values())
    return Summary(
        transactions=round(rate.tps * seconds) if rate.transactions is None else rate.transactions,
        failed=rate.failed,
        credit=rate.tps * seconds,
        sum_ms=rate.mean_ms * count if count else 0.0,
        histogram=rate.histogram,
    )
