"""What no client can hold of the live page's server: so many connections, a deadline for a request's head and body."""

import asyncio

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from walproof.machine.bounded_server import CONNECTIONS, HEAD_S, MOST_BODY


class BoundedH11(H11Protocol):
    """Ends a connection whose next request is not whole within HEAD_S, and each one above CONNECTIONS.

    uvicorn itself waits for a first head for ever.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(HEAD_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


async def body_of(request: Request) -> bytes:
    """The body; ValueError for one of more than MOST_BODY bytes, or that is not whole within HEAD_S."""
    body = bytearray()
    async with asyncio.timeout(HEAD_S):
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                raise ValueError("the body is too long")
    return bytes(body)
