"""Who is in a Cluster now, where each is reached, and which user walproof logs in as.

A member is reached at its pod's address, or at a port here that leads to it through the API server."""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from walproof.errors import Error, TargetError
from walproof.model.facts import Facts
from walproof.model.topology import Endpoint
from walproof.targets.cnpg.cluster_by_uid import ClusterByUid
from walproof.targets.cnpg.credentials_and_own_role import Credential, credential_of
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, ApiError, KubernetesApi
from walproof.targets.cnpg.objects import Pod
from walproof.targets.cnpg.rbac import perhaps_misnamed
from walproof.targets.cnpg.state_and_doctor_facts import State, asked_for_clients_way, facts_of, state_of
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.external.membership import Membership
from walproof.targets.named_hosts import with_named_hosts
from walproof.targets.sql.connection import connected, password_file
from walproof.targets.sql.doctor_facts import Inspector

Place = tuple[str, int]
_CONNECT_S = 0.7


class Forward:
    """A port on 127.0.0.1 that leads this user to a port of a pod; every connection is a stream of its own."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        """`connect` gives a connected socket; an Error of it ends the one connection that wanted it."""
        self._connect = connect
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.place: Place = ("127.0.0.1", int(self._listening.getsockname()[1]))
        threading.Thread(target=self._accept, name="port-forward", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if user_of(client) != os.geteuid():
                raise OSError("another user of this machine")
            pod = self._connect()
        except (Error, OSError):
            # As a pod does that is gone: the client sees its connection end.
            client.close()
            return
        back = threading.Thread(target=_pumped, args=(pod, client), daemon=True)
        back.start()
        _pumped(client, pod)
        back.join()
        for end in (client, pod):
            end.close()


def user_of(client: socket.socket) -> int | None:
    """The user at the other end of a connection over 127.0.0.1, by /proc/net/tcp (proc(5)); None once it has ended.

    One that its process has closed, which has no inode, is shown as root's whoever made it.
    """
    ends = [
        f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
        for host, port in (client.getpeername(), client.getsockname())
    ]
    for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        if (words := line.split())[1:3] == ends:
            return int(words[7]) if words[9] != "0" else None
    return None


def _pumped(source: Any, sink: Any) -> None:
    """Carry bytes until either end closes; then close the other's direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Addresses:
    """Places of pods by name: decided once for all of them, so that prices compare."""

    def __init__(self, reach: str, forward: Callable[[str, int], Any]) -> None:
        """reach: auto, pods or port-forward; `forward` gives a connected socket to a port of a pod."""
        self._reach, self._connect = reach, forward
        self._forwards: dict[str, Forward] = {}
        self._checked = False

    @property
    def forwarded(self) -> bool:
        """Whether everything goes through the API server."""
        return self._reach == "port-forward"

    def places(self, pods: Mapping[str, Pod]) -> dict[str, Place]:
        """host and port of every pod that has an address."""
        addressed = {name: pod for name, pod in pods.items() if pod.status.pod_ip}
        if self._reach == "auto" and addressed:
            able = any(answers((p.status.pod_ip, p.port)) for p in addressed.values() if p.ready)
            self._reach = "pods" if able else "port-forward"
        self._check(addressed)
        if not self.forwarded:
            return {name: (pod.status.pod_ip, pod.port) for name, pod in addressed.items()}
        return {name: self._forwarded(name, pod.port) for name, pod in addressed.items()}

    def _check(self, addressed: Mapping[str, Pod]) -> None:
        """ApiError where nothing may be forwarded: a client would see its connection end, and not why."""
        ready = next((pod for pod in addressed.values() if pod.ready), None)
        if self._checked or not self.forwarded or ready is None:
            return
        try:
            self._connect(ready.metadata.name, ready.port).close()
        except ApiError as wrong:
            if wrong.code == 403:
                raise
        except OSError:
            return
        self._checked = True

    def _forwarded(self, name: str, port: int) -> Place:
        if name not in self._forwards:
            self._forwards[name] = Forward(lambda: self._connect(name, port))
        return self._forwards[name].place

    def close(self) -> None:
        for forward in self._forwards.values():
            forward.close()
        self._forwards.clear()


def answers(place: Place) -> bool:
    try:
        with socket.create_connection(place, timeout=_CONNECT_S):
            return True
    except OSError:
        return False


_MONITORS = "SELECT pg_has_role(current_user, 'pg_monitor', 'USAGE') AS monitors"


class CnpgAccess:
    """To one Cluster. ApiError when Kubernetes does not answer the first time; later the last answer stays."""

    def __init__(self, api: KubernetesApi, file: CnpgFile) -> None:
        self.file = file
        try:
            self.state: State = state_of(api, file.name)
        except ApiError as wrong:
            if wrong.code == 403 and CLUSTERS.shown in wrong.message:
                raise perhaps_misnamed(api, file.name, wrong) from None
            raise
        self.uid = self.state.cluster.metadata.uid
        self.api: KubernetesApi = ClusterByUid(api, self.uid)
        self.addresses = Addresses(file.reach, api.forward)
        self.credential = self.default()
        self.login = self.parameters(self.credential)
        self._sees: bool | None = None
        self._placed: dict[Place, Pod] = {}
        self.members = Membership(self._listed)
        self.members.renew()

    def default(self) -> Credential:
        """The user of the application's secret, or of the one that the target file names."""
        return credential_of(self.api, self.file.login_secret)

    def parameters(self, credential: Credential) -> Endpoint:
        """What members are logged in to with. Every instance has TLS, and SCRAM unless spec.postgresql says otherwise.

        The Cluster's authority is not asked for: its secret holds the key that makes any certificate of it.
        """
        passfile, binding = password_file(credential.password), os.environ.get("PGCHANNELBINDING") or "require"
        options = (("connect_timeout", "5"),)
        login = Endpoint((), self.state.cluster.database, credential.user, passfile, options, binding=binding)
        return with_named_hosts(login, self.file)

    def log_in_as(self, credential: Credential) -> None:
        self.credential = credential
        self.login = self.parameters(credential)
        self.members.renew()
        self._sees = None

    @property
    def sees_replication(self) -> bool:
        """Whether the user sees the details of pg_stat_replication; asked of each user until a member answers."""
        if self._sees is None:
            self._sees = sees_replication(self.members())
        return self._sees is not False

    def from_within(self, place: Place) -> Place:
        """The address of a pod for what is an address of it here; any other stays as it is."""
        pods = {place: (pod.status.pod_ip, pod.port) for place, pod in self._placed.items()}
        return pods.get(place, place)

    def write_service(self) -> Place:
        service = self.state.cluster.status.write_service or f"{self.file.name}-rw"
        return f"{service}.{self.file.namespace}", 5432

    def _listed(self) -> dict[str, Endpoint]:
        """Every instance that has an address now, by its pod's name."""
        self.state = state_of(self.api, self.file.name)
        places = self.addresses.places(self.state.pods)
        self._placed = {place: self.state.pods[name] for name, place in places.items()}
        return {name: self.login.at(place) for name, place in places.items()}


def sees_replication(members: Mapping[str, Endpoint]) -> bool | None:
    """Whether this user sees the details of pg_stat_replication (pg_monitor); None when no member answers."""
    for endpoint in members.values():
        try:
            with connected(endpoint) as connection:
                row = connection.execute(_MONITORS).fetchone()
        except (TargetError, psycopg.Error):
            continue
        return row is None or bool(row["monitors"])
    return None


@dataclass(frozen=True, slots=True)
class CnpgInspector:
    """The doctor's facts: SQL of every instance, and the Cluster."""

    access: CnpgAccess
    target: str

    def facts(self) -> Facts:
        """One snapshot; TargetError when no member answers. Members stand at their pod's address."""
        state = state_of(self.access.api, self.access.file.name)
        facts = Inspector(self.target, self.access.members).facts()
        places = {name: f"{pod.status.pod_ip}:{pod.port}" for name, pod in state.pods.items()}
        members = tuple(replace(m, address=places.get(m.name, m.address)) for m in facts.members)
        cnpg, access = asked_for_clients_way(self.access.api, facts_of(state))
        return replace(facts, members=members, cnpg=cnpg, access=access)
