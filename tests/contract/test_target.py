"""What every target must be able to do, asked of each: the simulated one always, real clusters where they can be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.drills import shell
from tests.fixtures.external_cluster import WANTED, lab_file, needs_consent, opened, pair_file
from tests.fixtures.kubernetes.target import real_stand_in, target_of
from tests.fixtures.plain_pair import debian_pair, older_pair, older_versions, synchronous
from walproof.errors import TargetError
from walproof.model.drill import Capability, Verdict, Victim
from walproof.model.event import DrillDone, DrillStarted, Event, FaultChanged
from walproof.model.guarantee import ConfigChange, Level
from walproof.model.load import LedgerOrder, Outcome
from walproof.model.ports import Ledger, Target
from walproof.model.sample import Arm, Sample, Scenario, Workload
from walproof.model.topology import Role
from walproof.model.waiting import Wait, wait_for
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.lost_commits import compared, judged, lost_rows
from walproof.proving.run import run_drills
from walproof.records.journal import Journal
from walproof.targets.lab.target import LabTarget
from walproof.targets.simulated.target import simulated

DRILLS = iter(range(1, 10_000))


OLDER = {f"postgres {major}": major for major in older_versions()}
KUBERNETES = ("kubernetes",) if WANTED else ()
REAL = [
    pytest.param(
        name, marks=[pytest.mark.lab] if name in ("lab", "postgres") else [pytest.mark.lab, pytest.mark.nightly]
    )
    for name in ("lab", "patroni", "cnpg", "postgres", *OLDER, *KUBERNETES)
]


@pytest.fixture(scope="module", params=["sim", *REAL])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Each target in turn; the lab is created once, and is then an external Patroni cluster by its REST address."""
    if request.param == "sim":
        yield simulated("sim?slowness=3")
    elif request.param == "lab":
        yield LabTarget(request.getfixturevalue("lab"))
    elif request.param == "patroni":
        with opened(
            str(lab_file(request.getfixturevalue("lab"), tmp_path_factory.mktemp("own"), kills=True))
        ) as external:
            yield external
    elif request.param == "kubernetes":
        with opened(f"cnpg:{WANTED}") as external:
            yield external
    elif request.param == "cnpg":
        with real_stand_in(tmp_path_factory.mktemp("api"), speed=10) as (running, _), target_of(running) as external:
            yield external
    else:
        major = OLDER.get(request.param)
        with older_pair(major) if major else debian_pair() as pair:
            synchronous(pair, "n2")
            with opened(str(pair_file(pair, tmp_path_factory.mktemp("own"), named=True))) as external:
                yield external


@pytest.mark.lab
@pytest.mark.parametrize("major", OLDER.values())
def test_the_server_is_of_the_version_asked_for(major: str) -> None:
    with older_pair(major) as pair:
        assert str(pair.sql("n1", "SHOW server_version")[0][0]).split(".")[0] == major


def test_it_describes_itself_and_its_members(target: Target) -> None:
    described = target.describe()
    assert described.target
    assert len(described.members) >= 1


def test_one_observation_shows_every_member_and_one_leader(target: Target) -> None:
    view = target.observe()
    assert {m.name for m in view.members} == set(target.describe().members)
    poller = target.poller()
    try:
        wait_for(Wait.PROGRAM_READY, lambda: poller.snapshot().view.leader == view.leader, target.clock)
    finally:
        poller.close()


def test_its_routes_have_names_and_say_whether_they_pool(target: Target) -> None:
    routes = target.routes()
    assert len({route.name for route in routes}) == len(routes) > 0
    assert any(route.follows for route in routes)
    assert not all(route.pools for route in routes)


def test_a_price_sample_comes_with_what_the_server_did_meanwhile(target: Target, tmp_path: Path) -> None:
    needs_consent("load")
    pricing = target.capabilities().pricing
    assert pricing is not None
    target.journal = Journal(tmp_path / "journal.jsonl")
    arm = Arm(Level.LOCAL, 2, Workload(scale=1))
    pricing.prepare(arm.workload)
    try:
        results = [pricing.run_sample(Sample(1, n, arm, Scenario()), 1.0, n) for n in range(2)]
        assert pricing.checkpoints().apart_s > 0
    finally:
        pricing.leave()
    assert all(r.transactions > 0 and 0 <= r.stalled_s <= r.seconds for r in results)
    if target.name.startswith("sim"):
        return
    for window in (r.window for r in results):
        assert window.leader == target.observe().leader
        assert (window.members[window.leader].wal_bytes or 0) > 0
        assert (window.members[window.leader].wal_full_pages or 0) >= 0
        assert window.settled_s is not None
        assert window.settled_s < 1


def test_a_configuration_is_planned_applied_awaited_and_undone(target: Target, tmp_path: Path) -> None:
    needs_consent("config")
    configuration = target.capabilities().configuration
    assert configuration is not None
    journal = Journal(tmp_path / "journal.jsonl")
    change = ConfigChange({"work_mem": "5MB"})
    plan, outdated = configuration.plan(change), configuration.plan(ConfigChange({"work_mem": "6MB"}))
    assert any(d.name.endswith("work_mem") for d in plan.differences)
    configuration.apply(plan, journal)
    configuration.wait(plan)
    try:
        assert configuration.plan(change).differences == ()
        with pytest.raises(TargetError, match="meanwhile"):
            configuration.apply(outdated, journal)
    finally:
        assert configuration.undo(journal) == []
    assert configuration.plan(change).differences == plan.differences
    assert not journal.pending()


def test_one_leader_is_shown(target: Target) -> None:
    view = target.observe()
    assert view.healthy
    leading = [m.name for m in view.members if m.role is Role.LEADER]
    assert leading == [view.leader]


def test_a_capability_is_there_or_has_a_reason(target: Target) -> None:
    for capability in Capability:
        reason = target.capabilities().why_not(capability)
        assert reason is None or reason.strip()


def ledger_of(target: Target) -> Ledger:
    ledger = target.capabilities().ledger
    assert ledger is not None
    return ledger


def test_what_the_ledger_acknowledged_is_on_every_member(target: Target) -> None:
    needs_consent("load")
    ledger = ledger_of(target)
    drill = next(DRILLS)
    run = ledger.open_ledger(LedgerOrder(Level.ON, writers=4, drill=drill))
    try:
        wait_for(Wait.WRITERS_UP, lambda: run.progress().acknowledged >= 40, target.clock)
    finally:
        attempts = run.stop()
    assert run.stop() is not None
    assert run.witnessed() is not None
    names = {attempts.standby_names[i] for i in attempts.names[attempts.outcome == Outcome.ACKNOWLEDGED]}
    assert all(name.strip() for name in names)
    leader = target.observe().leader
    assert leader is not None
    readings = [compared(attempts, ledger.read_ledger(leader, drill))]
    found = judged(attempts, readings, lost_rows(attempts, readings))
    assert found.acknowledged >= 40
    assert (found.lost, found.phantom, found.duplicate, found.corrupted) == (0, 0, 0, 0)
    for member in target.describe().members:

        def all_there(member: str = member) -> bool:
            return not lost_rows(attempts, [compared(attempts, ledger.read_ledger(member, drill))]).any()

        wait_for(Wait.STANDBYS_STREAMING, all_there, target.clock)
        assert ledger.check_data(member) == ""


def test_a_killed_leader_loses_nothing_at_on_and_the_cluster_recovers(target: Target) -> None:
    if reason := target.capabilities().why_not(Capability.KILL):
        pytest.skip(reason)
    needs_consent("load", "kill")
    events: list[Event] = []
    planned = PlannedDrill(next(DRILLS), CATALOGUE["kill"], Victim.LEADER, Level.ON, "multi-host", writers=8)
    target.clock.patience *= 3
    (drill,) = run_drills(shell(target, events.append), [planned], enough=lambda drills: False)
    # A machine too busy to keep its standbys named makes it undecided; it must never lose, be skipped or not recover.
    assert drill.verdict in (Verdict.HELD, Verdict.UNDECIDED), f"{drill.why} {drill.assumptions} {drill.evidence}"
    assert drill.findings.acknowledged > 100, f"{drill.why} {drill.assumptions}"
    assert drill.findings.lost == 0
    assert drill.assumptions["cluster recovered"], drill.why
    assert drill.rto_s is not None
    assert drill.leader_before is not None
    assert drill.victims == (drill.leader_before,)
    assert target.observe().healthy
    assert sum(isinstance(e, DrillStarted) for e in events) == 1
    assert [e.cleared for e in events if isinstance(e, FaultChanged)] == [False, True]
    assert sum(isinstance(e, DrillDone) for e in events) == 1


def test_recovery_of_a_healthy_cluster_changes_nothing(target: Target) -> None:
    recovery = target.capabilities().recovery
    assert recovery is not None
    recovery.recover()
    recovery.recover()
    assert target.observe().healthy


def test_the_log_of_every_member_can_be_kept(target: Target) -> None:
    logs = target.capabilities().logs
    assert logs is not None
    assert all(logs.logs(member).strip() for member in target.describe().members)
