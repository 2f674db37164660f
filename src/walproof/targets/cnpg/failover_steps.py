"""Steps of a failover as Kubernetes shows them, each at the moment it was first seen on walproof's own clock."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from walproof.errors import Error
from walproof.model.ports import Clock
from walproof.model.verdict import Mark
from walproof.targets.cnpg.api import CLUSTERS, KubernetesApi
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.state import State, with_who_serves

_PENDING = "pending"
"""What targetPrimary says while the operator has not chosen."""
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the steps are derived from, at one moment; holder and writable None where they may not be read."""

    target: str
    holder: str | None
    writable: tuple[str, ...] | None


def steps_between(before: Seen, after: Seen, at: float) -> tuple[Mark, ...]:
    """What happened between the two: operator (it named its target), lease (taken), endpoint (the write service leads).

    >>> [m.what for m in steps_between(Seen("pg-1", "", ()), Seen("pg-2", "pg-2", ("pg-2",)), 1.0)]
    ['operator', 'lease', 'endpoint']
    """
    found = []
    if after.target not in (before.target, _PENDING, ""):
        found.append(Mark(at, "operator", after.target))
    if after.holder and before.holder is not None and after.holder != before.holder:
        found.append(Mark(at, "lease", after.holder))
    if after.writable and before.writable is not None and after.writable != before.writable:
        found.append(Mark(at, "endpoint", after.writable[0]))
    return tuple(found)


class CnpgFailoverSteps:
    """One Cluster; asked at the pace at which its steps are to be known.

    Lease and endpoints change hands only once the Cluster shows that an instance is missing or another the target:
    while it shows neither they are asked for once a second.
    """

    def __init__(self, api: KubernetesApi, cluster: str, clock: Clock) -> None:
        self._api, self._cluster, self._clock = api, cluster, clock
        self._last: Seen | None = None
        self._asked = float("-inf")

    def since_last(self) -> Sequence[Mark]:
        """Ask once; the steps since it was asked last. Nothing while Kubernetes does not answer."""
        try:
            after = self._seen()
        except Error:
            return ()
        before, self._last = self._last, after
        return () if before is None else steps_between(before, after, self._clock.now())

    def _seen(self) -> Seen:
        cluster = read(Cluster, self._api.get(CLUSTERS, self._cluster))
        status, now = cluster.status, self._clock.now()
        quiet = status.target_primary == status.current_primary and status.ready_instances >= cluster.spec.instances
        if quiet and self._last is not None and now - self._asked < _QUIET_S:
            return replace(self._last, target=status.target_primary)
        self._asked = now if quiet else float("-inf")
        state = with_who_serves(self._api, State(cluster, {}))
        return Seen(status.target_primary, state.holder, state.writable)
