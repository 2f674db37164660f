"""Schedules in which a guard once lost what was acknowledged, on a real lab, each with a guard and without in turn.

`python -m benchmarks.guard_schedules [SCHEDULE …] [--repeat 10]`: about two minutes a pair. Needs root. Exit 1 when a
drill with a guard lost something. crash-restart: the stream to standby B is cut, so that A alone acknowledges; the
leader is isolated, and at that moment A's PostgreSQL crash-restarts. A then reports less than it holds as received.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import psycopg

from benchmarks.command import chosen, command
from benchmarks.guard import line, losses, summary
from benchmarks.temporary_lab import benchmark_lab
from tests.fixtures.drills import drilled
from walproof.lab import network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.create import LabOrder
from walproof.lab.faults import catalogue, crashes, replication
from walproof.model.drill import Capability, Drill, Victim
from walproof.model.guarantee import Level
from walproof.model.ports import Capabilities
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.targets.lab.target import LabTarget

ALONE_S = 2.0
"""How long A alone acknowledges before the leader is isolated."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens to the leader and its two standbys, in place of its isolation."""

    blueprint: Blueprint
    target: LabTarget
    carry_out: Callable[["Schedule", str, str, str], None]

    def inject(self, leader: str) -> None:
        """All of it."""
        a, b = sorted(member for member in self.blueprint.members if member != leader)
        self.carry_out(self, leader, a, b)

    def undo(self, _leader: str) -> None:
        """Every fault of it undone."""
        network_links.recover(self.blueprint)
        for member in self.blueprint.members:
            catalogue.recover_member(self.blueprint, member)


def crash_restart(schedule: Schedule, leader: str, a: str, b: str) -> None:
    """As above. WAL begins a segment of its own: what is reported as received is that segment's start."""
    blueprint, clock = schedule.blueprint, schedule.target.clock
    with psycopg.connect(blueprint.member_endpoint(leader).client_conninfo(), autocommit=True) as connection:
        connection.execute("SELECT pg_switch_wal()")
    clock.pause(1.0)
    replication.cut(blueprint, b, replication.ACKS)
    clock.pause(ALONE_S)
    network_links.isolate(blueprint, leader)
    crashes.crash_restart(blueprint, a)


SCHEDULES: Mapping[str, Callable[[Schedule, str, str, str], None]] = {"crash-restart": crash_restart}


class ScheduledTarget(LabTarget):
    """A lab whose isolation of the leader is a schedule."""

    def __init__(self, blueprint: Blueprint, name: str) -> None:
        super().__init__(blueprint)
        self._schedule = Schedule(blueprint, self, SCHEDULES[name])

    def capabilities(self) -> Capabilities:
        """As a lab's, but for the isolation."""
        able = super().capabilities()
        return replace(able, faults={**able.faults, Capability.ISOLATE: self._schedule})


def run_one(blueprint: Blueprint, name: str, number: int, *, guarded: bool) -> Drill:
    """One drill at `on`, printed."""
    fault = CATALOGUE["isolate"]
    plan = PlannedDrill(number, fault, Victim.LEADER, Level.ON, writers=8, guarded=guarded, client_timeout_s=1.0)
    drill = drilled(ScheduledTarget(blueprint, name), plan)
    print(f"{line(name, drill)}\n      {drill.leader_before} → {drill.leader_after}", flush=True)
    return drill


def main(schedule: tuple[str, ...] = (), *, repeat: int = 10, port: int = 6300) -> int:
    """Every schedule so many times; exit 1 when a drill with a guard lost something."""
    drills: list[Drill] = []
    names = chosen(schedule, SCHEDULES)
    with benchmark_lab("guard-schedules", LabOrder(port=port, timeouts="default")) as blueprint:
        for name in names * repeat:
            for guarded in (True, False):
                drills.append(run_one(blueprint, name, len(drills) + 1, guarded=guarded))
    summary("schedules", drills)
    for guarded in (True, False):
        decided = [d.findings for d in drills if d.guarded is guarded and d.verdict.decided]
        losing, acknowledged = [f.lost for f in decided if f.lost], sum(f.acknowledged for f in decided)
        arm = "with" if guarded else "without"
        print(f"{arm} a guard: {len(losing)} of {len(decided)} lost something ({sum(losing):,} of {acknowledged:,})")
    return int(losses(drills) > 0)


if __name__ == "__main__":
    command(main)
