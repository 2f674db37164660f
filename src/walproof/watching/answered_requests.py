"""Which requests the servers of `watch` and `guard` answer: the one rule for Host and for where a page came from.

On loopback there may be no token: a site that any browser here has open must not read or act, neither by a name that
it rebinds to 127.0.0.1 (Host) nor across origins. Beyond loopback clients and proxies come by any name, and the token,
which no such site has, decides alone."""

import re
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from walproof.machine.addresses import is_loopback

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
Header = Callable[[str], str | None]
"""The value of a request's header by its lower-case name; None where it has none."""


def names_loopback(host: str) -> bool:
    """Whether a Host header names loopback; the port may be another one, as behind an SSH tunnel.

    >>> names_loopback("localhost:8080"), names_loopback("[::1]"), names_loopback("evil.example"), names_loopback("")
    (True, True, False, False)
    """
    named = _HOST.fullmatch(host)
    return named is not None and is_loopback((named[1] or named[2]).lower())


def why_refused(listens_on: str, header: Header, *, acts: bool = False) -> str:
    """Why a server that listens there does not answer this request; empty where it does. The token is asked besides.

    A Referer counts only where the request acts: a link to the page may stand anywhere.
    """
    if not is_loopback(listens_on):
        return ""
    host = header("host") or ""
    if not names_loopback(host):
        return "this server answers only to the address it printed"
    came_from = [header("origin"), header("referer") if acts else None]
    if any(origin is not None and not _is_own(origin, host) for origin in came_from):
        return "the request comes from another origin"
    return ""


def _is_own(origin: str, host: str) -> bool:
    with suppress(ValueError):
        parts = urlsplit(origin)
        return (parts.scheme, parts.netloc) == ("http", host)
    return False
