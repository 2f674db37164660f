"""The real clock; the only place of the lab that sleeps."""

import time


class RealClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def pause(self, seconds: float) -> None:
        """Let that much time pass."""
        time.sleep(seconds)
