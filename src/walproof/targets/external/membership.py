"""The members of an external cluster, found in the background."""

import threading
import time
from collections.abc import Callable, Mapping

from walproof.errors import ODD
from walproof.model.topology import Endpoint

Members = Mapping[str, Endpoint]


class Membership:
    """The members as last found by `find`, which is first called when they are asked for.

    It is called again at most every `every_s` seconds.
    """

    def __init__(self, find: Callable[[], Members], every_s: float = 2.0) -> None:
        self._find, self._every_s = find, every_s
        self._members: Members = {}
        self._found_at = 0.0
        self._finding = threading.Lock()

    def __call__(self) -> Members:
        """The members known now: returns at once where some are, else an Error of `find` goes on."""
        if not self._members:
            self.renew()
        elif time.monotonic() - self._found_at > self._every_s and self._finding.acquire(blocking=False):
            threading.Thread(target=self._refresh, name="find members", daemon=True).start()
        return self._members

    def renew(self) -> None:
        """Find them now; an Error of `find` goes on."""
        self._members = self._find()
        self._found_at = time.monotonic()

    def _refresh(self) -> None:
        try:
            self._members = self._find() or self._members
        except ODD:
            # No member answers just now, or none that can be understood: those known last stay.
            pass
        finally:
            self._found_at = time.monotonic()
            self._finding.release()
