"""The loads of `benchmarks.observe_true`, and what is measured of each on a lab: what is observed, and what is true."""

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil
from psycopg import Connection

from walproof.estimating.observed_prices import LONGER_MS
from walproof.estimating.observed_waits import Cause
from walproof.machine.programs import pgbench
from walproof.model.drill import Capability
from walproof.model.guarantee import QuorumKind
from walproof.model.observed_waits import WaitsSeen
from walproof.model.sample import Scenario
from walproof.targets.lab.target import LabTarget
from walproof.targets.sql.commit_waits import SqlCommitWaits
from walproof.targets.sql.connection import session

_WARM_S, _SETTLED_S = 2.0, 0.5
_OFF_S = 10.0
"""Commits at `off` wait for nothing, and all that is needed is how long their END takes."""
_NETWORK, _FLUSH, _STANDBY, _REPLAY = ({c} for c in (Cause.NETWORK, Cause.FLUSH, Cause.STANDBY_FLUSH, Cause.REPLAY))


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions at levels (two applications where there are two), their pace (0: closed loop), what is slow, what shows.

    causes: those that are true; empty where the load does not say which is.
    """

    levels: tuple[str, ...]
    clients: int
    rtt_ms: float = 0.0
    rate: int = 0
    trouble: str = ""
    causes: frozenset[Cause] = frozenset()

    @property
    def text(self) -> str:
        """Short words."""
        rate = f", {self.rate}/s" if self.rate else ""
        trouble = f", {self.trouble}" if self.trouble else ""
        return f"{'+'.join(self.levels)}, {self.clients} clients, {self.rtt_ms:g} ms{rate}{trouble}"

    @property
    def predicted(self) -> tuple["Load | None", str]:
        """The load from which this one is predicted, and as what; None where it is not."""
        (level, *others), alone = self.levels, not (self.trouble or self.rate)
        if alone and level == "on" and self.rtt_ms == max(LONGER_MS):
            return replace(self, rtt_ms=0.0), f"round trip {self.rtt_ms:g} ms longer"
        if alone and not others and level in ("local", "remote_write", "remote_apply"):
            return replace(self, levels=("on",)), level
        return None, ""


def _load(levels: str, clients: int, causes: set[Cause] | None = None, **more: Any) -> Load:
    known = causes or (_FLUSH if levels == "local" else ())  # where no commit waits for standbys
    return Load(tuple(levels.split("+")), clients, causes=frozenset(known), **more)


REMOTE = ("remote_write", "on", "remote_apply")
LOADS = (
    *(_load(level, n) for n in (1, 16) for level in ("off", "local", *REMOTE)),
    *(_load(level, 64) for level in ("off", "local", "on")),
    *(_load(level, 4, _NETWORK if level in REMOTE else None, rtt_ms=3.0) for level in ("off", "on", "remote_write")),
    *(_load(level, 16, _NETWORK if level in REMOTE else None, rtt_ms=10.0) for level in ("off", "local", *REMOTE)),
    _load("off", 8, rate=100),
    _load("on", 8, rate=100),
    _load("off", 4, trouble="slow disk of one standby, ANY 2"),
    _load("on", 4, _STANDBY, trouble="slow disk of one standby, ANY 2"),
    _load("local", 4, trouble="slow disk of the leader"),
    _load("remote_apply", 4, _REPLAY, trouble="replay paused"),
    _load("on+local", 16),
)


@contextmanager
def _entered(target: LabTarget, load: Load) -> Iterator[None]:
    """The round trip and the trouble in effect."""
    able, view = target.capabilities(), target.observe()
    standbys = [m.name for m in view.standbys]
    with ExitStack() as undo:
        two = load.trouble.endswith("ANY 2")
        quorum: dict[str, Any] = {"quorum_kind": QuorumKind.ANY, "quorum": 2} if two else {}
        target.pricing.enter(Scenario(**quorum, rtt_ms=load.rtt_ms or None))
        undo.callback(target.pricing.leave)
        if load.trouble.startswith("slow disk"):
            assert able.slow_disk is not None
            victim = view.leader or "" if load.trouble.endswith("leader") else standbys[0]
            able.slow_disk.inject(victim, 0.008)
            undo.callback(able.slow_disk.undo, victim)
        if load.trouble == "replay paused":
            for standby in standbys:
                able.faults[Capability.PAUSE_REPLAY].inject(standby)
                undo.callback(able.faults[Capability.PAUSE_REPLAY].undo, standby)
            # Patroni resumes it at each of its looks (patroni/postgresql/__init__.py), and the fault pauses it anew:
            # commits end about a second later.
        yield


def _pgbench(target: LabTarget, level: str, load: Load, seconds: float) -> "subprocess.Popen[str]":
    clients, own = load.clients // len(load.levels), len(load.levels) > 1
    argv = [str(pgbench()), "-n", "-r", "-M", "prepared", "-c", str(clients), "-j", "2", "-T", str(math.ceil(seconds))]
    argv += ["-R", f"{load.rate}"] if load.rate else []
    words = target.endpoint("direct").client_conninfo(dbname="walproof_bench", application_name=f"at {level}")
    environment = {**os.environ, **({"PGOPTIONS": f"-c synchronous_commit={level}"} if own else {})}
    return subprocess.Popen(
        [*argv, words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@dataclass(frozen=True, slots=True)
class Run:
    """What was observed of a load; mean END in ms by the server's log and by pgbench; transactions a second."""

    seen: list[WaitsSeen]
    end_ms: float
    client_ms: float
    tps: float


NUMBERS = ("end_ms", "client_ms", "tps")
"""Fields of Run."""


def run(target: LabTarget, load: Load, seconds: float) -> Run:
    """The load for so long, observed."""
    with session(target.endpoint("direct")) as connection:
        sampled = "1" if load.trouble else "0.2"
        level = load.levels[0] if len(load.levels) == 1 else "DEFAULT"  # two applications set theirs by themselves
        connection.execute(f"ALTER DATABASE walproof_bench SET synchronous_commit = {level}".encode())
        for name, value in (("log_min_duration_sample", "0"), ("log_statement_sample_rate", sampled)):
            connection.execute(f"ALTER DATABASE walproof_bench SET {name} = {value}".encode())
    running = [_pgbench(target, level, load, seconds + 2 * _WARM_S) for level in load.levels]
    target.clock.pause(_WARM_S)
    log = target.blueprint.member_dir(target.observe().leader or "") / "patroni.log"
    until, begin = target.clock.now() + seconds, log.stat().st_size
    seen = list(SqlCommitWaits(target).watch(1.0, lambda: target.clock.now() >= until))
    if not seen:
        raise ValueError("nothing was observed")
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    ends, rates = [], []
    for one in running:
        out, _ = one.communicate(timeout=120)
        ends += [float(ms) for ms in re.findall(r"([0-9.]+) +\d* *END;", out)]
        rates += [float(tps) for tps in re.findall(r"tps = ([0-9.]+)", out)]
    on_server = [float(ms) for ms in re.findall(r"duration: ([0-9.]+) ms +(?:execute|statement)[^\n]*END;", text)]
    return Run(seen, fmean(on_server), float(np.average(ends, weights=rates)), sum(rates))


@dataclass(frozen=True, slots=True)
class Done:
    """A load that was run. off_ms: mean END by the server at `off`, as many transactions a second: its processor time.

    before: the load from which it is predicted, run right before and right after.
    """

    load: Load
    run: Run
    off_ms: float
    before: Run | None = None

    @property
    def truth_ms(self) -> float:
        """How long a commit waits; 0 at `off`."""
        return 0.0 if self.load.levels == ("off",) else self.run.end_ms - self.off_ms


def measured(target: LabTarget, load: Load, seconds: float) -> Done:
    """A load, the same at `off` after it, and before and after both what it is predicted from."""
    base, befores, off_ms = load.predicted[0], list[Run](), 0.0

    def observe_base() -> None:
        if base:
            with _entered(target, base):
                befores.append(run(target, base, seconds))

    observe_base()
    with _entered(target, load):
        at_off = load.levels == ("off",)
        made = run(target, load, min(_OFF_S, seconds) if at_off else seconds)
        if not at_off:
            off = replace(load, levels=("off",), rate=max(1, round(made.tps)))
            off_ms = run(target, off, min(_OFF_S, seconds)).end_ms
    observe_base()
    return Done(load, made, off_ms, _joined(befores) if befores else None)


def _joined(runs: list[Run]) -> Run:
    """Runs of one load as one: a disk that gets slower from the first to the last is as slow on average as between."""
    return Run([seen for one in runs for seen in one.seen], **{n: fmean(getattr(r, n) for r in runs) for n in NUMBERS})


def prepare(target: LabTarget) -> None:
    with session(target.endpoint("direct")) as connection:
        connection.execute("CREATE DATABASE walproof_bench")
    words = target.endpoint("direct").client_conninfo(dbname="walproof_bench")
    subprocess.run([str(pgbench()), "-i", "-s", "20", "-q", words], check=True, capture_output=True)


def minute(target: LabTarget, number: int, record: Path, pairs: int = 10) -> dict[str, Any]:
    """64 clients for a minute beside `walproof observe`, which is stopped for half of it: `pairs` of three seconds
    with it and three without, in random order. Log ratios of throughput; processors that its session and it take.

    Only so are both measured on the same disk: its speed changes from one minute to the next by more than is asked.
    """
    order = np.random.default_rng(number).permuted([[True, False]] * pairs, axis=1)
    ratios: list[float] = []
    observing, load = _observing(target, record), _pgbench(target, "on", Load(("on",), 64), 6.0 * pairs + _WARM_S)
    target.clock.pause(_WARM_S)
    try:
        with session(target.endpoint("direct")) as connection:
            before = _used(connection, observing)
            for states in order.tolist():
                tps: dict[bool, float] = {}
                for observed in states:
                    observing.send_signal(signal.SIGCONT if observed else signal.SIGSTOP)
                    tps[observed] = _throughput(target, connection)
                ratios.append(math.log(tps[True] / tps[False]))
            used = np.subtract(_used(connection, observing), before) / (3.0 * pairs)
    finally:
        for one in (observing, load):
            one.send_signal(signal.SIGCONT)
            one.terminate()
            one.communicate()
    return {"log_ratios": ratios, "session": float(used[0]), "own": float(used[1])}


def _throughput(target: LabTarget, connection: Connection) -> float:
    """Transactions a second that began to write, for 3 s less the time to settle."""
    seen: list[tuple[float, int]] = []
    for wait_s in (_SETTLED_S, 3.0 - _SETTLED_S):
        target.clock.pause(wait_s)
        row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()
        assert row is not None
        seen.append((target.clock.now(), int(row[0])))
    (began, first), (ended, last) = seen
    return (last - first) / (ended - began)


def _observing(target: LabTarget, record: Path) -> "subprocess.Popen[bytes]":
    argv = [
        sys.executable,
        "-m",
        "walproof",
        "observe",
        "--target",
        f"lab:{target.blueprint.name}",
        "--record",
        str(record),
    ]
    one = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    events = record / "events.jsonl"
    while not (events.exists() and "waits-seen" in events.read_text()):
        assert one.poll() is None, "walproof observe has ended"
        target.clock.pause(0.2)
    return one


def _used(connection: Connection, observing: "subprocess.Popen[bytes]") -> tuple[float, float]:
    """Processor seconds of its session on the server, and of its own process."""
    row = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'walproof observe' "
        "ORDER BY backend_start DESC LIMIT 1"
    ).fetchone()
    assert row is not None
    used = [psutil.Process(pid).cpu_times() for pid in (int(row[0]), observing.pid)]
    return used[0].user + used[0].system, used[1].user + used[1].system
