"""Load programs that time themselves and say their rate when they end: sysbench, or any command. Pure.

They connect by libpq's environment; the commit level goes into PGOPTIONS. What they print is read into one `Rate`.
"""

import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from walproof.errors import UsageError
from walproof.model.histogram import bucketed, pooled
from walproof.model.plan import SYSBENCH, Arm, Workload
from walproof.model.topology import Endpoint

SYSBENCH_TABLES = 10
SYSBENCH_ROWS = 1000
"""Rows of each of sysbench's tables by unit of --scale."""
_VARIABLES = {
    "application_name": "PGAPPNAME",
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "dbname": "PGDATABASE",
}
_TPS = re.compile(r"^tps[ =:]+([0-9]+(?:\.[0-9]+)?)$", re.IGNORECASE)
_SYSBENCH_RATE = re.compile(r"^\s*transactions:\s+(\d+)\s+\(([0-9.]+) per sec", re.MULTILINE)
_SYSBENCH_ERRORS = re.compile(r"^\s*ignored errors:\s+(\d+)", re.MULTILINE)
_SYSBENCH_MEAN = re.compile(r"^\s*avg:\s+([0-9.]+)", re.MULTILINE)
_SYSBENCH_BUCKET = re.compile(r"^\s*([0-9.]+) \|\**\s+(\d+)$", re.MULTILINE)


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
    words = {
        "host": ",".join(host for host, _ in endpoint.hosts),
        "port": ",".join(str(port) for _, port in endpoint.hosts),
        "dbname": endpoint.database,
        "user": endpoint.user,
        **({"passfile": endpoint.passfile} if endpoint.passfile else {}),
        **dict(endpoint.options),
        **more,
    }
    return {_VARIABLES.get(name, "PG" + name.upper().replace("_", "")): text for name, text in words.items() if text}


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
    """Argument list for sysbench's own steps `prepare` and `cleanup`, whose commits wait for nobody."""
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
    found = _SYSBENCH_RATE.search(output)
    if found is None:
        return None
    errors, mean = _SYSBENCH_ERRORS.search(output), _SYSBENCH_MEAN.search(output)
    buckets = ((float(value), int(count)) for value, count in _SYSBENCH_BUCKET.findall(output))
    histogram = pooled({bucket: count} for value, count in buckets for bucket in bucketed(np.array([value])))
    return Rate(
        float(found[2]),
        int(found[1]),
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
    found = _TPS.fullmatch(last.strip())
    return Rate(float(found[1])) if found else None


def program_of(workload: Workload) -> Path:
    """The driver's program, without its arguments."""
    return Path(SYSBENCH if workload.driver == SYSBENCH else shlex.split(workload.driver)[0])
