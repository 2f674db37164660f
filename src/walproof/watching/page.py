"""The live page: one HTML file, server-sent events, and actions behind a token. Loopback unless asked otherwise."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from importlib import resources

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from walproof.errors import Error, MachineError, UsageError
from walproof.estimating.observed_waits import Cause
from walproof.machine.addresses import is_loopback
from walproof.machine.untrusted import from_json
from walproof.model.ports import Target
from walproof.watching.actions import Actions
from walproof.watching.answered_requests import why_refused
from walproof.watching.bounded_http import BoundedH11, body_of
from walproof.watching.collector import Collector
from walproof.watching.http_server import base_url, new_token
from walproof.watching.picture import with_timeline_event

STATIC = resources.files("walproof.watching") / "static"
TOKEN_HEADER = "x-walproof-token"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PARTS = {"/*STYLE*/": ("page.css",), "/*SCRIPT*/": ("chart.js", "page.js")}


def page_html() -> str:
    """The page with its style and scripts inside."""
    html = (STATIC / "page.html").read_text()
    for mark, files in _PARTS.items():
        html = html.replace(mark, "".join((STATIC / name).read_text() for name in files))
    return html.replace("/*CAUSES*/", ", ".join(map(json.dumps, Cause)))


class Page:
    """Serves a collector's picture, and a target's actions; `url` carries the token in its fragment, never sent."""

    def __init__(
        self,
        collector: Collector,
        target: Target | None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        self._collector = collector
        self._actions = (
            Actions(target, lambda event: collector.update(with_timeline_event, event), allowed) if target else None
        )
        self._host, self._port = host, port
        self._ready: Callable[[str], None] = lambda _url: None
        self._offered: list[dict[str, object]] = []
        self.token = token or new_token()
        self.app = Starlette(
            routes=[Route("/", self._html), Route("/events", self._events), Route("/act", self._act, methods=["POST"])]
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                host=host,
                port=port,
                http=BoundedH11,
                ws="none",
                log_level="critical",
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )

    @property
    def url(self) -> str:
        """Where to point a browser."""
        return f"{base_url(self._host, self._port)}/#{self.token}"

    def _foreign(self, request: Request) -> Response | None:
        """A refusal of what `why_refused` names (DNS rebinding, CSRF)."""
        why = why_refused(self._host, request.headers.get, acts=request.method == "POST")
        return _refusal(403, why) if why else None

    def _authorised(self, request: Request) -> bool:
        return secrets.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self.token.encode())

    async def _html(self, request: Request) -> Response:
        return self._foreign(request) or HTMLResponse(
            page_html(), headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
        )

    async def _events(self, request: Request) -> Response:
        if refused := self._foreign(request):
            return refused
        if not is_loopback(self._host) and not self._authorised(request):
            return _refusal(403, "beyond loopback, reading needs the token too")
        return StreamingResponse(
            self._stream(request), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def _stream(self, request: Request) -> AsyncIterator[str]:
        seen, can_act = -1, self._authorised(request)
        while not self._server.should_exit and not await request.is_disconnected():
            if self._collector.version != seen:
                seen = self._collector.version
                shown = self._collector.picture.as_json() | {"stale_s": self._collector.stale_s}
                if self._actions:
                    shown |= {
                        "can_act": can_act,
                        "actions": await self._actions_offered(seen),
                        "action": asdict(self._actions.last),
                    }
                yield f"data: {json.dumps(shown)}\n\n"
            await asyncio.sleep(0.2)

    async def _actions_offered(self, version: int) -> list[dict[str, object]]:
        """What can be done now; asked of the target only now and then, for the asking costs it something."""
        if self._actions and (not self._offered or version % 20 == 0):
            self._offered = [asdict(action) for action in await run_in_threadpool(self._actions.offered)]
        return self._offered

    async def _act(self, request: Request) -> Response:
        if refused := self._foreign(request):
            return refused
        if not self._authorised(request):
            return _refusal(403, "this tab has no valid token: open the address that walproof watch printed")
        if self._actions is None:
            return _refusal(404, "a record takes no actions")
        try:
            asked = from_json(await body_of(request))
            await run_in_threadpool(self._actions.start, str(asked["action"]), str(asked.get("member", "")))
        except Error as error:
            return _refusal(409 if isinstance(error, UsageError) else 500, f"{error.message}; {error.hint}")
        except (ValueError, KeyError, TypeError, AttributeError, TimeoutError):
            return _refusal(400, "an action is {action, member}")
        return JSONResponse({"started": True})

    async def _serve(self) -> None:
        config = self._server.config
        socket = config.bind_socket()
        self._port = int(socket.getsockname()[1])
        serving = asyncio.create_task(self._server.serve(sockets=[socket]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.02)
        self._ready(self.url)
        await serving

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until stopped, passing `ready` the address; MachineError when it is taken."""
        self._ready = ready
        try:
            asyncio.run(self._serve())
        except (SystemExit, OSError):
            raise MachineError(
                f"cannot listen on {self._host}:{self._port}", "choose another address with --host or --port"
            ) from None

    def stop(self) -> None:
        """Ask the server to end; returns at once."""
        self._server.should_exit = True


def _refusal(status: int, error: str) -> Response:
    return JSONResponse({"error": error}, status)
