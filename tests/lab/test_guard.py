"""The guard on a real lab: a drill with it, a seal whose guard died, what it refuses; nothing of it stays."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.drills import drilled
from tests.fixtures.external_cluster import lab_file, opened
from walproof.errors import TargetError
from walproof.guarding.etcd import Etcd3, EtcdAccess, EtcdLeader
from walproof.lab import configuration, members
from walproof.lab.blueprint import ETCD_PORT, Blueprint
from walproof.machine.clock import RealClock
from walproof.model.drill import Verdict, Victim
from walproof.model.guarantee import Level
from walproof.model.takeover import GUARD, Seal
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import SyncMode
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.targets.lab.target import LabTakeover, LabTarget, lab_guard

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def blueprint(lab: Blueprint) -> Blueprint:
    return lab


@pytest.fixture
def target(blueprint: Blueprint) -> Iterator[LabTarget]:
    made = LabTarget(blueprint)
    try:
        yield made
    finally:
        lab_guard(blueprint, RealClock()).stop()
        made.operations.recover()


def test_a_guard_says_what_it_watches_and_ends_in_order(blueprint: Blueprint) -> None:
    """The first test here: after a takeover a guard is not ready for a while."""
    words = [sys.executable, "-m", "walproof", "guard", "--target", f"lab:{blueprint.name}", "--dry-run"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as guard:
        assert guard.stderr is not None
        said = []
        while "watching" not in (line := guard.stderr.readline()):
            said.append(line)
            assert line, said
        guard.send_signal(signal.SIGINT)
        out, err = guard.communicate(timeout=60)
    assert (guard.returncode, out) == (130, "")
    assert "(dry run)" in "".join(said)
    assert "ended" in err
    assert not [p for p in members.marked(blueprint) if "guard" in p.cmdline()]


def test_a_frozen_leader_is_replaced_by_the_guard_and_nothing_is_lost(target: LabTarget) -> None:
    plan = PlannedDrill(1, CATALOGUE["freeze"], Victim.LEADER, Level.ON, writers=4, guarded=True)
    drill = drilled(target, plan)
    assert drill.verdict is Verdict.HELD, drill.why
    assert drill.guarded
    assert f"handed over: {drill.leader_after} holds the leader lock" in drill.evidence["guard"]
    assert drill.leader_after != drill.leader_before


def test_a_seal_whose_guard_died_is_gone_on_with_by_the_next(target: LabTarget, blueprint: Blueprint) -> None:
    """The leader is healthy: it demotes, and a standby is handed the lock."""
    lock, before = LabTakeover(blueprint, RealClock()).lock(), target.observe().leader
    seen = lock.read()
    standbys = tuple(m for m in blueprint.members if m != before)
    assert lock.seal(seen, f"{GUARD}dead", Seal(standbys, seen.config_version, seen.failover_version))
    guard = lab_guard(blueprint, RealClock())
    guard.start()
    wait_for(Wait.NEW_LEADER, lambda: target.observe().leader not in (None, before), RealClock())
    assert f"{GUARD}dead does not go on: taking its seal over" in guard.log()
    wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, RealClock())
    status = guard.status()
    assert status is not None
    assert status.takeovers == 1


def test_a_cluster_that_was_switched_over_once_is_guarded_all_the_same(target: LabTarget, blueprint: Blueprint) -> None:
    """Patroni leaves the key in which the switchover was asked for, empty, for good."""
    lock = LabTakeover(blueprint, RealClock()).lock()

    def has_candidates() -> bool:
        now = lock.read()
        return target.observe().healthy and now.sync_leader == now.holder and len(now.voters) == 2

    # Without synchronous standbys in /sync Patroni refuses a switchover.
    wait_for(Wait.CLUSTER_HEALTHY, has_candidates, RealClock())
    before = target.observe().leader
    target.operations.switch_over(None)
    wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, RealClock())
    assert target.observe().leader != before
    guard = lab_guard(blueprint, RealClock())
    guard.start()
    wait_for(Wait.GUARD_READY, lambda: (status := guard.status()) is not None and status.ready, RealClock())


def test_etcds_own_leader_leaves_the_machine_it_is_asked_to_leave(blueprint: Blueprint) -> None:
    access = EtcdAccess(tuple(f"http://{blueprint.address(m)}:{ETCD_PORT}" for m in blueprint.members))

    one, other = Etcd3(access), EtcdLeader(Etcd3(access))

    def leader() -> str:
        members = {m["ID"]: m["name"] for m in one.call("/cluster/member/list", {})["members"]}
        return str(members.get(one.call("/maintenance/status", {}).get("leader"), ""))

    wait_for(Wait.PROGRAM_READY, lambda: bool(leader()), RealClock())
    before = leader()
    moved: list[str] = []

    def left() -> bool:
        try:
            moved.append(other.leave(blueprint.address(before)))
        except TargetError:
            return False
        return bool(moved[-1])

    wait_for(Wait.PROGRAM_READY, left, RealClock())
    wait_for(Wait.PROGRAM_READY, lambda: leader() == moved[-1], RealClock())
    assert moved[-1] != before
    assert other.leave(blueprint.address(before)) == ""


@pytest.fixture
def file(blueprint: Blueprint, tmp_path: Path) -> Path:
    """The lab as an external Patroni cluster whose target file names etcd, and freezes a member by a command."""
    path = lab_file(blueprint, tmp_path)
    hosts = [f"{blueprint.address(m)}:{ETCD_PORT}" for m in blueprint.members]
    pids = f"$(ip netns pids {blueprint.namespace('')}{{member}})"
    commands = f'freeze = "kill -STOP {pids}"\nthaw = "kill -CONT {pids}"\n'
    etcd3 = f"[etcd3]\nhosts = {json.dumps(hosts)}\nscope = {json.dumps(blueprint.name)}\n"
    path.write_text(f"{path.read_text()}{etcd3}[faults]\n{commands}")
    return path


def test_drills_of_an_external_cluster_have_a_guard_of_their_own(file: Path) -> None:
    plan = PlannedDrill(1, CATALOGUE["freeze"], Victim.LEADER, Level.ON, writers=4, guarded=True)
    with opened(str(file)) as target:
        switch = target.capabilities().guard
        assert switch is not None
        try:
            drill = drilled(target, plan)
        finally:
            switch.stop()
        assert drill.verdict is Verdict.HELD, drill.why
        assert f"handed over: {drill.leader_after} holds the leader lock" in drill.evidence["guard"]
        assert switch.status() is None


def test_a_guard_of_drills_does_not_outlive_them(file: Path, blueprint: Blueprint, tmp_path: Path) -> None:
    """Killed with -9, they end nothing themselves."""
    code = (
        "import sys, time; from walproof.targets.choose import choose; target = choose(sys.argv[1]);"
        "guard = target.capabilities().guard; guard.start(); print(guard.status().leader, flush=True); sys.stdin.read()"
    )
    argv, here = [sys.executable, "-c", code, str(file)], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here) as drills:
        assert drills.stdout is not None
        drills.stdout.readline()
        (guard,) = psutil.Process(drills.pid).children()
        assert str(file) in guard.cmdline()
        drills.kill()
    wait_for(Wait.PROGRAM_GONE, lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, RealClock())


def test_a_lab_without_synchronous_replication_is_not_guarded(
    blueprint: Blueprint, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration.set_sync(blueprint, SyncMode.OFF, 0)
    try:
        code, _, err = ended(capsys, ["guard", "--target", f"lab:{blueprint.name}"])
    finally:
        configuration.set_sync(blueprint, SyncMode.QUORUM, 1)
    assert code == 2
    assert "synchronous_mode is off: a takeover before the ttl could lose acknowledged commits" in err
