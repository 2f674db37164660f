"""Disturbances without a takeover: a guard may not act while the leader lives, however bad its day is.

`python -m benchmarks.guard_disturbances [DISTURBANCE …] [--minutes 30]`: a lab under load and a guard inside the
namespace of a standby, so that the link emulator shapes its network too. Each disturbance has its share of the time;
between two the lab recovers. Printed: suspicions and takeovers of the guard, and who led. Exit 1 when the guard took
over. Needs root. `idle` is apart, and not part of the minutes: an idle cluster with the defaults' timeouts, and a
guard in a network of its own whose way to the leader alone is cut for 1, 3, 10 and 60 s, `--repeat` times each.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.command import chosen, command
from benchmarks.guard_attacks import guard_address, guard_namespace, own_network
from benchmarks.temporary_lab import benchmark_lab
from walproof.errors import Error
from walproof.guarding.etcd import Etcd3, EtcdAccess
from walproof.lab import members, network_links
from walproof.lab.blueprint import ETCD_PORT, Blueprint
from walproof.lab.create import LabOrder
from walproof.lab.faults import catalogue, crashes
from walproof.lab.patroni import wait_until_healthy
from walproof.links import devices
from walproof.links.settings import Change, directions_of
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, Scenario, Workload
from walproof.model.waiting import Wait, wait_for
from walproof.targets.lab.target import LabTarget

SAMPLE_S = 20.0
FROZEN_S = 8.0
"""Less than the ttl: Patroni, were it gone for longer, would rightly be replaced by Patroni."""
REST_S = 12.0
CUTS_S = (1.0, 3.0, 10.0, 60.0)
QUIET_S, AFTERWARDS_S = 20.0, 5.0
"""Before a cut, so that a guard may act again and knows the leader; after it, so that what it did is seen."""


@dataclass(slots=True)
class Scene:
    """The lab, who is who in it. guarded: the standby in whose namespace the guard runs."""

    blueprint: Blueprint
    target: LabTarget
    guarded: str

    @property
    def leader(self) -> str:
        """Who leads now."""
        found: list[str] = []

        def led() -> bool:
            leader = self.target.observe().leader
            found[:] = [leader] if leader else []
            return bool(found)

        wait_for(Wait.NEW_LEADER, led, self.target.clock)
        return found[0]

    @property
    def other(self) -> str:
        """The standby without the guard."""
        return next(m for m in self.blueprint.members if m not in (self.leader, self.guarded))


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What is wrong meanwhile; clients of the load."""

    what: str
    during: Callable[[Scene], "Iterator[None]"]
    clients: int = 8


def nothing(_scene: Scene) -> Iterator[None]:
    """The load alone."""
    yield


def patroni_frozen(scene: Scene) -> Iterator[None]:
    """The leader's Patroni stopped again and again: no REST, no renewal of its lease; PostgreSQL goes on."""
    pid = members.program_pid(scene.blueprint, scene.leader, "patroni")
    assert pid is not None
    clock = scene.target.clock
    began = clock.now()

    def step() -> None:
        frozen = (clock.now() - began) % (FROZEN_S + REST_S) < FROZEN_S
        os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    try:
        with _repeated(0.2, step):
            yield
    finally:
        os.kill(pid, signal.SIGCONT)


def checkpoints(scene: Scene) -> Iterator[None]:
    """A checkpoint after the other, each flush of the leader's disk 100 ms late."""
    leader = scene.leader
    words = scene.target.member_endpoint(leader).client_conninfo()

    def checkpoint() -> None:
        with suppress(psycopg.Error), psycopg.connect(words, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    slow = scene.target.capabilities().slow_disk
    assert slow is not None
    slow.inject(leader, 0.1)
    try:
        with _repeated(1.0, checkpoint):
            yield
    finally:
        slow.undo(leader)


def shaped(change: Change) -> Callable[[Scene], Iterator[None]]:
    """Every link shaped, the guard's own too."""

    def during(scene: Scene) -> Iterator[None]:
        network_links.shape(scene.blueprint, directions_of((), scene.blueprint.members), change)
        try:
            yield
        finally:
            network_links.reset(scene.blueprint)

    return during


def standby_down(scene: Scene) -> Iterator[None]:
    """The standby without the guard, all its processes killed."""
    down = scene.other
    crashes.kill_member(scene.blueprint, down)
    try:
        yield
    finally:
        catalogue.recover_member(scene.blueprint, down)


def etcd_leader_killed(scene: Scene) -> Iterator[None]:
    """etcd's own leader killed every twenty seconds, and started again ten seconds later."""
    turn = itertools.count()
    b = scene.blueprint
    killed: list[str] = []

    def step() -> None:
        second = next(turn) % 20
        if second == 0:
            killed[:] = [etcd_leader(b)]
            pid = members.program_pid(b, killed[0], "etcd")
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        elif second == 10 and killed:
            members.start_member(b, killed[0])

    with _repeated(1.0, step):
        yield
    for member in b.members:
        members.start_member(b, member)


DISTURBANCES: Mapping[str, Disturbance] = {
    "patroni-frozen": Disturbance(
        f"the leader's Patroni frozen {FROZEN_S:g} s of every {FROZEN_S + REST_S:g}", patroni_frozen
    ),
    "full-load": Disturbance("64 clients", nothing, clients=64),
    "checkpoints": Disturbance("checkpoints without end, each flush 100 ms late", checkpoints, clients=16),
    "300ms": Disturbance("300 ms round trips", shaped(Change(delay_s=0.15))),
    "loss": Disturbance("5 % of packets lost", shaped(Change(loss=0.05))),
    "standby-down": Disturbance("a standby down", standby_down),
    "etcd-leader": Disturbance("etcd's leader killed every 20 s", etcd_leader_killed),
}


def etcd_leader(blueprint: Blueprint) -> str:
    """The member whose etcd leads; the first where none says so."""
    for member in blueprint.members:
        with suppress(Error):
            one = Etcd3(EtcdAccess((f"http://{blueprint.address(member)}:{ETCD_PORT}",)))
            try:
                status = one.call("/maintenance/status", {})
            finally:
                one.close()
            if status.get("leader") == (status.get("header") or {}).get("member_id"):
                return member
    return blueprint.members[0]


@contextmanager
def _repeated(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    repeating = RealClock().every(seconds, act)
    try:
        yield
    finally:
        repeating.close()


@dataclass(slots=True)
class Guard:
    """A guard in the namespace of a member, and what it wrote."""

    log: Path
    process: "subprocess.Popen[bytes]"
    read: int = field(default=0)

    def news(self) -> list[str]:
        """Lines since the last question."""
        lines = self.log.read_text().splitlines()
        fresh, self.read = lines[self.read :], len(lines)
        return fresh


@contextmanager
def guard_of(scene: Scene, namespace: str) -> Iterator[Guard]:
    """Runs in that namespace until the end of the block."""
    b = scene.blueprint
    log = b.home / "guard-disturbed.log"
    inside = ["ip", "netns", "exec", namespace]
    argv = [*inside, sys.executable, "-m", "walproof", "guard", "--target", f"lab:{b.name}"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, env=dict(os.environ))
    guard = Guard(log, process)
    try:
        wait_for(Wait.GUARD_READY, lambda: "watching" in log.read_text(), scene.target.clock)
        yield guard
        if process.poll() is not None:
            raise SystemExit(f"the guard ended by itself: {log.read_text()[-300:]}")
    finally:
        process.terminate()
        process.wait(timeout=15)


def loaded(scene: Scene, clients: int, seconds: float) -> list[float]:
    """Transactions per second of one sample after another for so long; a sample that failed is printed and left out."""
    clock, rates = scene.target.clock, list[float]()
    end, number = clock.now() + seconds, 0
    while clock.now() < end:
        number += 1
        try:
            planned = Sample(number, 0, Arm(Level.ON, clients, Workload()), Scenario())
            rates.append(scene.target.pricing.run_sample(planned, SAMPLE_S, number).tps)
        except Error as wrong:
            print(f"      load: {wrong}", flush=True)
            clock.pause(1.0)
    return rates


def under(scene: Scene, guard: Guard, name: str, seconds: float) -> int:
    """One disturbance for so long, printed; how often the guard took over."""
    disturbance, before = DISTURBANCES[name], scene.leader
    guard.news()
    with contextmanager(disturbance.during)(scene):
        rates = loaded(scene, disturbance.clients, seconds)
    after, lines = scene.leader, guard.news()
    scene.target.operations.recover()
    lines += guard.news()
    suspected = sum(" suspect " in line for line in lines)
    sealed = sum(" sealed: " in line for line in lines)
    rate = f"{min(rates):,.0f} to {max(rates):,.0f} tps" if rates else "no sample"
    print(
        f"{disturbance.what:55} {seconds / 60:4.1f} min  {suspected} suspicions  {sealed} takeovers  "
        f"{before} → {after}  {disturbance.clients} clients {rate}"
    )
    print("".join(f"      {line}\n" for line in lines), end="", flush=True)
    return sealed


def disturbed(port: int, names: list[str], minutes: float) -> int:
    """Every disturbance in turn; how often the guard took over."""
    taken = 0
    with benchmark_lab("guard-disturbances", LabOrder(port=port)) as blueprint:
        target = LabTarget(blueprint)
        target.pricing.prepare(Workload())
        leader = target.observe().leader
        scene = Scene(blueprint, target, next(m for m in blueprint.members if m != leader))
        with guard_of(scene, blueprint.namespace(scene.guarded)) as guard:
            for name in names:
                taken += under(scene, guard, name, 60 * minutes / len(names))
    print(f"takeovers in {minutes:g} minutes of disturbance: {taken}", flush=True)
    return taken


def cut_off(scene: Scene, guard: Guard, seconds: float) -> int:
    """The guard's way to the leader alone cut for so long, printed; how often the guard took over."""
    b, clock = scene.blueprint, scene.target.clock
    wait_until_healthy(b, clock)
    clock.pause(QUIET_S)
    leader, space, address = scene.leader, guard_namespace(b), guard_address(b)
    guard.news()
    devices.sink(space, address, [b.address(leader)])
    clock.pause(seconds)
    devices.sink(space, address, [])
    clock.pause(AFTERWARDS_S)
    lines = guard.news()
    sealed = sum(" sealed: " in line for line in lines)
    print(f"idle, the guard's way to {leader} cut for {seconds:g} s: {sealed} takeovers  {leader} → {scene.leader}")
    print("".join(f"      {line}\n" for line in lines), end="", flush=True)
    return sealed


def idle(port: int, repeat: int) -> int:
    """Every cut on an idle cluster; how often the guard took over."""
    taken = 0
    order = LabOrder(port=port, timeouts="default")
    with benchmark_lab("guard-idle", order) as blueprint, own_network(blueprint):
        scene = Scene(blueprint, LabTarget(blueprint), "")
        with guard_of(scene, guard_namespace(blueprint)) as guard:
            for _ in range(repeat):
                taken += sum(cut_off(scene, guard, seconds) for seconds in CUTS_S)
    print(f"takeovers on an idle cluster, the guard cut off {repeat} times for each of {CUTS_S} s: {taken}")
    return taken


def main(disturbance: tuple[str, ...] = (), *, minutes: float = 30.0, repeat: int = 3, port: int = 6400) -> int:
    """Every disturbance that was asked for; exit 1 when the guard took over in any."""
    asked = chosen(disturbance, (*DISTURBANCES, "idle"))
    names = [name for name in asked if name in DISTURBANCES]
    taken = disturbed(port, names, minutes) if names else 0
    if "idle" in asked:
        taken += idle(port, repeat)
    return int(taken > 0)


if __name__ == "__main__":
    command(main)
