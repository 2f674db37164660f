"""What the doctor inspects of CloudNativePG: its spec, its status and its pods, all as values.

And how long it took to replace a primary where nothing was drilled, in seconds: of a real cluster, version 1.30 on
Kubernetes 1.34 with default settings (docs/kubernetes.md, "Where the time goes")."""

from dataclasses import dataclass, field
from math import isfinite

from walproof.model.units import counted, quantity

CNPG_MANAGER = "cloudnative-pg"
"""What a target's description calls it."""
CNPG_KILLED_S = 10.0
"""Its postmaster was killed."""
CNPG_DELETED_S = 25.0
"""Its pod was deleted."""
CNPG_CUT_S = 121.0
"""Its network was cut, at worst: 85 to 121."""


def ends_dead_replication(manager: str, *timeouts_s: float) -> bool:
    """Whether replication notices a dead peer within a minute by itself, so that TCP need not: CloudNativePG's own
    wal_sender_timeout and wal_receiver_timeout are 5 s. The doctor and advice both go by it.

    >>> ends_dead_replication(CNPG_MANAGER, 5.0, 5.0), ends_dead_replication(CNPG_MANAGER, 5.0, 0.0)
    (True, False)
    """
    return manager == CNPG_MANAGER and all(0 < seconds <= 60 for seconds in timeouts_s)


def mebibytes(text: str) -> float | None:
    """A Kubernetes quantity in MiB; None when it is none.

    >>> mebibytes("2Gi"), mebibytes("1G"), mebibytes("1000000k"), mebibytes("1000000000000m"), mebibytes("")
    (2048.0, 953.67431640625, 953.67431640625, 953.67431640625, None)
    """
    try:
        number = float(quantity(text) / 2**20)
    except ArithmeticError:
        return None
    return number if isfinite(number) else None


def is_off(text: str) -> bool:
    """Whether PostgreSQL takes it for a boolean that is off: any clear beginning of false, no or off, or 0 (bool.c).

    >>> is_off("Off"), is_off("f"), is_off("0"), is_off("o"), is_off("none")
    (True, True, True, False, False)
    """
    word = text.strip().lower()
    return word == "0" or (len(word) > (word == "o") and any(w.startswith(word) for w in ("false", "no", "off")))


@dataclass(frozen=True, slots=True)
class CnpgPod:
    """One instance's pod: node "" when it is not placed, ready as its readiness probe says."""

    name: str
    node: str = ""
    ready: bool = False


@dataclass(frozen=True, slots=True)
class CnpgSync:
    """spec.postgresql.synchronous, or the former minSyncReplicas and maxSyncReplicas.

    How the operator (1.30) makes names of them: pkg/postgres/replication, explicit.go and legacy.go.
    """

    method: str = "any"
    number: int = 1
    required: bool = True
    """Whether commits wait when too few standbys are ready: dataDurability. With the former keys they never do."""
    failover_quorum: bool = False
    least: int | None = None
    """minSyncReplicas: the number while fewer than maxSyncReplicas are ready; None without the former keys."""
    named_instances: int | None = None
    """maxStandbyNamesFromCluster: how many instances are named, whichever are ready; None for all."""
    ahead: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    """standbyNamesPre and standbyNamesPost: standbys elsewhere, named before and after the instances."""

    @property
    def text(self) -> str:
        """As in PostgreSQL, or the former keys: ANY 1.

        >>> CnpgSync(number=2, least=1).text
        'minSyncReplicas: 1, maxSyncReplicas: 2'
        """
        if self.least is not None:
            return f"minSyncReplicas: {self.least}, maxSyncReplicas: {self.number}"
        return f"{self.method.upper()} {self.number}"

    @property
    def promised(self) -> int:
        """How many standbys the names ask for at least, while one is ready."""
        return self.number if self.required else max(1, self.least or 0)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Every standby that is named and is no instance of this Cluster."""
        return (*self.ahead, *self.behind)

    @property
    def own_copies(self) -> int:
        """How many instances of this Cluster have each commit for certain; FIRST prefers those named ahead.

        >>> CnpgSync(ahead=("dr",)).own_copies, CnpgSync("first", behind=("dr",)).own_copies
        (0, 1)
        """
        before = self.ahead if self.method == "first" else self.elsewhere
        return 0 if self.named_instances == 0 else max(0, self.number - len(before))


@dataclass(frozen=True, slots=True)
class CnpgProbes:
    """What restarts a primary, or keeps it: seconds."""

    isolation_check: bool = True
    liveness_s: float = 30.0
    """How long PostgreSQL may be unresponsive before the container is killed (period × failures)."""
    readiness_s: float = 30.0
    """Likewise before the primary is taken to have failed."""
    readiness_least_s: float = 20.0
    """At the soonest: the first of the failures may come at once (period × (failures - 1))."""
    readiness_streams: bool = False
    """Whether a standby is ready only while it streams."""
    startup_s: float = 3600.0
    """How long it may start, which includes crash recovery, before the container is killed."""
    smart_shutdown_s: float = 180.0
    stop_delay_s: float = 1800.0
    failover_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CnpgPlacement:
    """How pods are kept apart."""

    anti_affinity: bool = True
    topology_key: str = "kubernetes.io/hostname"
    spreads: tuple[tuple[str, bool], ...] = ()
    """(topologyKey, whether the constraint selects this cluster's pods) of topologySpreadConstraints."""
    enable_pdb: bool = True


@dataclass(frozen=True, slots=True)
class CnpgFacts:
    """One Cluster. `parameters` are those of the spec, `roles` who says it is primary: status, lease."""

    namespace: str
    name: str
    instances: int
    phase: str = ""
    current_primary: str = ""
    target_primary: str = ""
    replica: bool = False
    """A replica cluster: its designated primary follows another Cluster and takes no writes."""
    lease_holder: str | None = None
    """None where there is no lease (before 1.30), or it may not be read."""
    synchronous: CnpgSync | None = None
    alter_system: bool = False
    parameters: dict[str, str] = field(default_factory=dict)
    probes: CnpgProbes = CnpgProbes()
    placement: CnpgPlacement = CnpgPlacement()
    storage: str = ""
    wal_storage: str = ""
    """Size of the volume of its own for WAL, "" without one."""
    fenced: tuple[str, ...] = ()
    services_of_all: tuple[str, ...] = ()
    """Services made by hand that lead to its instances of any role, and are not for reads by their name."""
    pods: tuple[CnpgPod, ...] = ()
    guarded: bool = False
    """Whether an annotation of it says that `walproof guard` watches it, or that one took over."""
    resources: str = ""
    """spec.resources in words, "" where none are declared."""
    refusals: tuple[str, ...] = ()
    """What Kubernetes did not show this user, and the rule that allows it."""

    @property
    def declared(self) -> str:
        """Instances, volumes, processors and memory as the spec declares them.

        >>> CnpgFacts("db", "pg", 3, storage="2Gi").declared
        '3 instances, data on 2Gi, WAL with the data, no processors or memory of their own'
        """
        wal = f"WAL on {self.wal_storage} of its own" if self.wal_storage else "WAL with the data"
        sizes = self.resources or "no processors or memory of their own"
        data = f"data on {self.storage or 'a volume of unknown size'}"
        return f"{counted(self.instances, 'instance')}, {data}, {wal}, {sizes}"

    @property
    def nodes(self) -> str:
        """Where each instance that has a node runs, as a record's facts say it.

        >>> CnpgFacts("db", "pg", 2, pods=(CnpgPod("pg-1", node="a"), CnpgPod("pg-2", node="a"))).nodes
        'pg-1 on a, pg-2 on a'
        """
        return ", ".join(f"{pod.name} on {pod.node}" for pod in self.pods if pod.node)

    @property
    def wal_volume_mib(self) -> float | None:
        return mebibytes(self.wal_storage or self.storage)


GUARD_ACTS_S = 7.0
"""How soon a guard has deleted a frozen primary, with the longest --suspect-after that it takes."""


def why_not_guarded(cnpg: CnpgFacts) -> str:
    """Every reason in its spec for which `walproof guard` refuses it, "" where it does not (docs/guard.md).

    >>> why_not_guarded(CnpgFacts("db", "pg", 3, synchronous=CnpgSync(failover_quorum=True)))
    ''
    """
    sync, probes = cnpg.synchronous or CnpgSync(required=False), cnpg.probes
    reasons = {
        "it follows another Cluster": cnpg.replica,
        "dataDurability is not required": not sync.required or sync.number < 1,
        "failoverQuorum is not true": not sync.failover_quorum,
        "standbyNamesPre or standbyNamesPost is set": sync.elsewhere,
        "failoverDelay is set": probes.failover_delay_s,
        "a streaming readiness probe takes the standbys out of the operator's election": probes.readiness_streams,
        f"its readiness probe makes the pod the operator's case within {GUARD_ACTS_S:g} s": (
            probes.readiness_least_s < GUARD_ACTS_S
        ),
        "there is no standby": cnpg.instances < 2,
    }
    return "; ".join(reason for reason, is_so in reasons.items() if is_so)
