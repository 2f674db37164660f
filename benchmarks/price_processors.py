"""Where the processors go: processor time per transaction by kind of process, `on` beside `local`, paired.

`python -m benchmarks.price_processors [--rtt 0] [--clients 64] [--delay 3000] [--workload simple-update] [--pairs 6]`:
about 3 minutes on a lab of its own. Says what tuning can win back (idle processors) and what it cannot (work that a
commit which waits needs more). Judges nothing.
"""

import argparse
import random
import sys
import threading
from collections import defaultdict
from statistics import fmean

import psutil

from benchmarks.priced_lab import priced_lab
from walproof.load.processors import machine
from walproof.model.guarantee import Level
from walproof.model.plan import Arm, Setting, Slice, Workload, WorkloadKind
from walproof.targets.lab import LabTarget

LOOK_S = 0.3
KINDS = (
    ("walsender", "WAL senders"),
    ("walreceiver", "WAL receivers"),
    ("startup", "replay"),
    ("checkpointer", "checkpointer"),
    ("postgres: ", "sessions"),
    ("pgbench", "pgbench"),
    ("walproof.links.wire", "the wire"),
    ("etcd", "etcd and Patroni"),
    ("patroni", "etcd and Patroni"),
)
"""What a command line holds, first match counts, and what such a process is called."""


def kind(process: psutil.Process) -> str:
    """What sort of process it is; everything unknown is `other`."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        line = ""
    return next((name for word, name in KINDS if word in line), "other")


class Watch(threading.Thread):
    """Looks often at every process, so that the time of sessions that end with the slice is counted too."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.kinds: dict[tuple[int, float], str] = {}
        self.last: dict[tuple[int, float], float] = {}

    def run(self) -> None:
        """Until `over`."""
        while not self.over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Add what each process used since the last look; one that was born in between counts whole."""
        first = not self.last
        for process in psutil.process_iter():
            try:
                key, used = (process.pid, process.create_time()), sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
            if key not in self.kinds or self.kinds[key] == "other":
                self.kinds[key] = kind(process)
            self.spent[self.kinds[key]] += used - self.last.get(key, used if first else 0.0)
            self.last[key] = used


def measured(target: LabTarget, arm: Arm, seconds: float, seed: int) -> tuple[float, dict[str, float]]:
    """Transactions per second, and microseconds per transaction by kind of process; `idle` are the processors' own."""
    watch = Watch()
    watch.look()
    before = machine()
    watch.start()
    result = target.run_slice(Slice(seed, 0, arm, Setting()), seconds, seed)
    after = machine()
    watch.over.set()
    watch.join()
    idle = (after.total - before.total) - (after.busy - before.busy)
    return result.tps, {k: 1e6 * v / result.transactions for k, v in {**watch.spent, "idle": idle}.items()}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", type=float, default=0.0, help="ms")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--delay", type=int, default=3000, help="commit_delay in µs")
    parser.add_argument("--workload", default="simple-update")
    parser.add_argument("--pairs", type=int, default=6)
    asked = parser.parse_args()
    workload = Workload(WorkloadKind(asked.workload), scale=100)
    arms = [Arm(level, asked.clients, workload) for level in (Level.LOCAL, Level.ON)]
    chance = random.Random(1)
    found: dict[Level, list[tuple[float, dict[str, float]]]] = {arm.level: [] for arm in arms}
    with priced_lab("processors", max_connections="200") as target:
        target.prepare(workload)
        target.enter(Setting(rtt_ms=asked.rtt, parameters=(("commit_delay", str(asked.delay)),)))
        for pair in range(asked.pairs):
            for arm in chance.sample(arms, 2):
                found[arm.level].append(measured(target, arm, 6.0, pair + 1))
    local, on = ({k: fmean(used.get(k, 0.0) for _, used in runs) for k in used_by(runs)} for runs in found.values())
    rates = [fmean(tps for tps, _ in runs) for runs in found.values()]
    print(f"µs of processor per transaction, {asked.clients} clients, {asked.rtt:g} ms, {workload.text}")
    print(f"{'':18}{'local':>8}{'on':>8}{'more':>8}")
    for name in sorted({*local, *on} - {"idle"}, key=lambda name: -local.get(name, 0.0)):
        told(name, local.get(name, 0.0), on.get(name, 0.0))
    told("together", *(sum(used.values()) - used["idle"] for used in (local, on)))
    told("idle", local["idle"], on["idle"])
    print(f"{'tps':18}{rates[0]:8,.0f}{rates[1]:8,.0f}{rates[1] / rates[0]:8.3f}")
    return 0


def told(name: str, local: float, on: float) -> None:
    """One row."""
    print(f"{name:18}{local:8.0f}{on:8.0f}{on - local:+8.0f}")


def used_by(runs: list[tuple[float, dict[str, float]]]) -> set[str]:
    """Every kind seen in these runs."""
    return {name for _, used in runs for name in used}


if __name__ == "__main__":
    sys.exit(main())
