"""What a guard of CloudNativePG sees, and why it must keep its hands off. Pure.

Which fields decide, and CloudNativePG's reasons: its internal/controller/replicas.go (the election) and
internal/cmd/manager/instance/run/lease/runnable.go (who may lead).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTHY = "Cluster in healthy state"
PENDING = "pending"
"""What the operator writes as the target while it looks for one (api/v1, PendingFailoverMarker)."""
READ_S = 3.0
"""What was not read for so long is not known."""
CHANGED_S = 10.0
"""A new configuration reaches every instance by then."""
REST_S = 600.0
"""Least time between two takeovers of a Cluster, by any guard."""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The Cluster, from one reading that began at `at`. version: its resourceVersion.

    number: of standbys that a commit waits for, by the spec; in_effect: by the primary's own setting, when it last
    told. unsuitable: why its spec is none that this guard knows, "" where it is. taken_at, taken_by: the annotation of
    the last takeover, 0 for never.
    """

    at: float
    version: str
    primary: str
    target: str
    phase: str
    instances: tuple[str, ...]
    durability: str
    number: int
    in_effect: int
    fenced: tuple[str, ...] = ()
    hibernated: bool = False
    paused: bool = False
    restoring: bool = False
    unsuitable: str = ""
    taken_at: float = 0.0
    taken_by: str = ""

    @property
    def standbys(self) -> tuple[str, ...]:
        """Every instance but the primary."""
        return tuple(name for name in self.instances if name != self.primary)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The pod of the primary's name; uid "" for none. node_ready: of its node, or where it last ran."""

    at: float
    uid: str = ""
    running: bool = False
    ending: bool = False
    node_ready: bool = False


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """The primary's Lease. version: its resourceVersion; renewed: its renewTime as it stands there, never compared
    with a clock. retry_s: how often a living holder renews."""

    at: float
    version: str = ""
    holder: str = ""
    renewed: str = ""
    retry_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the primary. answered_at: the last answer, a refusal too; waiting_since: an attempt without one."""

    answered_at: float = 0.0
    waiting_since: float | None = None


@dataclass(frozen=True, slots=True)
class StandbySeen:
    """What a standby answered that was asked at `at`. heard_at: its WAL receiver's last message, by this guard's clock.

    position: of the WAL it has, received or replayed, in bytes. streams: from the primary, in recovery. ready: its pod
    is, so that the operator may choose it.
    """

    at: float
    position: int
    heard_at: float = 0.0
    streams: bool = False
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen in one turn. service, direct: SQL through the write service and the pod's address; manager: the
    instance manager's status port. stalled: the guard itself did not run for a while."""

    now: float
    cluster: ClusterSeen
    pod: PodSeen
    lease: LeaseSeen
    service: Way = Way()
    direct: Way = Way()
    manager: Way = Way()
    standbys: Mapping[str, StandbySeen] = field(default_factory=dict)
    stalled: bool = False

    @property
    def read_at(self) -> float:
        """The oldest of the three readings of the API."""
        return min(self.cluster.at, self.pod.at, self.lease.at)

    def answering(self, since: float) -> dict[str, StandbySeen]:
        """The standbys that were asked after that moment, and answered."""
        return {name: self.standbys[name] for name in self.cluster.standbys if name in self.standbys
                and self.standbys[name].at > since}  # fmt: skip

    def enough(self, names: Mapping[str, StandbySeen]) -> bool:
        """Whether each acknowledged commit is on one of them: more than the standbys that no commit waits for."""
        return len(names) + self.cluster.number > len(self.cluster.standbys)


def why_never(cluster: ClusterSeen) -> str:
    """Why a guard can do nothing for this Cluster as it is configured; "" where it can."""
    if cluster.unsuitable:
        return cluster.unsuitable
    if cluster.durability != "required" or cluster.number < 1:
        return "dataDurability is not required: a takeover could lose acknowledged commits"
    if len(cluster.instances) < 2:
        return "there is no standby"
    return ""


def why_hands_off(sight: Sight) -> str:
    """Why no step may be taken now, be it the first or the last; "" where it may."""
    cluster = sight.cluster
    if never := why_never(cluster):
        return never
    if sight.now - sight.read_at > READ_S:
        return f"the Kubernetes API has not answered for {READ_S:g} s"
    if not sight.pod.node_ready:
        return f"the node of {cluster.primary} is not Ready: what runs there cannot be proven dead"
    if cluster.fenced:
        return f"{', '.join(cluster.fenced)} is fenced"
    if cluster.hibernated:
        return "the Cluster is hibernated"
    if cluster.restoring:
        return "a backup is being restored"
    return "the operator's reconciliation is paused" if cluster.paused else ""


def why_not(sight: Sight, followed: frozenset[str]) -> str:
    """Why deleting the primary's pod would not be safe now; "" where it is. followed: streamed from this primary."""
    cluster, pod, lease = sight.cluster, sight.pod, sight.lease
    if reason := why_hands_off(sight):
        return reason
    if cluster.target != cluster.primary:
        return f"a switchover or failover is under way: the target is {cluster.target}"
    if cluster.phase != HEALTHY:
        return f"the operator is at work: {cluster.phase}"
    if not pod.uid or not pod.running or pod.ending:
        return f"the pod {cluster.primary} is not running, or is being deleted: the operator's case"
    if lease.holder != cluster.primary:
        return f"{cluster.primary} does not hold the Lease"
    if cluster.in_effect != cluster.number:
        return f"{cluster.primary} waits for {cluster.in_effect} standbys, its Cluster says {cluster.number}"
    answers = sight.answering(sight.now - 1.0)
    able = {name: one for name, one in answers.items() if name in followed and one.ready}
    if not sight.enough(able):
        needed = len(cluster.standbys) - cluster.number + 1
        return (
            f"{len(able)} standbys answer, are ready and followed, {needed} are needed to hold each acknowledged commit"
        )
    return ""


def why_left_alone(sight: Sight, dead: str) -> str:
    """Why the Lease of that instance, whose pod was deleted, is left as it is for good; "" where it is not."""
    if reason := why_hands_off(sight):
        return reason
    if sight.pod.uid:
        return f"the pod {dead} was made anew: its manager may hold the Lease rightly"
    if sight.cluster.primary != dead:
        return f"{sight.cluster.primary} was promoted"
    return ""
