"""What a statistician found: who serves, what all members hold together, switchovers, the numbers' own errors."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.forecasts import ANY_1, drill, failure, failures, lost, model, record
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.forecasting.episodes import Faults, changes
from walproof.forecasting.failover_rules import PerFault, rules_of
from walproof.forecasting.failure_rates import YEAR_S, Data, Failure, Place, failures_of
from walproof.forecasting.forecast import forecast
from walproof.forecasting.importance_sampling import Sampled, sample
from walproof.forecasting.loss_chances import Undrilled, losses_a_year, undrilled, unexcluded
from walproof.forecasting.outages_from_drills import Losses, Measured, Model, Takeover, measured
from walproof.forecasting.simulate import Batch, Outcome, Risk, believed, follow, own_error, simulate
from walproof.forecasting.topology import Cause, Configuration, topology
from walproof.model.guarantee import Level, QuorumKind

LOCAL = Configuration(Level.LOCAL)
DEGRADING = replace(ANY_1, strict=False)


def _outage(per_year: float, place: Place, hours: float) -> Failure:
    exactly = failure(f"{place} outage", per_year, place=place)
    return exactly.model_copy(update={"repair_s": hours * 3600, "repair_cv": 2.0, "exponential": False})


def _minutes(batches: tuple[Batch, ...]) -> tuple[float, float]:
    """Mean minutes a year and their standard error."""
    means = np.array([b.years_s.mean() / 60 for b in batches])
    return float(means.mean()), float(means.std(ddof=1) / len(means) ** 0.5)


def test_people_promote_nobody_where_that_serves_nobody() -> None:
    """Two members in the region that is out, strict: the third has no standby to acknowledge, nor a majority."""
    kinds = replace(failures(_outage(0.5, Place.REGION, 8.0)), decide_s=1800.0, force_s=14400.0)
    layout = "r1/z1,r1/z2,r2/z3"
    forced = simulate(model(ANY_1, kinds, layout), 20_000, 1, vary=False)
    never = simulate(model(ANY_1, replace(kinds, decide_s=1e15, force_s=1e15), layout), 20_000, 1, vary=False)
    assert _minutes(forced) == _minutes(never)
    assert sum(b.risks[Risk.NEAR :].sum() for b in forced) == 0


@pytest.mark.parametrize("what", [LOCAL, DEGRADING, ANY_1], ids=lambda what: what.text)
@pytest.mark.parametrize("layout", ["z1,z1,z2", "z2,z1,z1", "z1,z2,z1"])
def test_nothing_is_served_without_a_majority_of_the_dcs(what: Configuration, layout: str) -> None:
    """A zone with two of three voters, out for 12 h every 20 years: 36 minutes a year at the least."""
    kinds = replace(failures(_outage(0.05, Place.ZONE, 12.0)), decide_s=1800.0, force_s=14400.0)
    minutes, error = _minutes(simulate(model(what, kinds, layout), 100_000, 3, vary=False))
    assert abs(minutes - 36.0) < 4 * error + 0.5


@each([LOCAL, DEGRADING])
def test_three_servers_at_half_load_serve_no_more_than_the_closed_form(what: Configuration) -> None:
    """Each up for exp(-0.5) of the time; no service while fewer than two of three are."""
    kinds = replace(failures(failure("down", 0.5 * YEAR_S / 20_000)), decide_s=0.0, force_s=60.0)
    minutes, error = _minutes(simulate(model(what, kinds), 100, 1, vary=False, batches=10))
    up = np.exp(-0.5)
    least = (1 - up**3 - 3 * up**2 * (1 - up)) * YEAR_S / 60
    assert minutes > least - 4 * error


@each([LOCAL, ANY_1, DEGRADING, Configuration(Level.OFF)], push=2)
def test_the_order_in_which_members_are_written_does_not_matter(what: Configuration) -> None:
    kinds = replace(
        failures(failure("disk", 20.0, data=Data.LOST), failure("zone", 20.0, place=Place.ZONE)), force_s=3600.0
    )
    found = []
    for order in sorted(set(itertools.permutations(("z1", "z1", "z2")))):
        batches = simulate(model(what, kinds, ",".join(order), takeover_s=30.0), 1_000, 5, vary=False, batches=20)
        found.append([(b.years_s.mean(), *b.risks.sum(axis=1)) for b in batches])
    means, errors = np.mean(found, axis=1), np.std(found, axis=1, ddof=1) / len(found[0]) ** 0.5
    assert (np.abs(means - means[0]) <= 4.5 * np.hypot(errors, errors[0])).all()


def test_a_home_of_the_leader_is_where_it_leads() -> None:
    """Only the zone z1 fails, for a time in which nothing takes over: elsewhere the leader is never hit."""
    kinds = failures(failure("zone", 20.0, place=Place.ZONE))
    here = model(LOCAL, kinds, "z1,z2,z3", takeover_s=30.0)
    away = topology("z1,z2,z3", "", "r1/z2")
    assert away.home == 0b010
    found = simulate(replace(here, where=away), 100, 1, vary=False, batches=4)
    assert sum(b.risks[Risk.TAKEOVER].sum() for b in found) > 0
    with pytest.raises(UsageError, match="no member of z1,z2 stands at r9"):
        topology("z1,z2", "", "r9")


def _followed(what: Configuration, *faults: tuple[float, float, int], lost: int = -1) -> Outcome:
    """Three members that lead in their order, takeovers of 30 s: faults (begins, ends, mask); which loses the disk."""
    where = topology("z1,z2,z3")
    begins, ends, masks = zip(*faults, strict=True)
    found = tuple(Cause(f"members {i}", 0, mask, mask, 1.0) for i, mask in enumerate(masks))
    n = len(faults)
    drawn = Faults(np.array(begins), np.array(ends), np.arange(n), np.zeros(n, dtype=np.int64))
    nothing = np.zeros(n, dtype=bool)
    of_fault = PerFault(np.arange(n) == lost, nothing, nothing, np.full(n, 30.0), np.zeros(n))
    rules = rules_of(where, what, 60.0, 14_400.0)
    return follow(
        changes(drawn, found, 3, 3), of_fault, np.zeros(n, dtype=np.int64), rules, np.zeros(1, dtype=np.int64)
    )


@each(list(QuorumKind))
def test_of_both_standbys_one_has_every_commit(kind: QuorumKind) -> None:
    """All three fall at once; both standbys are back after 100 and 200 s, the leader's disk is gone."""
    outcome = _followed(replace(ANY_1, quorum_kind=kind), (0.0, 5e5, 0b001), (0.0, 100.0, 0b010), (0.0, 200.0, 0b100))
    assert outcome.risks[Risk.NEAR :].sum() == 0
    assert outcome.out_s[0] == pytest.approx(200.0)


def test_a_standby_that_was_cloned_anew_holds_nothing_together_with_the_other() -> None:
    """Its disk was lost: with ANY 1 it may have been the one that acknowledged; people promote the other after 4 h."""
    faults = ((0.0, 9e5, 0b001), (0.0, 1000.0, 0b010), (0.0, 200.0, 0b100))
    outcome = _followed(ANY_1, *faults, lost=1)
    assert outcome.risks[Risk.NEAR, 0] == 1
    assert outcome.out_s[0] == pytest.approx(1000.0 + 14_400.0)


def test_near_losses_are_none_where_both_standbys_return_first() -> None:
    """Rates of failures x 10: what waited for the leader and counted as a near loss. One to three a year do again with
    what both standbys hold together left out of `_sure`, or one more of them needed.
    """
    kinds = failures_of()
    often = tuple(k.model_copy(update={"per_year": 10 * k.per_year, "low": 0.0, "high": 1e6}) for k in kinds.kinds)
    here = model(ANY_1, replace(kinds, kinds=often))
    batches = simulate(here, 2_000, 1, vary=False, batches=4)
    assert sum(b.risks[Risk.NEAR :].sum() for b in batches) == 0
    assert all(b.risks[Risk.TAKEOVER].sum() > 1 for b in batches)


# rows: each lost, clean, never drilled, half of them lost, one clean, one that lost
@each([
    ([lost(500)] * 10, 4 * 10.5 / 11),
    ([drill(Level.LOCAL, fault="switchover")] * 10, 4 * 0.5 / 11),
    ([], 0.0),
    ([lost(500)] * 5 + [drill(Level.LOCAL)] * 5, 2.0),
    ([drill(Level.LOCAL)], 4 * 0.5 / 2),
    ([lost(500)], 4 * 1.5 / 2),
])  # fmt: skip
def test_commits_lost_in_planned_switchovers_count(drills: list[object], expected: float) -> None:
    switchover = failure("planned switchover", 4.0, drills="switchover", place=Place.CLUSTER)
    kinds = failures(switchover)
    switched = [replace(one, fault="switchover") for one in drills]  # type: ignore[type-var]
    here = Model(topology("z1,z2,z3"), LOCAL, kinds, measured([record(*switched)], kinds))  # type: ignore[arg-type]
    made = forecast(here, "z1,z2,z3", years=1000, seed=1, vary=False)
    assert made.losses.value == pytest.approx(expected, rel=0.1, abs=1e-9)
    assert made.parts[0].losses == pytest.approx(expected, rel=1e-6)
    assert any("never drilled at this level" in caveat for caveat in made.caveats) is not bool(drills)


def test_rates_are_drawn_from_the_range_that_the_file_states() -> None:
    """And so are repairs: half to twice as long in 95 of 100 draws."""
    here = Model(topology("z1,z2,z3"), ANY_1, failures_of(), Measured({}, {}, {}))
    drawn = [believed(here, number, 1).failures for number in range(2_000)]
    for number, kind in enumerate(here.failures.kinds):
        rates = np.quantile([one.kinds[number].per_year for one in drawn], (0.025, 0.5, 0.975))
        assert rates == pytest.approx((kind.low, kind.per_year, kind.high), rel=0.12)
        longer = np.array([one.kinds[number].repair_s for one in drawn]) / kind.repair_s
        assert np.quantile(longer, (0.025, 0.5, 0.975)) == pytest.approx((0.5, 1.0, 2.0), rel=0.1)


def test_draws_that_belong_together_fill_every_range_evenly() -> None:
    """A Latin hypercube: means of twenty draws differ far less than those of twenty draws by chance."""
    here = Model(topology("z1,z2,z3"), ANY_1, failures_of(), Measured({}, {}, {}))
    rates = np.array([[k.per_year for k in believed(here, n, 1).failures.kinds] for n in range(400)])
    means, by_chance = rates.reshape(20, 20, -1).mean(axis=1).std(axis=0), rates.std(axis=0) / 20**0.5
    uncertain = by_chance > 0
    assert (means[uncertain] < 0.75 * by_chance[uncertain]).all()


def test_failures_that_the_same_drills_inform_share_one_posterior() -> None:
    """Two failures of kill's ten clean drills: losses are large together, the interval as wide as of one."""
    clean = [drill(Level.LOCAL) for _ in range(10)]
    widths = []
    for kinds in (failures(failure("one", 2.0)), failures(failure("a", 1.0), failure("b", 1.0))):
        here = Model(topology("z1,z2,z3"), LOCAL, kinds, measured([record(*clean)], kinds))
        risks = np.zeros((200, len(Risk), len(kinds.kinds)))
        risks[:, Risk.TAKEOVER] = [kind.per_year for kind in kinds.kinds]
        found = losses_a_year(
            here, Sampled(risks, np.ones(risks.shape[::2])), np.random.default_rng(1), structural=False
        )
        widths.append(found.high - found.low)
    assert widths[1] == pytest.approx(widths[0], rel=0.1)


def test_outages_are_taken_at_their_own_level() -> None:
    drilled = [drill(Level.LOCAL, rto_s=8.0)] * 3 + [drill(Level.ON, rto_s=21.0)] * 3
    kinds = failures(failure("crash", 1.0))
    known = measured([record(*drilled)], kinds)
    at = {what.level: Model(topology("z1,z2"), what, kinds, known).takeover(kinds.kinds[0]) for what in (LOCAL, ANY_1)}
    assert (at[Level.LOCAL].outages_s, at[Level.ON].outages_s) == ((8.0,) * 3, (21.0,) * 3)
    never = Model(topology("z1,z2"), Configuration(Level.OFF), kinds, known).takeover(kinds.kinds[0])
    assert len(never.outages_s) == 6


def test_repairs_longer_than_the_time_between_failures_end_with_one_sentence() -> None:
    kinds = failures(failure("down", 3 * YEAR_S / 20_000))
    with pytest.raises(UsageError, match="repairs take longer than the time between failures: 9 failures at once"):
        simulate(model(ANY_1, kinds), 1000, 1)


def test_a_forecasts_own_error_is_that_of_its_seeds() -> None:
    """The error printed for one seed is about as far as seeds differ."""
    here = Model(topology("z1,z2,z3"), LOCAL, failures_of(), Measured({}, {}, {}))
    runs = [simulate(here, 2_000, seed) for seed in range(6)]
    means = np.array([np.mean([b.years_s.mean() for b in run]) for run in runs])
    told = np.mean([own_error(np.array([b.years_s.mean() for b in run])) for run in runs])
    assert 0.3 < means.std(ddof=1) / means.mean() / told < 3.0


def test_what_clean_drills_do_not_exclude_is_halved_by_as_many_again() -> None:
    kinds = failures(failure("crash", 2.0))
    risks = np.zeros((1, len(Risk), 1))
    risks[0, Risk.TAKEOVER] = 2.0

    def left(drills: int) -> tuple[float, int]:
        known = measured([record(*[drill() for _ in range(drills)])], kinds)
        found = unexcluded(Model(topology("z1,z2,z3"), ANY_1, kinds, known), Sampled(risks, np.ones(risks.shape[::2])))
        return found.losses.value, found.more

    losses, more = left(10)
    assert losses == pytest.approx(2 * 0.5 / 11)
    assert more == 11
    assert left(10 + more)[0] == pytest.approx(losses / 2)


# rows: nothing, one fault, not without a wait, not of the flush, local, everything
@each([
    (Level.ON, (), Undrilled(("crash", "cut"), ("kill", "isolate"), 1.125)),
    (Level.ON, (("crash", Level.ON),), Undrilled(("cut", "crash"), ("isolate",), 0.375)),
    (Level.ON, (("crash", Level.ON), ("cut", Level.ON)), Undrilled(("crash",), ("kill at local",), 0.75e-9)),
    (Level.REMOTE_WRITE, (("crash", Level.REMOTE_WRITE),), Undrilled(("cut", "crash"), ("isolate", "double-power"),
     0.45),),
    (Level.LOCAL, (("cut", Level.LOCAL),), Undrilled(("crash",), ("kill",), 0.75 * (1 + 1e-9))),
    (Level.ON, tuple((name, of) for name in ("crash", "cut") for of in (Level.ON, Level.LOCAL)), Undrilled()),
])  # fmt: skip
def test_what_was_never_drilled_names_the_drills_that_lower_the_bound(
    level: Level, drilled: tuple[tuple[str, Level], ...], expected: Undrilled
) -> None:
    """After one clean drill of each a quarter is left; what was promised of a switchover counts nothing."""
    kinds = failures(
        failure("crash", 1.0),
        failure("cut", 0.5, drills="isolate"),
        failure("planned", 4.0, drills="switchover", place=Place.CLUSTER),
    )
    known = Measured({}, {(name, of): Losses(0, 1, name) for name, of in drilled}, {})
    risks = np.zeros((1, len(Risk), 3))
    risks[0, Risk.TAKEOVER] = (1.0, 0.5, 4.0)
    risks[0, Risk.NEAR, 0], risks[0, Risk.UNFLUSHED, 0] = 1e-9, 0.1 * (level is Level.REMOTE_WRITE)
    what = Configuration(level, QuorumKind.ANY, 1)
    found = undrilled(Model(topology("z1,z2,z3"), what, kinds, known), Sampled(risks, np.ones(risks.shape[::2])))
    assert (found.failures, found.drills) == (expected.failures, expected.drills)
    assert found.less == pytest.approx(expected.less)


@each([ANY_1, LOCAL, Configuration(Level.OFF)])
def test_takeovers_of_few_episodes_vary_by_their_rates_alone(
    what: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw of the rates has a few dozen episodes: alone they gave 6e-7 to 8.4 takeovers a year, and P(loss) of 1e-6
    to 0.999 after one drill.
    """
    monkeypatch.setattr("walproof.forecasting.importance_sampling.PILOT", 500)
    kinds = failures_of()
    risks = sample(Model(topology("z1,z2,z3"), what, kinds, Measured({}, {}, {})), 1, batches=4, cycles=1500).by_rates
    takeovers = risks[:, Risk.TAKEOVER]
    for number, kind in enumerate(kinds.kinds):
        low, middle, high = np.quantile(takeovers[:, number], (0.025, 0.5, 0.975))
        assert (low / middle, high / middle) == pytest.approx(
            (kind.low / kind.per_year, kind.high / kind.per_year), rel=0.15
        )
    assert takeovers.sum(axis=1).mean() == pytest.approx(6.5, rel=0.15)


def test_takeovers_of_a_record_know_their_level() -> None:
    assert Takeover((1.0, 2.0), "kill", (None, 30.0), levels=(Level.ON, Level.LOCAL)).at(Level.LOCAL) == Takeover(
        (2.0,), "kill", (30.0,), levels=(Level.LOCAL,)
    )
