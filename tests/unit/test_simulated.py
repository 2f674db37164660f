"""The simulated cluster: every lie is caught, and an honest one never raises a false alarm."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures import drills
from tests.fixtures.tiers import each, many
from walproof.errors import TargetError, UsageError
from walproof.model.drill import Capability, Drill, Verdict, Victim
from walproof.model.event import DrillDone, Event, FaultChanged, Observed
from walproof.model.guarantee import Level, Loss
from walproof.model.load import Rows
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.return_order import orders
from walproof.proving.run import run_drills
from walproof.proving.verdict import violations
from walproof.targets.simulated.known_lies import LIES, ODDITIES
from walproof.targets.simulated.ledger_rows_and_member_states import SimulatedLedgers
from walproof.targets.simulated.target import simulated


def drilled(
    where: str, fault: str = "kill", level: Level = Level.ON, *, victim: Victim | None = None, writers: int = 8
) -> tuple[Drill, list[Event]]:
    """One drill on a simulated cluster, and what it emitted."""
    events: list[Event] = []
    entry = CATALOGUE[fault]
    planned = PlannedDrill(1, entry, victim or entry.victims[0], level, "multi-host", writers)
    shell = drills.shell(simulated(where), events.append, seed=7)
    return run_drills(shell, [planned], enough=lambda _: False)[0], events


KUBERNETES = {Capability.KILL_CONTAINER, Capability.LINK_DELAY, Capability.CPU_STRESS, Capability.LIMIT_MEMORY}
"""What only CloudNativePG has."""
FAULTS = [name for name, fault in CATALOGUE.items() if not {step.operation for step in fault.steps} & KUBERNETES]


@each(sorted(set(Capability) - {Capability.INSPECT, Capability.OBSERVE, Capability.WORKLOAD, *KUBERNETES}))
def test_it_has_every_capability(capability: Capability) -> None:
    assert simulated("sim").capabilities().why_not(capability) is None


@each(["sim?lie=white", "sim?colour=red", "sim?members=9", "sim?seed=x"])
def test_what_it_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        simulated(text)


def test_a_leader_announced_too_early_does_not_shorten_the_outage() -> None:
    drill, _ = drilled("sim?odd=late&slowness=3")
    assert drill.rto_s is not None
    assert drill.rto_s > 45
    assert "late" in drill.evidence


@each([(3, Verdict.HELD), (10_000, Verdict.UNDECIDED)])
def test_a_member_that_does_not_answer_yet_is_asked_again_and_one_that_never_does_decides_nothing(
    refusals: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, refused = SimulatedLedgers.read_ledger, iter(range(refusals))

    def late(ledgers: SimulatedLedgers, member: str, drill: int) -> Rows:
        if member == "n1" and next(refused, None) is not None:
            raise TargetError("n1 does not answer")
        return read(ledgers, member, drill)

    monkeypatch.setattr(SimulatedLedgers, "read_ledger", late)
    drill, _ = drilled("sim?slowness=3&sync=strict")
    assert drill.verdict is verdict, drill.why


def test_a_drill_goes_on_until_service_lasts() -> None:
    """The leader that is back with the DCS goes once more: RTO counts to the return that lasts."""
    drill, _ = drilled("sim?odd=twice&slowness=3", "dcs-loss")
    once, _ = drilled("sim?slowness=3", "dcs-loss")
    assert drill.rto_s is not None and once.rto_s is not None
    assert once.rto_s + 1.0 < drill.rto_s < once.rto_s + 2.5
    assert (drill.verdict, drill.assumptions["commits came back"]) == (Verdict.HELD, True)
    assert "commits came back after" in drill.why and "came back" not in once.why
    assert drill.writers_rto_s is not None and drill.writers_rto_s[2] < drill.rto_s + 1.0


NAMED = {
    "lost": "lost",
    "duplicate": "duplicate",
    "corrupted": "corrupted",
    "nowhere": "phantom",
    "downgraded": "lost",
    "two-leaders": "two_leaders_s",
    "names": "not_in_effect_s",
}
"""The finding that names a lie."""


@each(LIES)
def test_no_lie_is_called_held(name: str) -> None:
    lie = LIES[name]
    drill, _ = drilled(f"sim?lie={name}&slowness=3&{lie.sync}", lie.fault, lie.level)
    assert drill.verdict in (Verdict.BROKEN, Verdict.UNDECIDED), drill.why
    if name in NAMED:
        assert getattr(drill.findings, NAMED[name]) > 0
        assert (drill.verdict is Verdict.BROKEN) is (name != "names")
    assert name != "names" or drill.assumptions["level in effect"] is False


def test_there_are_enough_lies() -> None:
    assert len(LIES) >= 30
    assert all(CATALOGUE[lie.fault] and lie.what for lie in LIES.values())


@pytest.mark.parametrize("odd", ODDITIES)
@pytest.mark.parametrize("fault", ["kill", "power-cut", "partition", "restart"])
def test_an_odd_but_honest_cluster_is_held(odd: str, fault: str) -> None:
    drill, _ = drilled(f"sim?odd={odd}&slowness=3", fault)
    assert drill.verdict is Verdict.HELD, drill.why


def test_a_leader_restarted_in_place_is_judged_as_the_crash_it_was() -> None:
    drill, _ = drilled("sim?odd=in-place&slowness=3")
    assert (drill.verdict, drill.loss, drill.promised) == (Verdict.HELD, "postgres crash", True)
    assert "n1 leads again, no other member took over: judged as a crash of PostgreSQL" in drill.why
    lost, _ = drilled("sim?odd=in-place&slowness=2", "kill", Level.OFF, writers=16)
    assert lost.verdict is Verdict.EXPECTED_LOSS
    assert "does not promise to keep after a crash of PostgreSQL" in lost.why


def test_the_window_without_named_standbys_after_a_takeover_is_shown_with_its_length() -> None:
    drill, _ = drilled("sim?odd=unnamed&slowness=3")
    assert drill.verdict is Verdict.HELD
    assert 0 < drill.findings.unnamed_after_takeover_s < 0.7
    assert "before it named a standby" in drill.why
    assert drill.findings.not_in_effect_s == 0


@each(sorted(set(CATALOGUE) - set(FAULTS)))
def test_a_fault_that_it_does_not_know_is_skipped(fault: str) -> None:
    drill, _ = drilled("sim", fault)
    assert drill.verdict is Verdict.SKIPPED
    assert "cannot do it" in drill.why


@each(FAULTS)
def test_every_fault_ends_and_on_holds(fault: str) -> None:
    drill, events = drilled("sim?slowness=3", fault)
    assert drill.verdict is Verdict.HELD, drill.why
    assert all(drill.assumptions.values())
    assert any(isinstance(e, DrillDone) for e in events)
    if CATALOGUE[fault].steps:
        assert [e.cleared for e in events if isinstance(e, FaultChanged)] == [False, True]


@each([
    ("kill", Level.OFF),
    ("kill-all", Level.OFF),
    ("partition", Level.LOCAL),
    ("power-cut", Level.OFF),
    ("double-power", Level.REMOTE_WRITE),
])  # fmt: skip
def test_what_a_level_does_not_promise_is_lost(fault: str, level: Level) -> None:
    drill, _ = drilled("sim?slowness=2", fault, level, writers=16)
    assert drill.verdict is Verdict.EXPECTED_LOSS, drill.why
    assert drill.findings.lost > 0
    assert drill.promised is False


@pytest.mark.parametrize("fault", ["kill-member-all", "power-cut-all"])
@pytest.mark.parametrize("order", orders("all", ["n1", "n2", "n3"]))
def test_every_order_of_return_is_a_drill_of_its_own(fault: str, order: tuple[str, ...]) -> None:
    """The second member that is back gives the DCS its majority: who leads is the old leader where it is among them."""
    planned = PlannedDrill(1, CATALOGUE[fault], Victim.CLUSTER, Level.ON, "multi-host", 8, return_order=order)
    drill = drills.drilled(simulated("sim?slowness=3"), planned, seed=7)
    names = [{"leader": "n1", "standby-1": "n2", "standby-2": "n3"}[role] for role in order]
    assert drill.verdict is Verdict.HELD, drill.why
    assert f"came back in the order {', '.join(names)}; no RTO: every member is down" in drill.why
    assert [mark.member for mark in drill.marks if mark.what == "comes back"] == names
    assert (drill.leader_after == "n1") is (names[2] != "n1")
    power = fault == "power-cut-all"
    again = Loss.POWER_CUT if power else Loss.POSTGRES_CRASH
    other = Loss.LEADER_AND_STANDBY_POWER if power else Loss.LEADER_AND_STANDBY_POSTGRES
    assert drill.loss == (other if names[2] == "n1" else again)


def test_the_observations_show_the_change_of_leader() -> None:
    drill, events = drilled("sim?slowness=3")
    leaders = [e.view.leader for e in events if isinstance(e, Observed)]
    assert leaders[0] == "n1"
    assert None in leaders
    assert drill.leader_after not in (None, "n1")
    assert (drill.timeline_before, drill.timeline_after) == (1, 2)
    assert drill.recovery.detection_s is not None
    assert drill.recovery.promotion_s is not None


def test_the_same_seed_gives_the_same_drill() -> None:
    once, _ = drilled("sim?seed=5&slowness=3")
    again, _ = drilled("sim?seed=5&slowness=3")
    assert once == again
    assert drilled("sim?seed=6&slowness=3")[0] != once


def test_without_synchronous_names_on_is_undecided_not_held() -> None:
    drill, _ = drilled("sim?sync=off&slowness=3", "kill-all")
    assert drill.verdict is Verdict.UNDECIDED
    assert "meant local" in drill.why


def test_a_strict_cluster_without_standbys_stalls_and_keeps_everything() -> None:
    drill, _ = drilled("sim?sync=strict&slowness=3", "freeze", victim=Victim.ALL_STANDBYS)
    assert drill.verdict is Verdict.HELD, drill.why
    assert drill.findings.not_in_effect_s == 0
    assert drill.rto_s is not None
    assert drill.rto_s > 2


HONEST = st.tuples(
    st.integers(1, 10**6),
    st.sampled_from(sorted(FAULTS)),
    st.sampled_from(list(Level)),
    st.sampled_from(["quorum", "on", "strict"]),
    st.integers(2, 5),
    st.integers(0, 3),
    st.sampled_from(["0ms", "1ms", "10ms"]),
)


def test_commits_while_a_fault_is_still_being_injected_do_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine cutting a leader off took seconds; what it acknowledged meanwhile was taken for recovery."""
    where = simulated("sim?seed=1&slowness=15")
    able = where.capabilities()
    isolate = able.faults[Capability.ISOLATE]

    class Slow:
        def inject(self, member: str) -> None:
            where.clock.pause(2.0)
            isolate.inject(member)

        def undo(self, member: str) -> None:
            isolate.undo(member)

    monkeypatch.setattr(
        where, "capabilities", lambda: replace(able, faults={**able.faults, Capability.ISOLATE: Slow()})
    )
    planned = PlannedDrill(1, CATALOGUE["isolate"], Victim.LEADER, Level.ON, "multi-host", 4)
    drill = drills.drilled(where, planned, seed=7)
    assert drill.leader_after != drill.leader_before
    assert drill.rto_s is not None
    assert drill.rto_s > 10


@settings(max_examples=many(120, 400), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(HONEST)
def test_an_honest_cluster_raises_no_false_alarm(history: tuple[int, str, Level, str, int, int, str]) -> None:
    """What is reported is exactly what happened: lost only where the simulator itself lost it, and nothing else."""
    seed, fault, level, sync, members, which, rtt = history
    entry = CATALOGUE[fault]
    victim = entry.victims[which % len(entry.victims)]
    where = simulated(f"sim?seed={seed}&sync={sync}&members={members}&rtt={rtt}&slowness=25")
    planned = PlannedDrill(1, entry, victim, level, "multi-host", 4)
    drill = drills.drilled(where, planned, seed=seed)
    truth = where.ledger.truly_lost(1)
    assert drill.findings.lost == truth, drill.why
    assert violations(replace(drill.findings, lost=0)) == []
    assert drill.findings.dirty_reads == 0
    if drill.promised and drill.findings.not_in_effect_s == 0:
        assert truth == 0, drill.why
    if truth == 0:
        assert drill.verdict in (Verdict.HELD, Verdict.UNDECIDED), drill.why
    if not level.remote and truth == 0:
        assert drill.verdict is Verdict.HELD, drill.why
