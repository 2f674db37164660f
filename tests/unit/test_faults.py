"""What is in effect, what is refused, what is listed: the faults' decisions, no server."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.fixtures.blueprints import a_blueprint
from tests.fixtures.tiers import each
from walproof.cli.lab_cluster import cpu
from walproof.cli.lab_links_and_faults import fault as fault_command
from walproof.errors import Error, MachineError, UsageError
from walproof.lab import home, members, network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, crashes, disks, hangs
from walproof.lab.faults.active import ActiveFault
from walproof.lab.faults.catalogue import FAULTS
from walproof.machine import processors
from walproof.model.drill import Capability

STOPPED_NOW = os.WSTOPPED | os.WNOHANG | os.WNOWAIT


def frozen(member: str) -> ActiveFault:
    return ActiveFault(active.FREEZE, member, 1.0)


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blueprint:
    blueprint = a_blueprint(tmp_path)
    monkeypatch.setattr(home, "load", lambda name=None: blueprint)
    return blueprint


def test_a_fault_is_on_the_list_until_it_is_removed(paper: Blueprint) -> None:
    active.add(paper, frozen("n1"))
    active.add(paper, frozen("n2"))
    assert [f.member for f in active.in_effect(paper)] == ["n1", "n2"]
    active.remove(paper, active.FREEZE, "n1")
    assert [f.member for f in active.in_effect(paper)] == ["n2"]
    active.remove(paper, active.FREEZE)
    assert active.in_effect(paper) == ()


def test_a_fault_is_listed_before_it_is_injected_and_removed_when_it_fails(paper: Blueprint) -> None:
    seen: list[str] = []

    def inject() -> None:
        with active.added(paper, active.FREEZE, "n1"):
            seen.extend(fault.member for fault in active.in_effect(paper))
            raise MachineError("the kernel says no")

    with pytest.raises(MachineError):
        inject()
    assert seen == ["n1"]
    assert active.in_effect(paper) == ()


def test_a_killed_walproof_leaves_its_fault_on_the_list(paper: Blueprint) -> None:
    with pytest.raises(SystemExit), active.added(paper, active.FREEZE, "n1"):
        raise SystemExit(9)
    assert [f.member for f in active.in_effect(paper)] == ["n1"]


@each([
    ((frozen("n1"),), active.FREEZE, "n1", "already in effect"),
    ((frozen("n1"),), "kill", "n1", "frozen"),
    ((frozen("n1"),), active.POWER_CUT, "n1", None),
    ((frozen("n1"),), "kill", "n2", None),
    ((ActiveFault(active.POWER_CUT, "n1", 1.0),), "kill", "n1", "already down"),
    ((ActiveFault(active.POWER_CUT, "n1", 1.0),), active.KILL_MEMBER, "n1", "already down"),
    ((ActiveFault(active.DCS_LOSS, "", 1.0),), active.DCS_LOSS, "", "already in effect"),
    ((ActiveFault(active.DCS_LOSS, "", 1.0),), "kill", "n1", None),
    ((ActiveFault("full-disk", "n1", 1.0),), "kill", "n1", None),
    ((), "kill", "n1", None),
])  # fmt: skip
def test_a_fault_is_refused_where_it_makes_no_sense(
    now: tuple[ActiveFault, ...], fault: str, member: str, says: str | None
) -> None:
    reason = active.why_refused(now, fault, member)
    assert reason is None if says is None else says in str(reason)


HANGS = [hangs.hang_postmaster, hangs.hang_manager]


@pytest.mark.parametrize(
    "fault", [crashes.kill, crashes.stop, crashes.kill_member, crashes.freeze, crashes.thaw, *HANGS, hangs.hang_rest]
)
def test_an_unknown_member_is_refused_by_name(fault: object, paper: Blueprint) -> None:
    assert callable(fault)
    with pytest.raises(UsageError, match="n9"):
        fault(paper, "n9")
    assert active.in_effect(paper) == ()


@pytest.mark.parametrize("fault", [crashes.kill, crashes.stop, crashes.kill_member, crashes.freeze, *HANGS])
def test_a_member_that_is_down_takes_no_further_fault(fault: object, paper: Blueprint) -> None:
    assert callable(fault)
    with pytest.raises(UsageError, match="n1"):
        fault(paper, "n1")
    assert active.in_effect(paper) == ()


@pytest.mark.parametrize(("fault", "finder"), [(HANGS[0], "postmaster"), (HANGS[1], "program_pid")])
@pytest.mark.parametrize("reused", [False, True])
def test_a_process_is_stopped_and_never_another_that_took_its_number(
    paper: Blueprint, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None], finder: str, reused: bool
) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        answers = iter([process.pid, None if reused else process.pid])
        monkeypatch.setattr(members, finder, lambda *_: next(answers))
        if reused:
            with pytest.raises(UsageError, match="has just ended on n1"):
                fault(paper, "n1")
        else:
            fault(paper, "n1")
        # A signal that was sent is delivered in its own time: wait for it where it must come.
        stopped = os.waitid(os.P_PID, process.pid, STOPPED_NOW if reused else STOPPED_NOW & ~os.WNOHANG)
        assert (stopped is None) is reused
        assert len(active.in_effect(paper)) == (not reused)
        process.kill()


def test_a_power_cut_without_images_says_what_to_type(paper: Blueprint) -> None:
    with pytest.raises(MachineError, match="--disk image"):
        crashes.cut_power(paper, "n1")
    assert active.in_effect(paper) == ()


@pytest.mark.parametrize(("error", "slow_s"), [("slow", 0.0), ("slow", -1.0), ("slow", 61.0), ("sleepy", 0.0)])
def test_an_impossible_disk_fault_is_refused(error: str, slow_s: float, paper: Blueprint) -> None:
    with pytest.raises(UsageError):
        disks.inject(paper, "n1", error, slow_s)
    assert active.in_effect(paper) == ()


def test_a_disk_without_a_fault_is_cleared_silently(paper: Blueprint) -> None:
    assert disks.clear(paper, "n1") is False


@pytest.mark.parametrize("cores", [0.0, -1.0, 4096.0])
def test_impossible_cores_are_refused(cores: float, paper: Blueprint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "control_groups_unavailable", lambda: None)
    with pytest.raises(UsageError, match="cores"):
        members.limit_cores(paper, None, cores)


def test_every_fault_says_what_it_needs_and_how_it_is_cleared() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(fault.happens and fault.cleared_by and fault.command.startswith("lab ") for fault in FAULTS)
    needed = {fault.capability for fault in FAULTS}
    never_faults = {
        Capability.PRICE,
        Capability.LEDGER,
        Capability.CONFIGURE,
        Capability.INSPECT,
        Capability.OBSERVE,
    }
    never_faults |= {Capability.RETURN_ORDER, Capability.WORKLOAD}
    kubernetes = {
        Capability.KILL_CONTAINER, Capability.LINK_DELAY, Capability.CPU_STRESS, Capability.LIMIT_MEMORY
    }  # fmt: skip
    assert set(Capability) - needed <= never_faults | {Capability.SHAPE_LINKS} | kubernetes


@pytest.mark.parametrize(("command", "arguments"), [
    (fault_command, "kill"),
    (fault_command, "kill n9"),
    (fault_command, "explode n1"),
    (fault_command, "dcs-loss n1"),
    (fault_command, "kill n1 n2"),
    (fault_command, "list n1"),
    (fault_command, "clear n9"),
    (fault_command, "slow-disk n1"),
    (fault_command, "failing-disk n9"),
    (fault_command, "full-disk n1 --delay 5ms"),
    (fault_command, "slow-disk n1 --delay fast"),
    (fault_command, "slow-disk n1 --delay 0ms"),
    (fault_command, "partition"),
    (fault_command, "partition n9"),
    (fault_command, "partition n1 n1"),
    (fault_command, "partition-one-way n1"),
    (fault_command, "partition-one-way n1 n1"),
    (fault_command, "partition-one-way n1 n9"),
    (fault_command, "isolate n9"),
    (cpu, "much"),
    (cpu, "1 --clear"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_changes_nothing(
    command: click.Command, arguments: str, paper: Blueprint
) -> None:
    with pytest.raises((Error, click.UsageError)) as raised:
        command.main(args=arguments.split(), standalone_mode=False)
    error = raised.value
    assert isinstance(error, Error | click.UsageError)
    assert error.exit_code == 2
    assert "\n" not in error.message
    assert active.in_effect(paper) == ()
    assert not network_links.configured(paper).table
