"""A planned change of primary, asked for in the Cluster's status as kubectl's plugin does it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from walproof.errors import TargetError, UsageError
from walproof.model.ports import Clock
from walproof.model.topology import ClusterView
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg.api import CLUSTERS, KubernetesApi
from walproof.targets.cnpg.objects import Cluster, read


@dataclass(frozen=True, slots=True)
class CnpgSwitchover:
    """Promotes a standby."""

    api: KubernetesApi
    cluster: str
    observe: Callable[[], ClusterView]
    clock: Clock

    def switch_over(self, to: str | None = None) -> None:
        """Returns when `to` (None: the standby that is furthest, one that counts first) leads; TargetError."""
        view = self.observe()
        chosen = to or furthest(view)
        if chosen == view.leader:
            raise UsageError(f"{chosen} leads already", "name a standby")
        status = read(Cluster, self.api.get(CLUSTERS, self.cluster)).status
        if status.target_primary != status.current_primary:
            raise TargetError(
                f"a change of primary is under way: {status.current_primary} to {status.target_primary}",
                f"kubectl cnpg status {self.cluster}",
            )
        now = datetime.fromtimestamp(self.clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "targetPrimary": chosen,
            "targetPrimaryTimestamp": now,
            "phase": "Switchover in progress",
            "phaseReason": f"Switching over to {chosen}",
        }
        self.api.patch(CLUSTERS, self.cluster, {"status": body}, "status")
        wait_for(Wait.SWITCHOVER, lambda: self.observe().leader == chosen, self.clock, pace_s=0.2)


def furthest(view: ClusterView) -> str:
    """The standby to hand over to; TargetError when none serves."""
    serving = [m for m in view.standbys if m.serving]
    if not serving:
        raise TargetError("no standby serves: there is nobody to hand over to", "walproof doctor --target …")
    return max(serving, key=lambda m: (m.sync_state in ("sync", "quorum"), m.lsn or 0)).name
