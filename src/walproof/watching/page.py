"""The live page: one HTML file, server-sent events, and buttons behind a token. Loopback unless told otherwise."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from importlib import resources

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from walproof.errors import MachineError, UsageError
from walproof.watching.buttons import Buttons
from walproof.watching.collector import Gathering

STATIC = resources.files("walproof.watching") / "static"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def page_html() -> str:
    """The page with its style and script inside."""
    html = (STATIC / "page.html").read_text()
    return html.replace("/*STYLE*/", (STATIC / "page.css").read_text()).replace(
        "/*SCRIPT*/", (STATIC / "page.js").read_text()
    )


class Page:
    """Serves a gathering; `url` carries the token in its fragment, which browsers do not send."""

    def __init__(
        self, gathering: Gathering, buttons: Buttons | None, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._gathering, self._buttons = gathering, buttons
        self._host, self._port = host, port
        self._ready: Callable[[str], None] = lambda _url: None
        self._shown: list[dict[str, object]] = []
        self.token = secrets.token_urlsafe(24)
        self.app = Starlette(
            routes=[
                Route("/", self._html),
                Route("/events", self._events),
                Route("/act", self._act, methods=["POST"]),
            ]
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app, host=host, port=port, log_level="critical", access_log=False, timeout_graceful_shutdown=1
            )
        )

    @property
    def url(self) -> str:
        """Where to point a browser."""
        return f"http://{self._host}:{self._port}/#{self.token}"

    def _foreign(self, request: Request) -> Response | None:
        """A refusal when the request names another host or comes from another origin (DNS rebinding, CSRF)."""
        host = request.headers.get("host", "").rsplit(":", 1)[0].strip("[]")
        allowed = LOOPBACK if self._host in LOOPBACK else (*LOOPBACK, self._host)
        if host not in allowed:
            return JSONResponse({"error": "this page answers only to its own address"}, 403)
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{request.headers.get('host')}":
            return JSONResponse({"error": "foreign origin"}, 403)
        return None

    def _authorised(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())

    async def _html(self, request: Request) -> Response:
        return self._foreign(request) or HTMLResponse(
            page_html(), headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
        )

    async def _events(self, request: Request) -> Response:
        refused = self._foreign(request)
        if refused:
            return refused
        if self._host not in LOOPBACK and not self._authorised(request.query_params.get("token", "")):
            return JSONResponse({"error": "beyond loopback, reading needs the token too"}, 403)
        return StreamingResponse(
            self._stream(request), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def _stream(self, request: Request) -> AsyncIterator[str]:
        seen = -1
        while not self._server.should_exit and not await request.is_disconnected():
            if self._gathering.version != seen:
                seen = self._gathering.version
                drawn = self._gathering.picture.drawn()
                if self._buttons:
                    drawn["action"] = self._buttons.last
                    drawn["buttons"] = self._offered(seen)
                yield f"data: {json.dumps(drawn)}\n\n"
            await asyncio.sleep(0.2)

    def _offered(self, version: int) -> list[dict[str, object]]:
        """What may be pressed; asked of the target only now and then, for the asking costs it something."""
        if self._buttons and (not self._shown or version % 20 == 0):
            self._shown = [
                {"word": b.word, "member": b.needs_member, "why": b.why_not} for b in self._buttons.offered()
            ]
        return self._shown

    async def _act(self, request: Request) -> Response:
        refused = self._foreign(request)
        if refused:
            return refused
        if not self._authorised(request.headers.get("x-walproof-token", "")):
            return JSONResponse({"error": "without its token this page does nothing"}, 403)
        if self._buttons is None:
            return JSONResponse({"error": "this target has no buttons"}, 404)
        try:
            asked = await request.json()
            self._buttons.press(str(asked["word"]), str(asked.get("member", "")))
        except UsageError as error:
            return JSONResponse({"error": f"{error.message}; {error.hint}"}, 409)
        except (ValueError, KeyError, TypeError):
            return JSONResponse({"error": "an action is {word, member}"}, 400)
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
        """Serve until stopped, telling `ready` the address; MachineError when it is taken."""
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
