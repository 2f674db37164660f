"""Where a server of `watch` listens and how it is reached: loopback or beyond, URLs, the token that goes with them."""

import contextlib
import os
import secrets
import socket
import stat
from ipaddress import ip_address
from pathlib import Path

import psutil

from walproof.errors import UsageError
from walproof.records.private import opener

ANY = ("0.0.0.0", "::", "")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    >>> is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def base_url(host: str, port: int) -> str:
    """The URL of what listens on `host`, which may stand for every address: then one that others can open.

    >>> base_url("::1", 80)
    'http://[::1]:80'
    """
    shown = _reachable(host) if host in ANY else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _reachable(host: str) -> str:
    """An address of this machine that is not loopback, of the family of `host` where there is one."""
    wanted = (socket.AF_INET6, socket.AF_INET) if host == "::" else (socket.AF_INET,)
    found = [a for addresses in psutil.net_if_addrs().values() for a in addresses]
    for family in wanted:
        for address in found:
            # A link-local address (fe80::…%eth0) is of no use in a browser.
            if address.family == family and not is_loopback(address.address) and "%" not in address.address:
                return str(address.address)
    return "localhost"


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def token_in(path: Path) -> str:
    """The token that the file holds; a new one is written, for its owner alone, where the file is missing.

    UsageError when others may read the file, or it holds none.
    """
    hint = "--token-file names a file of mode 0600 with one line, or a new one"
    try:
        with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise UsageError(f"others may read the token file {path}", f"chmod 600 {path}")
            token = file.read().strip()
            if len(token) < 16 or not token.isprintable() or " " in token:
                raise UsageError(f"the token file {path} holds no token of 16 characters or more", hint)
            return token
        token = new_token()
        with open(path, "x", encoding="utf-8", opener=opener) as file:
            file.write(token + "\n")
        return token
    except (OSError, UnicodeDecodeError) as wrong:
        raise UsageError(f"the token file {path} cannot be used: {getattr(wrong, 'strerror', wrong)}", hint) from None
