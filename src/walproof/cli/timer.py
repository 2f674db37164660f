"""`--duration` of verbs that go on until they are ended."""

import threading
from collections.abc import Callable


def call_after(duration: float | None, end: Callable[[], None]) -> None:
    """Call `end` after so many seconds, in a thread that holds nothing up; never for None."""
    if duration is not None:
        timer = threading.Timer(duration, end)
        timer.daemon = True
        timer.start()
