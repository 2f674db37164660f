"""The Kubernetes API over its own client (decision 0006): raw JSON in and out, every failure as one sentence.

What an answer may hold is bounded: a server that never ends one, or packs it, is refused.
"""

import socket
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import yaml

from walproof.errors import Error, MachineError
from walproof.machine.quoting import pasted
from walproof.machine.untrusted import from_json
from walproof.targets.cnpg.kubernetes_api import PODS, ApiError, Kind, Output, Tree, refused, unanswered

try:
    import urllib3
    from kubernetes.client import ApiClient, ApiException, Configuration
    from kubernetes.config import ConfigException
    from kubernetes.stream.ws_client import ERROR_CHANNEL, portforward_call, websocket_call
    from websocket import WebSocketConnectionClosedException, WebSocketException

    from walproof.targets.cnpg.kubeconfig import server_of
except ModuleNotFoundError:
    raise MachineError(
        "CloudNativePG needs the Kubernetes client, which is not installed",
        "in walproof's checkout: pip install '.[kubernetes]'",
    ) from None

_CONNECT_S, _READ_S, _EXEC_S, _CREDENTIAL_S, _ONCE_S = 5.0, 10.0, 30.0, 0.5, 1.0
_PAGE = 500
_MOST, _MOST_WAITING, _MOST_STATUS = 1 << 24, 1 << 28, 1 << 16
"""Bytes of one answer, all pages of a list together (a thousand lines of a log are fewer); of a forward that wait here
to be read, for PostgreSQL sends faster than a result is taken in; of how a command ended."""
_MERGE = "application/merge-patch+json"
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked: a verb as RBAC names it, of an object or all of a kind."""

    verb: str
    kind: Kind
    name: str = ""
    subresource: str = ""
    body: Mapping[str, Any] | None = None
    query: Query = ()
    once: bool = False


class Client:
    """One namespace of one Kubernetes API. Safe to use from several threads."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str,
        context: str,
        renewed: Callable[[], Configuration] | None = None,
    ) -> None:
        """`renewed` reads the credential anew, once the API server no longer accepts the one there is."""
        self.namespace, self.context = namespace, context
        self._renewed = renewed
        self._server = server_of(configuration)  # its authority's file, which the Kubernetes client made, may go
        self._use(configuration)

    def _use(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._api: Any = ApiClient(configuration)

    @property
    def server(self) -> str:
        return str(self._configuration.host)

    def serves(self, kind: Kind) -> bool:
        """Whether the API's own list of kinds has it; every user known to the API may read that."""
        status, text = self._called("GET", f"{self.server}/apis/{kind.group}/{kind.version}")
        if status == 404:
            return False
        if status >= 300:
            raise self._refused("get", kind, "", status, text)
        return any(one.get("name") == kind.plural for one in self._parsed(text).get("resources") or [])

    def get(self, kind: Kind, name: str) -> Tree:
        return self._asked(_Request("get", kind, name))

    def list(self, kind: Kind, labels: str = "") -> list[Tree]:
        """Every object with these labels, page by page."""
        objects: list[Tree] = []
        more, size = "", 0
        while size <= _MOST:
            words = (("labelSelector", labels), ("limit", str(_PAGE)), ("continue", more))
            text = self._answered(_Request("list", kind, query=[(n, v) for n, v in words if v]))
            answer, size = self._parsed(text), size + len(text)
            objects += answer.get("items") or []
            more = str((answer.get("metadata") or {}).get("continue") or "")
            if not more:
                return objects
        raise self._endless(f"the list of {kind.shown}")

    def create(self, kind: Kind, body: Mapping[str, Any]) -> Tree:
        return self._asked(_Request("create", kind, body=body))

    def patch(
        self, kind: Kind, name: str, body: Mapping[str, Any], subresource: str = "", *, dry_run: bool = False
    ) -> Tree:
        query = [("dryRun", "All")] if dry_run else []
        return self._asked(_Request("patch", kind, name, subresource, body, query))

    def delete(self, kind: Kind, name: str, grace_s: int | None = None, *, uid: str) -> bool:
        """Delete an object and what it owns; False where it is gone already, or there is another of that name."""
        # A Job's pods outlive it unless that is asked for.
        options: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            # One that waits in the API server for longer is not carried out, nor is it sent late or once more because
            # a credential had to be asked for: it was meant for what was seen.
            self._asked(_Request("delete", kind, name, "", options, [("timeout", "2s")], once=True))
        except ApiError as wrong:
            if wrong.code not in (404, 409):
                raise
            return False
        return True

    def exec(self, pod: str, command: Sequence[str], container: str = "postgres") -> Output:
        """Run a command in a container and wait for it, for at most half a minute."""
        words = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query = [*words, *(("command", word) for word in command)]
        talk: Any = self._stream("exec", pod, query, websocket_call)
        _bound(talk.sock, _MOST, lambda received: received)
        try:
            talk.run_forever(timeout=_EXEC_S)
            if talk.is_open():
                raise ApiError(f"the command in {pod} did not end within {_EXEC_S:.0f} s: {command[0]}", "kubectl exec")
            out, errors = str(talk.read_channel(1)), str(talk.read_channel(2))
            if len(talk.peek_channel(ERROR_CHANNEL)) > _MOST_STATUS:
                raise ValueError("no status is so long")
            return Output(out, errors, int(talk.returncode))
        except (TypeError, KeyError, IndexError, ValueError, RecursionError, yaml.YAMLError) as wrong:
            # The container was gone before it gave the command's exit code.
            raise ApiError(
                f"the command in {pod} was cut off", pasted("kubectl get pod {pod:argument}", pod=pod)
            ) from wrong
        except WebSocketException as wrong:
            raise ApiError(
                f"the command in {pod} was cut off: {wrong}", pasted("kubectl get pod {pod:argument}", pod=pod)
            ) from None
        finally:
            talk.close()

    def log(self, pod: str, container: str = "postgres", lines: int = 1000) -> str:
        query = [("container", container), ("tailLines", str(lines))]
        return self._answered(_Request("get", PODS, pod, "log", query=query))

    def forward(self, pod: str, port: int) -> socket.socket:
        """A connected socket to a port of a pod, over a WebSocket of its own: one that breaks harms no other."""
        forwarded = self._stream("portforward", pod, [("ports", str(port))], portforward_call)
        _bound(forwarded.websocket, _MOST_WAITING, lambda _: len(forwarded.local_ports[port].data))
        connected: socket.socket = forwarded.socket(port)
        return connected

    def close(self) -> None:
        self._api.close()

    def _headers(self) -> dict[str, str]:
        # Basic authentication stands there too; a credential about to expire is asked for anew, of a plugin or a file.
        try:
            token = self._configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise ApiError(f"no new credential for {self.server}: {wrong}", "kubectl auth whoami") from None
        return {"authorization": token} if token else {}

    def _url(self, kind: Kind, name: str, subresource: str, query: Query) -> str:
        parts = [urllib.parse.quote(part, safe="") for part in (self.namespace, name, subresource)]
        asked = f"?{urllib.parse.urlencode(list(query))}" if query else ""
        return self.server + kind.path(*parts) + asked

    def _asked(self, request: _Request) -> Tree:
        return self._parsed(self._answered(request))

    def _answered(self, request: _Request) -> str:
        url = self._url(request.kind, request.name, request.subresource, request.query)
        status, text = self._called(_METHODS[request.verb], url, request.body, once=request.once)
        if status >= 300:
            raise self._refused(request.verb, request.kind.within(request.subresource), request.name, status, text)
        return text

    def _called(
        self, method: str, url: str, body: Mapping[str, Any] | None = None, *, renew: bool = True, once: bool = False
    ) -> tuple[int, str]:
        """(HTTP status, body) of one request, asked once more where another credential is there meanwhile; ApiError.

        once: never asked once more, nor where the credential or the connection takes long.
        """
        began = monotonic()
        headers = {"Accept": "application/json, */*", "Accept-Encoding": "identity", "User-Agent": "walproof"}
        headers |= self._headers()
        if once and monotonic() - began > _CREDENTIAL_S:
            raise ApiError(f"a credential for {self.server} came too late for this request", "kubectl auth whoami")
        if body is not None:
            headers["Content-Type"] = _MERGE if method == "PATCH" else "application/json"
        try:
            limits_s = (_ONCE_S if once else _CONNECT_S, _READ_S)
            answer = self._api.call_api(method, url, headers, body, _request_timeout=limits_s)
            text = self._read(answer.response)
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as wrong:
            raise unanswered(self.server, wrong) from None
        if answer.status == 401 and renew and not once and self._logged_in_again(headers.get("authorization")):
            return self._called(method, url, body, renew=False)
        return answer.status, text

    def _read(self, response: Any) -> str:
        """The answer's body as it was sent; ApiError where it is packed, or longer than any of Kubernetes'."""
        if response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            raise ApiError(f"{self.server} packs its answer, which was not asked for", "see server: in the kubeconfig")
        body = response.read(_MOST + 1, decode_content=False)
        if len(body) > _MOST:
            response.close()
            raise self._endless("its answer")
        response.release_conn()
        return str(body.decode("utf-8", "replace"))

    def _endless(self, what: str) -> ApiError:
        return ApiError(
            f"{self.server}: {what} is longer than {_MOST >> 20} MiB", "is it the right one? kubectl cluster-info"
        )

    def _logged_in_again(self, refused: str | None) -> bool:
        """Whether there is another credential now than the one that was refused: then it is used from now on.

        Of the same server: neither is another's credential sent here, nor a run that began here brought there.
        """
        if self._renewed is not None and self._headers().get("authorization") == refused:
            renewed = self._renewed()
            if server_of(renewed) != self._server:
                why = f"{self.server} does not accept this user any more, and the kubeconfig names another server now"
                raise ApiError(why, "kubectl config view; once it names the one that was asked, again", code=401)
            self._use(renewed)
        return self._headers().get("authorization") != refused

    def _parsed(self, text: str) -> Tree:
        try:
            tree = from_json(text)
        except ValueError:
            tree = None
        if not isinstance(tree, dict):
            raise ApiError(f"{self.server} answers, but is no Kubernetes API", "see server: in the kubeconfig")
        return tree

    def _refused(self, verb: str, kind: Kind, name: str, code: int, body: str) -> Error:
        return refused(verb, kind, name, code=code, body=body, namespace=self.namespace, server=self.server)

    def _stream(self, what: str, pod: str, query: Query, call: Any, *, renew: bool = True) -> Any:
        url, headers = self._url(PODS, pod, what, query), self._headers()
        try:
            return call(self._configuration, "GET", url, headers=headers, _preload_content=False)
        except ApiException as wrong:
            code = _handshake(str(wrong.reason))
            if code is None:
                raise unanswered(self.server, wrong) from None
            if code == 401 and renew and self._logged_in_again(headers.get("authorization")):
                return self._stream(what, pod, query, call, renew=False)
            kind = PODS if code == 404 else PODS.within(what)
            raise self._refused("create", kind, pod, code, _answer(str(wrong.reason))) from None


def _bound(websocket: Any, most: int, waiting: Callable[[int], int]) -> None:
    """Have a WebSocket end as if it broke where a message, or `waiting` (given the bytes received), exceeds `most`."""
    buffer, messages = websocket.frame_buffer, websocket.cont_frame
    receive, received = buffer.recv, 0

    def bounded(size: int) -> bytes:
        nonlocal received
        whole = len(messages.cont_data[1]) if messages.cont_data else 0
        if max(whole + (buffer.length or 0), waiting(received)) > most:
            raise WebSocketConnectionClosedException(f"more than {most >> 20} MiB came")
        piece: bytes = receive(size)
        received += len(piece)
        return piece

    buffer.recv = bounded


def _handshake(reason: str) -> int | None:
    """The HTTP status in the WebSocket's refusal ("Handshake status 403 Forbidden …"), None without one."""
    words = reason.split("Handshake status ")
    code = words[1][:3] if len(words) > 1 else ""
    return int(code) if code.isdigit() else None


def _answer(reason: str) -> str:
    """The body in the WebSocket's refusal, which ends with it.

    >>> _answer("Handshake status 403 Forbidden -+-+- {} -+-+- no")
    'no'
    """
    return reason.rpartition("-+-+-")[2].strip()
