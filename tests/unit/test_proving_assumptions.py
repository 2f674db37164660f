"""What must have been true for a drill to mean anything: each assumption alone, with what makes it fail."""

from dataclasses import replace

import numpy as np

from tests.fixtures.tiers import each
from tests.unit.test_proving_conclude import attempts, history
from tests.unit.test_proving_happened import NAMES, run, state, view
from walproof.model.drill import Capability, Findings
from walproof.model.topology import ClusterView, MemberState, MemberView, Role
from walproof.proving.fault_happened import Sign
from walproof.proving.faults import CATALOGUE
from walproof.proving.history import DrillRun
from walproof.proving.judge import new_damage
from walproof.proving.lost_commits import MemberReading
from walproof.proving.outage import Outage
from walproof.proving.verdict import checked

QUIET = replace(run(), states=(), after=view("n1", 1))
SMOOTH = Outage(99.9, 100.1, 0.5)


def happened(
    drill: DrillRun = QUIET,
    *signs: bool | None,
    fault: str = "kill",
    findings: Findings = Findings(),  # noqa: B008 (frozen)
    out: Outage | None = SMOOTH,
) -> bool:
    """Whether the fault counts as having happened; `signs` are those of its steps."""
    found = [Sign(Capability.KILL, "n1", seen, "what was seen") for seen in signs]
    every = checked(history(drill, fault=fault), findings, out, found)
    return next(a.holds for a in every if a.name == "fault happened")


def seen(at: float, leader: str = "n1", **victim: object) -> DrillRun:
    """A drill in which one view was taken, with the victim n1 as these fields say."""
    members = tuple(
        MemberView(n, Role.LEADER if n == leader else Role.STANDBY, "running" if n == leader else "streaming", 1)
        for n in NAMES
    )
    changed = (replace(members[0], **victim), *members[1:])  # type: ignore[arg-type]
    return replace(QUIET, views=(ClusterView(at, changed, leader),))


def test_a_fault_happened_when_every_sign_shows_and_not_when_only_some_do() -> None:
    assert happened(QUIET, True, True)
    assert not happened(QUIET, True, None)
    assert not happened(QUIET, None, True)
    assert not happened(QUIET, None)
    assert not happened(seen(101.0, "n2"), True, False)


def test_where_nothing_shows_whoever_watches_the_cluster_must_have_noticed() -> None:
    assert happened(seen(101.0, "n2"))
    assert happened(seen(100.0, "n2"))
    assert not happened(seen(99.0, "n2"))
    assert happened(seen(101.0, state="stopped"))
    assert happened(seen(101.0, role=Role.UNKNOWN))
    assert not happened(seen(101.0))
    gone = seen(101.0)
    lone = replace(gone.views[0], members=gone.views[0].members[1:])
    assert happened(replace(gone, views=(lone,)))
    another = replace(gone.views[0].members[1], state="stopped")
    healthy_victim = replace(gone.views[0], members=(gone.views[0].members[0], another))
    assert not happened(replace(gone, views=(healthy_victim,)))
    assert happened(replace(gone, views=(gone.views[0], lone)))


@each([Findings(unknown=1), Findings(refused=1), Findings(unknown=1, refused=1)])
def test_an_attempt_that_was_not_acknowledged_is_noticed(findings: Findings) -> None:
    assert happened(findings=findings)
    assert not happened()


@each([(0.5, False), (0.501, True), (None, True)])
def test_a_pause_longer_than_usual_is_noticed(gap_s: float | None, noticed: bool) -> None:
    after = None if gap_s is None else 99.0 + gap_s
    assert happened(out=Outage(99.0, after, 0.5)) is noticed
    assert not happened(out=None)


def test_faults_that_a_healthy_cluster_survives_need_not_be_noticed() -> None:
    for name in ("none", "slow-disk", "restart", "partition-one-way", "full-disk", "switchover", "dcs-loss"):
        assert happened(fault=name), name
        assert not happened(QUIET, False, fault=name), name
    assert {name for name in CATALOGUE if happened(fault=name)} == {
        "none", "slow-disk", "cpu-stress", "link-delay", "restart", "partition-one-way", "full-disk", "switchover",
        "dcs-loss", "crash-restart", "partition-wal", "partition-acks", "pause-replay", "hang-postmaster",
        "hang-manager", "hang-rest",
    }  # fmt: skip


@each([(10, True), (9, False)])
def test_ten_commits_before_the_fault_are_enough_to_judge(before: int, enough: bool) -> None:
    tries = attempts()
    fault_at = float(tries.ended[before - 1])
    whole = history(replace(QUIET, fault_at=fault_at))
    alive = next(a for a in checked(whole, Findings(), SMOOTH, []) if a.name == "writers alive")
    assert alive.holds is enough
    assert alive.failure == f"the writers had only {before} commits acknowledged before the fault"
    refused = replace(whole, attempts=replace(tries, outcome=np.zeros(len(tries), np.int8)))
    assert not next(a for a in checked(refused, Findings(), SMOOTH, []) if a.name == "writers alive").holds


def failing(drill: DrillRun, *members: str) -> dict[str, str]:
    """The assumptions that fail for a kill that was seen, and why; `members` were read."""
    read = tuple(MemberReading(name, np.ones(940, bool)) for name in members)
    whole = replace(history(drill), readings=read)
    shown = [Sign(Capability.KILL, "n1", True, "")]
    return {a.name: a.failure for a in checked(whole, Findings(), SMOOTH, shown) if not a.holds}


def test_every_member_must_be_read_and_the_leader_above_all() -> None:
    assert failing(QUIET, *NAMES) == {}
    assert failing(QUIET, "n1") == {"every member read": "n2, n3 could not be read afterwards"}
    assert failing(replace(QUIET, after=None), *NAMES) == {
        "every member read": "not every member could not be read afterwards"
    }
    assert set(failing(QUIET)) == {"leader read", "every member read"}


def test_members_of_one_cluster_are_no_strangers_and_silence_proves_nothing() -> None:
    for systems, fine in ((("1", "1", "1"), True), (("1", "2", "1"), False), (("1", "", ""), True)):
        states = tuple(state(name, system=system) for name, system in zip(NAMES, systems, strict=True))
        assert ("same cluster" not in failing(replace(QUIET, states=states), *NAMES)) is fine


def counted(member: str, failures: int | None, reset: str = "sunday", *, answers: bool = True) -> MemberState:
    return MemberState(member, 0.0, answers=answers, stats_reset=reset, checksum_failures=failures)


def test_damage_is_what_failed_since_the_member_was_first_asked() -> None:
    assert new_damage([counted("n1", 4), counted("n1", 4), counted("n1", 7)], {}) == [
        "3 pages of n1 failed their checksum"
    ]
    assert new_damage([counted("n1", 4), counted("n2", 9)], {}) == []
    assert new_damage([counted("n1", 0), counted("n1", None), counted("n1", 5, answers=False)], {}) == []
    assert new_damage([counted("n1", 5), counted("n1", 2, "monday")], {}) == ["2 pages of n1 failed their checksum"]
    assert new_damage([counted("n1", 2), counted("n1", 5, "monday")], {}) == ["5 pages of n1 failed their checksum"]
    assert new_damage([counted("n1", 5), counted("n1", 1)], {}) == ["1 page of n1 failed their checksum"]
    assert new_damage([], {"data of n2": "a torn page", "n3 unread": "no answer"}) == ["data of n2: a torn page"]
