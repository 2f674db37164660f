"""CloudNativePG by the command line alone, on the stand-in over real PostgreSQL."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.kubernetes.target import ADDRESS, Kubernetes, current_context, real_stand_in, settled
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.studies.declaration import studies

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


def test_the_doctor_finds_only_the_one_node_and_what_it_may_not_see(kubernetes: Kubernetes) -> None:
    code, out = kubernetes.ended("doctor", "--target", ADDRESS, "--json")
    assert (code, [found["id"] for found in json.loads(out)["findings"]]) == (
        1,
        ["cnpg-instances-together", "rights-missing"],
    )
    assert json.loads(out)["declared"].startswith("3 instances, data on 2Gi, WAL with the data")


def test_pods_are_priced_at_other_sizes_and_are_as_declared_afterwards(kubernetes: Kubernetes, tmp_path: Path) -> None:
    before = kubernetes.spec()
    words = ("price", "--target", ADDRESS, *SHORT, "--cpu", "0.5,1", "--memory", "512Mi", "--json")
    code, out = kubernetes.ended(*words, "--allow", "load")
    assert (code, "--allow load,scale consents" in out) == (2, True), out
    code, out = kubernetes.ended(*words, "--allow", "load,scale", "--record", str(tmp_path / "r"))
    assert code == 0, out
    scenarios = {arm["scenario"] for arm in json.loads(out)["arms"]}
    assert scenarios == {"0.5 cpu, 0.5 GiB", "1 cpu, 0.5 GiB"}, out
    assert kubernetes.spec() == before
    assert kubernetes.left() == []
    settled(kubernetes.running, kubernetes.members)


def test_the_study_of_cloudnativepg_runs_on_it(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """Its conditions that this cluster misses stand next to each claim; smaller, for the time that it takes."""
    shipped = (studies()["cnpg-powerflex"] / "study.toml").read_text("utf-8")
    fewer = re.sub(r"clients = (\[8, 32\]|\[8\])", "clients = [4]", shipped.replace("scale = 50", "scale = 1"))
    (kubernetes.folder / "study.toml").write_text(re.sub(r"clients = (8|32)", "clients = 4", fewer))
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


def test_after_kill_9_the_pods_are_as_declared_again(kubernetes: Kubernetes) -> None:
    def resources() -> object:
        return kubernetes.spec()["resources"]

    before = resources()
    process = kubernetes.walproof("price", "--target", ADDRESS, *SHORT, "--cpu", "2", "--allow", "load,scale")

    def changed() -> bool:
        assert process.poll() is None, process.communicate()
        return resources() != before

    try:
        wait_for(Wait.SETTING_IN_EFFECT, changed, RealClock(), times=2)
    finally:
        process.kill()
        process.communicate()
    code, out = kubernetes.ended("revert")
    assert (code, resources()) == (0, before), out
    pods = [kubernetes.running.store.find("Pod", name, "default") or {} for name in kubernetes.members.names]
    assert [pod["spec"]["containers"][0]["resources"] for pod in pods] == [before] * 3
    assert kubernetes.left() == []
    settled(kubernetes.running, kubernetes.members)


def test_it_is_priced_proved_advised_configured_and_reverted_from_the_command_line(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    priced, proved, advice = (str(tmp_path / name) for name in ("priced", "proved", "advice.json"))
    before = kubernetes.spec()
    code, out = kubernetes.ended("price", "--target", ADDRESS, *SHORT, "--allow", "load", "--record", priced)
    assert code == 0, out
    assert kubernetes.left() == []
    faults = "kill,freeze,switchover"
    words = ("--levels", "on", "--fault", faults, "--writers", "4", "--allow", f"load,{faults}", "--record", proved)
    code, out = kubernetes.ended("prove", "--target", "pg.toml", *words, "--json")
    drills = json.loads(out)["drills"]
    assert code in (0, 4), out
    assert [drill["fault"] for drill in drills] == faults.split(",")
    assert all(drill["findings"]["lost"] == 0 for drill in drills)
    assert all(drill["verdict"] in ("held", "undecided") for drill in drills), out
    assert kubernetes.left() == []
    code, out = kubernetes.ended("advise", priced, proved, "--rpo", "0", "--json")
    assert code == 0, out
    Path(advice).write_text(out)
    code, out = kubernetes.ended("apply", advice, "--target", ADDRESS, "--allow", "config")
    assert (code, "in effect on" in out) == (0, True), out
    # SHOW gives 0 on the local socket that the stand-in's psql comes by.
    applied = "SELECT count(*) FROM pg_file_settings WHERE name = 'tcp_user_timeout' AND applied"
    assert kubernetes.members.psql(kubernetes.members.primary, applied, ()).stdout == b"1\n"
    code, out = kubernetes.ended("apply", "--undo", "--target", ADDRESS, "--allow", "config")
    assert code == 0, out
    assert kubernetes.spec() == before
    assert kubernetes.left() == []
