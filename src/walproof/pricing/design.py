"""The design of a price run: randomised complete blocks, seeded, time going to arms still wide. Plans; runs nothing.

A block visits each arm once. Clients (and route, workload) form groups; groups are shuffled, then arms within a group,
so that an arm stays close in time to the baseline it is divided by. Which arms later blocks leave out depends on the
widths of intervals only, never on what the intervals say.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from walproof.model.guarantee import Level
from walproof.model.plan import Arm, Sample, Scenario

WARM_BLOCK = 0
"""Number of the block whose samples warm caches and are never counted."""
AGAIN = "a/a"
"""Label of the baseline run against itself."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a price run asks: scenarios (outer) × arms (inner), the baseline, and when to stop.

    precision: half-width of a ratio's interval as a share of the ratio; budget_s: seconds of measuring;
    load: fractions of measured capacity to offer as open loop afterwards; cycles: whole checkpoint cycles to measure
    in place of a budget, 0 for none.
    """

    scenarios: tuple[Scenario, ...]
    arms: tuple[Arm, ...]
    baseline: Level = Level.LOCAL
    sample_s: float = 1.5
    precision: float = 0.03
    budget_s: float = 120.0
    seed: int = 1
    load: tuple[float, ...] = ()
    cycles: int = 0


def group(arm: Arm) -> Arm:
    """The arm without its level: arms of one group are divided by one baseline."""
    label = "" if arm.label == AGAIN else arm.label
    return replace(arm, level=Level.LOCAL, mix=(), label=label, rate=None)


def is_baseline(arm: Arm, baseline: Level) -> bool:
    """Whether the arm is the one its group is divided by."""
    return arm.level is baseline and not arm.mix and arm.label != AGAIN


def block(number: int, scenario: Scenario, arms: Sequence[Arm], seed: int) -> tuple[Sample, ...]:
    """One block: every arm once, in the random order of this seed and number; equal arguments give equal blocks."""
    rng = np.random.default_rng([seed, number])
    groups: dict[Arm, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(group(arm), []).append(arm)
    shuffled = list(groups.values())
    order = [shuffled[i][j] for i in rng.permutation(len(shuffled)) for j in rng.permutation(len(shuffled[i]))]
    return tuple(Sample(number, position, arm, scenario) for position, arm in enumerate(order))


def still_needed(arms: Sequence[Arm], narrow: Collection[Arm], baseline: Level) -> tuple[Arm, ...]:
    """Arms of the next block: those not narrow yet, and the baseline of every group that still has one.

    A group that holds nothing but its baseline is needed until the baseline itself is narrow.
    """
    wide = {arm for arm in arms if arm not in narrow}
    kept = []
    for arm in arms:
        others = [a for a in arms if group(a) == group(arm) and not is_baseline(a, baseline)]
        alone = not others or not is_baseline(arm, baseline)
        if (alone and arm in wide) or (not alone and any(a in wide for a in others)):
            kept.append(arm)
    return tuple(kept)


def visit_order(scenarios: Sequence[Scenario], round_number: int, seed: int) -> tuple[Scenario, ...]:
    """The scenarios in this round's random order: every round visits each once, so slow drift falls on all."""
    rng = np.random.default_rng([seed, 7919, round_number])
    return tuple(scenarios[i] for i in rng.permutation(len(scenarios)))


def blocks_per_visit(round_number: int) -> int:
    """How many blocks are run before the next scenario is entered: few at first, so that each has some early."""
    return 2 if round_number == 0 else 4


def sample_seconds(budget_s: float, arms: int, scenarios: int, blocks: int = 10) -> float:
    """A sample length with which about ten blocks fit the budget, between 0.5 and 1.5 s; 0.35 s goes to starting each.

    >>> sample_seconds(120, 10, 1), sample_seconds(600, 4, 1)
    (0.85, 1.5)
    """
    return round(min(1.5, max(0.5, budget_s / (blocks * max(1, arms) * max(1, scenarios)) - 0.35)), 2)


def sample_seed(seed: int, planned: Sample) -> int:
    """The seed of one sample's random numbers."""
    key = [seed, abs(planned.block), planned.position, int(planned.block < 0)]
    return int(np.random.default_rng(key).integers(1, 2**31))
