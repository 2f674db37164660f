"""Serves metrics over HTTP at /metrics and a state as JSON at /state, behind a bearer token where one is given."""

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from walproof.errors import MachineError

Answer = Iterable[bytes]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the user."""


class MetricsServer:
    """Listens on (host, port) until closed; MachineError when it cannot. Without a token everybody may read."""

    def __init__(
        self,
        registry: CollectorRegistry,
        address: tuple[str, int],
        token: str = "",
        state: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        host, port = address
        kind = _Server6 if ":" in host else _Server
        app = make_wsgi_app(registry) if state is None else _with_state(state, make_wsgi_app(registry))
        try:
            self._server = make_server(host, port, _behind(token, app), kind, _Quiet)
        except OSError as error:
            raise MachineError(
                f"cannot listen on {host} port {port}: {error.strerror}", "choose another with --host or --port"
            ) from None
        self.port = int(self._server.server_port)
        threading.Thread(target=self._server.serve_forever, daemon=True, name="metrics").start()

    def close(self) -> None:
        """Stop listening."""
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


def _behind(token: str, app: Callable[..., Answer]) -> Callable[..., Answer]:
    """The application for requests that carry `Authorization: Bearer TOKEN`; 401 for all others."""
    expected = f"Bearer {token}".encode()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace")
        if token and not secrets.compare_digest(given, expected):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
            return [b"the token is missing or wrong\n"]
        return app(environ, start_response)

    return answer
