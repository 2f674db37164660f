"""Random faults and recoveries, seeded: is the cluster healthy after each, and does anything leak?

`python -m benchmarks.rounds [--rounds 20] [--seed 1] [--kill]`: with --kill, walproof is killed with -9 at a random
moment of each injection, and the recovery has to cope with whatever it left.
"""

import argparse
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.temporary_lab import benchmark_lab
from walproof.lab import disk_images, members, network_links
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.create import LabOrder
from walproof.lab.faults import catalogue
from walproof.lab.patroni import current_problem
from walproof.links.devices import NAMESPACES
from walproof.machine import processors
from walproof.machine.clock import RealClock

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


def main() -> None:
    """Print every round, what leaked, and one conclusion; exit code 1 when the cluster was not healthy or leaked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    broken = 0
    with benchmark_lab("rounds", LabOrder(port=5740, disk=Disk("image", 1 << 30))) as blueprint:
        # The first cut starts the link emulator, which then stays as long as the lab.
        network_links.partition(blueprint, blueprint.members[0])
        catalogue.recover(blueprint)
        before = resources(blueprint)
        for number in range(1, options.rounds + 1):
            done, lacks = one_round(blueprint, generator, options.kill)
            broken += bool(lacks)
            print(f"{number:3} {done}; {lacks or 'healthy'}", flush=True)
        leaked = resources(blueprint).more(before)
    after = resources(blueprint)
    left = after.more(Resources(0, 0, 0, 0, 0, 0, before.descriptors))
    print(f"seed {options.seed}: healthy after {options.rounds - broken} of {options.rounds} rounds")
    print(f"leaked while it was up: {leaked or 'nothing'}; left after it went down: {left or 'nothing'}")
    sys.exit(1 if broken or leaked or left else 0)


if __name__ == "__main__":
    main()
