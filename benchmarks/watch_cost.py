"""What the live page costs and how far it lags: `python -m benchmarks.watch_cost [SECONDS] [KILLS]`.

Exit 1 when the page lags by more than 1 s or surely costs more than 3 %, 4 when the interval leaves that open.
Throughput with the page open (a reader of its events included) over throughput without it, in pairs of samples in
random order; and the time from a killed leader's last answer until the page shows another.
"""

import json
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import psutil

from benchmarks.command import command, judged, judged_least
from benchmarks.temporary_lab import benchmark_target
from walproof.estimating.intervals import as_ratio, t_interval
from walproof.model.drill import Capability
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, Scenario, Workload
from walproof.model.waiting import Wait, wait_for
from walproof.targets.lab.target import LabTarget

SAMPLE_S = 4.0


class Watched:
    """`walproof watch` as a process of its own, with one reader of its events."""

    def __init__(self, lab: str) -> None:
        argv = [sys.executable, "-m", "walproof", "watch", "--target", f"lab:{lab}"]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        url = self.process.stderr.readline().split()[-1]
        self.seen: list[tuple[float, str | None]] = []
        base = url.split("#")[0]
        self._reader = threading.Thread(target=self._read, args=(base,), daemon=True)
        self._reader.start()

    def _read(self, base: str) -> None:
        try:
            with urllib.request.urlopen(base + "events", timeout=30) as stream:
                for line in stream:
                    if line.startswith(b"data: "):
                        snapshot = json.loads(line[6:])
                        self.seen.append((snapshot["at"], snapshot["leader"]))
        except OSError:
            return

    def cpu_s(self) -> float:
        """Processor seconds it has used."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(timeout=10)


def cost(target: LabTarget, name: str, seconds: float) -> list[int]:
    """The ratio of throughput with and without the page, at 1 and 16 clients: its exit codes."""
    codes = []
    rng = np.random.default_rng(1)
    workload = Workload()
    target.pricing.prepare(workload)
    for clients in (1, 16):
        logs, used, block = [], [], 0
        started = target.clock.now()
        while target.clock.now() - started < seconds / 2:
            block += 1
            tps = {}
            for watched in rng.permutation([True, False]):
                page = Watched(name) if watched else None
                if page:
                    wait_for(Wait.PROGRAM_READY, lambda page=page: len(page.seen) > 2, target.clock)  # type: ignore[misc]
                before = page.cpu_s() if page else 0.0
                planned = Sample(block, 0, Arm(Level.ON, clients, workload), Scenario())
                tps[bool(watched)] = target.pricing.run_sample(planned, SAMPLE_S, block).tps
                if page:
                    used.append((page.cpu_s() - before) / SAMPLE_S)
                    page.close()
            logs.append(np.log(tps[True] / tps[False]))
        print(f"{len(logs)} pairs; the page's process uses {100 * np.mean(used):.1f} % of a processor")
        what = f"throughput with the page over that without, {clients} clients"
        codes.append(judged_least(what, as_ratio(t_interval(np.array(logs))), 0.97))
    return codes


def lag(target: LabTarget, name: str, kills: int) -> int:
    """How long after the cluster has a new leader the page shows it: the exit code."""
    page = Watched(name)
    lags = []
    try:
        wait_for(Wait.PROGRAM_READY, lambda: len(page.seen) > 2, target.clock)
        for _ in range(kills):
            old = target.observe().leader
            assert old is not None
            target.capabilities().faults[Capability.KILL].inject(old)
            new: list[float] = []

            def led(old: str = old, new: list[float] = new) -> bool:
                leader = target.observe().leader
                if leader not in (None, old):
                    new.append(target.clock.now())
                return bool(new)

            wait_for(Wait.NEW_LEADER, led, target.clock, pace_s=0.02)

            def shown(old: str = old, new: list[float] = new) -> bool:
                return any(at > new[0] - 5 and leader not in (None, old) for at, leader in page.seen)

            wait_for(Wait.NEW_LEADER, shown, target.clock, pace_s=0.01)
            lags.append(max(0.0, target.clock.now() - new[0]))
            target.operations.recover()
    finally:
        page.close()
    print(f"lag behind the cluster: {np.median(lags):.2f} s in the median of {kills} kills")
    return judged("worst lag, s", max(lags), "at most 1", max(lags) <= 1)


def main(seconds: float = 180.0, kills: int = 5) -> int:
    """Both figures on a lab of its own."""
    with benchmark_target("watch-cost", port=7100) as target:
        name = target.blueprint.name
        codes = [*cost(target, name, seconds), lag(target, name, kills)]
    return 1 if 1 in codes else max(codes)


if __name__ == "__main__":
    command(main)
