"""What a count of failed trials says about their probability. Knows numbers only."""

from scipy import special


def upper_bound(failures: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided upper confidence bound on the probability of a failure; 1.0 without trials.

    Clopper & Pearson (1934), exact. Without a failure it is 1 - (1 - confidence)^(1/trials), close to the "rule of
    three", 3/trials (Hanley & Lippman-Hand 1983).

    >>> round(upper_bound(0, 10), 3), round(upper_bound(1, 10), 3), upper_bound(10, 10), upper_bound(0, 0)
    (0.259, 0.394, 1.0, 1.0)
    """
    if failures >= trials:
        return 1.0
    return float(special.betaincinv(failures + 1, trials - failures, confidence))
