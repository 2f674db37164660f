"""The interval in which the next run falls: what advice promises. Knows numbers only, on the log scale."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from walproof.model.estimate import Estimate

UNSEEN_RUN_SPREAD = {"tps": 0.10, "latency": 0.15}
"""Standard deviation of log between runs taken for granted while only one run was seen (docs/advice.md)."""
FEWEST = 3


def promised(runs: Mapping[str, Sequence[float]], kind: str) -> Estimate:
    """Median prediction and 95 % interval for the mean of one further run; `runs`: block values per record, all > 0.

    One-way random effects on logs: variance of a block within a run plus variance between runs, both of which the next
    run has again (Searle, Casella & McCulloch 1992, ch. 3). With one run the spread between runs is not seen and
    UNSEEN_RUN_SPREAD stands for it; with more, it is the larger of what was seen and half of that.

    >>> promised({"a": [100.0, 100.0, 100.0]}, "tps").covers(110.0)
    True
    """
    logs = {name: np.log(np.array(values)) for name, values in runs.items() if len(values)}
    if not logs:
        return Estimate(math.nan, math.nan, math.nan)
    means = np.array([float(np.mean(v)) for v in logs.values()])
    blocks = sum(len(v) for v in logs.values())
    centre = float(np.mean(means))
    free_within = blocks - len(logs)
    within = sum(float(np.sum((v - np.mean(v)) ** 2)) for v in logs.values()) / free_within if free_within > 0 else 0.04
    prior = UNSEEN_RUN_SPREAD[kind] ** 2
    seen = float(np.var(means, ddof=1)) if len(means) > 1 else 0.0
    between = max(seen, prior / 4) if len(means) >= FEWEST else max(seen, prior)
    per_run = blocks / len(logs)
    # The next run's own mean is over fewer, possibly one, blocks: its within part is not divided.
    spread = math.sqrt(between * (1 + 1 / len(means)) + within * (1 + 1 / (per_run * len(means))))
    freedom = max(FEWEST, len(means) - 1 if len(means) > FEWEST else free_within)
    half = float(stats.t.ppf(0.975, freedom)) * spread
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half))
