"""The simulation agrees with the exact chain and brute force; what must be monotone is, with equal random numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.forecasts import ANY_1, failure, failures, model
from tests.fixtures.markov import Chain, exact
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.forecasting.episodes import Faults, changes
from walproof.forecasting.failover_rules import PerFault, rules_of
from walproof.forecasting.failure_rates import YEAR_S, Data, Failures, Place, failures_of
from walproof.forecasting.importance_sampling import sample
from walproof.forecasting.outages_from_drills import Measured, Model
from walproof.forecasting.simulate import Outcome, Risk, follow, simulate
from walproof.forecasting.topology import Cause, Configuration, topology
from walproof.model.guarantee import Level, QuorumKind

ANY_2 = Configuration(Level.ON, QuorumKind.ANY, 2)
FIRST_1 = Configuration(Level.ON, QuorumKind.FIRST, 1)
DEGRADING = replace(ANY_1, strict=False)


def _lacking(risks: np.ndarray) -> float:
    return float(risks[Risk.NEAR].sum() + risks[Risk.STALE].sum())


def _kept_and_lost(kept: float, lost: float) -> Failures:
    return failures(failure("kept", kept), failure("disk", lost, data=Data.LOST))


@each([ANY_1, DEGRADING, ANY_2, FIRST_1], push=2)
def test_the_simulation_agrees_with_the_exact_chain(what: Configuration) -> None:
    """But for FIRST 1 in half a percent of takeovers: which of two that have everything leads is drawn, in the chain it
    is the one that is written first.
    """
    kept, lost = 40.0, 20.0
    truth = exact(Chain(3, kept, lost, 20_000.0, most=4), what)
    batches = simulate(model(what, _kept_and_lost(kept, lost)), 4_000, 3, vary=False, batches=40)
    shares = np.array([b.years_s.mean() / YEAR_S for b in batches])
    error = shares.std(ddof=1) / len(shares) ** 0.5
    assert abs(shares.mean() - truth.unavailable) < 4 * error
    takeovers, lacking = [b.risks[Risk.TAKEOVER].sum() for b in batches], [_lacking(b.risks) for b in batches]
    tie = 0.005 * truth.takeovers * (what is FIRST_1)
    for found, exactly, tolerance in ((takeovers, truth.takeovers, tie), (lacking, truth.lacking, 0.0)):
        assert abs(np.mean(found) - exactly) < 4 * np.std(found, ddof=1) / len(found) ** 0.5 + tolerance


@each([ANY_1, ANY_2, DEGRADING])
def test_importance_sampling_finds_what_a_billion_years_would_not_show(what: Configuration) -> None:
    lost = 0.05 if what is ANY_2 else 0.01  # less would be lost in the rounding of the chain's solution
    truth = exact(Chain(3, 0.05, lost, 20_000.0), what)
    assert truth.lacking < 1e-9
    rare = sample(model(what, _kept_and_lost(0.05, lost)), 1, batches=30, vary=False)
    found = np.array([_lacking(risks) for risks in rare.risks])
    assert abs(found.mean() - truth.lacking) < 4 * found.std(ddof=1) / len(found) ** 0.5
    assert found.mean() == pytest.approx(truth.lacking, rel=0.5)


# rows: three zones, two regions, five members, FIRST 2
@each([
    (ANY_2, "z1,z2,z3", ""),
    (ANY_2, "r1/z1,r1/z2,r2/z3", "r3/z4,r3/z5"),
    (ANY_2, "z1,z1,z2,z2,z3", ""),
    (replace(ANY_2, quorum_kind=QuorumKind.FIRST), "z1,z2,z3", ""),
], push=1)  # fmt: skip
def test_every_batch_of_importance_sampling_holds_losses(what: Configuration, layout: str, witnesses: str) -> None:
    """Of three disks lost at once, which happens once in a hundred billion years: else few batches make the mean."""
    kinds = failures_of()
    here = Model(topology(layout, witnesses), what, kinds, Measured({}, {}, {}))
    found = np.array([_lacking(risks) for risks in sample(here, 1, batches=12, vary=False).risks])
    assert (found > 0).all()


@each([(ANY_1, 3.15e-9), (ANY_2, 1.53e-11), (replace(ANY_2, level=Level.REMOTE_WRITE), 5.65e-7)])
def test_few_episodes_find_the_paths_that_carry_the_weight(what: Configuration, a_year: float) -> None:
    """As runs thirty times as long say. Half of what ANY 1 loses is a second failure within the seconds of a takeover:
    drawn at any time of hours, it was in one of a thousand episodes, and then outweighed all others tenfold.
    """
    here = Model(topology("z1,z2,z3"), what, failures_of(), Measured({}, {}, {}))
    risks = sample(here, 1, batches=4, cycles=5_000, vary=False).risks
    assert risks[:, Risk.UNFLUSHED :].sum() / len(risks) == pytest.approx(a_year, rel=0.4)


def test_importance_sampling_agrees_with_brute_force_when_failures_are_frequent_and_shared() -> None:
    kinds = failures(failure("disk", 8.0, data=Data.LOST), failure("zone", 6.0, place=Place.ZONE), force_s=3600.0)
    here = model(ANY_1, kinds, "z1,z1,z2")
    brute = np.array([b.risks.sum(axis=1) for b in simulate(here, 20_000, 5, vary=False, batches=40)])
    rare = sample(here, 5, batches=40, vary=False).risks.sum(axis=2)
    for risk in (Risk.TAKEOVER, Risk.NEAR, Risk.STALE):
        error = np.hypot(brute[:, risk].std() / len(brute) ** 0.5, rare[:, risk].std() / len(rare) ** 0.5)
        assert abs(brute[:, risk].mean() - rare[:, risk].mean()) < 4 * error
        assert rare[:, risk].mean() > 0


rates = st.floats(1.0, 60.0)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=15, deadline=None)
@given(kept=rates, lost=rates, zone=rates, shorter=st.floats(0.05, 1.0), seed=seeds)
def test_faster_repair_never_lowers_availability(
    kept: float, lost: float, zone: float, shorter: float, seed: int
) -> None:
    """The time without a quorum, takeovers aside: those do not depend on repairs."""
    kinds = failures(failure("kept", kept), failure("lost", lost), failure("zone", zone, place=Place.ZONE))
    faster = replace(kinds, kinds=tuple(k.model_copy(update={"repair_s": k.repair_s * shorter}) for k in kinds.kinds))
    slow, fast = (simulate(model(ANY_1, k, "z1,z1,z2"), 40, seed, batches=1)[0] for k in (kinds, faster))
    assert fast.years_s.sum() <= slow.years_s.sum() + 1e-6


@settings(max_examples=8, deadline=None)
@given(
    kept=rates,
    lost=rates,
    repair_s=st.floats(600.0, 40_000.0),
    k=st.integers(1, 2),
    kind=st.sampled_from(QuorumKind),
    strict=st.booleans(),
)
def test_a_member_that_fails_on_its_own_never_raises_loss(
    kept: float, lost: float, repair_s: float, k: int, kind: QuorumKind, strict: bool
) -> None:
    """Last in preference and sharing no place: promotions of a member that lacks commits, by the closed form."""
    what = Configuration(Level.ON, kind, k, strict)
    three, four = (exact(Chain(n, kept, lost, repair_s, most=1), what).lacking for n in (3, 4))
    assert four <= three * (1 + 1e-9)


@each([1, 2])
def test_a_member_in_a_zone_of_its_own_never_raises_loss_where_others_share_one(k: int) -> None:
    """Within four standard errors; a witness in its zone keeps the DCS's majority alike."""
    kinds = failures(failure("zone", 10.0, data=Data.LOST, place=Place.ZONE))
    what = Configuration(Level.ON, QuorumKind.ANY, k)
    three, four = (
        np.array(
            [
                _lacking(b.risks)
                for b in simulate(replace(model(what, kinds), where=topology(*places)), 1000, 4, batches=40)
            ]
        )
        for places in (("z1,z1,z2", "z3,z4"), ("z1,z1,z2,z3", "z4"))
    )
    assert three.mean() > 0
    assert four.mean() <= three.mean() + 4 * np.hypot(three.std(), four.std()) / len(three) ** 0.5


def test_a_member_next_to_the_leader_can_raise_loss() -> None:
    """The exception to the rule above: with ANY 1 it answers first, and is lost together with the leader."""
    kinds = failures(failure("zone", 20.0, data=Data.LOST, place=Place.ZONE))
    two, three = (
        np.mean([_lacking(b.risks) for b in simulate(model(ANY_1, kinds, layout), 2000, 2, batches=20)])
        for layout in ("z1,z2,z3", "z1,z2,z3,z1")
    )
    assert three > two


@settings(max_examples=15, deadline=None)
@given(kept=rates, lost=rates, zone=rates, seed=seeds, k=st.integers(1, 2))
def test_degrading_never_loses_less_than_strict(kept: float, lost: float, zone: float, seed: int, k: int) -> None:
    kinds = failures(
        failure("kept", kept), failure("disk", lost, data=Data.LOST), failure("zone", zone, place=Place.ZONE)
    )
    strict = Configuration(Level.ON, QuorumKind.ANY, k)
    found = [
        _lacking(simulate(model(what, kinds, "z1,z2,z2"), 60, seed, batches=1)[0].risks)
        for what in (strict, replace(strict, strict=False))
    ]
    assert found[1] >= found[0]


def test_a_power_cut_of_both_loses_at_remote_write_only() -> None:
    """Commits that the standby had written and not flushed: the manual's table, its third row."""
    kinds = failures(
        failure("power", 30.0, data=Data.UNFLUSHED, place=Place.ZONE), failure("disk", 20.0, data=Data.LOST)
    )
    unflushed = {
        level: sum(
            b.risks[Risk.UNFLUSHED].sum()
            for b in simulate(model(Configuration(level, QuorumKind.ANY, 1), kinds, "z1,z1"), 1000, 1, batches=4)
        )
        for level in (Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY)
    }
    assert unflushed[Level.REMOTE_WRITE] > 0
    assert unflushed[Level.ON] == unflushed[Level.REMOTE_APPLY] == 0


def test_the_same_seed_gives_the_same_years_and_takeovers_add_up() -> None:
    kinds = failures(failure("kept", 2.0))
    once, again = (simulate(model(ANY_1, kinds, takeover_s=30.0), 2000, 9) for _ in range(2))
    assert all((a.years_s == b.years_s).all() for a, b in zip(once, again, strict=True))
    takeovers = sum(b.risks[Risk.TAKEOVER].sum() * len(b.years_s) for b in once)
    assert sum(b.years_s.sum() for b in once) >= 30.0 * takeovers * 0.99


def test_too_many_failures_are_refused() -> None:
    with pytest.raises(UsageError, match="failures"):
        simulate(model(ANY_1, failures(failure("kept", 1e6))), 1_000_000, 1)


def _followed(
    what: Configuration, *faults: tuple[float, float, int], takeover_s: float = 0.0, stall_s: float = 0.0
) -> Outcome:
    """One episode of three members: two faults (begins, ends, mask of members), after which only time is gone."""
    where, (begins, ends, masks) = topology("z1,z2,z3"), zip(*faults, strict=True)
    found = tuple(Cause(f"members {mask:b}", 0, mask, 0, 1.0) for mask in masks)
    drawn = Faults(np.array(begins), np.array(ends), np.array([0, 1]), np.array([0, 0]))
    nothing = np.zeros(2, dtype=bool)
    of_fault = PerFault(nothing, nothing, nothing, np.full(2, takeover_s), np.full(2, stall_s))
    events = changes(drawn, found, 3, len(where.voters))
    return follow(
        events, of_fault, np.zeros(2, dtype=np.int64), rules_of(where, what, 0.5, 0.5), np.zeros(1, dtype=np.int64)
    )


def test_a_standby_that_is_back_is_promoted_no_earlier_than_the_leaders_lease_ends() -> None:
    """Both standbys are away when the leader fails, and back after a second: the ttl must pass all the same."""
    outcome = _followed(Configuration(Level.LOCAL), (0.0, 6.0, 0b110), (5.0, 1000.0, 0b001), takeover_s=20.0)
    assert outcome.out_s[0] == pytest.approx(20.0)
    assert outcome.alone_s[0] == pytest.approx(5.0)


def test_a_successor_that_falls_before_it_leads_begins_no_second_takeover() -> None:
    outcome = _followed(Configuration(Level.LOCAL), (0.0, 500.0, 0b001), (10.0, 600.0, 0b010), takeover_s=20.0)
    assert outcome.out_s[0] == pytest.approx(20.0)
    assert outcome.risks[Risk.TAKEOVER, 0] == 1


@each([DEGRADING, ANY_1, FIRST_1])
def test_a_wait_for_standbys_ends_when_one_is_back(what: Configuration) -> None:
    """Both standbys are away from the 5th second to the 10th; without one of them commits would wait for a minute."""
    outcome = _followed(what, (0.0, 10.0, 0b010), (5.0, 20.0, 0b100), stall_s=60.0)
    first = what.quorum_kind is QuorumKind.FIRST
    # FIRST 1 waits for the first standby although the second is there, and then for the second.
    assert outcome.out_s[0] == pytest.approx(20.0 if first else 5.0)
