"""The lab's faults as capabilities: each a pair of functions of lab/faults, one that injects and one that undoes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from walproof.errors import TargetError
from walproof.lab import client_access, members, network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import catalogue, crashes, disks
from walproof.lab.faults.acts import ON_A_MEMBER, Act
from walproof.model.drill import Capability
from walproof.model.ports import Clock, MemberFault
from walproof.model.topology import ClusterView, LinkView


@dataclass(frozen=True, slots=True)
class LabFault:
    """One fault of this lab: what injects it and what undoes it."""

    blueprint: Blueprint
    act: Act
    undo_act: Act

    def inject(self, *of: Any, **named: Any) -> None:
        self.act(self.blueprint, *of, **named)

    def undo(self, *of: Any, **named: Any) -> None:
        self.undo_act(self.blueprint, *of, **named)


@dataclass(frozen=True, slots=True)
class LabOperations:
    """Restart, switchover, recovery, logs, links and pool of this lab."""

    blueprint: Blueprint
    clock: Clock
    observe: Callable[[], ClusterView]

    def restart(self, member: str) -> None:
        crashes.restart(self.blueprint, member)

    def switch_over(self, to: str | None = None) -> None:
        """Planned, clients held in PgBouncer."""
        leader = self.observe().leader
        if leader is None:
            raise TargetError("there is no leader to switch over from", "walproof lab status; walproof lab fault clear")
        client_access.switch_over(self.blueprint, leader, to, self.clock)

    def recover(self) -> None:
        catalogue.recover(self.blueprint, self.clock)

    def logs(self, member: str) -> str:
        return members.logs(self.blueprint, member)

    def links(self) -> tuple[LinkView, ...]:
        asked = network_links.configured(self.blueprint)
        trips = {d: 1000 * (s.delay_s + asked.setting((d[1], d[0])).delay_s) for d, s in asked.table.items()}
        shaped = [LinkView(a, b, rtt_ms=trips[a, b] or None, cut=s.cut) for (a, b), s in asked.table.items()]
        others = {m: [o for o in self.blueprint.members if o != m] for m in asked.isolated}
        alone = [LinkView(a, b, cut=True) for a in others for b in others[a] if (a, b) not in asked.table]
        return (*shaped, *alone)

    def pool_clients(self) -> dict[str, int]:
        return client_access.pool_clients(self.blueprint)


def faults_of(blueprint: Blueprint, reasons: Mapping[Capability, str]) -> dict[Capability, MemberFault]:
    return {c: LabFault(blueprint, *acts) for c, acts in ON_A_MEMBER.items() if c not in reasons}


def slow_disk(blueprint: Blueprint) -> LabFault:
    """Flushes of a member delayed by system call injection."""
    return LabFault(blueprint, disks.slow, disks.clear)


def partition_one_way(blueprint: Blueprint) -> LabFault:
    """Packets of one direction dropped."""
    return LabFault(blueprint, network_links.partition_one_way, network_links.reconnect_one_way)


def dcs_loss(blueprint: Blueprint) -> LabFault:
    """etcd stopped on a majority of the members."""
    return LabFault(blueprint, crashes.lose_dcs, crashes.recover_dcs)
