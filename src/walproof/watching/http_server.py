"""Where a server of `watch` or `guard` listens (loopback or beyond), its URL and its token.

Serves metrics at /metrics and a state as JSON at /state, behind a bearer token where one is given."""

import contextlib
import io
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psutil
from prometheus_client import CollectorRegistry, make_wsgi_app

from walproof.errors import MachineError, UsageError
from walproof.machine.addresses import is_loopback
from walproof.machine.bounded_server import BoundedMixIn, BoundedReader
from walproof.machine.quoting import pasted
from walproof.records.layout import only_ours, opener
from walproof.watching.answered_requests import why_refused

ANY = ("0.0.0.0", "::", "")


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
    addresses = [a for of_card in psutil.net_if_addrs().values() for a in of_card]
    for family in wanted:
        for address in addresses:
            # A link-local address (fe80::…%eth0) is of no use in a browser.
            if address.family == family and not is_loopback(address.address) and "%" not in address.address:
                return str(address.address)
    return "localhost"


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def token_in(path: Path) -> str:
    """The token that the file holds; a new one is written, for its owner alone, where the file is missing.

    UsageError when another user owns the file, others may read it, or it holds none.
    """
    hint = "--token-file names a file of mode 0600 with one line, or a new one"
    try:
        with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
            if not only_ours(file.fileno()):
                raise UsageError(f"another user owns the token file {path}, or may write in it", hint)
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise UsageError(f"others may read the token file {path}", pasted("chmod 600 {path:path}", path=path))
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


Answer = Iterable[bytes]


class _Server(BoundedMixIn, WSGIServer):
    pass


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    """Says nothing: the terminal belongs to the user."""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(BoundedReader(self.connection))

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def get_stderr(self) -> TextIO:
        # wsgiref prints a traceback there when a client stops reading.
        return io.StringIO()


class MetricsServer:
    """Listens on (host, port) until closed; MachineError when it cannot. Without a token this machine may read.

    UsageError for an address beyond loopback without a token.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        address: tuple[str, int],
        token: str = "",
        state: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        host, port = address
        if not token and not is_loopback(host):
            raise UsageError(f"{host} lets other machines read without a token", "listen on 127.0.0.1")
        kind = _Server6 if ":" in host else _Server
        app = make_wsgi_app(registry) if state is None else _with_state(state, make_wsgi_app(registry))
        try:
            self._server = make_server(host, port, _guarded(host, token, app), kind, _Quiet)
        except OSError as error:
            raise MachineError(
                f"cannot listen on {host} port {port}: {error.strerror}", "choose another with --host or --port"
            ) from None
        self.port = int(self._server.server_port)
        threading.Thread(target=self._server.serve_forever, daemon=True, name="metrics").start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _with_state(state: Callable[[], dict[str, Any]], app: Callable[..., Answer]) -> Callable[..., Answer]:
    """The application, and the state at /state."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        if environ.get("PATH_INFO") != "/state":
            return app(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(state()).encode()]

    return answer


def _guarded(host: str, token: str, app: Callable[..., Answer]) -> Callable[..., Answer]:
    """The application for requests that `why_refused` lets pass (else 403) with `Authorization: Bearer TOKEN` (401)."""
    expected = f"Bearer {token}".encode()

    def refuse(start_response: Callable[..., Any], status: str, why: str, *headers: tuple[str, str]) -> Answer:
        start_response(status, [*headers, ("Content-Type", "text/plain")])
        return [f"{why}\n".encode()]

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        if why := why_refused(host, lambda name: environ.get(f"HTTP_{name.upper()}")):
            return refuse(start_response, "403 Forbidden", why)
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace")
        if token and not secrets.compare_digest(given, expected):
            return refuse(
                start_response, "401 Unauthorized", "the token is missing or wrong", ("WWW-Authenticate", "Bearer")
            )
        return app(environ, start_response)

    return answer
