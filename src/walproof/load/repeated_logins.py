"""Logins that are made again and again, for as long as walproof looks on: none piles up where they are not answered.

One that gets no answer may leave a process in the server, where a disk stalls or a catalog is locked, that nobody can
end; each takes one of max_connections. So the next one there waits for a quarter of the time since the first silent
one: they become the fewer, the longer that lasts. All of this process count as one; other servers are not held up."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic

import psycopg

from walproof.model.topology import Endpoint

LOGIN = {"connect_timeout": "2", "tcp_user_timeout": "1500"}
"""How they log in. Where the host itself is away, TCP gives up sooner than the login: nothing is left in a server."""
_SILENT_S, _LONGEST_PAUSE_S = 2.0, 300.0
Hosts = tuple[tuple[str, int], ...]
_silent: dict[Hosts, tuple[float, float]] = {}
"""Servers whose last login was not answered: since when, and when the next one is due; infinite while that goes on."""
_lock = Lock()


@contextmanager
def first_answer(endpoint: Endpoint) -> Iterator[None]:
    """Around a login and its first question. psycopg.OperationalError where it is too soon for that.

    Refused is answered, and so is an error of the server's. Of several hosts one may hang though the next one answers.
    """
    began, silent = monotonic(), False
    with _lock:
        for server in [hosts for hosts, (_, due) in _silent.items() if due + _LONGEST_PAUSE_S < began]:
            del _silent[server]  # nobody has asked there since
        known = _silent.get(endpoint.hosts)
        if known and began < known[1]:
            where = ", ".join(f"{host}:{port}" for host, port in endpoint.hosts)
            raise psycopg.OperationalError(f"the last login at {where} was not answered; the next one has to wait")
        if known:
            _silent[endpoint.hosts] = known[0], math.inf
    try:
        yield
        silent = len(endpoint.hosts) > 1
    except psycopg.Error as wrong:
        silent = wrong.sqlstate is None
        raise
    finally:
        ended = monotonic()
        with _lock:
            since, _ = _silent.pop(endpoint.hosts, (began, began))
            if silent and ended - began >= _SILENT_S:
                _silent[endpoint.hosts] = since, ended + min((ended - since) / 4, _LONGEST_PAUSE_S)
