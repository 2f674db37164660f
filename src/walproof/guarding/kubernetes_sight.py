"""What a guard of CloudNativePG sees, and why it must keep its hands off. Pure.

CloudNativePG's reasons: internal/controller/replicas.go (the election) and internal/cmd/manager/instance/run/lease/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

HEALTHY, FAILING_OVER, PENDING = "Cluster in healthy state", "Failing over", "pending"
"""The operator's phases at rest and in an election; its target while it looks for one (PendingFailoverMarker)."""
READ_S, ASKED_S = 2.0, 1.0
"""What was read longer ago, or a standby that was asked longer ago, is not known."""
_PINGS_S = 3.75
"""The longest silence of a healthy WAL receiver by which a frozen primary is still told."""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The Cluster's object. version: its resourceVersion.

    number: of standbys that a commit waits for, by the spec; in_effect: by the primary's own setting, when it last
    told. hands_off: why no guard may act on it (its spec, fenced …), "" where one may. claim: the annotation of the
    last takeover: by which guard ("" for none), of which pod's uid, when by its clock.
    """

    version: str
    primary: str
    target: str
    phase: str
    instances: tuple[str, ...]
    number: int
    in_effect: int
    hands_off: str = ""
    claim: tuple[str, str, str] = ("", "", "")


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """The primary's Lease. renewed: its renewTime, never compared with a clock; retry_s: how often that is written."""

    version: str = ""
    holder: str = ""
    renewed: str = ""
    retry_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the primary. answered_at: the last answer; waiting_since: the first question since without one."""

    answered_at: float = 0.0
    waiting_since: float | None = None


@dataclass(frozen=True, slots=True)
class StandbySeen:
    """What a standby answered that was asked at `at`. heard_at: its WAL receiver's last message, by this guard's clock.

    streams: from the primary. ready: its pod is. pings_s: after so long a silence its WAL receiver asks for an answer,
    which a living primary gives (half of wal_receiver_timeout: walreceiver.c, WalReceiverMain). behind: a promotion
    would wait for its replay.
    """

    at: float
    heard_at: float = 0.0
    streams: bool = False
    ready: bool = True
    pings_s: float = 2.5
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen in one turn. read_at: when the reading of the API began. pod: the primary's uid, "" for none.

    pod_ready: it is Ready, and not being deleted. service, direct: SQL through the write service and the pod's address;
    manager: its status port. stalled: the guard itself did not run for a while. unread: why the API was not read since.
    """

    now: float
    read_at: float
    cluster: ClusterSeen
    pod: str
    pod_ready: bool
    lease: LeaseSeen
    service: Way = Way()
    direct: Way = Way()
    manager: Way = Way()
    standbys: Mapping[str, StandbySeen] = field(default_factory=dict)
    stalled: bool = False
    unread: str = ""

    @property
    def pings_s(self) -> float:
        """The longest silence of a healthy standby."""
        return max((one.pings_s for one in self.standbys.values()), default=0.0)

    @property
    def answering(self) -> dict[str, StandbySeen]:
        """The standbys that were asked just now, and answered."""
        names = [name for name in self.cluster.instances if name in self.standbys and name != self.cluster.primary]
        return {name: self.standbys[name] for name in names if self.standbys[name].at > self.now - ASKED_S}

    @property
    def asked_at(self) -> float:
        """Up to when it is known what the standbys heard."""
        return min((one.at for one in self.answering.values()), default=0.0)


def first(*reasons: tuple[object, str]) -> str:
    """The text of the first that is so, "" for none."""
    return next((text for is_so, text in reasons if is_so), "")


def why_not(sight: Sight, followed: frozenset[str]) -> str:
    """Why deleting the primary's pod would not be safe now, "" where it is; followed: who streamed from it."""
    cluster, name, standbys = sight.cluster, sight.cluster.primary, max(1, len(sight.cluster.instances) - 1)
    able = [one for one, seen in sight.answering.items() if one in followed and seen.ready]
    behind = any(one.behind for one in sight.answering.values())  # of any: who will be elected is not known before
    return cluster.hands_off or first(
        (sight.now - sight.read_at > READ_S, f"no reading of the Kubernetes API within {READ_S:g} s{sight.unread}"),
        (cluster.target != name, f"a switchover or failover is under way: the target is {cluster.target}"),
        (cluster.phase != HEALTHY, f"the operator is at work: {cluster.phase}"),
        (not (sight.pod and sight.pod_ready), f"the pod {name} is not Ready, or is being deleted: the operator's case"),
        (sight.lease.holder != name, f"{name} does not hold the Lease"),
        (cluster.in_effect != cluster.number, f"{name} waits for {cluster.in_effect} standbys, not {cluster.number}"),
        # All: the operator elects nobody while the one with the most WAL is not Ready, and asks each in turn for 30 s.
        (len(able) < standbys, f"{len(able)} of {standbys} standbys answer, are ready and stream (as pg_monitor sees)"),
        (sight.pings_s > _PINGS_S, f"wal_receiver_timeout of a standby is 0, over {2 * _PINGS_S:g} s, or a role's own"),
        (behind, "a standby has more than 16 MB to replay, or its replay is paused or waits for a query"),
    )


def why_left_alone(sight: Sight, dead: str) -> str:
    """Why the Lease of that instance, whose pod was deleted, is left as it is for good; "" where it is not."""
    target, phase = sight.cluster.target, sight.cluster.phase
    elected = target in (dead, PENDING, "") or phase == FAILING_OVER
    return sight.cluster.hands_off or first(
        (not elected, f"whether {target} was elected or named by hand is not known: the phase is {phase}"),
        (sight.pod, f"the pod {dead} was made anew: its manager may hold the Lease rightly"),
        (sight.cluster.primary != dead, f"{sight.cluster.primary} was promoted"),
        (sight.lease.holder != dead, f"{sight.lease.holder or 'nobody'} holds the Lease"),
    )
