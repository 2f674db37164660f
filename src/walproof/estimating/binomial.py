"""What a count of clean or failed trials says about their probability. Knows numbers only."""

from scipy import stats

from walproof.model.estimate import Estimate


def clean_bound(trials: int, alpha: float = 0.05) -> float:
    """The highest failure probability (one-sided, 95 %) that `trials` without a failure leave open; 1.0 for none.

    1 - alpha^(1/n), close to the "rule of three", 3/n (Hanley & Lippman-Hand 1983).

    >>> round(clean_bound(12), 3), clean_bound(0)
    (0.221, 1.0)
    """
    return 1.0 if trials == 0 else 1 - alpha ** (1 / trials)


def exact_bounds(failures: int, trials: int, alpha: float = 0.05) -> Estimate:
    """The share of failures with the exact two-sided interval of Clopper & Pearson (1934).

    >>> exact_bounds(0, 10).low, round(exact_bounds(0, 10).high, 3)
    (0.0, 0.308)
    """
    if trials == 0:
        return Estimate(0.0, 0.0, 1.0)
    low = 0.0 if failures == 0 else float(stats.beta.ppf(alpha / 2, failures, trials - failures + 1))
    high = 1.0 if failures == trials else float(stats.beta.ppf(1 - alpha / 2, failures + 1, trials - failures))
    return Estimate(failures / trials, low, high)
