"""What the doctor knows of a CloudNativePG cluster, SQL apart: its spec, its status and its pods, all as values."""

from dataclasses import dataclass, field

from walproof.model.units import counted

_MIB = {"": 1 / 2**20, "K": 1e3 / 2**20, "M": 1e6 / 2**20, "G": 1e9 / 2**20, "T": 1e12 / 2**20}
_MIB |= {"Ki": 1 / 2**10, "Mi": 1.0, "Gi": 2.0**10, "Ti": 2.0**20}


def mebibytes(quantity: str) -> float | None:
    """A Kubernetes quantity in MiB; None when it is none.

    >>> mebibytes("2Gi"), mebibytes("512Mi"), mebibytes("1G"), mebibytes("")
    (2048.0, 512.0, 953.67431640625, None)
    """
    number = quantity.rstrip("KMGTi")
    try:
        return float(number) * _MIB[quantity[len(number) :]]
    except (ValueError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class CnpgPod:
    """One instance's pod: node "" when it is not placed, ready as its readiness probe says."""

    name: str
    role: str = ""
    node: str = ""
    ready: bool = False


@dataclass(frozen=True, slots=True)
class CnpgSync:
    """spec.postgresql.synchronous, or the former minSyncReplicas and maxSyncReplicas (`legacy`)."""

    method: str = "any"
    number: int = 1
    required: bool = True
    """dataDurability: required; false is preferred."""
    failover_quorum: bool = False
    legacy: bool = False

    @property
    def text(self) -> str:
        """As in PostgreSQL: ANY 1."""
        return f"{self.method.upper()} {self.number}"


@dataclass(frozen=True, slots=True)
class CnpgProbes:
    """What restarts a primary, or keeps it: seconds."""

    isolation_check: bool = True
    liveness_s: float = 30.0
    """How long PostgreSQL may be unresponsive before the container is killed (period × failures)."""
    smart_shutdown_s: float = 180.0
    stop_delay_s: float = 1800.0
    failover_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CnpgPlacement:
    """How pods are kept apart."""

    anti_affinity: bool = True
    required: bool = False
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
    ready: int = 0
    phase: str = ""
    current_primary: str = ""
    target_primary: str = ""
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
    pods: tuple[CnpgPod, ...] = ()
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
    def wal_volume_mib(self) -> float | None:
        """Size of the volume that WAL is written to, MiB."""
        return mebibytes(self.wal_storage or self.storage)
