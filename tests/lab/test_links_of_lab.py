"""Links of a real lab through the command line: what commits pay, what stays connected, a dead link emulator."""

import json
import os
import signal
import time

import psycopg
import pytest

from tests.fixtures.bare_network import may_create_networks
from tests.fixtures.labs import lab_command as run
from tests.fixtures.labs import why_no_lab
from walproof.lab import network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, crashes
from walproof.lab.faults.catalogue import seen_on_machine
from walproof.lab.patroni import observe
from walproof.links import devices
from walproof.links.settings import all_directions
from walproof.machine.programs import ip
from walproof.model.drill import Capability
from walproof.model.topology import MemberState
from walproof.targets.lab.faults import faults_of

REASON = why_no_lab() or ("" if may_create_networks() else "needs root and /dev/net/tun")
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]


def fastest_commit_ms(lab: Blueprint, level: str, tries: int = 25) -> float:
    """The fastest of some commits: what a busy machine delays least."""
    leader = observe(lab).leader
    assert leader is not None
    with psycopg.connect(lab.member_endpoint(leader).client_conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS paid (n int)")
        connection.execute(f"SET synchronous_commit = {level}")
        took = []
        for n in range(tries):
            started = time.monotonic()
            connection.execute("INSERT INTO paid VALUES (%s)", (n,))
            took.append(time.monotonic() - started)
    return min(took) * 1e3


def streams(lab: Blueprint) -> set[tuple[str, int]]:
    """Standbys and their connections, by the walsender that serves each."""
    with psycopg.connect(lab.endpoint("multi-host").client_conninfo()) as connection:
        return set(connection.execute("SELECT application_name, pid FROM pg_stat_replication").fetchall())


def test_a_synchronous_commit_pays_the_round_trip_and_a_local_one_does_not(lab: Blueprint) -> None:
    output = run("link", "--rtt", "40ms", "--json")
    assert output.returncode == 0, output.stderr
    assert {row["configured_rtt_ms"] for row in json.loads(output.stdout)["links"]} == {40}
    on, local = fastest_commit_ms(lab, "on"), fastest_commit_ms(lab, "local")
    assert local < 30
    assert on - local > 35


def test_shaping_and_resetting_keeps_replication_connected(lab: Blueprint) -> None:
    before = streams(lab)
    assert len(before) == 2
    for rtt_ms in (5, 0, 2, 0):
        network_links.set_round_trip(lab, rtt_ms)
        assert fastest_commit_ms(lab, "on", tries=3) > 0
    assert streams(lab) == before


def test_faults_of_one_member_are_cleared_while_the_others_stay(lab: Blueprint) -> None:
    standbys = [m.name for m in observe(lab).standbys]
    for fault in (("partition", standbys[0]), ("isolate", standbys[1])):
        assert run("fault", *fault).returncode == 0
    cleared = json.loads(run("fault", "clear", standbys[0], "--json").stdout)
    assert not cleared["healthy"]
    assert f"isolate of {standbys[1]}" in cleared["in_effect"]
    assert not {*cleared["cleared"]} & {*cleared["in_effect"]}
    listed = json.loads(run("fault", "list", "--json").stdout)["in_effect"]
    assert {(fault["fault"], fault["member"]) for fault in listed} >= {("isolate", standbys[1])}
    assert json.loads(run("fault", "clear", "--json").stdout)["healthy"]
    assert json.loads(run("fault", "list", "--json").stdout)["in_effect"] == []


@pytest.mark.nightly
def test_undoing_the_partition_of_one_member_leaves_the_others(lab: Blueprint) -> None:
    """As storms do, whose faults overlap."""
    first, second = [m.name for m in observe(lab).standbys]
    faults = faults_of(lab, {})
    faults[Capability.PARTITION].inject(first)
    faults[Capability.ISOLATE].inject(second)
    faults[Capability.PARTITION].undo(first)
    links = network_links.configured(lab)
    assert links.isolated == {second}
    assert set(links.cuts) == {d for d in all_directions(lab.members) if second in d}
    faults[Capability.ISOLATE].undo(second)
    assert not network_links.configured(lab).cuts


@pytest.mark.parametrize("where", [pytest.param("route", marks=pytest.mark.nightly), "bridge_port"])
def test_what_a_kill_in_the_middle_of_isolating_leaves_is_listed_done_again_and_cleared(
    lab: Blueprint, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    standby, act = observe(lab).standbys[0].name, getattr(devices, where)

    def then_killed(*of: object, **more: object) -> None:
        act(*of, **more)
        raise KeyboardInterrupt

    def isolated() -> set[tuple[str, str]]:
        listed = json.loads(run("fault", "list", "--json").stdout)["in_effect"]
        return {(fault["fault"], fault["member"]) for fault in listed}

    with monkeypatch.context() as killed:
        killed.setattr(devices, where, then_killed)
        with pytest.raises(KeyboardInterrupt):
            network_links.isolate(lab, standby)
    assert ("isolate", standby) in isolated()
    assert run("fault", "isolate", standby).returncode == 0
    assert seen_on_machine(lab, MemberState(standby, 0.0)).deaf_to == (
        *(m for m in lab.members if m != standby),
        "clients",
    )
    with monkeypatch.context() as killed:
        killed.setattr(devices, where, then_killed)
        with pytest.raises(KeyboardInterrupt):
            network_links.recover(lab)
    assert json.loads(run("fault", "clear", "--json").stdout)["healthy"]
    assert not isolated()
    over = [ip("-4", "route", "show", "dev", devices.DEVICE, namespace=lab.namespace(m)) for m in lab.members]
    assert not any(one.strip() for one in over)


@pytest.mark.nightly
def test_without_power_a_member_is_not_isolated_and_one_that_is_can_be_cleared(lab: Blueprint) -> None:
    standby = observe(lab).standbys[0].name
    crashes.set_link(lab, standby, up=False)
    refused = run("fault", "isolate", standby)
    assert refused.returncode == 2 and "is down already" in refused.stderr
    assert not network_links.configured(lab).isolated
    crashes.set_link(lab, standby, up=True)
    network_links.isolate(lab, standby)
    crashes.set_link(lab, standby, up=False)
    network_links.recover(lab)
    crashes.set_link(lab, standby, up=True)
    assert json.loads(run("fault", "clear", "--json").stdout)["healthy"]


@pytest.mark.nightly
@pytest.mark.parametrize("text", ["", "{", '{"settings":[],"isolated":["n9"]}', '{"isolated":[]}', "[]"])
def test_of_a_damaged_list_of_links_one_sentence_and_all_else_is_undone(lab: Blueprint, text: str) -> None:
    standby, links = observe(lab).standbys[0].name, lab.home / "links.json"
    before = links.read_text() if links.exists() else '{"settings":[],"isolated":[]}'
    assert run("fault", "freeze", standby).returncode == 0
    try:
        links.write_text(text)
        cleared = run("fault", "clear")
        assert (cleared.returncode, len(cleared.stderr.splitlines())) == (3, 2), cleared.stderr
        assert "links.json is damaged" in cleared.stderr and "Traceback" not in cleared.stderr
        assert active.in_effect(lab) == ()
    finally:
        links.write_text(before)
    assert json.loads(run("fault", "clear", "--json").stdout)["healthy"]


@pytest.mark.nightly
def test_bad_arguments_change_no_link(lab: Blueprint) -> None:
    before = network_links.set_round_trip(lab, 6).table
    for words in (("link", "--rtt", "-1ms"), ("fault", "partition", "n9"), ("fault", "isolate", "n1..n2")):
        output = run(*words)
        assert (output.returncode, len(output.stderr.splitlines())) == (2, 2), output.stderr
    assert network_links.configured(lab).table == before


def test_link_and_status_report_a_dead_emulator_and_recovery_starts_it_again(lab: Blueprint) -> None:
    network_links.set_round_trip(lab, 6)
    pid = network_links.state(lab).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    output = run("link")
    assert output.returncode == 3
    assert "dead" in output.stdout
    assert "dead" in run("status").stdout
    assert json.loads(run("status", "--json").stdout)["link_emulator"] == "dead"
    recovered = run("fault", "clear")
    assert recovered.returncode == 0, recovered.stderr
    assert "death of the link emulator" in recovered.stdout
    assert not network_links.state(lab).dead
    network_links.reset(lab)
