"""The lab's guard: its leader lock, its members' signs of life, and the guard as a process of the lab."""

from dataclasses import dataclass

from walproof.lab import home, patroni
from walproof.lab.blueprint import POSTGRES_PORT, Blueprint
from walproof.lab.programs import etcd
from walproof.model.ports import Clock
from walproof.model.takeover import LeaderLock, SignsOfLife
from walproof.patroni.etcd3 import EtcdAccess
from walproof.patroni.leader_lock import EtcdLeaderLock
from walproof.targets.patroni.guard_process import DRILLED, GuardProcess
from walproof.targets.patroni.signs_of_life import Addresses, PatroniSignsOfLife


@dataclass(frozen=True, slots=True)
class LabTakeover:
    """What a guard needs of the lab."""

    blueprint: Blueprint
    clock: Clock

    def lock(self) -> LeaderLock:
        """The leader lock in the lab's etcd."""
        b = self.blueprint
        urls = tuple(f"http://{b.address(m)}:{etcd.CLIENT_PORT}" for m in b.members)
        return EtcdLeaderLock(EtcdAccess(urls), f"/service/{b.name}/", self.clock.now)

    def signs_of_life(self) -> SignsOfLife:
        """Starts asking the members."""
        b = self.blueprint
        addresses = {
            m: Addresses(b.member_endpoint(m), b.rest_url(m), f"{b.address(m)}:{POSTGRES_PORT}") for m in b.members
        }
        return PatroniSignsOfLife(lambda: addresses, patroni.rest(b).plain_get(), self.clock)


def lab_guard(blueprint: Blueprint, clock: Clock) -> GuardProcess:
    """The guard of the lab as one of its processes: it ends with it."""
    return GuardProcess(
        blueprint.access_dir,
        blueprint.ports["guard"],
        ["--target", f"lab:{blueprint.name}", *DRILLED],
        clock,
        home.environment(blueprint, HOME=str(blueprint.home)),
    )
