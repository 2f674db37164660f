"""The machine's own clock: what the lab and real targets live by."""

import os
import time

from walproof.errors import UsageError


def patience() -> float:
    """The multiplier of every named wait: WALPROOF_PATIENCE, at least 0.1; UsageError when it is not a number."""
    try:
        return max(0.1, float(os.environ.get("WALPROOF_PATIENCE", "1")))
    except ValueError:
        raise UsageError("WALPROOF_PATIENCE is not a number", "for instance WALPROOF_PATIENCE=2") from None


class RealClock:
    """Seconds since the epoch, real pauses, and the patience of this machine; UsageError where that is no number."""

    def __init__(self) -> None:
        self.patience = patience()

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def pause(self, seconds: float) -> None:
        """Let that much time pass."""
        time.sleep(seconds)
