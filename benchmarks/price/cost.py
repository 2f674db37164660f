"""Where the time of a commit goes, what models say of it, and what measuring costs: on a lab of its own."""

import math
import random
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import psutil

from benchmarks.command import judged, judged_least
from benchmarks.temporary_lab import benchmark_target, priced
from walproof.estimating.intervals import as_ratio, t_interval
from walproof.load.local_runner import machine_usage, used
from walproof.load.pgbench import threads
from walproof.model.event import Event, SampleDone
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, Scenario, Workload, WorkloadKind
from walproof.model.units import counted
from walproof.pricing.latency_breakdown import breakdowns
from walproof.pricing.prediction import Miss, Point, median_error, missed, points_of
from walproof.targets.lab.target import LabTarget

SHOWN_CLIENTS = (1, 4, 16, 64)
SHOWN_RTTS = (0.0, 5.0, 20.0)
OWN_COST = 0.98
POLL_S = 0.3
KINDS = (
    ("walsender", "WAL senders"),
    ("walreceiver", "WAL receivers"),
    ("startup", "replay"),
    ("checkpointer", "checkpointer"),
    ("postgres: ", "sessions"),
    ("pgbench", "pgbench"),
    ("walproof.links.emulator", "link emulator"),
    ("etcd", "etcd and Patroni"),
    ("patroni", "etcd and Patroni"),
)
"""What a command line holds, first match counts, and what such a process is called."""


def breakdown() -> int:
    """The parts of a commit, taken from one half of the blocks, against the latency measured in the other half.

    About 6 minutes, at round trips of 0 and 5 ms. Within the same blocks the parts add up by construction; in other
    blocks they need not.
    """
    options = {"clients": "1,8", "rtt": "0,5ms", "sample": "1.2s", "budget": "6min", "precision": "0.1%"}
    with benchmark_target("breakdown") as target:
        _, bench = priced(target, options)
    misses = []
    for parts_from, judged_on in ((0, 1), (1, 0)):
        made = {(a.scenario, a.clients): a for a in breakdowns(_half(bench.events, parts_from))}
        for other in breakdowns(_half(bench.events, judged_on)):
            one = made[other.scenario, other.clients]
            misses.append(abs(one.sum_ms / other.measured.value - 1))
            parts = ", ".join(f"{p.name} {p.ms.value:.3f}" for p in one.parts)
            print(f"{one.scenario.text}, {counted(one.clients, 'client')}: {parts} = {one.sum_ms:.3f} ms;")
            print(f"  measured in the other blocks {other.measured.value:.3f} ms, off by {misses[-1]:.1%}")
            print(f"  {one.bottleneck}")
    worst = max(misses, default=math.nan)
    return judged("worst miss of the parts' sum", worst, "at most 0.10", worst <= 0.1)


def _half(events: Sequence[Event], odd: int) -> list[Event]:
    """The events with every other block only."""
    return [e for e in events if not isinstance(e, SampleDone) or e.result.sample.block % 2 == odd]


def prediction() -> int:
    """The queueing model against points it was not shown: round trips 0–20 ms, clients 1–64.

    About 9 minutes. Fitted to clients 1, 4, 16, 64 at 0, 5 and 20 ms; judged at clients 2, 8, 32 and at round trips of
    2 and 10 ms.
    """
    options = {
        "levels": "local,on",
        "clients": "1,2,4,8,16,32,64",
        "rtt": "0ms,2ms,5ms,10ms,20ms",
        "workload": "insert",
        "sample": "1.5s",
        "budget": "8min",
        "precision": "0.5%",
    }
    with benchmark_target("prediction") as target:
        result, bench = priced(target, options)
    everything = _misses([p for points in points_of(result.table, bench.events).values() for p in points])
    for miss in sorted(everything, key=lambda m: (m.point.level, m.point.rtt_ms, m.point.clients)):
        point, fitted = miss.point, miss.predicted
        print(
            f"{point.level:>6} {point.clients:>3} clients {point.rtt_ms:5.1f} ms: measured {point.tps:7.0f}, "
            f"{'fitted   ' if _shown(point) else 'predicted'} {fitted.value:7.0f} "
            f"({fitted.low:.0f}–{fitted.high:.0f}), off by {miss.error:.1%}"
        )
    misses = [miss for miss in everything if not _shown(miss.point)]
    inside = sum(m.predicted.covers(m.point.tps) for m in misses)
    print(f"{inside} of {len(misses)} hidden points lie within their 95 % interval")
    error = median_error(misses)
    return judged("median error on hidden points", error, "at most 0.10", not math.isnan(error) and error <= 0.1)


def _shown(point: Point) -> bool:
    """Whether the model may see the point; its round trip is the measured one, a little above the asked."""
    return point.clients in SHOWN_CLIENTS and any(abs(point.rtt_ms - rtt) < 0.3 + 0.15 * rtt for rtt in SHOWN_RTTS)


def _misses(points: Sequence[Point]) -> list[Miss]:
    """Every point and its prediction from a fit to the shown ones, level by level."""
    levels = [[p for p in points if p.level is level] for level in dict.fromkeys(p.level for p in points)]
    return [miss for of_level in levels for miss in missed([p for p in of_level if _shown(p)], of_level)]


def tuning(
    *, workload: str = "simple-update", cpu: str | None = None, in_memory: bool = False, budget: str = "15min"
) -> int:
    """Tuned `on` against tuned `local` at round trips of 0, 3 and 10 ms; limit a p95 of 100 ms.

    Without --cpu the members, the clients and the link emulator share the machine's processors; with it each member has
    at most so many, as where every member has a machine of its own. --in-memory puts the members on tmpfs, so that only
    processors limit, no disk. With tpcb-like many sessions wait for the same rows too, so its scale is larger.
    """
    options = {
        "tune": True,
        "workload": workload,
        "limit": "100ms",
        "level": "on",
        "rtt": "0,3ms,10ms",
        "scale": "300" if workload == "tpcb-like" else "100",
        "max_clients": "128",
        "budget": budget,
        "sample": "1.5s",
        "precision": "1.5%",
        "cpu": cpu,
    }
    with benchmark_target("tuning", in_memory=in_memory, max_connections="200") as target:
        result, _ = priced(target, options)
    print("\n".join(result.conclusions))
    codes = []
    for one in result.parts["tuning"]:
        bound, of_bound = one["processor_bound"]["value"], one["of_bound"]
        print(f"{one['scenario']}: ratio {one['ratio']['value']:.3f}; the processors allow {bound or math.nan:.3f}")
        good = of_bound is not None and of_bound >= 0.97
        codes.append(judged(f"share of the bound, {one['scenario']}", of_bound or math.nan, "at least 0.97", good))
    return max(codes)


def own_cost(
    *, pairs: int = 30, seconds: int = 4, level: Level = Level.ON, clients: int = 8, in_memory: bool = False
) -> int:
    """What does measuring cost? Throughput through `price` against plain pgbench, in pairs.

    Exit code 0 when the interval of the ratio lies above 98 %, 1 when it lies below, 4 when it holds 98 %. Each pair
    runs both in random order, settings being equal; pgbench alone is given its own connection time back, as pgbench
    itself reports it. --in-memory: members on tmpfs: more tps, no disk's noise.
    """
    arm = Arm(level, clients, Workload(scale=20))
    chance = random.Random(1)
    logs: list[float] = []
    with benchmark_target("cost", port=5890, in_memory=in_memory) as target:
        target.pricing.prepare(arm.workload)
        _plain(target, arm, seconds, 0)
        for seed in range(1, pairs + 1):
            pair = {}
            for kind in chance.sample(["price", "plain"], 2):
                sample = Sample(seed - 1, 0, arm, Scenario())
                through = kind == "price"
                pair[kind] = (
                    target.pricing.run_sample(sample, float(seconds), seed).tps
                    if through
                    else _plain(target, arm, seconds, seed)
                )
            logs.append(math.log(pair["price"] / pair["plain"]))
            print(f"  pair {seed}: price {pair['price']:,.0f}, plain {pair['plain']:,.0f} tps", flush=True)
    return judged_least("price/plain", as_ratio(t_interval(np.array(logs))), OWN_COST)


def _plain(target: LabTarget, arm: Arm, seconds: int, seed: int) -> float:
    """Transactions per second as pgbench reports it, nothing else running."""
    conninfo = target.endpoint(arm.route).client_conninfo(
        gssencmode="disable", options=f"-c synchronous_commit={arm.level}"
    )
    argv = [str(target.blueprint.postgres_bin / "pgbench"), "-n", "-M", "prepared", "-b", "tpcb-like"]
    argv += ["-c", str(arm.clients), "-j", str(threads(arm.clients)), "-T", str(seconds)]
    argv += [f"--random-seed={seed}", conninfo]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    reported = re.search(r"tps = ([0-9.]+) \(without initial connection time\)", output)
    assert reported is not None, output
    return float(reported[1])


def processors(
    *, rtt: float = 0.0, clients: int = 64, delay: int = 3000, workload: str = "simple-update", pairs: int = 6
) -> int:
    """Where the processors go: processor time per transaction by kind of process, `on` against `local`, paired.

    About 3 minutes; --rtt in ms, --delay is commit_delay in µs. Says what tuning can win back (idle processors) and
    what it cannot (work that a commit which waits needs more). Judges nothing.
    """
    load = Workload(WorkloadKind(workload), scale=100)
    arms = [Arm(level, clients, load) for level in (Level.LOCAL, Level.ON)]
    chance = random.Random(1)
    runs: dict[Level, list[dict[str, float]]] = {arm.level: [] for arm in arms}
    with benchmark_target("processors", max_connections="200") as target:
        target.pricing.prepare(load)
        target.pricing.enter(Scenario(rtt_ms=rtt, parameters=(("commit_delay", str(delay)),)))
        for pair in range(pairs):
            for arm in chance.sample(arms, 2):
                runs[arm.level].append(_spent(target, arm, 6.0, pair + 1))
    local, on = ({name: fmean(run.get(name, 0.0) for run in of) for run in of for name in run} for of in runs.values())
    rates, idle = [(local.pop(name), on.pop(name)) for name in ("tps", "idle")]
    rows = [(name, local.get(name, 0.0), on.get(name, 0.0)) for name in {*local, *on}]
    rows = sorted(rows, key=lambda row: (-row[1], row[0]))
    print(f"µs of processor per transaction, {clients} clients, {rtt:g} ms, {load.text}")
    print(f"{'':18}{'local':>8}{'on':>8}{'more':>8}")
    for name, one, other in (*rows, ("together", sum(local.values()), sum(on.values())), ("idle", *idle)):
        print(f"{name:18}{one:8.0f}{other:8.0f}{other - one:+8.0f}")
    print(f"{'tps':18}{rates[0]:8,.0f}{rates[1]:8,.0f}{rates[1] / rates[0]:8.3f}")
    return 0


class Watch(threading.Thread):
    """Polls every process often, so that the time of sessions that end with the sample is counted too."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.kinds: dict[int, str] = {}
        self.last = used(psutil.pids(), disk=False)

    def run(self) -> None:
        """Until `over`: add what each process used since the last poll; one that is new counts in full."""
        while not self.over.wait(POLL_S):
            now = used(psutil.pids(), disk=False)
            for pid, seconds in now.cpu_s.items():
                if self.kinds.get(pid, "other") == "other":
                    self.kinds[pid] = _kind(pid)
                self.spent[self.kinds[pid]] += seconds - self.last.cpu_s.get(pid, 0.0)
            self.last = now


def _kind(pid: int) -> str:
    """What sort of process it is; everything unknown is `other`."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        line = ""
    return next((name for word, name in KINDS if word in line), "other")


def _spent(target: LabTarget, arm: Arm, seconds: float, seed: int) -> dict[str, float]:
    """`tps`, and µs of processor per transaction by kind of process; `idle` is what the processors had left."""
    watch, before = Watch(), machine_usage()
    watch.start()
    result = target.pricing.run_sample(Sample(seed, 0, arm, Scenario()), seconds, seed)
    after = machine_usage()
    watch.over.set()
    watch.join()
    idle = (after.total - before.total) - (after.busy - before.busy)
    spent = {**watch.spent, "idle": idle}
    return {"tps": result.tps, **{name: 1e6 * s / result.transactions for name, s in spent.items()}}
