"""The HTTP client of Patroni's own servers: TLS by the files given, never a proxy, never where a redirect points.

An answer is taken as it was sent, and no more of it than any of these servers has to say.
"""

import ssl
import time
from collections.abc import Iterator

import httpx2

from walproof.errors import UsageError

_MOST = 1 << 24
"""Bytes of one answer: Patroni keeps a few values of at most 1.5 MiB each in its DCS."""

_TIMES = 4
"""How often the time for one piece of it a whole answer may take."""


class _Counted(httpx2.SyncByteStream):
    """An answer's body, cut off beyond `_MOST` bytes and after so many seconds: each piece of it may come in time."""

    def __init__(self, body: httpx2.SyncByteStream, seconds: float) -> None:
        self._body, self._end = body, time.monotonic() + seconds

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._body:
            if time.monotonic() > self._end:
                raise httpx2.ReadTimeout("the answer trickles in")
            size += len(piece)
            if size > _MOST:
                raise httpx2.ReadError(f"the answer is longer than {_MOST >> 20} MiB")
            yield piece

    def close(self) -> None:
        self._body.close()


class _Bounded(httpx2.BaseTransport):
    """Refuses what is packed, for a few bytes unpack to any number, and what does not end."""

    def __init__(self, transport: httpx2.BaseTransport, seconds: float) -> None:
        self._transport, self._seconds = transport, seconds

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self._transport.handle_request(request)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            answer.close()
            raise httpx2.DecodingError("the answer is packed, which was not asked for", request=request)
        assert isinstance(answer.stream, httpx2.SyncByteStream)
        answer.stream = _Counted(answer.stream, self._seconds)
        return answer

    def close(self) -> None:
        self._transport.close()


def private_client(
    *, ca_file: str = "", cert_file: str = "", key_file: str = "", verify: bool = True, timeout_s: float
) -> httpx2.Client:
    """A client for servers at private addresses; UsageError where a certificate cannot be read.

    ca_file, cert_file, key_file: paths of PEM files, "" for the system's and for none; timeout_s: to connect and to
    answer, each.
    """
    cert = (cert_file, key_file or cert_file) if cert_file else None
    try:
        trusted = ssl.create_default_context(cafile=ca_file) if ca_file else verify
        if cert:
            ssl.create_default_context().load_cert_chain(*cert)
    except OSError as wrong:
        files = ", ".join(f for f in (ca_file, cert_file, key_file) if f)
        raise UsageError(
            f"a certificate of [restapi] cannot be read ({files}): {wrong.strerror or wrong}",
            "the files of certificates and keys are paths of PEM files this user may read",
        ) from None
    # Never through a proxy of the environment: these are private addresses.
    # Never to where a redirect points: a server answers itself or not at all.
    transport = _Bounded(httpx2.HTTPTransport(cert=cert, verify=trusted, trust_env=False), _TIMES * timeout_s)
    headers = {"Accept-Encoding": "identity"}
    return httpx2.Client(
        transport=transport, headers=headers, timeout=timeout_s, trust_env=False, follow_redirects=False
    )
