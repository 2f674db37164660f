"""Faults of a real lab: each shows its sign while it is in effect, is undone, also after walproof was killed."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import httpx2
import pytest

from tests.fixtures.labs import a_lab, asked, leader_and_standby
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.lab import disk_images, members
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.faults import active, catalogue, crashes, disks, hangs, replication
from walproof.lab.members import postmaster
from walproof.lab.members import processes as member_processes
from walproof.lab.patroni import observe
from walproof.machine import processors
from walproof.machine.clock import RealClock
from walproof.machine.programs import ip
from walproof.model.topology import ClusterView, MemberState
from walproof.model.waiting import Wait, wait_for
from walproof.proving.fault_happened import fault_signs
from walproof.proving.faults import CATALOGUE
from walproof.proving.history import DrillRun
from walproof.proving.inject import inject
from walproof.targets.lab.target import LabTarget

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

if disk_images.unavailable() or disks.unavailable() or processors.control_groups_unavailable():
    pytest.skip("needs root, loop devices, strace and control groups", allow_module_level=True)


@dataclass
class Asked:
    """What the members answered from just before a moment on, and who leads now."""

    target: LabTarget
    on: dict[str, tuple[str, ...]]
    """By fault: the members that it falls on."""
    states: list[MemberState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.view: ClusterView = self.target.observe()
        self.at = float("inf")
        self.ask()
        self.at = self.target.clock.now()

    def ask(self) -> "dict[str, list[bool | None]]":
        """Every member, once more: every sign of each fault, by what was answered since the moment."""
        source = self.target.capabilities().member_states
        assert source is not None
        self.states += source.states()
        now, after = self.target.clock.now(), self.target.observe()
        return {
            name: [sign.seen for sign in fault_signs(CATALOGUE[name], run)]
            for name, victims in self.on.items()
            for run in [DrillRun(victims, self.view, self.at, now, now, states=tuple(self.states), after=after)]
        }


# Each once, two at a time: of two standbys one alone may leave etcd, else the leader steps down.
ROUNDS = (
    "kill-member kill", "freeze stop", "power-cut restart", "partition crash-restart", "isolate partition-wal",
    "partition-one-way partition-acks", "full-disk pause-replay", "slow-disk failing-disk", "dcs-loss", "switchover",
)  # fmt: skip


@each(ROUNDS)
def test_a_sign_is_there_while_its_fault_is_and_neither_before_nor_after(names: str, lab: Blueprint) -> None:
    target = LabTarget(lab)
    leader = leader_and_standby(lab)[0]
    standbys = [m for m in lab.members if m != leader]
    on: dict[str, tuple[str, ...]] = {
        name: (leader,) if " " not in names else (standbys.pop(),) for name in names.split()
    }
    absent: dict[str, list[bool | None]] = {name: [False] for name in on}
    assert Asked(target, on).ask() == absent, "before"
    during = Asked(target, on)
    seen: dict[str, list[bool | None]] = {}
    try:
        for name, victims in on.items():
            inject(target, CATALOGUE[name], CATALOGUE[name].steps, victims=victims, view=during.view)

        def all_there() -> bool:
            # A sign that showed once has shown: what PostgreSQL does by itself is soon over.
            seen.update({name: signs for name, signs in during.ask().items() if signs == [True]})
            return len(seen) == len(on)

        wait_for(Wait.SETTING_IN_EFFECT, all_there, RealClock())
    finally:
        target.operations.recover()
    assert Asked(target, on).ask() == absent, "after"


def test_a_commit_survives_the_power_cut_of_its_leader_and_of_a_standby(lab: Blueprint) -> None:
    leader, standby = leader_and_standby(lab)
    assert catalogue.reasons(lab) == {}
    ours = os.readlink("/proc/self/ns/ipc")
    assert {os.readlink(f"/proc/{postmaster(lab, m)}/ns/ipc") for m in lab.members}.isdisjoint({ours})
    assert asked(lab, leader, "SHOW dynamic_shared_memory_type") == [("sysv",)], "it ends with the member"
    asked(lab, leader, "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 42 AS answer")
    crashes.cut_power(lab, standby)
    crashes.cut_power(lab, leader)
    assert member_processes(lab, leader) == []
    assert not disk_images.mounted(lab.data_dir(leader).parent)
    with pytest.raises(UsageError, match="already"):
        crashes.cut_power(lab, leader)
    assert set(catalogue.recover(lab)) == {f"power-cut of {leader}", f"power-cut of {standby}"}
    assert asked(lab, leader_and_standby(lab)[0], "SELECT answer FROM kept") == [(42,)]
    assert catalogue.recover(lab) == ()


def written(lab: Blueprint, leader: str) -> None:
    """A row is committed on the leader alone."""
    local = "SET synchronous_commit = local"
    asked(lab, leader, f"{local}; CREATE TABLE IF NOT EXISTS ticks (t timestamptz)")
    asked(lab, leader, f"{local}; INSERT INTO ticks VALUES (now())")


RECEIVED = "SELECT pg_last_wal_receive_lsn()::text"
FLUSHED = "SELECT flush_lsn::text FROM pg_stat_replication WHERE application_name = '{}'"
PAUSE_STATE = "SELECT pg_get_wal_replay_pause_state()"
REPLAYED = "SELECT pg_last_wal_replay_lsn()::text"


def test_no_wal_arrives_while_rest_and_clients_do(lab: Blueprint) -> None:
    leader, standby = leader_and_standby(lab)
    replication.cut(lab, standby, replication.WAL)
    RealClock().pause(0.5)
    before = asked(lab, standby, RECEIVED)
    written(lab, leader)
    RealClock().pause(1.5)
    assert asked(lab, standby, RECEIVED) == before
    assert httpx2.get(f"{lab.rest_url(standby)}/health", timeout=3, trust_env=False).status_code == 200
    with pytest.raises(UsageError, match="already in effect"):
        replication.cut(lab, standby, replication.WAL)
    replication.restore_stream(lab, standby)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, RECEIVED) != before, RealClock())


@pytest.mark.nightly  # it fails now and then: what TCP may send unacknowledged is not always enough
def test_wal_arrives_and_no_acknowledgement_comes_back(lab: Blueprint) -> None:
    leader, standby = leader_and_standby(lab)
    replication.cut(lab, standby, replication.ACKS)
    RealClock().pause(0.5)
    received, flushed = asked(lab, standby, RECEIVED), asked(lab, leader, FLUSHED.format(standby))
    written(lab, leader)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, RECEIVED) != received, RealClock())
    assert asked(lab, leader, FLUSHED.format(standby)) == flushed
    catalogue.recover(lab, member=standby)
    wait_for(Wait.REPLAYED, lambda: asked(lab, leader, FLUSHED.format(standby)) != flushed, RealClock())


def test_paused_replay_receives_and_shows_nothing_until_it_is_resumed(lab: Blueprint) -> None:
    leader, standby = leader_and_standby(lab)
    with pytest.raises(UsageError, match="leads"):
        replication.pause_replay(lab, leader)
    replication.pause_replay(lab, standby)
    received, replayed = asked(lab, standby, RECEIVED), asked(lab, standby, REPLAYED)
    written(lab, leader)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, RECEIVED) != received, RealClock())
    states = []
    for _ in range(60):  # cycles of Patroni, each of which resumes it
        states.append(asked(lab, standby, PAUSE_STATE))
        RealClock().pause(0.05)
    assert states.count([("paused",)]) > 50
    replication.resume_replay(lab, standby)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, REPLAYED) != replayed, RealClock())
    assert all(asked(lab, standby, PAUSE_STATE) == [("not paused",)] for _ in range(20))
    assert active.in_effect(lab) == ()


KILLED = """
import os, sys
from walproof.lab import home
from walproof.lab.faults import replication
b = home.load(sys.argv[1])
for direction in (replication.WAL, replication.ACKS):
    replication.cut(b, sys.argv[2], direction)
replication.pause_replay(b, sys.argv[2])
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_walproof_left_is_undone_by_the_next(lab: Blueprint) -> None:
    leader, standby = leader_and_standby(lab)
    done = subprocess.run([sys.executable, "-c", KILLED, lab.name, standby], check=False, env=dict(os.environ))
    assert done.returncode == -9
    assert {f.fault for f in active.in_effect(lab)} == {replication.WAL, replication.ACKS, replication.PAUSED}
    assert set(catalogue.recover(lab)) == {
        f"{f} of {standby}" for f in (replication.WAL, replication.ACKS, replication.PAUSED)
    }
    assert active.in_effect(lab) == ()
    assert not any(ip("rule", "show", "pref", "90", namespace=lab.namespace(m)) for m in lab.members)
    replayed = asked(lab, standby, REPLAYED)
    written(lab, leader)
    wait_for(Wait.REPLAYED, lambda: asked(lab, standby, REPLAYED) != replayed, RealClock())


@pytest.mark.nightly
def test_a_frozen_standby_and_a_lost_majority_are_recovered_together(lab: Blueprint) -> None:
    _, standby = leader_and_standby(lab)
    crashes.freeze(lab, standby)
    assert observe(lab).member(standby).state == "frozen"  # type: ignore[union-attr]
    crashes.lose_dcs(lab)
    with pytest.raises(UsageError, match="frozen"):
        crashes.kill(lab, standby)
    assert set(catalogue.recover(lab)) >= {f"freeze of {standby}"}
    assert active.in_effect(lab) == ()


@pytest.mark.nightly
def test_one_part_of_a_member_hangs_while_the_others_go_on(lab: Blueprint) -> None:
    leader, standby = leader_and_standby(lab)
    parts = {"postmaster": hangs.hang_postmaster, "manager": hangs.hang_manager, "rest": hangs.hang_rest}
    for part, hang in parts.items():
        hang(lab, standby)
        state = catalogue.seen_on_machine(lab, MemberState(standby, 0.0))
        assert (state.hangs, state.processes) == ((part,), "running")
        with pytest.raises(UsageError, match="already"):
            hang(lab, standby)
        assert catalogue.recover(lab, member=standby) == (f"hang-{part} of {standby}",)
        assert catalogue.seen_on_machine(lab, MemberState(standby, 0.0)).hangs == ()
    assert leader_and_standby(lab)[0] == leader


@pytest.mark.nightly
def test_a_slow_disk_holds_every_process_of_postgresql_and_detaches_from_all(lab: Blueprint) -> None:
    _, standby = leader_and_standby(lab)
    disks.slow(lab, standby, 0.005)
    held = disks.are_traced(lab, standby)
    assert len(held) > 4
    assert all(held)
    with pytest.raises(UsageError, match="already"):
        disks.slow(lab, standby, 0.005)
    assert disks.clear(lab, standby)
    released = disks.are_traced(lab, standby)
    assert len(released) > 4
    assert not any(released)


@pytest.mark.nightly
def test_a_full_disk_is_really_full_until_it_is_cleared(lab: Blueprint) -> None:
    _, standby = leader_and_standby(lab)
    disks.inject(lab, standby, disks.FULL)
    proof = lab.data_dir(standby).parent / "one-more"
    with pytest.raises(OSError, match="No space"):
        proof.write_bytes(b"x" * (1 << 20))
    disks.clear(lab, standby)
    proof.write_bytes(b"x" * (1 << 20))
    proof.unlink()


@pytest.mark.nightly
def test_a_limit_covers_the_members_processes_and_those_of_its_next_life(lab: Blueprint) -> None:
    _, standby = leader_and_standby(lab)
    members.limit_cores(lab, standby, 0.8)
    assert members.cores_of(lab, standby) == pytest.approx(0.8)
    crashes.kill_member(lab, standby)
    with pytest.raises(UsageError, match="down"):
        crashes.kill(lab, standby)
    catalogue.recover(lab)
    group = processors.group(lab.control_group(standby))
    assert group is not None
    assert str(postmaster(lab, standby)) in (group / "cgroup.procs").read_text().split()
    members.limit_cores(lab, None, None)
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
def test_walproof_killed_in_the_middle_of_each_fault_leaves_it_on_the_list() -> None:
    # Nothing is cleared any more: destroying the lab must leave the machine as it was.
    with a_lab(disk=Disk("image", 768 << 20, wal_volume=True)) as lab:
        command = [sys.executable, "-c", MIDDLE, *lab.members[:2]]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["9"] * 8, done.stderr
        assert {(f.fault, f.member) for f in active.in_effect(lab)} == {
            ("slow-disk", "n2"), ("hang-rest", "n1"), ("hang-manager", "n1"), (active.DCS_LOSS, ""),
            (active.FREEZE, "n1"), (active.POWER_CUT, "n1"), (active.POWER_CUT, "n2"),
        }  # fmt: skip
        assert members.cores_of(lab, "n2") == pytest.approx(0.5)
