"""CloudNativePG by the command line alone, on the stand-in over real PostgreSQL."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.fixtures.command_line import returned
from tests.fixtures.kubernetes.target import ADDRESS, Kubernetes, current_context, real_stand_in, settled, target_of
from tests.fixtures.same_list import WITH_MANAGER, same_list
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.studies.declaration import studies
from walproof.targets.cnpg.guard import Network
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.external.configuration_patches import at, paths_of

pytestmark = pytest.mark.lab
SHORT = ("--levels", "local,on", "--clients", "2", "--scale", "1", "--budget", "8s")
FILE = """
kind = "cnpg"
cluster = "default/pg"
[waits]
first-commit-after = "4s"  # a frozen primary keeps its lease for as long as it is frozen
"""


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    folder = tmp_path_factory.mktemp("cnpg")
    with real_stand_in(folder, speed=30) as (running, members), current_context(running):
        (folder / "pg.toml").write_text(FILE)
        yield Kubernetes(running, members, folder)


@pytest.fixture(autouse=True)
def nothing_is_left_by_an_earlier_attempt(kubernetes: Kubernetes) -> None:
    kubernetes.revert_what_is_left()


@pytest.mark.nightly
def test_the_doctor_finds_only_the_one_node_and_what_it_may_not_see(kubernetes: Kubernetes) -> None:
    with current_context(kubernetes.running, ["doctor"]):
        code, out = kubernetes.ended("doctor", "--target", ADDRESS, "--json")
    assert (code, [found["id"] for found in json.loads(out)["findings"]]) == (
        1,
        ["cnpg-instances-together", "rights-missing"],
    )
    assert json.loads(out)["declared"].startswith("3 instances, data on 2Gi, WAL with the data")


@pytest.mark.nightly
def test_it_is_observed_with_pg_monitor_and_says_what_the_applications_role_lacks(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    """With the Kubernetes rights of the doctor; the hint is what an administrator types."""
    with current_context(kubernetes.running, ["doctor"]):
        words = ("observe", "--target", ADDRESS, "--duration", "1s", "--record")
        code, said = kubernetes.ended(*words, str(tmp_path / "without"))
        assert code == 3 and "app may not see what other sessions wait for on pg-" in said, said
        typed = shlex.split(said.partition("hint: ")[2])
        leader = kubernetes.members.primary
        assert typed[:7] == ["kubectl", "exec", leader, "--namespace", "default", "--container", "postgres"]
        assert typed[7:10] == ["--", "psql", "--command"] and typed[10] == 'GRANT pg_monitor TO "app"'
        kubernetes.members.psql(leader, typed[10])
        try:
            code, out = kubernetes.ended(*words, str(tmp_path / "with"), "--json")
        finally:
            kubernetes.members.psql(leader, "REVOKE pg_monitor FROM app")
    assert code == 0, out
    assert json.loads(out)["leader"] == leader and json.loads(out)["polls"] > 0


_EVIL = """CREATE SCHEMA evil;
CREATE FUNCTION evil.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT pg_sleep(30) IS NOT NULL';
CREATE FUNCTION evil.pg_has_role(name, text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
ALTER DATABASE app SET search_path = evil, pg_catalog; ALTER ROLE app SET search_path = evil, pg_catalog"""
_GOOD = "ALTER DATABASE app RESET search_path; ALTER ROLE app RESET search_path; DROP SCHEMA evil CASCADE"


@pytest.mark.nightly
def test_the_databases_owner_cannot_answer_for_postgresql_what_a_guard_asks(kubernetes: Kubernetes) -> None:
    members = kubernetes.members
    members.psql(members.primary, _EVIL, ("-d", "app"))
    try:
        with target_of(kubernetes.running) as target:
            assert isinstance(target, CnpgCluster)
            access = target.access
            for name, pod in access.state.pods.items():
                row = Network(access.login.at, ("", 0))(name, pod)
                assert (row.in_recovery, row.pings_s > 0) == (name != members.primary, True)
    finally:
        members.psql(members.primary, _GOOD, ("-d", "app"))


def test_what_the_role_does_not_allow_is_said_alike_by_a_dry_run_and_by_the_run(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    """The doctor's Role can neither make a role of its own nor a fault; nothing is begun."""
    words = ("prove", "--target", ADDRESS, "--fault", "kill-member,stop,freeze", "--levels", "on", "--json")
    with current_context(kubernetes.running, ["doctor"]):
        _, planned = kubernetes.ended(*words, "--dry-run")
        code, out = kubernetes.ended(*words, "--allow", "load,kill-member,stop,freeze", "--record", str(tmp_path / "r"))
        priced = kubernetes.ended("price", "--target", ADDRESS, *SHORT, "--allow", "load")
        lacking = kubernetes.ended("target", "cnpg", "--dry-run", "--for", "prove", "--target", ADDRESS, "--json")
    drills = json.loads(out)["drills"]
    said = [f"skipped, because {drill['skipped']}" for drill in json.loads(planned)["drills"]]
    assert code == 4 and [drill["why"] for drill in drills] == said and len(drills) == 3, (out, planned)
    for drill, right in zip(drills, ("delete pods", "patch clusters", "get pods/exec"), strict=True):
        assert drill["verdict"] == "skipped" and drill["rto_s"] is None
        assert f"may not {right}" in drill["why"] and "add to the rules of its Role: - {apiGroups" in drill["why"]
        assert any(one.startswith(right) for one in json.loads(lacking[1])["missing"]["prove"])
    assert priced[0] == 3 and ", create secrets, get secrets" in priced[1] and "lab up" not in priced[1], priced
    assert kubernetes.left() == []


@pytest.mark.nightly
def test_pods_are_priced_at_other_sizes_and_are_as_declared_afterwards(kubernetes: Kubernetes, tmp_path: Path) -> None:
    before = kubernetes.spec()
    words = ("price", "--target", ADDRESS, *SHORT, "--cpu", "0.5,1", "--memory", "512Mi", "--json")
    code, out = kubernetes.ended(*words, "--allow", "load")
    assert (code, "--allow load,scale consents" in out) == (2, True), out
    assert "each time no writes for about 13 s" in out and "may not list nodes" in out, out
    with current_context(kubernetes.running, ["price", "scale"]):
        code, out = kubernetes.ended(*words, "--allow", "load,scale", "--record", str(tmp_path / "r"))
    assert code == 0 and json.loads(out)["restarts"].startswith("Every pod was made anew "), out
    scenarios = {arm["scenario"] for arm in json.loads(out)["arms"]}
    assert scenarios == {"0.5 cpu, 0.5 GiB", "1 cpu, 0.5 GiB"}, out
    at_shutdown = kubernetes.running.cnpg.open_at_shutdown
    assert len(at_shutdown) >= 9 and not any(clients for _, clients in at_shutdown), at_shutdown
    assert kubernetes.spec() == before
    assert kubernetes.left() == []
    settled(kubernetes.running, kubernetes.members)


@pytest.mark.nightly
def test_a_size_that_does_not_fit_is_refused_or_ends_at_the_first_standby_and_the_conclusion_says_why(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    """Refused before anything is changed where nodes may be read; else put back before the primary is touched."""
    before, shut_down = kubernetes.spec(), kubernetes.running.cnpg.open_at_shutdown
    words = ("price", "--target", ADDRESS, *SHORT, "--allow", "load,scale", "--record")
    shut_down.clear()
    administrator = str(kubernetes.running.serving.kubeconfig(None, "administrator"))
    with mock.patch.dict(os.environ, {"KUBECONFIG": administrator}):
        code, out = kubernetes.ended(*words, str(tmp_path / "none"), "--cpu", "1,2.7")
    assert (code, "3 instances with 2.7 cpu and 256 MiB each do not fit on the nodes" in out) == (3, True), out
    assert not (tmp_path / "none").exists() and shut_down == []
    code, out = kubernetes.ended(*words, str(tmp_path / "r"), "--cpu", "9")
    why = "9 cpu is left out: no node takes pg-3: 0/1 nodes are available: 1 Insufficient cpu."
    assert (code, f"Nothing was measured: {why}" in " ".join(out.split())) == (3, True), out
    assert "stopped by scenarios that could not be had" in " ".join(out.split())
    assert {name for name, _ in shut_down} == {"pg-3"} and kubernetes.spec() == before and kubernetes.left() == []
    _, page = kubernetes.ended("report", str(tmp_path / "r"))
    assert why.removesuffix(".") in " ".join(page.split())
    settled(kubernetes.running, kubernetes.members)


@pytest.mark.nightly
def test_the_study_of_cloudnativepg_runs_on_it(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """Its conditions that this cluster misses stand next to each claim; smaller, for the time that it takes."""
    shipped = (studies()["cnpg-powerflex"] / "study.toml").read_text("utf-8")
    fewer = re.sub(r"clients = \[.*\]", "clients = [4]", re.sub(r"(?m)^scale = \d+", "scale = 1", shipped))
    (kubernetes.folder / "study.toml").write_text(re.sub(r"clients = \d+", "clients = 4", fewer))
    before = kubernetes.spec()
    missed = ["WAL is with the data, the study has it on a volume of its own"]
    words = ("study", "run", "./study.toml", "--target", ADDRESS, "--quick", "--budget", "20s", "--json")
    code, out = kubernetes.ended(*words, "--dry-run")
    plan = json.loads(out)
    assert (code, plan["consents"], plan["caveats"], plan["seconds"]) == (0, ["load", "scale"], missed, 20)
    assert [part["left_out"] for part in plan["parts"]] == [None, None]
    assert kubernetes.spec() == before and kubernetes.left() == [] and not (kubernetes.folder / "records").exists()
    code, out = kubernetes.ended(*words, "--allow", "load")
    assert (code, "--allow load,scale consents" in out) == (2, True), out
    code, out = kubernetes.ended(*words, "--allow", "load,scale", "--record", str(tmp_path / "r"))
    assert code == 0, out
    claims = json.loads(out)["claims"]
    assert len(claims) == 6 and all(claim["measured"] != "not measured" for claim in claims), out
    assert {tuple(claim["caveats"]) for claim in claims} == {tuple(missed)}
    assert kubernetes.spec() == before
    assert kubernetes.left() == []
    code, out = kubernetes.ended("report", str(tmp_path / "r"), "--json")
    assert code == 0, out
    environment = json.loads(out)["environment"]
    assert environment["wal_volume"] is False
    assert environment["facts"]["as declared"].startswith("3 instances, data on 2Gi, WAL with the data, requests cpu")
    settled(kubernetes.running, kubernetes.members)


@pytest.mark.nightly
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_after_a_signal_the_pods_are_as_declared_again(kubernetes: Kubernetes, ending: signal.Signals) -> None:
    """kill -9: after `walproof revert`. SIGTERM: by itself; the operator makes the last pods anew afterwards."""

    def resources() -> object:
        return kubernetes.spec()["resources"]

    before = resources()
    with current_context(kubernetes.running, ["price", "scale"]):
        process = kubernetes.walproof("price", "--target", ADDRESS, *SHORT, "--cpu", "2", "--allow", "load,scale")

    def changed() -> bool:
        assert process.poll() is None, process.communicate()
        return resources() != before

    try:
        wait_for(Wait.SETTING_IN_EFFECT, changed, RealClock(), times=2)
        process.send_signal(ending)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    if ending == signal.SIGTERM:
        assert (process.returncode, resources()) == (143, before), said
        assert kubernetes.left() == []
    with current_context(kubernetes.running, ["price", "scale"]):
        code, out = kubernetes.ended("revert")
    assert (code, resources()) == (0, before), out

    def as_before() -> bool:
        pods = [kubernetes.running.store.find("Pod", name, "default") or {} for name in kubernetes.members.names]
        return [pod["spec"]["containers"][0]["resources"] for pod in pods if pod] == [before] * 3

    wait_for(Wait.CLUSTER_HEALTHY, as_before, RealClock())
    assert kubernetes.left() == []
    settled(kubernetes.running, kubernetes.members)


@pytest.mark.nightly
def test_advise_and_apply_list_the_same_and_that_is_what_is_patched(
    kubernetes: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kubernetes.spec()["postgresql"]
    monkeypatch.setenv("WALPROOF_STATE", str(kubernetes.folder / "state"))
    with current_context(kubernetes.running, ["apply"]):
        lists = same_list(returned, ADDRESS, tmp_path, WITH_MANAGER)
    assert not any("tcp" in name for one in lists for name in one)
    advice = ("apply", str(tmp_path / "advice.json"), "--target", ADDRESS, "--allow", "config", "--choice", "1")
    code, out = kubernetes.ended(*advice)
    assert code == 0, out
    now = kubernetes.spec()["postgresql"]
    changed = {path for path in paths_of(before, now) if at(before, path) != at(now, path)}
    assert {".".join(("postgresql", *path)) for path in changed} <= {
        *lists[-1],
        "postgresql.synchronous.dataDurability",
    }
    parameters = {name: value for name, value in lists[-1].items() if ".parameters." in name}
    assert parameters == {
        f"postgresql.parameters.{n}": now["parameters"][n] for n in (p.split(".")[-1] for p in parameters)
    }
    code, out = kubernetes.ended("apply", "--undo", "--target", ADDRESS, "--allow", "config")
    assert code == 0, out


def test_it_is_priced_proved_advised_configured_and_reverted_from_the_command_line(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    priced, proved, advice = (str(tmp_path / name) for name in ("priced", "proved", "advice.json"))
    settled(kubernetes.running, kubernetes.members)
    before = kubernetes.spec()
    with current_context(kubernetes.running, ["price"]):
        code, out = kubernetes.ended("price", "--target", ADDRESS, *SHORT, "--allow", "load", "--record", priced)
    assert code == 0, out
    assert kubernetes.left() == []
    faults = "kill-member,freeze"  # a switchover is drilled in tests/lab/test_cnpg_readme.py
    words = ("--levels", "on", "--fault", faults, "--writers", "4", "--allow", f"load,{faults}", "--record", proved)
    with current_context(kubernetes.running, ["prove"]):
        code, out = kubernetes.ended("prove", "--target", "pg.toml", *words, "--json")
    drills = json.loads(out)["drills"]
    assert code in (0, 4), out
    assert sorted(drill["fault"] for drill in drills) == sorted(faults.split(","))
    # On a busy machine a drill may find the cluster not healthy yet: it is undecided, and nothing was injected.
    assert all(drill["assumptions"]["fault happened"] for drill in drills if drill["assumptions"]), out
    assert any(drill["assumptions"] for drill in drills) and "may not" not in out, out
    assert all(drill["findings"]["lost"] == 0 for drill in drills)
    assert all(drill["verdict"] in ("held", "undecided") for drill in drills), out
    assert kubernetes.left() == []
    code, out = kubernetes.ended("advise", priced, proved, "--rpo", "0", "--json")
    # 4: every drill was left undecided, on a busy machine; tests/lab/test_cnpg_readme.py has the advice that is proven.
    assert code == 4 or (code, json.loads(out)["choices"][0]["level"]) == (0, "on"), out
    Path(advice).write_text(out)
    with current_context(kubernetes.running, ["apply"]):
        code, out = kubernetes.ended("apply", advice, "--target", ADDRESS, "--allow", "config", "--choice", "1")
    assert (code, "in effect on" in out) == (0, True), out
    # SHOW gives 0 on the local socket that the stand-in's psql comes by.
    applied = "SELECT count(*) FROM pg_file_settings WHERE name = 'wal_sender_timeout' AND applied"
    assert kubernetes.members.psql(kubernetes.members.primary, applied, ()).stdout == b"1\n"
    with current_context(kubernetes.running, ["apply"]):
        code, out = kubernetes.ended("apply", "--undo", "--target", ADDRESS, "--allow", "config")
    assert code == 0, out
    assert kubernetes.spec() == before
    assert kubernetes.left() == []
