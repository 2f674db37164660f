"""A pod of another application that bears an instance's labels: it is no member, and nothing is done to it."""

import os
import socket
import subprocess
from typing import Any

import pytest

from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.kubernetes.store import recorded
from tests.fixtures.kubernetes.virtual_guard import world
from tests.fixtures.tiers import each, every
from walproof.errors import TargetError, UsageError
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, PODS, Tree
from walproof.targets.cnpg.members import CnpgAccess, Forward
from walproof.targets.cnpg.objects import Cluster, Pod, read
from walproof.targets.cnpg.state_and_doctor_facts import state_of
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.configure import NoJournal

OTHERS = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "pg", "uid": "1", "controller": True}


def of_a_stateful_set(name: str) -> Tree:
    """A pod of a StatefulSet that is named like the Cluster, with an instance's labels."""
    pod: Tree = recorded("pods")[0]
    pod["metadata"]["name"] = name
    pod["metadata"] |= {"ownerReferences": [OTHERS], "uid": "another"}
    return pod


def named(name: str) -> Tree:
    """A pod that names the Cluster its owner, with an instance's labels: who may create a pod writes both."""
    pod: Tree = recorded("pods")[0]
    pod["metadata"]["name"] = name
    return pod


def test_it_is_no_member_and_is_not_killed() -> None:
    def no_member(pod: Tree) -> None:
        api, name = FakeApi(), pod["metadata"]["name"]
        api.put(PODS, pod)
        assert state_of(api, "pg").instances == ("pg-1", "pg-2", "pg-3")
        instances = Instances(api, "pg", "cnpg:default/pg", RealClock({}), NoJournal)
        with pytest.raises(UsageError, match="has no pod now"):
            instances.faults()[Capability.KILL_MEMBER].inject(name)
        assert ("delete", "pods", name) not in api.asked

    names = ["billing-0", "pg", "pg-1-backup", "pg-x", "xpg-1", "pg-1\n", "pg-9"]
    every([of_a_stateful_set("pg-0"), *map(named, names)], no_member)


@each([Capability.KILL, Capability.KILL_CONTAINER, Capability.FREEZE])
def test_no_command_is_run_in_a_pod_that_has_a_members_name_only(fault: Capability) -> None:
    api = FakeApi()
    able = Instances(api, "pg", "cnpg:default/pg", RealClock({}), NoJournal).faults()
    api.put(PODS, of_a_stateful_set("pg-3"))
    with pytest.raises(UsageError, match="has no pod now"):
        able[fault].inject("pg-3")
    able[Capability.FREEZE].undo("pg-3")
    assert api.commands == []


@each(["kill", "kill-container", "freeze", "kill-member"])
def test_a_pod_that_takes_a_members_name_meanwhile_is_not_deleted_and_the_drill_is_void(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    during = "patch" if fault == "kill-member" else "exec"  # the dry run that meets the operator
    real = getattr(api, during)

    def replaced(*asked: Any, **more: Any) -> Any:
        api.put(PODS, of_a_stateful_set("pg-3"))
        return real(*asked, **more)

    monkeypatch.setattr(api, during, replaced)
    able = Instances(api, "pg", "cnpg:default/pg", RealClock({}), NoJournal).faults()
    with pytest.raises(TargetError, match="pg-3 was replaced while its fault was injected"):
        able[Capability(fault)].inject("pg-3")
    assert api.objects["pods", "pg-3"]["metadata"]["ownerReferences"] == [OTHERS]


def test_a_pods_address_is_an_address_and_a_write_service_one_of_the_namespace() -> None:
    def refused(key: str, text: str) -> None:
        kind, tree = (Pod, recorded("pods")[0]) if key == "podIP" else (Cluster, FakeApi().get(CLUSTERS, "pg"))
        tree["status"][key] = text
        with pytest.raises(TargetError, match=rf"status\.{key}"):
            read(kind, tree)

    addresses = ["evil.example/x?", "10.0.0.1,evil.example", "/tmp/sockets", "localhost"]
    services = ["evil.example", "/tmp/sockets", "pg-rw,evil", "-rw", "pg-rw\n"]
    every([*(("podIP", one) for one in addresses), *(("writeService", one) for one in services)], refused)


def test_a_guard_replaces_no_pod_that_another_controller_owns() -> None:
    """A status names it, for others may write that."""
    with world() as w:
        w.cnpg.store.modify("Pod", "pg-1", lambda one: one["metadata"].update(ownerReferences=[OTHERS]))
        guard, api = w.guard()
        w.run(guard, 15.0)
        w.cnpg.freeze("pg-1")
        w.run(guard, 8.0)
        assert api.writes == []
        assert "the operator's case" in guard.status().why_not


@each([("", "require"), ("prefer", "prefer")])
def test_a_login_that_is_passed_on_by_who_answers_at_a_pods_address_is_no_session(
    said: str, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq's variable says otherwise, as for LDAP. pgbench of the wheel has no TLS."""
    monkeypatch.delenv("PGCHANNELBINDING", raising=False)
    if said:
        monkeypatch.setenv("PGCHANNELBINDING", said)
    access = CnpgAccess(FakeApi(), CnpgFile(kind="cnpg", cluster="default/pg", reach="pods"))
    member = access.members()["pg-1"]
    assert f"channel_binding='{binding}'" in member.conninfo()
    assert "channel_binding" not in str(member.program("pgbench"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_port_that_leads_to_a_pod_leads_this_user_alone() -> None:
    """It comes from 127.0.0.1 in the pod, which pg_hba.conf may trust."""
    led, ours = socket.socketpair()
    ours.sendall(b"postgres")
    forward = Forward(lambda: led)
    script = f"import socket; print(socket.create_connection({forward.place!r}).recv(8))"
    try:
        for user, answer in ((65534, "b''"), (0, "b'postgres'")):
            argv = ["setpriv", f"--reuid={user}", "--clear-groups", "/usr/bin/python3", "-c", script]
            assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == answer
    finally:
        forward.close()
        ours.close()
