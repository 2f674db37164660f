"""The monitoring of a real lab: panels return data, promtool passes, every alert fires by its cause and clears."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client import generate_latest

from tests.fixtures.labs import a_lab
from tests.fixtures.observed import group, seen
from walproof.estimating.observed_waits import observation
from walproof.lab import configuration
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import crashes, disks
from walproof.machine.clock import RealClock
from walproof.model.guarantee import QuorumKind
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import SyncMode
from walproof.targets.lab.target import LabTarget
from walproof.watching.alerts_and_dashboard import PANELS, alert_rules
from walproof.watching.exporter import Metrics, monitoring_of_labs

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def blueprint() -> Iterator[Blueprint]:
    shipped = monitoring_of_labs()
    # An alert on what happened within a minute clears a minute later: here within ten seconds.
    quick = replace(shipped, rules=shipped.rules.replace("[1m]", "[10s]"))
    assert quick != shipped
    with a_lab(quick, quorum=(QuorumKind.ANY, 2)) as raised:
        yield raised


@pytest.fixture(scope="module")
def target(blueprint: Blueprint) -> LabTarget:
    return LabTarget(blueprint)


def answer(blueprint: Blueprint, path: str, **parameters: str) -> Any:
    response = httpx2.get(
        f"http://127.0.0.1:{blueprint.ports['prometheus']}/api/v1/{path}", params=parameters, timeout=5
    )
    return response.json()["data"]


def firing(blueprint: Blueprint) -> set[str]:
    return {a["labels"]["alertname"] for a in answer(blueprint, "alerts")["alerts"] if a["state"] == "firing"}


def until(done: Callable[[], bool]) -> None:
    wait_for(Wait.CLUSTER_HEALTHY, done, RealClock(), pace_s=0.5)


def fire(blueprint: Blueprint, *alerts: str) -> None:
    """Wait until each has fired, together or not: one on what has happened clears by itself ten seconds later."""
    left = set(alerts)

    def all_fired() -> bool:
        left.difference_update(firing(blueprint))
        return not left

    until(all_fired)


def test_promtool_passes(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(alert_rules())
    checked = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("cause", "before_s", "after_s", "fires"),
    [
        ("standby: flush", 0.002, 0.02, True),
        ("standby: flush", 0.001, 0.004, False),
        ("standby: flush", 0.02, 0.02, False),
        ("standby: network and write", 0.002, 0.02, False),
    ],
    ids=["ten times as long", "still short", "as ever", "the network"],
)
def test_the_alert_of_a_standby_whose_flush_has_become_slow(
    tmp_path: Path, cause: str, before_s: float, after_s: float, fires: bool
) -> None:
    (tmp_path / "rules.yml").write_text(alert_rules())
    rule = next(r for r in yaml.safe_load(alert_rules())["groups"][0]["rules"] if r["alert"].endswith("FlushSlow"))
    expected = {"exp_labels": {**rule["labels"], "cause": cause}, "exp_annotations": rule["annotations"]}
    series = {
        "series": f'walproof_commit_wait_seconds{{cause="{cause}"}}',
        "values": f"{before_s}+0x144 {after_s}+0x5",
    }
    alert = {"eval_time": "1480m", "alertname": rule["alert"], "exp_alerts": [expected] if fires else []}
    one = {"interval": "10m", "input_series": [series], "alert_rule_test": [alert]}
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "10m", "tests": [one]})
    )
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_has_nothing_to_say_about_commit_waits() -> None:
    metrics = Metrics()
    metrics.record_waits(observation([seen(group(standby=24, flush=40))]))
    text = generate_latest(metrics.registry)
    assert b'walproof_commit_wait_seconds{cause="standby: flush"}' in text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert b"commit_wait" not in checked.stdout + checked.stderr


@pytest.mark.nightly
def test_every_alert_fires_by_its_cause_and_clears(blueprint: Blueprint, target: LabTarget) -> None:
    until(lambda: answer(blueprint, "query", query="walproof_quorum_in_effect == 2")["result"] != [])
    until(lambda: firing(blueprint) <= {"WalproofSyncSetChanged"})
    view = target.observe()
    standbys = [m for m in blueprint.members if m != view.leader]
    try:
        disks.slow(blueprint, standbys[0], 4.0)
        fire(blueprint, "WalproofCommitsStuck")
        target.operations.recover()
        until(lambda: "WalproofCommitsStuck" not in firing(blueprint))

        crashes.kill_member(blueprint, standbys[0])
        fire(blueprint, "WalproofQuorumReduced", "WalproofSyncSetChanged")
        target.operations.recover()
        until(lambda: "WalproofQuorumReduced" not in firing(blueprint))

        configuration.set_sync(blueprint, SyncMode.OFF, 0)
        fire(blueprint, "WalproofSyncReplicationInactive")
        configuration.set_sync(blueprint, SyncMode.QUORUM, 2)
        until(lambda: "WalproofSyncReplicationInactive" not in firing(blueprint))

        leader = target.observe().leader
        assert leader is not None
        crashes.freeze(blueprint, leader)
        fire(blueprint, "WalproofNoLeader", "WalproofInDoubt", "WalproofLeaderSilent")
    finally:
        target.operations.recover()
    until(lambda: not firing(blueprint))


@pytest.mark.nightly
def test_every_panel_returns_data(blueprint: Blueprint) -> None:
    """But for those of a guard, which only a CloudNativePG Cluster has."""
    empty = {panel.title: panel.query for panel in PANELS if "walproof_guard_" not in panel.query}

    def all_answered() -> bool:
        for title, query in list(empty.items()):
            if answer(blueprint, "query", query=query)["result"]:
                del empty[title]
        return not empty

    try:
        until(all_answered)
    finally:
        assert empty == {}
