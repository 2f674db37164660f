"""Reading a CloudNativePG cluster: addresses, objects, credentials, and one view of SQL and Kubernetes together."""

import copy
import socket
import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.kubernetes.port import FakeApi, secret
from tests.fixtures.kubernetes.store import recorded
from walproof.errors import TargetError, UsageError
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.targets.choose import choose, is_external
from walproof.targets.cnpg.credentials_and_own_role import credential_of
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, LEASES, PODS, SECRETS, ApiError
from walproof.targets.cnpg.members import Addresses, CnpgAccess
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.state_and_doctor_facts import facts_of, joined, pods_of, state_of
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.cnpg.target_file import CnpgFile, read_address
from walproof.targets.sql.connection import password_file


def file(**words: object) -> CnpgFile:
    return CnpgFile.model_validate({"kind": "cnpg", "cluster": "default/pg", "reach": "pods", **words})


def sql(leader: str = "pg-1", *others: str) -> ClusterView:
    """What SQL says: these are primaries, the rest of the three stream."""
    primaries = (leader, *others)
    members = tuple(
        MemberView(n, Role.LEADER if n in primaries else Role.STANDBY, "running", standby_names=f"names of {n}")
        for n in ("pg-1", "pg-2", "pg-3")
    )
    return ClusterView(0.0, members, leader, "")


def test_an_address_names_the_cluster_and_the_context() -> None:
    assert read_address("cnpg:db/pg")[1].cluster == "db/pg"
    assert read_address("cnpg:db/pg?context=arn:aws:eks:eu:1:cluster/a")[1].context == "arn:aws:eks:eu:1:cluster/a"
    for wrong in ("cnpg:pg", "cnpg:", "cnpg:db/pg/x", "cnpg:DB/pg", "cnpg:db/pg?contxt=a"):
        with pytest.raises(UsageError, match="is no CloudNativePG cluster"):
            read_address(wrong)
    assert is_external("cnpg:db/pg")


def test_a_target_file_may_stand_for_it(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('kind = "cnpg"\ncluster = "db/pg"\ncontext = "prod"\n[caps]\nmax_clients = 4\n')
    name, read_file = read_address(str(path))
    assert (name, read_file.namespace, read_file.name, read_file.context) == (str(path), "db", "pg", "prod")
    assert is_external(str(path))
    path.write_text('kind = "cnpg"\ncluster = "pg"\n')
    with pytest.raises(UsageError, match="is not NAMESPACE/NAME"):
        read_address(str(path))


def test_no_kubeconfig_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(Exception, match="no Kubernetes is known: KUBECONFIG names no file that is there"):
        choose("cnpg:db/pg")


def test_the_recorded_objects_are_read() -> None:
    state = state_of(FakeApi(), "pg")
    assert list(state.pods) == ["pg-1", "pg-2", "pg-3"]
    assert (state.holder, state.writable, state.cluster.database) == ("pg-1", ("pg-1",), "app")
    facts = facts_of(state)
    assert (facts.instances, facts.current_primary) == (3, "pg-1")
    assert facts.synchronous is not None and facts.synchronous.text == "ANY 1" and facts.synchronous.required
    assert [pod.node for pod in facts.pods] == ["node1"] * 3 and all(pod.ready for pod in facts.pods)
    assert facts.probes.isolation_check and facts.probes.liveness_s == 30 and facts.placement.enable_pdb
    assert facts.wal_volume_mib == 2048
    assert facts.nodes == "pg-1 on node1, pg-2 on node1, pg-3 on node1"


def test_what_may_be_missing_and_what_may_not() -> None:
    api = FakeApi()
    api.forbidden = {("get", "leases"), ("list", "endpointslices")}
    state = state_of(api, "pg")
    assert state.holder is None and state.writable is None
    api.remove(CLUSTERS, "pg")
    with pytest.raises(ApiError, match=r"there is no clusters\.postgresql\.cnpg\.io pg in namespace default"):
        state_of(api, "pg")
    api = FakeApi()
    api.forbidden = {("list", "pods")}
    with pytest.raises(ApiError, match="may not list pods") as wrong:
        state_of(api, "pg")
    assert 'rules of its Role: - {apiGroups: [""], resources: ["pods"], verbs: ["list"]}' in wrong.value.hint


def test_an_object_that_is_not_as_expected_names_its_key_and_no_value() -> None:
    tree = recorded("cluster")
    tree["spec"]["instances"] = "s3cret"
    with pytest.raises(TargetError, match=r"spec\.instances: int_parsing") as wrong:
        read(Cluster, tree)
    assert "s3cret" not in wrong.value.message


def test_a_password_is_not_shown() -> None:
    api = FakeApi()
    credential = credential_of(api, "pg-app")
    assert credential.user == "app" and "pa:ss" not in repr(credential)
    broken = secret("pg-app", "app", "x")
    broken["data"] = {"username": "YXBw", "password": "not base64: s3cret"}
    api.put(SECRETS, broken)
    with pytest.raises(TargetError, match="the secret pg-app has no password") as wrong:
        credential_of(api, "pg-app")
    assert "s3cret" not in str(wrong.value) + wrong.value.hint


def test_libpq_reads_the_password_file() -> None:
    """libpq refuses a password file that others may read; a server that asks for a password gets this one."""
    path = password_file(credential_of(FakeApi(), "pg-app").password)
    with socket.create_server(("127.0.0.1", 0)) as server:
        got: list[bytes] = []
        thread = threading.Thread(target=_asks_for_a_password, args=(server, got))
        thread.start()
        words = f"host=127.0.0.1 port={server.getsockname()[1]} user=app dbname=app sslmode=disable gssencmode=disable"
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"{words} passfile={path}")
        thread.join()
    assert got == [b"app-pa:ss"]


def _asks_for_a_password(server: socket.socket, got: list[bytes]) -> None:
    client, _ = server.accept()
    with client:
        client.recv(int.from_bytes(client.recv(4), "big") - 4)
        client.sendall(b"R\x00\x00\x00\x08\x00\x00\x00\x03")
        client.recv(1)
        got.append(client.recv(int.from_bytes(client.recv(4), "big") - 4).rstrip(b"\x00"))


def test_members_are_pods_by_their_names_and_uids() -> None:
    state = state_of(FakeApi(), "pg")
    view = joined(sql(), state)
    assert [m.name for m in view.members] == ["pg-1", "pg-2", "pg-3"]
    assert view.leader == "pg-1" and view.member("pg-2") is not None
    assert [m.identity for m in view.members] == [pod.metadata.uid for pod in state.pods.values()]
    assert [m.address for m in view.members] == ["10.244.0.10", "10.244.0.12", "10.244.0.14"]


def test_kubernetes_alone_makes_no_leader() -> None:
    """status.phase stays healthy for up to a minute of an outage: nobody that answers as primary, no leader."""
    state = state_of(FakeApi(), "pg")
    assert state.cluster.status.phase == "Cluster in healthy state" and state.holder == "pg-1"
    silent = MemberView("pg-1", Role.UNKNOWN, "unreachable")
    standbys = tuple(m for m in sql().members if m.name != "pg-1")
    view = joined(ClusterView(0.0, (silent, *standbys), None), state)
    assert view.leader is None and not view.healthy
    assert view.members[0].state == "unreachable"


def test_of_two_primaries_the_holder_of_the_lease_leads() -> None:
    api = FakeApi()
    api.change(LEASES, "pg", {"spec": {"holderIdentity": "pg-2"}})
    both = replace(sql("pg-1", "pg-2"), leader="pg-1")
    view = joined(both, state_of(api, "pg"))
    assert (view.leader, view.standby_names) == ("pg-2", "names of pg-2")
    assert not view.healthy
    api.remove(LEASES, "pg")
    api.change(CLUSTERS, "pg", {"status": {"currentPrimary": "pg-2"}})
    assert joined(both, state_of(api, "pg")).leader == "pg-2"


def test_an_instance_without_a_pod_or_deleted_is_named() -> None:
    api = FakeApi()
    api.remove(PODS, "pg-3")
    api.change(PODS, "pg-2", {"metadata": {"deletionTimestamp": "2026-11-22T13:00:00Z"}})
    seen = ClusterView(0.0, (sql().members[0],), "pg-1")
    view = joined(seen, state_of(api, "pg"))
    assert [(m.name, m.state) for m in view.members] == [("pg-1", "running"), ("pg-2", "deleted"), ("pg-3", "no pod")]
    assert not view.healthy and view.member("pg-3").identity == ""  # type: ignore[union-attr]


def test_a_pod_made_anew_is_another_instance() -> None:
    api = FakeApi()
    first = joined(sql(), state_of(api, "pg")).member("pg-2")
    pod = copy.deepcopy(api.objects["pods", "pg-2"])
    pod["metadata"]["uid"] = "another"
    api.put(PODS, pod)
    second = joined(sql(), state_of(api, "pg")).member("pg-2")
    assert first is not None and second is not None and first.identity != second.identity


def test_members_are_addressed_as_asked() -> None:
    api = FakeApi()
    access = CnpgAccess(api, file())
    endpoints = access.members()
    assert endpoints["pg-2"].hosts == (("10.244.0.12", 5432),) and endpoints["pg-2"].user == "app"
    assert "pa:ss" not in endpoints["pg-2"].conninfo()
    api.change(PODS, "pg-2", {"status": {"podIP": ""}})
    assert list(CnpgAccess(api, file()).members()) == ["pg-1", "pg-3"]


def test_a_forwarded_member_is_known_by_its_pod_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load pods are told where their members are before these are listed again."""
    here = {name: ("127.0.0.1", 40000 + number) for number, name in enumerate(("pg-1", "pg-2", "pg-3"))}
    monkeypatch.setattr(Addresses, "places", lambda self, pods: here)
    access = CnpgAccess(FakeApi(), file())
    assert access.from_within(here["pg-2"]) == ("10.244.0.12", 5432)


def test_a_forwarded_port_leads_to_the_pod_and_a_broken_one_harms_no_other() -> None:
    wanted: list[tuple[str, int]] = []

    def connect(pod: str, port: int) -> socket.socket:
        wanted.append((pod, port))
        if len(wanted) == 3:
            raise ApiError("the pod is gone")
        here, there = socket.socketpair()
        threading.Thread(target=answering, args=(there,), daemon=True).start()
        return here

    def answering(there: socket.socket) -> None:
        if data := there.recv(99):
            there.sendall(data.upper())

    addresses = Addresses("port-forward", connect)
    places = addresses.places(pods_of(FakeApi(), "pg"))
    answers = []
    for _ in range(3):
        with socket.create_connection(places["pg-2"], timeout=5) as client:
            try:
                client.sendall(b"hello")
                answers.append(client.recv(99))
            except ConnectionError:
                answers.append(b"")
    addresses.close()
    assert answers == [b"HELLO", b"", b"HELLO"] and wanted == [("pg-1", 5432), *[("pg-2", 5432)] * 3]
    assert len(set(places.values())) == 3
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(places["pg-2"], timeout=5)


def test_the_lease_says_when_a_successor_was_elected() -> None:
    api = FakeApi()
    cluster = CnpgCluster("cnpg:default/pg", file(), api)
    taken = 1795353043.441274  # 2026-11-22T13:10:43.441274Z
    assert cluster.elected_at(taken - 5) == pytest.approx(taken)
    assert cluster.elected_at(taken + 5) is None
    api.remove(LEASES, "pg")
    assert cluster.elected_at(taken - 5) is None


def test_the_cluster_is_an_external_one() -> None:
    cluster = CnpgCluster("cnpg:default/pg?context=here", file(), FakeApi())
    assert cluster.external and cluster.name == "cnpg:default/pg?context=here"
    assert cluster._manager_facts()["cloudnative-pg synchronous"] == "ANY 1, required"
    assert cluster._manager_facts()["nodes"] == "pg-1 on node1, pg-2 on node1, pg-3 on node1"
    cluster.close()
