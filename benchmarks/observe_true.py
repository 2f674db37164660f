"""Whether `walproof observe` is right, and what it costs: `python -m benchmarks.observe_true true|cost`.

What is true is how long the server took for END (its log, every fifth), less the same at `off` with as many clients
at the same rate (`-R`): at its own rate `off` saturates the processors, which lengthens its END. pgbench's own latency
of END holds, besides, how long pgbench waited for a processor to read the answer on: on a busy machine as much again.
Exit 1 when a figure is surely missed, 4 when its interval leaves that open.
"""

import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil

from benchmarks.command import command, judged, judged_least
from benchmarks.temporary_lab import benchmark_target
from walproof.estimating.intervals import as_ratio, t_interval
from walproof.estimating.observed_prices import predictions
from walproof.estimating.observed_waits import Cause, held_up_by, observation
from walproof.machine.programs import pgbench
from walproof.model.drill import Capability
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.observed_waits import WaitsSeen
from walproof.model.sample import Arm, Sample, Scenario, Workload
from walproof.targets.lab.target import LabTarget
from walproof.targets.sql.commit_waits import SqlCommitWaits
from walproof.targets.sql.connection import session

_WARM_S = 2.0
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


def _load(levels: str, clients: int, causes: set[Cause] | None = None, **more: Any) -> Load:
    return Load(tuple(levels.split("+")), clients, causes=frozenset(causes or ()), **more)


REMOTE = ("remote_write", "on", "remote_apply")
LOADS = (
    *(_load(level, n, _FLUSH if level == "local" else None) for n in (1, 16) for level in ("off", "local", *REMOTE)),
    *(_load(level, 64) for level in ("off", "local", "on")),
    *(_load(level, 4, _NETWORK if level in REMOTE else None, rtt_ms=3.0) for level in ("off", "on", "remote_write")),
    *(_load(level, 16, _NETWORK if level in REMOTE else None, rtt_ms=10.0) for level in ("off", "local", *REMOTE)),
    _load("off", 8, rate=100),
    _load("on", 8, rate=100),
    _load("off", 4, trouble="slow disk of one standby, ANY 2"),
    _load("on", 4, _STANDBY, trouble="slow disk of one standby, ANY 2"),
    _load("local", 4, _FLUSH, trouble="slow disk of the leader"),
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


def run(target: LabTarget, load: Load, seconds: float) -> tuple[list[WaitsSeen], float, float, float]:
    """What was observed of the load; mean END in ms by the server's log and by pgbench; transactions a second."""
    with session(target.endpoint("direct")) as connection:
        if len(load.levels) == 1:  # where it shows; two applications set theirs by themselves
            connection.execute(f"ALTER DATABASE walproof_bench SET synchronous_commit = {load.levels[0]}".encode())
        for name, value in (("log_min_duration_sample", "0"), ("log_statement_sample_rate", "0.2")):
            connection.execute(f"ALTER DATABASE walproof_bench SET {name} = {value}".encode())
    running = [_pgbench(target, level, load, seconds + 2 * _WARM_S) for level in load.levels]
    target.clock.pause(_WARM_S)
    log = target.blueprint.member_dir(target.observe().leader or "") / "patroni.log"
    until, begin = target.clock.now() + seconds, log.stat().st_size
    seen = list(SqlCommitWaits(target).watch(1.0, lambda: target.clock.now() >= until))
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    if load.trouble == "replay paused":
        # Its sessions wait for ever: they end when their connections do.
        for one in running:
            one.terminate()
            one.wait()
        return seen, math.inf, math.inf, 0.0
    ends, rates = [], []
    for one in running:
        out, _ = one.communicate(timeout=120)
        ends += [float(ms) for ms in re.findall(r"([0-9.]+) +\d* *END;", out)]
        rates += [float(tps) for tps in re.findall(r"tps = ([0-9.]+)", out)]
    on_server = [float(ms) for ms in re.findall(r"duration: ([0-9.]+) ms +(?:execute|statement)[^\n]*END;", text)]
    return seen, fmean(on_server), float(np.average(ends, weights=rates)), sum(rates)


@dataclass(frozen=True, slots=True)
class Done:
    """A load that was run: what was observed, mean END in ms by server and by pgbench, transactions a second.

    off_ms: mean END by the server at `off`, as many transactions a second: a commit's processor time.
    """

    load: Load
    seen: list[WaitsSeen]
    end_ms: float
    client_ms: float
    tps: float
    off_ms: float

    def like(self, other: "Done", level: str) -> bool:
        """Whether the other is the same load at this level."""
        mine, its = self.load, other.load
        at = its.levels == (level,)
        return at and (mine.clients, mine.rtt_ms, mine.rate) == (its.clients, its.rtt_ms, its.rate)


def true(seconds: float = 15.0, every: int = 1, *, port: int = 7200) -> int:
    """Waits, causes and predictions against how long END took, less END at `off` at the same rate.

    Of the loads each `every`-th.
    """
    done: list[Done] = []
    with benchmark_target("observe-true", port=port) as target:
        _prepare(target)
        for load in LOADS[::every]:
            with _entered(target, load):
                seen, end_ms, client_ms, tps = run(target, load, seconds)
                off_ms = 0.0
                if tps and load.levels != ("off",):
                    paced = replace(load, levels=("off",), rate=max(1, round(tps)), causes=frozenset())
                    off_ms = run(target, paced, seconds)[1]
            done.append(Done(load, seen, end_ms, client_ms, tps, off_ms))
            _judge(done[-1])
    right, named = zip(*(_judge(one, quiet=True) for one in done), strict=True)
    decided = [one for one in named if one is not None]
    codes = [
        judged("loads whose waits are within 10 % or 0.1 ms", fmean(right), "22 of 24", fmean(right) >= 22 / 24),
        judged("true causes named first", fmean(decided), "22 of 24", fmean(decided) >= 22 / 24),
        *_predictions(done),
    ]
    return max(codes)


def _judge(one: Done, *, quiet: bool = False) -> tuple[bool, bool | None]:
    """Whether its waits are right, and its cause is; None where the load does not say what is true."""
    made, load = observation(one.seen), one.load
    truth = 0.0 if load.levels == ("off",) else one.end_ms - one.off_ms
    good = abs(made.commit_wait_ms.value - truth) <= max(0.1, 0.1 * truth)
    first: Cause | None = made.longest_first[0]
    if math.isinf(one.end_ms):
        held = held_up_by(one.seen[-1], made.level)
        good, first = math.isinf(made.commit_wait_ms.value), held[1] if held else None
    named = first in load.causes if load.causes else None
    if not quiet:
        parts = ", ".join(f"{cause} {of.value:.2f}" for cause, of in made.causes_ms.items())
        waits = made.commit_wait_ms
        print(
            f"{'right' if good else 'WRONG'}: {load.text}: waits {waits.value:.2f} ({waits.low:.2f}–"
            f"{waits.high:.2f}) ms, END less that at off {truth:.2f} (pgbench's END {one.client_ms:.2f}); "
            f"{'' if named is None else 'named' if named else 'MISNAMED'} first {first}; {parts}; "
            f"{one.tps:.0f} tps, {made.commits_per_s.value:.0f} commits/s, {made.polls} polls",
            flush=True,
        )
    return good, named


def _predictions(done: list[Done]) -> list[int]:
    inside: list[bool] = []
    widths: list[float] = []
    for one in (one for one in done if one.load.levels == ("on",) and not one.load.trouble):
        for predicted in predictions(one.seen):
            level = predicted.what
            for other in (other for other in done if one.like(other, level) and not other.load.trouble):
                if level == "on" or predicted.unknown:
                    continue
                wait, ratio, truth = predicted.commit_wait_ms, other.tps / one.tps, other.end_ms - other.off_ms
                faster = predicted.throughput
                inside += [wait.covers(truth), faster.covers(ratio)]
                widths.append(wait.half_width / wait.value)
                print(
                    f"{one.load.text} → {level}: {wait.value:.2f} ({wait.low:.2f}–{wait.high:.2f}) ms, measured "
                    f"{truth:.2f}{'' if inside[-2] else ' OUTSIDE'}; throughput {faster.value:.2f} ({faster.low:.2f}–"
                    f"{faster.high:.2f}), measured {ratio:.2f}{'' if inside[-1] else ' OUTSIDE'}",
                    flush=True,
                )
    if not inside:
        return []
    width = float(np.median(widths))
    return [
        judged("predictions inside their interval", fmean(inside), "at least 0.9", fmean(inside) >= 0.9),
        judged("median half width of a predicted wait", width, "at most 0.25", width <= 0.25),
    ]


def _prepare(target: LabTarget) -> None:
    with session(target.endpoint("direct")) as connection:
        connection.execute("CREATE DATABASE walproof_bench")
    words = target.endpoint("direct").client_conninfo(dbname="walproof_bench")
    subprocess.run([str(pgbench()), "-i", "-s", "20", "-q", words], check=True, capture_output=True)


def cost(pairs: int = 10, clients: int = 64, *, port: int = 7200) -> int:
    """Throughput beside `walproof observe` over that without it, in pairs in random order; what its session uses."""
    rng, logs, session_s, own_s = np.random.default_rng(1), [], [], []
    with benchmark_target("observe-cost", port=port) as target, tempfile.TemporaryDirectory() as folder:
        target.pricing.prepare(Workload())
        for block in range(pairs):
            tps = {}
            for observed in rng.permutation([True, False]):
                observing = _observing(target, Path(folder) / f"{block}") if observed else None
                before = _used(target, observing) if observing else (0.0, 0.0)
                began = target.clock.now()
                planned = Sample(block, 0, Arm(Level.ON, clients, Workload()), Scenario())
                tps[bool(observed)] = target.pricing.run_sample(planned, 5.0, block).tps
                if observing:
                    after, took = _used(target, observing), target.clock.now() - began
                    session_s.append((after[0] - before[0]) / took)
                    own_s.append((after[1] - before[1]) / took)
                    observing.terminate()
                    observing.wait()
            logs.append(np.log(tps[True] / tps[False]))
    print(f"its process, on whichever machine: {100 * np.mean(own_s):.2f} % of a processor")
    share = float(np.mean(session_s))
    codes = [judged("processor time of its session on the server, share of one", share, "below 0.01", share < 0.01)]
    ratio = as_ratio(t_interval(np.array(logs)))
    codes.append(judged_least(f"throughput beside it over that without, {clients} clients", ratio, 0.99))
    return max(codes)


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
        target.clock.pause(0.2)
    return one


def _used(target: LabTarget, observing: "subprocess.Popen[bytes]") -> tuple[float, float]:
    """Processor seconds of its session on the server, and of its own process."""
    with session(target.endpoint("direct")) as connection:
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'walproof observe' AND state = 'active' "
            "OR application_name = 'walproof observe' ORDER BY backend_start DESC LIMIT 1"
        ).fetchone()
    assert row is not None
    used = [psutil.Process(pid).cpu_times() for pid in (int(row[0]), observing.pid)]
    return used[0].user + used[0].system, used[1].user + used[1].system


if __name__ == "__main__":
    command(true, cost)
