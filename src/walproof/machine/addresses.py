"""Which addresses are loopback: what only this machine reaches. Asks no name server."""

from contextlib import suppress
from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    >>> is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
