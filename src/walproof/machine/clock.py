"""The machine's own clock: what the lab and real targets live by."""

import time


class RealClock:
    """Seconds since the epoch, and real pauses."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def pause(self, seconds: float) -> None:
        """Let that much time pass."""
        time.sleep(seconds)
