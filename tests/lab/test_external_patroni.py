"""The lab as an external cluster, by one member's REST address: discovered, doctored, configured, and the full loop."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import returned as run
from tests.fixtures.external_cluster import everything, external, found, is_back, lab_file
from tests.fixtures.fake_patroni import merged
from tests.fixtures.priced_records import advice_file
from tests.fixtures.same_list import WITH_MANAGER, same_list
from walproof.errors import TargetError, UsageError, WaitTimeout
from walproof.lab.blueprint import Blueprint
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange, Level, QuorumKind, SyncReplication
from walproof.model.load import LedgerOrder
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.rest import PatroniRest
from walproof.records.journal import Journal
from walproof.targets.configure import configure
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.external.configuration_patches import at, listed, paths_of
from walproof.targets.lab.target import LabTarget
from walproof.targets.patroni.target import PatroniCluster

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def file(lab: Blueprint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lab_file(lab, tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def target(file: Path) -> Iterator[ExternalCluster]:
    made = external(str(file))
    yield made
    made.close()


def rest_of(target: ExternalCluster) -> PatroniRest:
    assert isinstance(target, PatroniCluster)
    return target.rest


@pytest.mark.nightly
def test_everything_is_discovered_from_one_rest_address(lab: Blueprint, tmp_path: Path) -> None:
    target = external(str(lab_file(lab, tmp_path, named=1)))
    view = target.observe()
    assert {m.name for m in view.members} == set(lab.members)
    assert view.leader in lab.members
    assert len(view.synchronous) == 2
    described = target.describe()
    assert described.facts["patroni"].startswith("4.")
    assert described.ttl_s == LabTarget(lab).describe().ttl_s == 20
    assert target.endpoint("direct").hosts[0][0] == lab.address(str(view.leader))
    assert target.capabilities().why_not(Capability.SWITCHOVER) is None
    assert target.capabilities().why_not(Capability.RESTART) is None
    assert target.capabilities().why_not(Capability.POWER_CUT)


@pytest.mark.nightly
def test_nothing_is_found_on_a_well_made_lab(lab: Blueprint, target: ExternalCluster) -> None:
    # Waited for: on a busy machine a standby may flush late just when it is inspected, and the doctor says so.
    wait_for(Wait.QUORUM_NAMED, lambda: not found(LabTarget(lab)), target.clock)
    wait_for(Wait.QUORUM_NAMED, lambda: not found(target), target.clock)


@pytest.mark.nightly
def test_the_ledger_writes_in_a_database_of_its_own_and_every_member_is_read(target: ExternalCluster) -> None:
    before = everything(target)
    ledger = target.ledger.open_ledger(LedgerOrder(Level.ON, writers=2, witnesses=False))
    wait_for(Wait.WRITERS_UP, lambda: ledger.progress().acknowledged > 20, target.clock)
    ledger.stop()
    leader = str(target.observe().leader)
    assert len(target.ledger.read_ledger(leader, 0)) >= 20
    target.close()
    assert is_back(target, before)


PATRONI_SEEDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("patroni-clockwork", {"retry_timeout": 10, "loop_wait": 10, "ttl": 20}),
    ("patroni-ttl-long", {"ttl": 120}),
    ("patroni-start-timeout-long", {"primary_start_timeout": 900}),
    ("patroni-asynchronous", {"synchronous_mode": "off"}),
    ("patroni-lag-zero", {"maximum_lag_on_failover": 0}),
    ("patroni-strict-without-mode", {"synchronous_mode": "off", "synchronous_mode_strict": True}),
    ("patroni-not-strict", {"synchronous_node_count": 2}),
    ("patroni-node-count", {"synchronous_node_count": 3}),
    ("patroni-failsafe-off", {"failsafe_mode": False}),
    ("patroni-no-rewind", {"postgresql": {"use_pg_rewind": False}}),
    ("patroni-paused", {"pause": True}),
)


def replaced(target: ExternalCluster, config: dict[str, Any]) -> None:
    """Patroni answers /config from a view that may be a loop old."""
    rest_of(target).send("PUT", "/config", config)
    wait_for(Wait.SETTING_IN_EFFECT, lambda: rest_of(target).config() == config, target.clock)


def _seen(target: ExternalCluster, check: str) -> bool:
    """Whether the doctor finds it once the members follow the configuration."""
    try:
        wait_for(Wait.SETTING_IN_EFFECT, lambda: check in found(target), target.clock)
    except WaitTimeout:
        return False
    return True


@pytest.mark.nightly
def test_each_patroni_seed_is_found_on_the_lab(target: ExternalCluster) -> None:
    missed = []
    sound = rest_of(target).config()
    try:
        for check, change in PATRONI_SEEDS:
            replaced(target, merged(sound, change))
            missed += [] if _seen(target, check) else [check]
    finally:
        replaced(target, sound)
    assert missed == []
    wait_for(Wait.QUORUM_NAMED, lambda: not found(target), target.clock)


@pytest.mark.nightly
def test_a_quorum_is_set_and_reverted(target: ExternalCluster, tmp_path: Path) -> None:
    before = rest_of(target).config()
    journal = Journal(tmp_path / "j.jsonl")
    target.journal = journal
    configure(target.configuration, ConfigChange(replication=SyncReplication(QuorumKind.ANY, 2)), journal)
    assert target.observe().standby_names.upper().startswith("ANY 2")
    assert target.revert(journal) == []
    assert rest_of(target).config() == before
    assert target.observe().standby_names.upper().startswith("ANY 1")


def test_patroni_refuses_changes_without_credentials(lab: Blueprint, file: Path) -> None:
    words = f'\ndsn = "user=postgres passfile={lab.passfile}"\n'
    bare = file.parent / "bare.toml"
    bare.write_text(f'kind = "patroni"\nrest = ["{lab.rest_url(lab.members[0])}"]{words}')
    stranger = external(str(bare))
    with pytest.raises(TargetError, match="without credentials"):
        rest_of(stranger).patch({"ttl": 21})
    with pytest.raises(TargetError, match="no Patroni answers"):
        external("http://127.0.0.1:1")


@pytest.fixture(scope="module")
def advice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return advice_file(tmp_path_factory.mktemp("advice") / "advice.json", rto_s=30.0)


def test_apply_by_rest_then_undo_leaves_configuration_and_settings_as_they_were(
    target: ExternalCluster, file: Path, advice: Path
) -> None:
    before, config = everything(target), rest_of(target).config()
    with pytest.raises(UsageError, match="did not allow it"):
        run("apply", str(advice), "--target", str(file))
    code, output = run("apply", str(advice), "--target", str(file), "--allow", "config", "--json")
    assert code == 0
    assert len(json.loads(output)["in_effect"]["synchronous"]) == 2
    assert rest_of(target).config()["synchronous_mode_strict"] is True
    assert run("apply", "--undo", "--target", str(file), "--allow", "config")[0] == 0
    assert rest_of(target).config() == config
    assert is_back(target, before)


def test_after_kill_9_patronis_configuration_is_reverted(target: ExternalCluster, file: Path, advice: Path) -> None:
    before, config = everything(target), rest_of(target).config()
    words = [sys.executable, "-m", "tests.fixtures.killed_midway", str(file), str(advice), "1"]
    killed = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert killed.returncode == -9, killed.stderr
    wait_for(Wait.SETTING_IN_EFFECT, lambda: rest_of(target).config() != config, target.clock)
    code, output = run("revert", "--json")
    assert code == 0
    assert json.loads(output)["reverted"][0]["changes"] == 1
    assert rest_of(target).config() == config
    assert is_back(target, before)


@pytest.mark.nightly
def test_patroni_restarts_and_switches_over_when_asked(target: ExternalCluster) -> None:
    view = target.observe()
    standby = view.standbys[0].name
    able = target.capabilities()
    assert able.restart and able.switchover and able.recovery
    able.restart.restart(standby)
    able.recovery.recover()
    able.switchover.switch_over(standby)
    assert target.observe().leader == standby
    able.recovery.recover()


@pytest.mark.nightly
def test_advise_and_apply_list_the_same_on_a_lab_and_through_patroni(
    lab: Blueprint, target: ExternalCluster, file: Path, tmp_path: Path
) -> None:
    """And that is what is patched."""
    for folder, address in ((tmp_path / "lab", f"lab:{lab.name}"), (tmp_path / "own", str(file))):
        lists = same_list(run, address, folder, WITH_MANAGER)
        assert {len(one) for one in lists} == {10, 11, 15}
    config = rest_of(target).config()
    applied = ("apply", str(tmp_path / "own/advice.json"), "--target", str(file), "--allow", "config")
    assert run(*applied, "--choice", "1")[0] == 0
    now = rest_of(target).config()
    shown = {one.name: one.value for one in listed({path: at(now, path) for path in paths_of(now)})}
    assert lists[-1].items() <= shown.items()
    changed = {path for path in paths_of(config, now) if at(config, path) != at(now, path)}
    assert {".".join(path) for path in changed} <= set(lists[-1])
    assert run("apply", "--undo", "--target", str(file), "--allow", "config")[0] == 0


def test_the_whole_loop_ends_in_a_configuration_that_is_in_effect_and_gated(
    lab: Blueprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """price → prove → advise → apply → gate, as docs/external-clusters.md walks through it."""
    monkeypatch.chdir(tmp_path)
    where = ("--target", str(lab_file(lab, tmp_path, kills=True)))
    priced = ("price", *where, "--levels", "local,on", "--clients", "2", "--scale", "1", "--budget", "8s")
    assert run(*priced, "--sample", "1s", "--allow", "load", "--record", "priced", "--json")[0] == 0
    proved = ("prove", *where, "--fault", "kill,switchover", "--levels", "on", "--writers", "4")
    agreed = ("--allow", "load,kill,switchover")
    assert run(*proved, *agreed, "--record", "proved", "--json")[0] in (0, 4)
    code, output = run("advise", "priced", "proved", "--rpo", "0", "--rto", "30s", "--json")
    Path("advice.json").write_text(output)
    first = json.loads(output)["choices"][0]
    assert (first["level"], code) == ("on", 4 if first["undecided"] else 0)
    assert run("apply", "advice.json", *where, "--choice", "1", "--allow", "config", "--json")[0] == 0
    gate = ("prove", *where, "--fault", "switchover", "--levels", "on", "--writers", "4")
    assert run(*gate, *agreed, "--require", "rpo=0", "--record", "gated", "--json")[0] in (0, 4)
    assert run("apply", "--undo", *where, "--allow", "config")[0] == 0
    assert run("doctor", *where)[0] == 0
