"""What a guard needs of a Patroni cluster: the leader lock in its etcd, and its members' signs of life."""

from dataclasses import dataclass

import httpx2

from walproof.model.ports import Clock
from walproof.model.takeover import LeaderLock, SignsOfLife
from walproof.patroni.etcd3 import EtcdAccess
from walproof.patroni.leader_lock import EtcdLeaderLock
from walproof.targets.patroni.signs_of_life import Members, PatroniSignsOfLife


@dataclass(frozen=True, slots=True)
class PatroniTakeover:
    """prefix: Patroni's namespace and scope in etcd, "/service/main/"; client: how Patroni's REST is asked."""

    etcd: EtcdAccess
    prefix: str
    members: Members
    client: httpx2.Client
    clock: Clock

    def lock(self) -> LeaderLock:
        """The leader lock."""
        return EtcdLeaderLock(self.etcd, self.prefix, self.clock.now)

    def signs_of_life(self) -> SignsOfLife:
        """Starts asking the members."""
        return PatroniSignsOfLife(self.members, self.client, self.clock)
