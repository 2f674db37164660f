"""Where the processors go: processor time per transaction by kind of process, `on` against `local`, paired.

`python -m benchmarks.price_processors [--rtt 0] [--clients 64] [--delay 3000] [--workload simple-update] [--pairs 6]`:
about 3 minutes on a lab of its own. Says what tuning can win back (idle processors) and what it cannot (work that a
commit which waits needs more). Judges nothing.
"""

import argparse
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import psutil

from benchmarks.priced_lab import priced_lab
from walproof.load.local_runner import machine_usage, used
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, Scenario, Workload, WorkloadKind
from walproof.targets.lab.target import LabTarget

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


def kind(pid: int) -> str:
    """What sort of process it is; everything unknown is `other`."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        line = ""
    return next((name for word, name in KINDS if word in line), "other")


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
                    self.kinds[pid] = kind(pid)
                self.spent[self.kinds[pid]] += seconds - self.last.cpu_s.get(pid, 0.0)
            self.last = now


def measured(target: LabTarget, arm: Arm, seconds: float, seed: int) -> dict[str, float]:
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


def mean(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Name by name; what a run has not is 0."""
    return {name: fmean(run.get(name, 0.0) for run in runs) for run in runs for name in run}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", type=float, default=0.0, help="ms")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--delay", type=int, default=3000, help="commit_delay in µs")
    parser.add_argument("--workload", default="simple-update")
    parser.add_argument("--pairs", type=int, default=6)
    arguments = parser.parse_args()
    workload = Workload(WorkloadKind(arguments.workload), scale=100)
    arms = [Arm(level, arguments.clients, workload) for level in (Level.LOCAL, Level.ON)]
    chance = random.Random(1)
    found: dict[Level, list[dict[str, float]]] = {arm.level: [] for arm in arms}
    with priced_lab("processors", max_connections="200") as target:
        target.pricing.prepare(workload)
        target.pricing.enter(Scenario(rtt_ms=arguments.rtt, parameters=(("commit_delay", str(arguments.delay)),)))
        for pair in range(arguments.pairs):
            for arm in chance.sample(arms, 2):
                found[arm.level].append(measured(target, arm, 6.0, pair + 1))
    local, on = map(mean, found.values())
    rates, idle = [(local.pop(name), on.pop(name)) for name in ("tps", "idle")]
    print(f"µs of processor per transaction, {arguments.clients} clients, {arguments.rtt:g} ms, {workload.text}")
    print(f"{'':18}{'local':>8}{'on':>8}{'more':>8}")
    for name in sorted({*local, *on}, key=lambda name: -local.get(name, 0.0)):
        print_row(name, local.get(name, 0.0), on.get(name, 0.0))
    print_row("together", sum(local.values()), sum(on.values()))
    print_row("idle", *idle)
    print(f"{'tps':18}{rates[0]:8,.0f}{rates[1]:8,.0f}{rates[1] / rates[0]:8.3f}")
    return 0


def print_row(name: str, local: float, on: float) -> None:
    """One row of the table."""
    print(f"{name:18}{local:8.0f}{on:8.0f}{on - local:+8.0f}")


if __name__ == "__main__":
    sys.exit(main())
