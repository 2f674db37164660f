"""Random faults and healings, seeded: is the cluster whole after each, and does anything leak?

`python -m benchmarks.rounds [--rounds 20] [--seed 1] [--kill]`: with --kill, walproof is killed with -9 at a random
moment of each injection, and the healing has to cope with whatever it left.
"""

import argparse
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.own_lab import own_lab
from walproof.lab import cpu_limits, member_links, members, network
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.design import LabOrder
from walproof.lab.faults import recover, volumes
from walproof.lab.health import why_unhealthy
from walproof.machine.clock import RealClock

FAULTS: tuple[tuple[str, ...], ...] = (
    ("fault", "kill"),
    ("fault", "stop"),
    ("fault", "kill-member"),
    ("fault", "freeze"),
    ("fault", "power-cut"),
    ("fault", "restart"),
    ("fault", "dcs-loss"),
    ("partition",),
    ("isolate",),
    ("disk", "--slow", "5ms"),
    ("disk", "--failing"),
    ("disk", "--full"),
    ("cpu", "0.5"),
)
"""Words after `walproof lab`; the member is added where one is meant."""
_LONGEST_HELD_S = 3.0


@dataclass(frozen=True, slots=True)
class Stock:
    """What a lab may leak, counted on the whole machine or in this process."""

    processes: int
    namespaces: int
    links: int
    mounts: int
    loops: int
    groups: int
    descriptors: int

    def more(self, before: "Stock") -> dict[str, int]:
        """What there is more of than before; nothing when nothing leaked."""
        names = self.__slots__
        return {n: getattr(self, n) - getattr(before, n) for n in names if getattr(self, n) > getattr(before, n)}


def stock(blueprint: Blueprint) -> Stock:
    """Counted now: everything of this lab by its mark, namespaces, devices, mounts, loops and groups by its names."""
    inside = [p.pid for m in blueprint.members for p in members.processes(blueprint, m)]
    outside = [p.pid for p in members.marked(blueprint) if p.pid not in inside]
    own = f"wp{blueprint.number}"
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    groups = [g for m in blueprint.members if (g := cpu_limits.group_of(blueprint, m)) is not None and g.exists()]
    return Stock(
        # Backends come and go with every client; programs do not.
        processes=len(outside) + _programs(blueprint),
        namespaces=sum(name.startswith(f"{own}-") for name in os.listdir(network.NAMESPACES)),
        links=sum(name.startswith((f"{own}v", f"{own}br")) for name in network.links()),
        mounts=sum(str(blueprint.home) in line for line in mounts),
        loops=len(volumes.loops(blueprint)),
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


def words_of(fault: tuple[str, ...], member: str) -> list[str]:
    """The command after `walproof lab`."""
    if fault == ("fault", "dcs-loss"):
        return list(fault)
    return [fault[0], member, *fault[1:]] if fault[0] == "disk" else [*fault, member]


def inject(words: list[str], blueprint: Blueprint, kill_after_s: float | None) -> str:
    """Run the command; killed with -9 after so many seconds when asked. What became of it, in words."""
    command = [sys.executable, "-m", "walproof", "lab", *words]
    env = {**os.environ, "WALPROOF_LAB": blueprint.name}
    running = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = running.communicate(timeout=kill_after_s)[1]
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return f"walproof killed after {kill_after_s:.2f} s"
    return "in effect" if running.returncode == 0 else said.strip().splitlines()[0]


def one_round(blueprint: Blueprint, chance: random.Random, kill: bool) -> tuple[str, str]:
    """A fault, held a while, healed; what was done, and what the cluster lacks afterwards ("" when whole)."""
    clock = RealClock()
    words = words_of(chance.choice(FAULTS), chance.choice(blueprint.members))
    became = inject(words, blueprint, chance.uniform(0.2, 1.2) if kill else None)
    clock.pause(chance.uniform(0.0, _LONGEST_HELD_S))
    begun = clock.now()
    recover.heal(blueprint)
    cpu_limits.release(blueprint)
    return f"{' '.join(words)}: {became}; healed in {clock.now() - begun:.1f} s", why_unhealthy(blueprint)


def main() -> None:
    """Print every round, what leaked, and one conclusion; exit code 1 when the cluster was not whole or leaked."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--kill", action="store_true")
    words = asked.parse_args()
    chance = random.Random(words.seed)
    broken = 0
    with own_lab("rounds", LabOrder(port=5740, disk=Disk("image", 1 << 30))) as blueprint:
        # The first cut starts the wire, which then stays as long as the lab.
        member_links.cut(blueprint, blueprint.members[0])
        recover.heal(blueprint)
        before = stock(blueprint)
        for number in range(1, words.rounds + 1):
            done, lacks = one_round(blueprint, chance, words.kill)
            broken += bool(lacks)
            print(f"{number:3} {done}; {lacks or 'whole'}", flush=True)
        leaked = stock(blueprint).more(before)
    after = stock(blueprint)
    left = after.more(Stock(0, 0, 0, 0, 0, 0, before.descriptors))
    print(f"seed {words.seed}: whole after {words.rounds - broken} of {words.rounds} rounds")
    print(f"leaked while it was up: {leaked or 'nothing'}; left after it went down: {left or 'nothing'}")
    sys.exit(1 if broken or leaked or left else 0)


if __name__ == "__main__":
    main()
