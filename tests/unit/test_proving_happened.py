"""Whether a fault did what it claims: each sign with the state that shows it and the one that does not."""

from dataclasses import replace

from tests.fixtures.tiers import each
from walproof.model.drill import Capability, Victim
from walproof.model.guarantee import Loss
from walproof.model.topology import ClusterView, MemberState, MemberView, Role
from walproof.proving.fault_happened import (
    crashed,
    fault_signs,
    loss_in_fact,
    restarted,
    sign,
    signs_of,
)
from walproof.proving.faults import CATALOGUE
from walproof.proving.history import DrillRun

NAMES = ("n1", "n2", "n3")
FAULT_AT, CLEARED_AT = 100.0, 120.0


def state(member: str = "n1", at: float = 90.0, **more: object) -> MemberState:
    """A member that is well, as a machine that can be asked shows it."""
    fine = MemberState(
        member, at, answers=True, started="monday", stats_reset="sunday", postmaster="7", processes="running",
        disk="sound", dcs="running",
    )  # fmt: skip
    return replace(fine, **more)  # type: ignore[arg-type]


def silent(member: str = "n1", at: float = 110.0, **more: object) -> MemberState:
    """A member whose PostgreSQL does not answer."""
    return state(member, at, answers=False, started="", stats_reset="", **more)


def view(leader: str | None = "n1", timeline: int | None = 1) -> ClusterView:
    members = tuple(MemberView(n, Role.LEADER if n == leader else Role.STANDBY, "running", timeline) for n in NAMES)
    return ClusterView(90.0, members, leader)


def run(*states: MemberState, after: ClusterView | None = None) -> DrillRun:
    """A drill on the leader n1, every member well before."""
    before = tuple(state(name) for name in NAMES)
    return DrillRun(
        ("n1",), view(), FAULT_AT, CLEARED_AT, 130.0, states=(*before, *states), after=after or view("n2", 2)
    )


def seen(operation: Capability, *states: MemberState, after: ClusterView | None = None) -> bool | None:
    drill = run(*states, after=after)
    return sign(operation, "n1", signs_of(drill), drill).seen


PARTS = ("postmaster", "manager", "rest")
BACK = state(at=125.0, postmaster="8", started="tuesday", stats_reset="tuesday")
ORDERLY = state(at=125.0, postmaster="8", started="tuesday")
UNCHANGED = (state(at=110.0), state(at=125.0))


@each(
    [
        (Capability.KILL, (silent(postmaster="none"), BACK), UNCHANGED),
        (Capability.KILL, (BACK,), (ORDERLY,)),
        (Capability.STOP, (ORDERLY,), UNCHANGED),
        (Capability.RESTART, (ORDERLY,), UNCHANGED),
        (
            Capability.KILL_MEMBER,
            (silent(postmaster="none", processes="none"), BACK),
            (silent(postmaster="none"), BACK),
        ),
        (Capability.FREEZE, (silent(processes="frozen"),), (silent(),)),
        (Capability.HANG_POSTMASTER, (silent(hangs=("postmaster",)),), (silent(hangs=PARTS),)),
        (Capability.HANG_POSTMASTER, (silent(hangs=("postmaster",)),), (silent(hangs=()),)),
        (Capability.HANG_MANAGER, (state(at=110.0, hangs=("manager",)),), (silent(hangs=PARTS, processes="frozen"),)),
        (Capability.HANG_MANAGER, (state(at=110.0, hangs=("manager",)),), (state(at=110.0, hangs=("rest",)),)),
        (Capability.HANG_REST, (state(at=110.0, hangs=("rest",)),), (state(at=110.0, hangs=("manager",)),)),
        (Capability.HANG_REST, (state(at=110.0, hangs=("rest",)),), (state(at=110.0, hangs=()), BACK)),
        (Capability.POWER_CUT, (silent(disk="dead", processes="none"),), (silent(disk="dead"),)),
        (Capability.POWER_CUT, (silent(disk="dead", processes="none"),), (silent(processes="none"), BACK)),
        (Capability.PARTITION, (state(at=110.0, deaf_to=("n2", "n3")),), (state(at=110.0, deaf_to=("n2",)),)),
        (Capability.ISOLATE, (silent(deaf_to=("clients", "n2", "n3")),), (silent(deaf_to=("n2", "n3")),)),
        (
            Capability.PARTITION_ONE_WAY,
            (state("n2", 110.0, deaf_to=("n1",)), state("n3", 110.0, deaf_to=("n1",))),
            (state("n2", 110.0, deaf_to=("n1",)), state("n3", 110.0)),
        ),
        (Capability.CRASH_RESTART, (silent(), state(at=125.0, stats_reset="tuesday")), UNCHANGED),
        (Capability.CRASH_RESTART, (state(at=125.0, stats_reset="tuesday"), BACK), (ORDERLY,)),
        (
            Capability.PARTITION_WAL,
            (state(at=110.0, deaf_to=("n2", "n3")), state("n2", 110.0)),
            (state(at=110.0, deaf_to=("n2",)), state("n2", 110.0)),
        ),
        (
            Capability.PARTITION_ACKS,
            (state(at=110.0, deaf_to=("n2", "n3")), state("n3", 110.0, deaf_to=("n2",))),
            (
                state(at=110.0, deaf_to=("n2", "n3")),
                state("n2", 110.0, deaf_to=("n1",)),
                state("n3", 110.0, deaf_to=("n1",)),
            ),
        ),
        (
            Capability.PAUSE_REPLAY,
            (state(at=110.0, replay_paused=False), state(at=112.0, replay_paused=True)),
            (state(at=110.0, replay_paused=False), state(at=125.0, replay_paused=True)),
        ),
        (Capability.SLOW_DISK, (state(at=110.0, disk="slow"),), UNCHANGED),
        (Capability.FULL_DISK, (state(at=110.0, disk="full"),), (state(at=110.0, disk="slow"),)),
        (Capability.FAILING_DISK, (state(at=110.0, disk="failing"),), UNCHANGED),
        (Capability.FAILING_DISK, (silent(postmaster="none"),), UNCHANGED),
        (
            Capability.DCS_LOSS,
            (state(at=110.0, dcs="frozen"), state("n2", 110.0, dcs="none"), state("n3", 110.0)),
            (state(at=110.0, dcs="frozen"), state("n2", 110.0), state("n3", 110.0)),
        ),
    ]
)
def test_a_fault_shows_by_its_own_sign_alone(
    operation: Capability, shows: tuple[MemberState, ...], does_not: tuple[MemberState, ...]
) -> None:
    assert seen(operation, *shows) is True
    assert seen(operation, *does_not) is False


@each([Capability.FREEZE, Capability.POWER_CUT, Capability.PARTITION, Capability.SLOW_DISK, Capability.DCS_LOSS])
def test_a_sign_after_the_fault_was_cleared_is_too_late(operation: Capability) -> None:
    late = [
        state(name, 125.0, processes="frozen", disk="slow", dcs="frozen", deaf_to=NAMES, answers=False)
        for name in NAMES
    ]
    assert seen(operation, *(state(name, 110.0) for name in NAMES), *late) is False


def bare(member: str = "n1", at: float = 90.0, **more: object) -> MemberState:
    """A member of which PostgreSQL alone can be asked."""
    return state(member, at, postmaster="", processes="", disk="", dcs="", **more)


def by_sql(operation: Capability, *states: MemberState) -> bool | None:
    drill = replace(run(), states=(*(bare(name) for name in NAMES), *states))
    return sign(operation, "n1", signs_of(drill), drill).seen


def test_a_lost_dcs_says_on_how_many_members_it_ran() -> None:
    states = (state(at=110.0, dcs="frozen"), state("n2", 110.0, dcs="none"), state("n3", 110.0))
    drill = run(*states)
    assert sign(Capability.DCS_LOSS, "", signs_of(drill), drill).what == "the DCS ran on 1 of 3 members"
    drill = run(*states[1:])
    found = sign(Capability.DCS_LOSS, "", signs_of(drill), drill)
    assert (found.seen, found.what) == (False, "the DCS ran on 1 of 2 members")


def test_where_no_machine_can_be_asked_postgres_tells_what_it_can() -> None:
    gone = MemberState("n1", 110.0)
    back = bare(at=125.0, started="tuesday", stats_reset="tuesday")
    assert by_sql(Capability.KILL, gone, back) is True
    assert by_sql(Capability.KILL, gone) is True
    assert by_sql(Capability.KILL, bare(at=110.0)) is False
    assert by_sql(Capability.STOP, gone) is True
    assert by_sql(Capability.POWER_CUT, gone, back) is True
    assert by_sql(Capability.FREEZE, gone) is True
    assert by_sql(Capability.FREEZE, bare(at=110.0)) is False
    assert by_sql(Capability.FREEZE) is None
    assert by_sql(Capability.ISOLATE, gone) is True
    assert by_sql(Capability.ISOLATE, bare(at=110.0)) is False
    assert by_sql(Capability.PARTITION, bare(at=110.0)) is None
    assert by_sql(Capability.PARTITION_ONE_WAY, bare(at=110.0)) is None
    assert by_sql(Capability.PARTITION_WAL, bare(at=110.0)) is None
    assert by_sql(Capability.PAUSE_REPLAY, bare(at=110.0)) is None
    assert by_sql(Capability.PAUSE_REPLAY, bare(at=110.0, replay_paused=True)) is True
    assert by_sql(Capability.CRASH_RESTART, gone) is None
    assert by_sql(Capability.CRASH_RESTART, gone, bare(at=125.0, stats_reset="tuesday")) is True
    assert by_sql(Capability.SLOW_DISK, bare(at=110.0)) is None
    assert by_sql(Capability.DCS_LOSS, bare(at=110.0)) is None


def test_without_any_state_nothing_is_known() -> None:
    drill = replace(run(), states=())
    signs = signs_of(drill)
    assert (restarted(signs, "n1"), crashed(signs, "n1")) == (None, None)
    assert sign(Capability.KILL, "n1", signs, drill).seen is None
    assert fault_signs(CATALOGUE["none"], drill) == ()


def test_a_restart_is_orderly_when_the_statistics_stay() -> None:
    assert crashed(signs_of(run(BACK)), "n1") is True
    assert crashed(signs_of(run(ORDERLY)), "n1") is False
    assert crashed(signs_of(run(state(at=125.0))), "n1") is False
    # Restarted in an orderly way first, then crashed.
    assert crashed(signs_of(run(replace(ORDERLY, at=123.0), BACK)), "n1") is True
    assert restarted(signs_of(run(ORDERLY)), "n1") is True


def test_an_orderly_restart_before_or_after_a_crash_hides_it_not() -> None:
    assert crashed(signs_of(run(ORDERLY, replace(BACK, at=127.0, started="wednesday"))), "n1") is True
    again = replace(BACK, at=127.0, started="wednesday")
    assert crashed(signs_of(run(BACK, again)), "n1") is True
    unknown = [state(stats_reset=""), replace(ORDERLY, stats_reset="")]
    assert crashed(signs_of(replace(run(), states=tuple(unknown))), "n1") is True


def test_every_step_on_every_member_has_a_sign() -> None:
    drill = replace(run(*(silent(n, postmaster="none") for n in NAMES)), victims=NAMES)
    found = fault_signs(CATALOGUE["kill-all"], drill)
    assert [(one.member, one.seen) for one in found] == [("n1", True), ("n2", True), ("n3", True)]
    double = fault_signs(CATALOGUE["double-power"], drill)
    assert [str(one.operation) for one in double] == ["slow-disk"] * 2 + ["power-cut"] * 3
    assert [one.member for one in double] == ["n2", "n3", "n2", "n3", "n1"]


def test_a_switchover_shows_by_who_leads() -> None:
    assert seen(Capability.SWITCHOVER) is True
    assert seen(Capability.SWITCHOVER, after=view("n1", 1)) is False
    assert seen(Capability.SWITCHOVER, after=view("n2", 1)) is False


def test_the_sign_of_a_switchover_says_who_leads() -> None:
    for after, what in (
        (view("n2", 2), "n2 leads now"),
        (view("n1", 1), "n1 still leads"),
        (view("n2", 1), "n2 is reported as the leader, on the old timeline"),
    ):
        drill = run(after=after)
        assert sign(Capability.SWITCHOVER, "n1", signs_of(drill), drill).what == what


def test_a_takeover_needs_another_member_and_a_higher_timeline() -> None:
    assert run().taken_over is True
    assert run(after=view("n1", 2)).taken_over is False
    assert run(after=view("n2", 1)).taken_over is False
    assert run(after=view("n2", None)).taken_over is True
    assert run(after=view(None)).taken_over is None
    assert run(after=view("n2", 1)).same_timeline
    assert not run().same_timeline
    assert not run(after=view("n1", 1)).same_timeline
    assert not run(after=view(None)).same_timeline


SAME = view("n1", 1)


@each([
    ("kill", run(BACK), Loss.LEADER_GONE),
    ("kill", run(BACK, after=SAME), Loss.POSTGRES_CRASH),
    ("kill", replace(run(after=SAME), states=()), Loss.POSTGRES_CRASH),
    ("kill", run(state(at=125.0), after=SAME), None),
    ("power-cut", run(BACK, after=SAME), Loss.POWER_CUT),
    ("power-cut", run(BACK), Loss.LEADER_GONE),
    ("freeze", run(state(at=125.0), after=SAME), None),
    ("freeze", replace(run(after=SAME), states=()), None),
    ("freeze", run(BACK, after=SAME), Loss.POSTGRES_CRASH),
    ("kill-all", run(BACK, after=SAME), Loss.POSTGRES_CRASH),
    ("kill-all", run(BACK), Loss.LEADER_AND_STANDBY_POSTGRES),
    ("double-kill", run(BACK), Loss.LEADER_AND_STANDBY_POSTGRES),
    ("double-power", run(BACK), Loss.LEADER_AND_STANDBY_POWER),
    ("double-power", run(BACK, after=SAME), Loss.POWER_CUT),
    ("stop", run(ORDERLY), None),
    ("switchover", run(), None),
])  # fmt: skip
def test_what_was_gone_in_fact(fault: str, drill: DrillRun, loss: Loss | None) -> None:
    entry = CATALOGUE[fault]
    assert loss_in_fact(entry, entry.victims[0], drill) is loss


@each([
    (run(), Loss.LEADER_GONE),
    (run(BACK, after=SAME), Loss.POSTGRES_CRASH),
    (run(ORDERLY, after=SAME), None),
    (run(*UNCHANGED, after=SAME), None),
    (replace(run(after=SAME), states=()), None),
])  # fmt: skip
def test_a_leader_that_went_although_no_fault_was_meant_for_it_is_gone_all_the_same(
    drill: DrillRun, loss: Loss | None
) -> None:
    for fault, victim in (("kill", Victim.STANDBY), ("freeze", Victim.SYNC_STANDBY), ("none", Victim.CLUSTER)):
        assert loss_in_fact(CATALOGUE[fault], victim, drill) is loss


def test_what_was_prepared_shows_before_the_fault_and_not_after_it() -> None:
    off = tuple(silent(name, 110.0, disk="dead", processes="none") for name in NAMES)
    slow = tuple(state(name, 95.0, disk="slow") for name in ("n2", "n3"))
    signs = fault_signs(CATALOGUE["double-power"], run(*slow, *off))
    assert [sign.seen for sign in signs] == [True] * 5
    unprepared = fault_signs(CATALOGUE["double-power"], run(*off))
    assert [(s.operation, s.seen) for s in unprepared[:2]] == [(Capability.SLOW_DISK, False)] * 2


def test_a_takeover_means_that_the_leader_was_gone_whatever_else_did_not_happen() -> None:
    double = CATALOGUE["double-power"]
    assert loss_in_fact(double, Victim.CLUSTER, run(), happened=False) is Loss.LEADER_GONE
    assert loss_in_fact(double, Victim.CLUSTER, run(after=view("n1", 1)), happened=False) is None
