"""How late the transactions of an open loop started, and whether that grew: a straight line by least squares. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Lag:
    """Sums over transactions: how many, start in s after the sample's, its square, lag in s, start times lag."""

    count: int = 0
    at: float = 0.0
    at_squared: float = 0.0
    lag: float = 0.0
    at_lag: float = 0.0

    def plus(self, start_s: NDArray[np.float64], lag_s: NDArray[np.float64], within: tuple[float, float]) -> "Lag":
        """With these transactions too, where they really started between two times; all in seconds, shape (n,)."""
        inside = (start_s >= within[0]) & (start_s <= within[1])
        at, lag = start_s[inside] - within[0], lag_s[inside]
        return Lag(
            self.count + len(at),
            self.at + float(at.sum()),
            self.at_squared + float((at * at).sum()),
            self.lag + float(lag.sum()),
            self.at_lag + float((at * lag).sum()),
        )

    @property
    def mean_s(self) -> float:
        """Mean lag in seconds, 0 of nothing."""
        return self.lag / self.count if self.count else 0.0

    @property
    def rise(self) -> float:
        """Seconds by which the lag rises a second: where the load carries a share c of what is offered, 1 - c.

        >>> late = Lag().plus(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3]), (0.0, 9.0))
        >>> round(late.rise, 6), round(late.mean_s, 6), Lag().rise
        (0.1, 0.2, 0.0)
        """
        if self.count < 3:
            return 0.0
        spread = self.at_squared - self.at**2 / self.count
        return (self.at_lag - self.at * self.lag / self.count) / spread if spread > 0 else 0.0


NO_LAG = Lag()
