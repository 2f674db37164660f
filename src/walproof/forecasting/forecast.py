"""What a year of a configuration costs and loses, with intervals: simulated years, exposures and drills together.

And what one period of a cluster may bring: a forecast of a mean is refuted by no single year; this one can be:
`python -m benchmarks.forecast truth` runs periods. Seeded."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from walproof.forecasting.episodes import Floats
from walproof.forecasting.failure_rates import YEAR_S, Failure
from walproof.forecasting.importance_sampling import SAMPLED, Sampled, sample
from walproof.forecasting.loss_chances import (
    Undrilled,
    Unexcluded,
    chance_losses,
    losses_a_year,
    mean_chances,
    promised,
    told,
    undrilled,
    undrilled_chance,
    unexcluded,
)
from walproof.forecasting.outages_from_drills import Basis, Model, assumption
from walproof.forecasting.simulate import Batch, Each, Risk, in_turn, own_error, periods, simulate
from walproof.forecasting.topology import Configuration, causes
from walproof.model.estimate import Estimate
from walproof.model.units import counted

FEWEST_CYCLES = 1500
"""Episodes of a batch of importance sampling, however few the years."""
WIDE_STEP = 3.0
"""Minutes of one percentile of the years beside the one before it."""


@dataclass(frozen=True, slots=True)
class Period:
    """One period of that length, s: medians, and the interval in which 90 % of periods fall."""

    length_s: float
    unavailable_s: Estimate
    lost: Estimate
    """Acknowledged commits lost, at the pace of the drills."""

    @property
    def text(self) -> str:
        """One sentence.

        >>> Period(60.0, Estimate(5.0, 1.0, 9.0), Estimate(0.0, 0.0, 2.0)).text
        '90 % of periods of 60 s: 1 to 9 s without writes, 0 to 2 acknowledged commits lost'
        """
        seconds, lost = self.unavailable_s, self.lost
        return (
            f"90 % of periods of {self.length_s:g} s: {seconds.low:.3g} to {seconds.high:.3g} s without writes, "
            f"{lost.low:,.0f} to {lost.high:,.0f} acknowledged commits lost"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of failure's share: minutes without service a year by episodes that it began; takeovers a year;
    expected losses a year; its rate's range, as factors of the rate.
    """

    name: str
    minutes: float
    takeovers: float
    losses: float
    least: float
    most: float
    basis: str
    drilled: str


@dataclass(frozen=True, slots=True)
class Years:
    """So many years in 100 are below `below` minutes without writes; the middle one of the others has `others`."""

    percent: int
    below: float
    others: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The answers for one configuration. Losses: episodes a year that lose at least one acknowledged commit.

    `structural` counts what is lost by the structure: takeovers that the manual promises to be without loss, and lost
    nothing when drilled or were never drilled, count as zero; `losses` adds what the drills do not exclude.
    """

    what: Configuration
    layout: str
    years: int
    minutes: Estimate
    p95_minutes: Estimate
    p999_minutes: Estimate
    structural: Estimate
    losses: Estimate
    undrilled: Undrilled
    """The part of `losses` that was never drilled, and counts as lost each time."""
    commits: float
    """Expected acknowledged commits lost a year, at the drills' load; not a number where no drill lost any."""
    parts: tuple[Part, ...]
    minutes_error: float
    rare_error: float
    """Relative standard errors of the simulation's own: of the minutes, of the rare risks."""
    split: Years
    unexcluded: Unexcluded
    caveats: tuple[str, ...]
    tps: Estimate | None = None
    p95_ms: Estimate | None = None
    period: Period | None = None
    """What one period may bring, where one was asked for."""

    @property
    def text(self) -> str:
        """The configuration as tables show it."""
        return self.what.text

    @property
    def upper_bound(self) -> bool:
        """Whether a part of `losses` counts as lost each time."""
        return bool(self.undrilled.failures)

    @property
    def availability(self) -> Estimate:
        """Share of the year with service."""
        year = YEAR_S / 60
        return Estimate(1 - self.minutes.value / year, 1 - self.minutes.high / year, 1 - self.minutes.low / year)

    @property
    def p_loss(self) -> Estimate:
        """Probability of at least one lost acknowledged commit in a year."""
        return chance(self.losses)

    @property
    def p_structural(self) -> Estimate:
        """The same by the structure alone."""
        return chance(self.structural)


def chance(rate: Estimate) -> Estimate:
    """P(at least one in a year) at that rate."""
    return Estimate(*(float(-np.expm1(-x)) for x in (rate.value, rate.low, rate.high)))


def nines(share: float) -> float:
    """How many nines a share has.

    >>> round(nines(0.9999), 2)
    4.0
    """
    return float(-np.log10(max(1e-15, 1 - share)))


def forecast(model: Model, layout: str, *, years: int, seed: int, vary: bool = True, each: Each = in_turn) -> Forecast:
    """The forecast of one configuration from that many simulated years, and importance sampling of rare losses.

    `each` works through the batches; the answer is the same however many processes share them.
    """
    batches = simulate(model, years, seed, vary=vary, each=each)
    rare = sample(model, seed, cycles=max(FEWEST_CYCLES, years // SAMPLED), vary=vary, each=each)
    rng = np.random.default_rng([seed, 11])
    structural = losses_a_year(model, rare, rng, structural=True)
    losses = losses_a_year(model, rare, rng, structural=False)
    never = undrilled(model, rare)
    pooled = np.concatenate([b.years_s for b in batches]) / 60
    return Forecast(
        what=model.what,
        layout=layout,
        years=years,
        minutes=_over(batches, pooled, lambda y: float(y.mean())),
        p95_minutes=_over(batches, pooled, lambda y: float(np.quantile(y, 0.95))),
        p999_minutes=_over(batches, pooled, lambda y: float(np.quantile(y, 0.999))),
        structural=structural,
        losses=losses,
        undrilled=never,
        commits=_commits(model, rare, batches),
        parts=_parts(model, batches, rare),
        minutes_error=own_error(np.array([b.years_s.mean() for b in batches])),
        rare_error=own_error(rare.risks[:, Risk.UNFLUSHED :].sum(axis=(1, 2)), len(rare.risks) // SAMPLED),
        split=_split(pooled),
        unexcluded=unexcluded(model, rare),
        caveats=_caveats(model, never),
    )


def _over(batches: Sequence[Batch], pooled: Floats, statistic: Callable[[Floats], float]) -> Estimate:
    """A statistic of all years; in its interval lie 95 % of the batches, each with rates and a bootstrap of its own."""
    low, high = np.quantile([statistic(b.years_s / 60) for b in batches], (0.025, 0.975))
    return Estimate(statistic(pooled), float(low), float(high))


def _split(minutes: Floats) -> Years:
    """Where good years and bad ones part: the widest step between percentiles from the 50th on, or the 95th."""
    of = np.quantile(minutes, np.arange(50, 101) / 100)
    steps = of[1:-1] / np.maximum(of[:-2], 0.1)
    percent = 50 + int(np.argmax(steps)) if steps.max() > WIDE_STEP else 95
    return Years(percent, float(of[percent - 50]), float(np.quantile(minutes, (1 + percent / 100) / 2)))


def _commits(model: Model, rare: Sampled, batches: Sequence[Batch]) -> float:
    """Expected lost commits a year at the drills' load: what losing drills lost, and what was served alone before a
    stale member was promoted; not a number where no drill lost any.
    """
    if not any(losses.lost for losses in model.measured.losses.values()):
        return float("nan")
    years = sum(len(b.alone_s) for b in batches)
    chances = mean_chances(model)
    total = sum(float(b.alone_s.sum()) for b in batches) / years * model.measured.acknowledged_per_s
    for risk, number, failure, seen in told(model):
        commits = np.mean(model.measured.sizes(failure.name, seen))
        total += float(rare.mean[risk, number] * chances[risk, number] * commits)
    return total


def _parts(model: Model, batches: Sequence[Batch], rare: Sampled) -> tuple[Part, ...]:
    minutes = np.mean([b.by_kind_s for b in batches], axis=0) / 60
    losses = (rare.mean * mean_chances(model)).sum(axis=0)
    concerned = {cause.kind for cause in causes(model.where, model.failures)}
    parts = []
    for number, failure in enumerate(model.failures.kinds):
        if number not in concerned and not failure.planned:
            continue
        least, most = (end / failure.per_year if failure.per_year else 1.0 for end in (failure.low, failure.high))
        seen = chance_losses(model, Risk.TAKEOVER, failure)
        parts.append(
            Part(
                name=failure.name,
                minutes=float(minutes[number]),
                takeovers=float(rare.mean[Risk.TAKEOVER, number]),
                losses=float(losses[number]),
                least=least,
                most=most,
                basis=_outage_from(model, failure),
                drilled=f"{seen.losing} of {seen.drills} lost" if seen.drills else "never drilled at this level",
            )
        )
    return tuple(sorted(parts, key=lambda part: -part.minutes))


def _outage_from(model: Model, failure: Failure) -> str:
    basis, seen = model.basis(failure), model.takeover(failure)
    return f"{seen.fault} × {len(seen.outages_s)}" if basis is Basis.DRILLED else basis.value


def _caveats(model: Model, never: Undrilled) -> tuple[str, ...]:
    caveats = list(model.measured.caveats)
    if never.failures:
        caveats.append(
            f"{model.what.text}: an upper bound, because a loss counts as certain where none was drilled: "
            + ", ".join(never.failures)
        )
    assumed = [k.name for k in model.failures.kinds if model.basis(k) is Basis.ASSUMED and k.per_year > 0]
    if assumed:
        caveats.append(f"outages assumed from {assumption(model)}, never drilled: " + ", ".join(assumed))
    few = [
        f"{k.name} ({counted(len(model.takeover(k).outages_s), 'drill')})"
        for k in model.failures.kinds
        if model.basis(k) is Basis.DRILLED and len(model.takeover(k).outages_s) < 3
    ]
    switched = [
        k
        for k in model.failures.kinds
        if k.planned and k.per_year and not chance_losses(model, Risk.TAKEOVER, k).drills
    ]
    if switched:
        caveats.append(
            f"{switched[0].name}: never drilled at this level, taken to lose nothing (prove --fault switchover)"
        )
    if few:
        caveats.append("outages of fewer than 3 drills, given a spread of 30 %: " + ", ".join(few))
    ttls = [ttl for takeover in model.measured.takeovers.values() for ttl in takeover.ttls_s]
    if model.timeouts.ttl_s is not None and (None in ttls or not ttls):
        which = "some records" if any(ttls) else "the records"
        caveats.append(f"{which} do not say under which ttl they were drilled: their outages are used as measured")
    caveats += _about_nodes(model)
    if len(model.where.voters) % 2 == 0:
        caveats.append(
            f"{len(model.where.voters)} voters of the DCS bear no more failures than "
            f"{len(model.where.voters) - 1}: add a witness (--witness PLACE)"
        )
    return tuple(caveats)


def _about_nodes(model: Model) -> Iterator[str]:
    """Members that shared a node: they fail together, whatever stands in the layout until they are moved."""
    nodes, servers = list(model.measured.nodes.values()), [member.server for member in model.where.members]
    pairs = [(i, j) for i, j in itertools.combinations(range(len(nodes)), 2) if nodes[i] == nodes[j]]
    listed = ", ".join(f"{name} on {node}" for name, node in model.measured.nodes.items())
    if pairs and len(nodes) == len(servers) and all(servers[i] == servers[j] for i, j in pairs):
        yield f"members share a node and fail with it ({listed}); each node is taken to be in a zone of its own"
    elif pairs:
        yield f"the layout keeps apart what shared a node when it was drilled ({listed}): true once they are moved"


PERIODS = 1000
SHARE = 0.9
"""Of all periods that fall into the interval."""


def one_period(model: Model, period_s: float, seed: int, *, vary: bool = True) -> Period:
    """The intervals from a thousand simulated periods; rates and drills are drawn anew for each 25 of them."""
    batches = periods(model, PERIODS, period_s, seed, vary=vary)
    rng = np.random.default_rng([seed, 5])
    seconds = np.concatenate([b.years_s for b in batches])
    lost = np.concatenate([_lost(model, batch, rng) for batch in batches])
    return Period(period_s, _interval(seconds), _interval(np.rint(lost)))


def _interval(values: Floats) -> Estimate:
    low, middle, high = np.quantile(values, ((1 - SHARE) / 2, 0.5, (1 + SHARE) / 2))
    return Estimate(float(middle), float(low), float(high))


def _lost(model: Model, batch: Batch, rng: np.random.Generator) -> Floats:
    """Lost commits of each period of a batch: of stale promotions what was served alone, else as drilled; one commit
    where no drill lost any.
    """
    lost = batch.alone_s * model.measured.acknowledged_per_s
    for risk, number, failure, seen in told(model):
        if not batch.risks[risk, number] or (promised(model, risk, failure) and not seen.losing):
            continue
        chance = rng.beta(*seen.posterior) if seen.drills else undrilled_chance(failure)
        losing = rng.poisson(batch.risks[risk, number] * chance, len(lost))
        sizes = np.asarray(model.measured.sizes(failure.name, seen) or (1,), dtype=np.float64)
        lost += np.array([rng.choice(sizes, count).sum() for count in losing])
    return lost
