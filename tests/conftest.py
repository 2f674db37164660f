"""Fixtures for every test, and a guard: an ignored SIGINT would be inherited by everything that is started."""

import signal

from tests.fixtures.labs import lab, own_state

__all__ = ["lab", "own_state"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
