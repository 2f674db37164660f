"""CloudNativePG as the manager of an external cluster: who is in it now, where, and which user walproof logs in as."""

from collections.abc import Mapping
from dataclasses import replace

import psycopg

from walproof.errors import TargetError
from walproof.model.cloudnative_pg import MANAGER
from walproof.model.facts import Facts
from walproof.model.ports import Configuration, Inspection, Restart, Switchover
from walproof.model.topology import Endpoint
from walproof.targets.cnpg.addresses import Addresses, Place
from walproof.targets.cnpg.api import KubernetesApi
from walproof.targets.cnpg.configuration import CnpgConfiguration
from walproof.targets.cnpg.credentials import Credential, credential_of, passfile, secret_of
from walproof.targets.cnpg.facts import facts_of
from walproof.targets.cnpg.file import CnpgFile
from walproof.targets.cnpg.objects import Pod
from walproof.targets.cnpg.state import State, state_of
from walproof.targets.cnpg.switchover import CnpgSwitchover
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.external.membership import Membership
from walproof.targets.sql.connection import ConnectionParameters, connected
from walproof.targets.sql.facts import Inspector

_MONITORS = "SELECT pg_has_role(current_user, 'pg_monitor', 'USAGE') AS monitors"


class CnpgManager:
    """One Cluster. ApiError when Kubernetes does not answer the first time; later the last answer stays."""

    name = MANAGER

    def __init__(self, api: KubernetesApi, file: CnpgFile) -> None:
        self.api, self.file = api, file
        self.state: State = state_of(api, file.name)
        self.addresses = Addresses(file.reach, api.forward)
        self.credential = self.default()
        self.login = self.parameters(self.credential)
        self.members = Membership(self._listed)
        self._sees: bool | None = None
        self._placed: dict[Place, Pod] = {}

    def default(self) -> Credential:
        """The user of the application's secret, or of the one that the target file names."""
        return credential_of(self.api, secret_of(self.state.cluster, self.file.secret))

    def parameters(self, credential: Credential) -> ConnectionParameters:
        """How this user connects."""
        return ConnectionParameters(
            (), self.state.cluster.database, credential.user, passfile(credential), (("connect_timeout", "5"),)
        )

    def log_in_as(self, credential: Credential) -> None:
        """Connect as this user from now on."""
        self.credential = credential
        self.login = self.parameters(credential)
        self.members.renew()
        self._sees = None

    @property
    def sees_replication(self) -> bool:
        """Whether the user sees the details of pg_stat_replication; asked once for each user."""
        if self._sees is None:
            self._sees = sees_replication(self.members())
        return self._sees

    def from_within(self, place: Place) -> Place:
        """The address of a pod for what is an address of it here; any other stays as it is."""
        pods = {place: (pod.status.pod_ip, pod.port) for place, pod in self._placed.items()}
        return pods.get(place, place)

    def write_service(self) -> Place:
        """The service that leads to the primary."""
        service = self.state.cluster.status.write_service or f"{self.file.name}-rw"
        return f"{service}.{self.file.namespace}", 5432

    def _listed(self) -> dict[str, Endpoint]:
        """Every instance that has an address now, by its pod's name."""
        self.state = state_of(self.api, self.file.name)
        places = self.addresses.places(self.state.pods)
        self._placed = {place: self.state.pods[name] for name, place in places.items()}
        return {name: self.login.endpoint((place,)) for name, place in places.items()}

    def facts(self) -> dict[str, str]:
        """What the Cluster says of itself, and how members are reached."""
        facts = facts_of(self.state)
        found = {"cloudnative-pg phase": facts.phase, "as declared": facts.declared}
        if facts.synchronous is not None:
            durability = "required" if facts.synchronous.required else "preferred"
            found["cloudnative-pg synchronous"] = f"{facts.synchronous.text}, {durability}"
        if self.addresses.forwarded:
            found["reached through"] = "port-forward: 4 to 8 times slower than from within; load belongs there"
        return found

    def configuration(self, cluster: ExternalCluster) -> Configuration:
        """Patches of the Cluster."""
        return CnpgConfiguration(cluster.name, cluster.clock, (self.api, self.file.name), self.members, cluster.observe)

    def inspector(self, cluster: ExternalCluster) -> Inspection:
        """The doctor's facts: SQL of every instance, and the Cluster."""
        return CnpgInspector(self, cluster.name)

    def restart(self, cluster: ExternalCluster) -> Restart | None:
        """The operator restarts on its own account only."""
        return None

    def switchover(self, cluster: ExternalCluster) -> Switchover | None:
        """The operator switches over itself."""
        return CnpgSwitchover(self.api, self.file.name, cluster.observe, cluster.clock)

    def takeover(self, cluster: ExternalCluster) -> None:
        """The operator's lease in Kubernetes is none that a guard can take."""

    def elected_at(self, log: str, since: float) -> float | None:
        """The operator's log is not read."""
        return None


def sees_replication(members: Mapping[str, Endpoint]) -> bool:
    """Whether this user sees the details of pg_stat_replication (pg_monitor); taken to be so when nobody answers."""
    for endpoint in members.values():
        try:
            with connected(endpoint) as connection:
                row = connection.execute(_MONITORS).fetchone()
        except (TargetError, psycopg.Error):
            continue
        return row is None or bool(row["monitors"])
    return True


class CnpgInspector:
    """Reads only."""

    def __init__(self, manager: CnpgManager, target: str) -> None:
        self._manager, self._target = manager, target

    def facts(self) -> Facts:
        """One snapshot; TargetError when nobody answers. Members stand at their pod's address."""
        state = state_of(self._manager.api, self._manager.file.name)
        found = Inspector(self._target, self._manager.members).facts()
        places = {name: f"{pod.status.pod_ip}:{pod.port}" for name, pod in state.pods.items()}
        members = tuple(replace(m, address=places.get(m.name, m.address)) for m in found.members)
        return replace(found, members=members, cnpg=facts_of(state))
