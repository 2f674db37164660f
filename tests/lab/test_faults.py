"""Faults of a real lab on image disks, and walproof killed in the middle of each of them."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fixtures.labs import a_lab, asked, leader_and_standby
from walproof.errors import UsageError
from walproof.lab import disk_images, members
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.faults import active, catalogue, crashes, disks, hangs
from walproof.lab.members import postmaster
from walproof.lab.members import processes as member_processes
from walproof.lab.patroni import observe
from walproof.machine import processors
from walproof.model.topology import MemberState

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

if disk_images.unavailable() or disks.unavailable() or processors.control_groups_unavailable():
    pytest.skip("needs root, loop devices, strace and control groups", allow_module_level=True)


@pytest.fixture(scope="module")
def on_images() -> Iterator[Blueprint]:
    with a_lab(disk=Disk("image", 768 << 20, wal_volume=True)) as blueprint:
        yield blueprint


def test_every_fault_is_available_on_images_as_root(on_images: Blueprint) -> None:
    assert catalogue.reasons(on_images) == {}


def test_shared_memory_ends_with_the_member(on_images: Blueprint) -> None:
    leader, _ = leader_and_standby(on_images)
    ours = os.readlink("/proc/self/ns/ipc")
    assert {os.readlink(f"/proc/{postmaster(on_images, m)}/ns/ipc") for m in on_images.members}.isdisjoint({ours})
    assert asked(on_images, leader, "SHOW dynamic_shared_memory_type") == [("sysv",)]


def test_a_commit_survives_the_power_cut_of_its_leader_and_of_a_standby(on_images: Blueprint) -> None:
    leader, standby = leader_and_standby(on_images)
    asked(on_images, leader, "CREATE TABLE kept AS SELECT 42 AS answer")
    crashes.cut_power(on_images, standby)
    crashes.cut_power(on_images, leader)
    assert member_processes(on_images, leader) == []
    assert not disk_images.mounted(on_images.data_dir(leader).parent)
    with pytest.raises(UsageError, match="already"):
        crashes.cut_power(on_images, leader)
    cleared = catalogue.recover(on_images)
    assert set(cleared) == {f"power-cut of {leader}", f"power-cut of {standby}"}
    assert asked(on_images, leader_and_standby(on_images)[0], "SELECT answer FROM kept") == [(42,)]
    assert catalogue.recover(on_images) == ()


@pytest.mark.nightly
def test_a_frozen_standby_and_a_lost_majority_are_recovered_together(on_images: Blueprint) -> None:
    _, standby = leader_and_standby(on_images)
    crashes.freeze(on_images, standby)
    assert observe(on_images).member(standby).state == "frozen"  # type: ignore[union-attr]
    crashes.lose_dcs(on_images)
    with pytest.raises(UsageError, match="frozen"):
        crashes.kill(on_images, standby)
    assert set(catalogue.recover(on_images)) >= {f"freeze of {standby}"}
    assert active.in_effect(on_images) == ()


@pytest.mark.nightly
def test_one_part_of_a_member_hangs_while_the_others_go_on(on_images: Blueprint) -> None:
    leader, standby = leader_and_standby(on_images)
    parts = {"postmaster": hangs.hang_postmaster, "manager": hangs.hang_manager, "rest": hangs.hang_rest}
    for part, hang in parts.items():
        hang(on_images, standby)
        state = catalogue.seen_on_machine(on_images, MemberState(standby, 0.0))
        assert (state.hangs, state.processes) == ((part,), "running")
        with pytest.raises(UsageError, match="already"):
            hang(on_images, standby)
        assert catalogue.recover(on_images, member=standby) == (f"hang-{part} of {standby}",)
        assert catalogue.seen_on_machine(on_images, MemberState(standby, 0.0)).hangs == ()
    assert leader_and_standby(on_images)[0] == leader


@pytest.mark.nightly
def test_a_slow_disk_holds_every_process_of_postgresql_and_detaches_from_all(on_images: Blueprint) -> None:
    _, standby = leader_and_standby(on_images)
    disks.slow(on_images, standby, 0.005)
    held = disks.are_traced(on_images, standby)
    assert len(held) > 4
    assert all(held)
    with pytest.raises(UsageError, match="already"):
        disks.slow(on_images, standby, 0.005)
    assert disks.clear(on_images, standby)
    released = disks.are_traced(on_images, standby)
    assert len(released) > 4
    assert not any(released)


@pytest.mark.nightly
def test_a_full_disk_is_really_full_until_it_is_cleared(on_images: Blueprint) -> None:
    _, standby = leader_and_standby(on_images)
    disks.inject(on_images, standby, disks.FULL)
    proof = on_images.data_dir(standby).parent / "one-more"
    with pytest.raises(OSError, match="No space"):
        proof.write_bytes(b"x" * (1 << 20))
    disks.clear(on_images, standby)
    proof.write_bytes(b"x" * (1 << 20))
    proof.unlink()


@pytest.mark.nightly
def test_a_limit_covers_the_members_processes_and_those_of_its_next_life(on_images: Blueprint) -> None:
    _, standby = leader_and_standby(on_images)
    members.limit_cores(on_images, standby, 0.8)
    assert members.cores_of(on_images, standby) == pytest.approx(0.8)
    crashes.kill_member(on_images, standby)
    with pytest.raises(UsageError, match="down"):
        crashes.kill(on_images, standby)
    catalogue.recover(on_images)
    group = processors.group(on_images.control_group(standby))
    assert group is not None
    assert str(postmaster(on_images, standby)) in (group / "cgroup.procs").read_text().split()
    members.limit_cores(on_images, None, None)
    assert not group.exists()


MIDDLE = """
import os, sys
from walproof.lab import disk_images, home, members
from walproof.lab.faults import crashes, disks, hangs
b, die = home.load(), lambda *_, **__: os.kill(os.getpid(), 9)
leader, standby = sys.argv[1:3]
for module, name, act in (
    (disks, "wait_for", lambda: disks.slow(b, standby, 0.01)),
    (members, "_join_all", lambda: members.limit_cores(b, standby, 0.5)),
    (crashes, "_signal_etcd", lambda: crashes.lose_dcs(b)),
    (hangs, "_rule", lambda: hangs.hang_rest(b, leader)),
    (hangs.os, "close", lambda: hangs.hang_manager(b, leader)),
    (crashes, "wait_for", lambda: crashes.freeze(b, leader)),
    (crashes, "set_link", lambda: crashes.cut_power(b, leader)),
    (disk_images, "detach", lambda: crashes.cut_power(b, standby)),
):
    child = os.fork()
    if child == 0:
        setattr(module, name, die)
        act()
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.nightly
def test_walproof_killed_in_the_middle_of_each_fault_leaves_it_on_the_list(on_images: Blueprint) -> None:
    # The last test here, and nothing is cleared any more: destroying the lab must leave the machine as it was.
    command = [sys.executable, "-c", MIDDLE, *on_images.members[:2]]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["9"] * 8, done.stderr
    left = {(f.fault, f.member) for f in active.in_effect(on_images)}
    assert left == {
        ("slow-disk", "n2"),
        ("hang-rest", "n1"),
        ("hang-manager", "n1"),
        (active.DCS_LOSS, ""),
        (active.FREEZE, "n1"),
        (active.POWER_CUT, "n1"),
        (active.POWER_CUT, "n2"),
    }
    assert members.cores_of(on_images, "n2") == pytest.approx(0.5)
