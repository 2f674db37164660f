"""The link emulator on real devices: namespaces on a bridge as the lab creates them, no PostgreSQL."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from tests.fixtures.bare_network import bare_network, may_create_networks
from walproof.errors import UsageError
from walproof.lab import network_links
from walproof.lab.blueprint import Blueprint
from walproof.links import control, devices
from walproof.links.devices import exists, inside
from walproof.links.round_trips import Measured, Probing, losses, matrix, read_regions, round_trips
from walproof.links.settings import Change, LinkSetting
from walproof.machine.clock import RealClock
from walproof.machine.programs import ip
from walproof.model.waiting import Wait, wait_for

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.lab,
    pytest.mark.skipif(not may_create_networks(), reason="needs root and /dev/net/tun"),
]
FEW = Probing(round_trips=10, one_way=20, grace_s=3)
SILENT = Probing(round_trips=3, one_way=10, grace_s=0.5)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blueprint]:
    with bare_network(tmp_path_factory.mktemp("links") / "lab") as lab:
        try:
            yield lab
        finally:
            network_links.end_emulator(lab)


@pytest.fixture
def lab(network: Blueprint) -> Blueprint:
    """Three members with healthy links with no settings."""
    network_links.recover(network)
    network_links.reset(network)
    return network


def found(lab: Blueprint, probing: Probing = FEW) -> dict[tuple[str, str], Measured]:
    made = {(m.source, m.destination): m for m in network_links.measured(lab, probing)}
    assert {frozenset(pair) for pair in made} == {frozenset(pair) for pair in combinations(lab.members, 2)}
    return made


def best(measured: Measured) -> float:
    """The fastest round trip: what a busy machine delays least."""
    assert measured.round_trips_ms
    return measured.round_trips_ms[0]


def connected(lab: Blueprint, a: str, b: str) -> tuple[socket.socket, socket.socket]:
    """One TCP connection between two members."""
    with inside(lab.namespace(b)):
        listening = socket.create_server((lab.address(b), 0))
    with listening, inside(lab.namespace(a)):
        one = socket.create_connection(listening.getsockname(), timeout=30)
        other, _ = listening.accept()
    other.settimeout(30)
    return one, other


def test_a_configured_round_trip_is_what_probes_find_and_no_packet_is_lost(lab: Blueprint) -> None:
    assert all(best(m) < 5 for m in found(lab).values())
    network_links.set_round_trip(lab, 20)
    for measured in found(lab).values():
        # On a busy machine round trips are longer, never shorter: the configured delay is a floor.
        assert 19 < best(measured) < 40
        assert measured.loss == 0
    assert network_links.round_trips_ms(lab)["n1-n2"][0] > 19


def test_one_pair_is_shaped_and_the_others_are_not(lab: Blueprint) -> None:
    network_links.shape(lab, [("n1", "n3"), ("n3", "n1")], Change(delay_s=0.02))
    measured = found(lab)
    assert best(measured["n1", "n3"]) > 39
    assert best(measured["n1", "n2"]) < 20
    assert best(measured["n2", "n3"]) < 20


def test_a_matrix_of_regions_sets_every_pair(lab: Blueprint) -> None:
    network_links.set_all(lab, matrix(read_regions("europe"), lab.members))
    measured = found(lab)
    assert best(measured["n1", "n2"]) > 9.5
    assert best(measured["n1", "n3"]) > 18.5
    assert best(measured["n2", "n3"]) > 11.5


def test_clients_never_pay_the_delay(lab: Blueprint) -> None:
    network_links.set_round_trip(lab, 8000)
    with inside(lab.namespace("n1")):
        listening = socket.create_server((lab.address("n1"), 0))
    started = RealClock().now()
    with listening, socket.create_connection(listening.getsockname(), timeout=30):
        assert RealClock().now() - started < 4


def test_loss_is_near_what_is_configured(lab: Blueprint) -> None:
    network_links.shape(lab, [("n1", "n2")], Change(loss=0.1))
    lost = losses(network_links.nodes_of(lab), [("n1", "n2"), ("n2", "n1")], Probing(one_way=4000, grace_s=3))
    # Five standard deviations of 4,000 draws at 10 % either way.
    assert 0.076 < lost["n1", "n2"] < 0.124
    assert lost["n2", "n1"] == 0


def test_a_cut_member_reaches_no_member_and_still_reaches_clients(lab: Blueprint) -> None:
    network_links.set_round_trip(lab, 4)
    network_links.partition(lab, "n1")
    measured = found(lab, SILENT)
    for pair, m in measured.items():
        assert bool(m.round_trips_ms) == ("n1" not in pair), pair
        assert m.loss == (1 if "n1" in pair else 0), pair
    with inside(lab.namespace("n1")):
        listening = socket.create_server((lab.address("n1"), 0))
    with listening, socket.create_connection(listening.getsockname(), timeout=30):
        pass
    network_links.recover(lab)
    assert best(found(lab)["n1", "n2"]) > 3.5


def test_a_cut_is_silent(lab: Blueprint) -> None:
    """No refusal, no unreachable: the sender knows nothing, as when a link beyond the next switch is down."""
    network_links.partition(lab, "n1")
    with inside(lab.namespace("n1")):
        sock = socket.socket()
    with sock:
        sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            sock.connect((lab.address("n2"), 1))


def test_a_one_way_cut_leaves_the_other_way(lab: Blueprint) -> None:
    network_links.partition_one_way(lab, "n1", "n2")
    lost = losses(network_links.nodes_of(lab), [("n1", "n2"), ("n2", "n1"), ("n1", "n3")], SILENT)
    assert lost == {("n1", "n2"): 1, ("n2", "n1"): 0, ("n1", "n3"): 0}


def test_an_isolated_member_reaches_nobody_and_silently_so(lab: Blueprint) -> None:
    with inside(lab.namespace("n2")):
        listening = socket.create_server((lab.address("n2"), 0))
    with listening:
        network_links.isolate(lab, "n2")
        assert "isolated: n2" in network_links.state(lab).summary
        with socket.socket() as client:
            client.settimeout(1.0)
            with pytest.raises(TimeoutError):
                client.connect(listening.getsockname())
        measured = found(lab, SILENT)
        assert not measured["n1", "n2"].round_trips_ms
        assert measured["n1", "n3"].round_trips_ms
        network_links.recover(lab)
        with socket.create_connection(listening.getsockname(), timeout=30):
            pass
    assert "permanent" not in ip("neigh", "show", lab.address("n2").lower())


def test_switching_between_emulator_and_kernel_keeps_a_busy_connection(lab: Blueprint) -> None:
    one, other = connected(lab, "n1", "n2")
    sent, total = threading.Event(), 24 << 20

    def pour() -> None:
        one.sendall(bytes(total))
        sent.set()

    writer = threading.Thread(target=pour, daemon=True)
    with one, other:
        writer.start()
        got = 0
        for delay in (0.002, 0.0, 0.005, 0.0):
            network_links.shape(lab, [("n1", "n2"), ("n2", "n1")], Change(delay_s=delay))
            goal = min(total, got + (4 << 20))
            while got < goal:
                got += len(other.recv(1 << 18))
        while got < total:
            got += len(other.recv(1 << 18))
    writer.join(30)
    assert sent.is_set()


def test_a_dead_emulator_is_reported_and_never_becomes_a_fast_link(lab: Blueprint) -> None:
    network_links.set_round_trip(lab, 20)
    pid = network_links.state(lab).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(Wait.PROGRAM_GONE, lambda: network_links.state(lab).dead, RealClock())
    assert "dead" in network_links.state(lab).summary
    assert all(not m.round_trips_ms for m in found(lab, SILENT).values())
    # Its devices stay, and without an owner they would be anyone's who is in the namespace.
    assert all(" user " in ip("-d", "link", "show", devices.DEVICE, namespace=lab.namespace(m)) for m in lab.members)
    network_links.recover(lab)
    assert not network_links.state(lab).dead
    assert best(found(lab)["n1", "n2"]) > 19


def test_a_refused_change_leaves_links_and_emulator_as_they_were(lab: Blueprint) -> None:
    before = network_links.set_round_trip(lab, 6)
    with pytest.raises(UsageError):
        network_links.shape(lab, [("n1", "n2")], Change(loss=1.5))
    assert network_links.configured(lab).table == before.table
    assert network_links.configured(lab).setting(("n1", "n2")) == LinkSetting(delay_s=0.003)


def test_the_emulator_leaves_nothing_behind(tmp_path: Path) -> None:
    with bare_network(tmp_path / "lab", ("n1", "n2")) as lab:
        network_links.set_round_trip(lab, 4)
        folder = lab.home / "wire"
        pid = network_links.state(lab).pid
        assert {oct(p.stat().st_mode & 0o777) for p in folder.iterdir()} == {"0o600"}
        network_links.end_emulator(lab)
        network_links.end_emulator(lab)
        assert control.running(folder) is None
        assert not Path(f"/proc/{pid}/ns").exists()
        assert list(folder.iterdir()) == []
        assert all(devices.DEVICE not in ip("link", namespace=lab.namespace(m)) for m in lab.members)
        back = round_trips(network_links.nodes_of(lab), [("n1", "n2")], FEW)
        assert back["n1", "n2"]
    assert not exists(lab.namespace("n1"))


def test_the_emulator_ends_by_itself_when_its_lab_is_removed(tmp_path: Path) -> None:
    with bare_network(tmp_path / "lab", ("n1", "n2")) as lab:
        network_links.set_round_trip(lab, 4)
        folder = lab.home / "wire"
        assert control.running(folder) is not None
    try:
        wait_for(Wait.PROGRAM_GONE, lambda: control.running(folder) is None, RealClock())
    finally:
        control.end(folder, RealClock())
