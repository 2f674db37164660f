"""CloudNativePG by the command line alone, on the stand-in over real PostgreSQL."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fixtures.kubernetes.kinds import KINDS
from tests.fixtures.kubernetes.processes import ProcessPostgres
from tests.fixtures.kubernetes.stand_in import StandIn
from tests.fixtures.kubernetes.target import ADDRESS, current_context, real_stand_in, settled
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for

pytestmark = pytest.mark.lab
OURS = ("app.kubernetes.io/managed-by", "walproof")
IN_SQL = "SELECT datname FROM pg_database UNION SELECT rolname FROM pg_roles"
IN_SQL = f"SELECT name FROM ({IN_SQL}) AS of (name) WHERE name LIKE 'walproof%'"
SHORT = ("--levels", "local,on", "--clients", "2", "--scale", "1", "--budget", "8s")
FILE = """
kind = "cnpg"
cluster = "default/pg"
[waits]
first-commit-after = "4s"  # a frozen primary keeps its lease for as long as it is frozen
"""


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The stand-in, its PostgreSQL, and a folder to work in where its kubeconfig is the current one."""

    running: StandIn
    members: ProcessPostgres
    folder: Path

    def walproof(self, *words: str) -> subprocess.Popen[str]:
        """walproof as a process of its own."""
        own = {"WALPROOF_STATE": str(self.folder / "state"), "KUBECONFIG": os.environ["KUBECONFIG"]}
        return subprocess.Popen(
            [sys.executable, "-m", "walproof", *words],
            cwd=self.folder,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self, *words: str) -> tuple[int, str]:
        """Its exit code and output; what it says on standard error stands in the assertion that fails."""
        process = self.walproof(*words)
        out, err = process.communicate(timeout=600)
        assert "Traceback" not in err, err
        return process.returncode, out or err

    def left(self) -> list[str]:
        """What is left of walproof: objects with its label, managed roles, databases, roles."""
        listed = [item["metadata"] for kind in KINDS for item in self.running.store.listed(kind)[0]]
        found = [str(meta["name"]) for meta in listed if meta.get("labels", {}).get(OURS[0]) == OURS[1]]
        spec = (self.running.store.find("Cluster", "pg") or {})["spec"]
        found += [str(role["name"]) for role in (spec.get("managed") or {}).get("roles", [])]
        return found + self.members.psql(self.members.primary, IN_SQL, ()).stdout.decode().split()


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    folder = tmp_path_factory.mktemp("cnpg")
    with real_stand_in(folder, speed=10) as (running, members), current_context(running):
        (folder / "pg.toml").write_text(FILE)
        yield Kubernetes(running, members, folder)


def test_the_doctor_finds_only_what_it_may_not_see(kubernetes: Kubernetes) -> None:
    code, out = kubernetes.ended("doctor", "--target", ADDRESS, "--json")
    assert (code, [found["id"] for found in json.loads(out)["findings"]]) == (0, ["rights-missing"])


def test_pods_are_priced_at_other_sizes_and_are_as_declared_afterwards(kubernetes: Kubernetes) -> None:
    before = (kubernetes.running.store.find("Cluster", "pg") or {})["spec"]
    words = ("price", "--target", ADDRESS, *SHORT, "--cpu", "0.5,1", "--memory", "512Mi", "--json")
    code, out = kubernetes.ended(*words, "--allow", "load")
    assert (code, "--allow load,scale consents" in out) == (2, True), out
    code, out = kubernetes.ended(*words, "--allow", "load,scale", "--record", "sized")
    assert code == 0, out
    scenarios = {arm["scenario"] for arm in json.loads(out)["arms"]}
    assert scenarios == {"0.5 cpu, 0.5 GiB", "1 cpu, 0.5 GiB"}, out
    assert (kubernetes.running.store.find("Cluster", "pg") or {})["spec"] == before
    assert kubernetes.left() == []
    settled(kubernetes.running, kubernetes.members)


def test_after_kill_9_the_pods_are_as_declared_again(kubernetes: Kubernetes) -> None:
    def resources() -> object:
        return (kubernetes.running.store.find("Cluster", "pg") or {})["spec"]["resources"]

    before = resources()
    process = kubernetes.walproof("price", "--target", ADDRESS, *SHORT, "--cpu", "2", "--allow", "load,scale")
    try:
        wait_for(Wait.SETTING_IN_EFFECT, lambda: resources() != before, RealClock(), times=2)
    finally:
        process.kill()
        process.communicate()
    code, out = kubernetes.ended("revert")
    assert (code, resources()) == (0, before), out
    pods = [kubernetes.running.store.find("Pod", name, "default") or {} for name in kubernetes.members.names]
    assert [pod["spec"]["containers"][0]["resources"] for pod in pods] == [before] * 3
    assert kubernetes.left() == []
    settled(kubernetes.running, kubernetes.members)


def test_it_is_priced_proved_advised_configured_and_reverted_from_the_command_line(kubernetes: Kubernetes) -> None:
    before = (kubernetes.running.store.find("Cluster", "pg") or {})["spec"]
    code, out = kubernetes.ended("price", "--target", ADDRESS, *SHORT, "--allow", "load", "--record", "priced")
    assert code == 0, out
    assert kubernetes.left() == []
    faults = "kill,kill-member,freeze,switchover"
    words = ("--levels", "on", "--fault", faults, "--writers", "4", "--allow", f"load,{faults}", "--record", "proved")
    code, out = kubernetes.ended("prove", "--target", "pg.toml", *words, "--json")
    drills = json.loads(out)["drills"]
    assert code in (0, 4), out
    assert [drill["fault"] for drill in drills] == faults.split(",")
    assert all(drill["findings"]["lost"] == 0 for drill in drills)
    assert all(drill["verdict"] in ("held", "undecided") for drill in drills), out
    assert kubernetes.left() == []
    code, out = kubernetes.ended("advise", "priced", "proved", "--rpo", "0", "--json")
    assert code == 0, out
    (kubernetes.folder / "advice.json").write_text(out)
    code, out = kubernetes.ended("apply", "advice.json", "--target", ADDRESS, "--allow", "config")
    assert (code, "in effect on" in out) == (0, True), out
    # SHOW gives 0 on the local socket that the stand-in's psql comes by.
    applied = "SELECT count(*) FROM pg_file_settings WHERE name = 'tcp_user_timeout' AND applied"
    assert kubernetes.members.psql(kubernetes.members.primary, applied, ()).stdout == b"1\n"
    code, out = kubernetes.ended("apply", "--undo", "--target", ADDRESS, "--allow", "config")
    assert code == 0, out
    assert (kubernetes.running.store.find("Cluster", "pg") or {})["spec"] == before
    assert kubernetes.left() == []
