"""`python -m benchmarks.lab up|rounds|ledger`: how long a lab takes, what faults leave of it, its ledger's pace."""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.command import command
from benchmarks.temporary_lab import benchmark_lab, benchmark_target
from walproof.lab import disk_images, members, network_links
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.create import LabOrder
from walproof.lab.faults import catalogue
from walproof.lab.patroni import current_problem
from walproof.links.devices import NAMESPACES
from walproof.load.ledger.processes import RunningLedger
from walproof.machine import processors
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder

UP_S = 15.0
PER_S = {Level.OFF: 5000, Level.ON: 2000}
"""Acknowledged commits a second that the ledger must reach with readers."""
_SETTLE_S = 2.0
FAULTS: tuple[tuple[str, ...], ...] = (
    ("fault", "kill"),
    ("fault", "stop"),
    ("fault", "kill-member"),
    ("fault", "freeze"),
    ("fault", "power-cut"),
    ("restart",),
    ("fault", "dcs-loss"),
    ("fault", "partition"),
    ("fault", "isolate"),
    ("fault", "slow-disk", "--delay", "5ms"),
    ("fault", "failing-disk"),
    ("fault", "full-disk"),
    ("cpu", "0.5"),
)
"""Arguments after `walproof lab`; the member is added where the fault takes one."""
_LONGEST_HELD_S = 3.0


@dataclass(frozen=True, slots=True)
class Resources:
    """What a lab may leak, counted on the whole machine or in this process."""

    processes: int
    namespaces: int
    links: int
    mounts: int
    loops: int
    groups: int
    descriptors: int

    def more(self, before: "Resources") -> dict[str, int]:
        """What there is more of than before; nothing when nothing leaked."""
        names = self.__slots__
        return {n: getattr(self, n) - getattr(before, n) for n in names if getattr(self, n) > getattr(before, n)}


def resources(blueprint: Blueprint) -> Resources:
    """Counted now: everything of this lab by its mark, namespaces, devices, mounts, loops and groups by its names."""
    inside = [p.pid for m in blueprint.members for p in members.processes(blueprint, m)]
    outside = [p.pid for p in members.marked(blueprint) if p.pid not in inside]
    own = f"wp{blueprint.number}"
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    groups = [m for m in blueprint.members if processors.group(blueprint.control_group(m))]
    return Resources(
        # Backends come and go with every client; programs do not.
        processes=len(outside) + _programs(blueprint),
        namespaces=sum(name.startswith(f"{own}-") for name in os.listdir(NAMESPACES)),
        links=sum(name.startswith((f"{own}v", f"{own}br")) for name in network_links.device_names()),
        mounts=sum(str(blueprint.home) in line for line in mounts),
        loops=len(disk_images.loops(blueprint)),
        groups=len(groups),
        descriptors=len(os.listdir("/proc/self/fd")),
    )


def _programs(blueprint: Blueprint) -> int:
    names: Counter[str] = Counter()
    for member in blueprint.members:
        for program in ("etcd", "patroni"):
            names[program] += members.program_pid(blueprint, member, program) is not None
        names["postgres"] += members.postmaster(blueprint, member) is not None
    return names.total()


def arguments_of(fault: tuple[str, ...], member: str) -> list[str]:
    """The command after `walproof lab`."""
    return list(fault) if fault == ("fault", "dcs-loss") else [*fault, member]


def inject(arguments: list[str], blueprint: Blueprint, kill_after_s: float | None) -> str:
    """Run the command; killed with -9 after so many seconds when given. The result as text."""
    command = [sys.executable, "-m", "walproof", "lab", *arguments]
    env = {**os.environ, "WALPROOF_LAB": blueprint.name}
    running = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        errors = running.communicate(timeout=kill_after_s)[1]
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return f"walproof killed after {kill_after_s:.2f} s"
    return "in effect" if running.returncode == 0 else errors.strip().splitlines()[0]


def one_round(blueprint: Blueprint, generator: random.Random, kill: bool) -> tuple[str, str]:
    """A fault, held a while, cleared; what was done, and why the cluster is not healthy afterwards ("" when it is)."""
    clock = RealClock()
    arguments = arguments_of(generator.choice(FAULTS), generator.choice(blueprint.members))
    result = inject(arguments, blueprint, generator.uniform(0.2, 1.2) if kill else None)
    clock.pause(generator.uniform(0.0, _LONGEST_HELD_S))
    started = clock.now()
    catalogue.recover(blueprint)
    members.remove_core_limits(blueprint)
    return f"{' '.join(arguments)}: {result}; recovered in {clock.now() - started:.1f} s", current_problem(blueprint)


def rounds(*, rounds: int = 20, seed: int = 1, kill: bool = False) -> int:
    """Random faults and recoveries, seeded: is the cluster healthy after each, and does anything leak?

    With --kill, walproof is killed with -9 at a random moment of each injection, and the recovery has to cope with
    whatever it left. Exit code 1 when the cluster was not healthy or leaked.
    """
    generator = random.Random(seed)
    broken = 0
    with benchmark_lab("rounds", LabOrder(port=5740, disk=Disk("image", 1 << 30))) as blueprint:
        # The first cut starts the link emulator, which then stays as long as the lab.
        network_links.partition(blueprint, blueprint.members[0])
        catalogue.recover(blueprint)
        before = resources(blueprint)
        for number in range(1, rounds + 1):
            done, lacks = one_round(blueprint, generator, kill)
            broken += bool(lacks)
            print(f"{number:3} {done}; {lacks or 'healthy'}", flush=True)
        leaked = resources(blueprint).more(before)
    left = resources(blueprint).more(Resources(0, 0, 0, 0, 0, 0, before.descriptors))
    print(f"seed {seed}: healthy after {rounds - broken} of {rounds} rounds")
    print(f"leaked while it was up: {leaked or 'nothing'}; left after it went down: {left or 'nothing'}")
    return 1 if broken or leaked or left else 0


def up(times: int = 3) -> int:
    """How long `walproof lab up` takes to three members streaming and synchronous; the median of so many times."""
    ups, downs = [], []
    with tempfile.TemporaryDirectory(prefix="wpb-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        for _ in range(times):
            try:
                ups.append(_took(folder, "up", "--port", "18900"))
            finally:
                downs.append(_took(folder, "down"))
            print(f"lab up {ups[-1]:.1f} s, lab down {downs[-1]:.1f} s (load {os.getloadavg()[0]:.1f})", flush=True)
    median, down = statistics.median(ups), statistics.median(downs)
    print(f"median lab up {median:.1f} s of {UP_S:.0f} s allowed; median lab down {down:.1f} s")
    return 0 if median <= UP_S else 1


def _took(state: str, *arguments: str) -> float:
    """Seconds of `walproof lab` with these arguments."""
    started = time.monotonic()
    command = [sys.executable, "-m", "walproof", "lab", *arguments]
    environment = {**os.environ, "WALPROOF_STATE": state, "WALPROOF_LAB": "bench-up"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def ledger(*, seconds: float = 10.0, writers: int = 16) -> int:
    """How fast is the ledger, and what does it cost? Acknowledged commits a second at `off` and `on`.

    With readers and without; then a member is read back. Also states the writers' own processor time per 1,000 commits.
    Exit code 1 when fewer than 5,000 at off or 2,000 at on with readers.
    """
    missed = 0
    with benchmark_target("ledger", port=5880) as target:
        for drill, (level, wanted) in enumerate(PER_S.items()):
            for witnesses in (True, False):
                run = target.ledger.open_ledger(LedgerOrder(level, writers, witnesses=witnesses, drill=drill))
                assert isinstance(run, RunningLedger)
                per_s, cpu_ms = pace(run, seconds)
                attempts = run.stop()
                met = per_s >= wanted or not witnesses
                missed += not met
                print(
                    f"{'met' if met else 'NOT MET'}: {level}, {writers} writers,"
                    f" {'with' if witnesses else 'no'} readers: {per_s:,.0f} acknowledged/s"
                    f" (at least {wanted:,} with readers);"
                    f" the writers use {cpu_ms:.0f} ms of processor per 1,000; load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            started = time.monotonic()
            rows = target.ledger.read_ledger(target.blueprint.members[0], drill)
            print(f"  {len(rows):,} rows of {len(attempts):,} attempts read back in {time.monotonic() - started:.2f} s")
    return int(missed > 0)


def pace(run: RunningLedger, seconds: float) -> tuple[float, float]:
    """Acknowledged commits a second for so many seconds, and the writers' processor ms per 1,000 of them."""

    def cpu_s() -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in run.pids)

    time.sleep(_SETTLE_S)
    before, cpu, at = run.progress().acknowledged, cpu_s(), time.monotonic()
    time.sleep(seconds)
    done = run.progress().acknowledged - before
    return done / (time.monotonic() - at), (cpu_s() - cpu) * 1e6 / max(1, done)


if __name__ == "__main__":
    command(up, rounds, ledger)
