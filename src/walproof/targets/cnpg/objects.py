"""The objects of Kubernetes that are read, as far as they are read; what else stands in them is left alone."""

import re
from contextlib import suppress
from datetime import datetime
from ipaddress import ip_address
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from walproof.errors import TargetError
from walproof.machine.untrusted import one_line
from walproof.targets.cnpg.kubernetes_api import Kind


def _address(text: str) -> str:
    """Else it would be a path or another host in a URL, or a list of hosts for libpq."""
    return str(ip_address(text)) if text else ""


def _service(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|", text):
        raise ValueError("no name of a Service")
    return text


Words = Annotated[str, AfterValidator(one_line)]
"""What is printed of them: one line, without escapes."""


class Read(BaseModel):
    """Keys that are not read are no error: the operator adds some in every version."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Owner(Read):
    uid: str = ""
    api_version: str = ""
    kind: str = ""
    controller: bool = False


class Metadata(Read):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    owner_references: list[Owner] = []

    def is_controlled_by(self, kind: Kind, singular: str, uid: str) -> bool:
        """Whether the object of that uid made it: an object has one controller, and labels are anyone's to write."""
        api = f"{kind.group}/{kind.version}"
        wanted = (api, singular, uid, True)
        return wanted in [(one.api_version, one.kind, one.uid, one.controller) for one in self.owner_references]


class Object(Read):
    metadata: Metadata


class IsolationCheck(Read):
    enabled: bool = True


class Probe(Read):
    """isolation_check is the liveness probe's alone, type never its."""

    type: str = ""
    isolation_check: IsolationCheck = IsolationCheck()
    period_seconds: float | None = None
    failure_threshold: int | None = None


class Probes(Read):
    liveness: Probe = Probe()
    readiness: Probe = Probe()
    startup: Probe = Probe()


class Affinity(Read):
    enable_pod_anti_affinity: bool | None = None
    topology_key: str = "kubernetes.io/hostname"


class LabelSelector(Read):
    match_labels: dict[str, str] = {}
    match_expressions: list[dict[str, Any]] = []


class Spread(Read):
    topology_key: str
    label_selector: LabelSelector | None = None


class Synchronous(Read):
    method: str = "any"
    number: int = 1
    data_durability: str = "required"
    failover_quorum: bool = False
    max_standby_names_from_cluster: int | None = None
    standby_names_pre: list[str] = []
    standby_names_post: list[str] = []


class Postgresql(Read):
    parameters: dict[str, str] = {}
    synchronous: Synchronous | None = None
    enable_alter_system: bool = False


class StorageRequests(Read):
    requests: dict[str, str] = {}


class ClaimTemplate(Read):
    resources: StorageRequests = StorageRequests()


class Storage(Read):
    size: str = ""
    pvc_template: ClaimTemplate = ClaimTemplate()

    @property
    def requested(self) -> str:
        """As the operator takes it: the size, else what the claim's template requests (1.30, GetSizeOrNil)."""
        return self.size or self.pvc_template.resources.requests.get("storage", "")


class Replica(Read):
    """Where this Cluster follows another one; own: its name among them."""

    enabled: bool | None = None
    primary: str = ""
    own: str = Field(default="", alias="self")


class Initdb(Read):
    database: str = "app"
    owner: str = ""


class Bootstrap(Read):
    initdb: Initdb | None = None


class MaintenanceWindow(Read):
    in_progress: bool = False


class PrimaryLease(Read):
    retry_period_seconds: float = 2


class ClusterSpec(Read):
    instances: int = 1
    min_sync_replicas: int = 0
    max_sync_replicas: int = 0
    postgresql: Postgresql = Postgresql()
    bootstrap: Bootstrap = Bootstrap()
    affinity: Affinity = Affinity()
    topology_spread_constraints: list[Spread] = []
    enable_pdb: bool = Field(default=True, alias="enablePDB")
    probes: Probes = Probes()
    liveness_probe_timeout: float | None = None
    smart_shutdown_timeout: float = 180
    stop_delay: float = 1800
    start_delay: float = 3600
    failover_delay: float = 0
    storage: Storage = Storage()
    wal_storage: Storage | None = None
    replica: Replica | None = None
    resources: dict[str, Any] = {}
    primary_update_strategy: str = "unsupervised"
    primary_update_method: Literal["restart", "switchover"] = "restart"
    node_maintenance_window: MaintenanceWindow = MaintenanceWindow()
    primary_lease: PrimaryLease = PrimaryLease()


class RolesByStatus(Read):
    by_status: dict[str, list[str]] = {}
    password_status: dict[str, Any] = {}
    cannot_reconcile: dict[str, list[str]] = {}


class ClusterStatus(Read):
    current_primary: str = ""
    target_primary: str = ""
    timeline_id: int = Field(default=0, alias="timelineID")
    phase: Words = ""
    ready_instances: int = 0
    instance_names: list[str] = []
    write_service: Annotated[str, AfterValidator(_service)] = ""
    managed_roles_status: RolesByStatus = RolesByStatus()


class Cluster(Read):
    metadata: Metadata
    spec: ClusterSpec
    status: ClusterStatus = ClusterStatus()

    @property
    def is_replica(self) -> bool:
        """Whether it follows another Cluster and takes no writes (1.30, IsReplica in api/v1/cluster_funcs.go)."""
        its = self.spec.replica
        if its is None or its.enabled is not None:
            return its is not None and its.enabled is True
        return (its.own or self.metadata.name) != its.primary

    @property
    def database(self) -> str:
        return self.spec.bootstrap.initdb.database if self.spec.bootstrap.initdb else "app"


class ContainerPort(Read):
    name: str = ""
    container_port: int


class Container(Read):
    name: str = ""
    command: list[str] = []
    ports: list[ContainerPort] = []
    resources: dict[str, Any] = {}
    restart_policy: str = ""


class Toleration(Read):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PodSpec(Read):
    node_name: str = ""
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, str] = {}


class Condition(Read):
    type: str
    status: str
    reason: Words = ""
    message: Words = ""


class Why(Read):
    """Why a container waits, or how it ended."""

    reason: Words = ""
    message: Words = ""
    exit_code: int | None = None


class ContainerState(Read):
    waiting: Why | None = None
    terminated: Why | None = None


class ContainerStatus(Read):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


_HOPELESS = frozenset(
    (
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CrashLoopBackOff",
    )
)
"""Reasons of a container that waits and will not start by itself."""


class PodStatus(Read):
    phase: Words = ""
    reason: Words = ""
    pod_ip: Annotated[str, AfterValidator(_address)] = Field(default="", alias="podIP")
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []


class Pod(Read):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        """As its readiness probe says, unless it is being deleted."""
        conditions = {c.type: c.status for c in self.status.conditions}
        return conditions.get("Ready") == "True" and not self.ending

    @property
    def ending(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def leads(self) -> bool:
        """Whether the write service leads to it."""
        return self.metadata.labels.get("cnpg.io/instanceRole") == "primary"

    @property
    def restarts(self) -> int:
        """How often PostgreSQL's container was started again in this pod."""
        return next((c.restart_count for c in self.status.container_statuses if c.name == "postgres"), 0)

    @property
    def unplaced(self) -> str | None:
        """Why no node takes it, as the scheduler says; None where one does."""
        refused = (c for c in self.status.conditions if c.type == "PodScheduled" and c.status == "False")
        return next((c.message or c.reason for c in refused), None)

    @property
    def failing(self) -> str | None:
        """Why a container will not start by itself, as the kubelet says; None where each may."""
        waiting = (status.state.waiting for status in self.status.container_statuses)
        return next((f"{w.reason}: {w.message}" for w in waiting if w is not None and w.reason in _HOPELESS), None)

    @property
    def resources(self) -> dict[str, Any]:
        """Of PostgreSQL's container, as the operator made it: admission may have added to what the pod has now."""
        containers = self.spec.containers
        with suppress(ValidationError):
            containers = PodSpec.model_validate_json(self.metadata.annotations.get("cnpg.io/podSpec", "")).containers
        return next((c.resources for c in containers if c.name == "postgres"), {})

    @property
    def port(self) -> int:
        ports = [p for c in self.spec.containers for p in c.ports]
        return next((p.container_port for p in ports if p.name == "postgresql"), 5432)


class LeaseSpec(Read):
    holder_identity: str | None = None
    acquire_time: datetime | None = None
    renew_time: str | None = None


class Lease(Object):
    spec: LeaseSpec = LeaseSpec()


class TargetRef(Read):
    name: str = ""


class Ready(Read):
    ready: bool | None = None


class ServedPod(Read):
    conditions: Ready = Ready()
    target_ref: TargetRef = TargetRef()


class ServiceEndpoints(Read):
    """An object of discovery.k8s.io: where a service leads."""

    endpoints: list[ServedPod] | None = None


class Secret(Read):
    """A secret; its values are base64 and never shown."""

    metadata: Metadata
    data: dict[str, str] = Field(default={}, repr=False)


O = TypeVar("O", bound=Read)  # noqa: E741


def read(model: type[O], tree: dict[str, Any]) -> O:
    """The object that an answer holds; TargetError names the key that is not as expected, and quotes no value."""
    try:
        return model.model_validate(tree)
    except ValidationError as wrong:
        first = wrong.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise TargetError(
            f"the API's {model.__name__} is not as CloudNativePG 1.24 to 1.30 write it: {key}: {first['type']}",
            "kubectl get -o yaml shows it; is the operator of another version?",
        ) from None
