"""Where a member is reached: at its pod's address, or at a port here that leads to it through the API server."""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from walproof.errors import Error
from walproof.targets.cnpg.api import ApiError
from walproof.targets.cnpg.objects import Pod

Place = tuple[str, int]
_CONNECT_S = 0.7


class Forward:
    """A port on 127.0.0.1 that leads to a port of a pod; every connection is a stream of its own."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        """`connect` gives a connected socket; an Error of it ends the one connection that wanted it."""
        self._connect = connect
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.place: Place = ("127.0.0.1", int(self._listening.getsockname()[1]))
        threading.Thread(target=self._accept, name="port-forward", daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            pod = self._connect()
        except (Error, OSError):
            # As a pod does that is gone: the client sees its connection end.
            client.close()
            return
        back = threading.Thread(target=_pumped, args=(pod, client), daemon=True)
        back.start()
        _pumped(client, pod)
        back.join()
        for end in (client, pod):
            end.close()


def _pumped(source: Any, sink: Any) -> None:
    """Carry bytes until either end closes; then close the other's direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Addresses:
    """Places of pods by name: decided once for all of them, so that prices compare."""

    def __init__(self, reach: str, forward: Callable[[str, int], Any]) -> None:
        """reach: auto, pods or port-forward; `forward` gives a connected socket to a port of a pod."""
        self._reach, self._connect = reach, forward
        self._forwards: dict[str, Forward] = {}
        self._checked = False

    @property
    def forwarded(self) -> bool:
        """Whether everything goes through the API server."""
        return self._reach == "port-forward"

    def places(self, pods: Mapping[str, Pod]) -> dict[str, Place]:
        """host and port of every pod that has an address."""
        addressed = {name: pod for name, pod in pods.items() if pod.status.pod_ip}
        if self._reach == "auto" and addressed:
            able = any(_answers((p.status.pod_ip, p.port)) for p in addressed.values() if p.ready)
            self._reach = "pods" if able else "port-forward"
        self._check(addressed)
        if not self.forwarded:
            return {name: (pod.status.pod_ip, pod.port) for name, pod in addressed.items()}
        return {name: self._forwarded(name, pod.port) for name, pod in addressed.items()}

    def _check(self, addressed: Mapping[str, Pod]) -> None:
        """ApiError where nothing may be forwarded: a client would see its connection end, and not why."""
        ready = next((pod for pod in addressed.values() if pod.ready), None)
        if self._checked or not self.forwarded or ready is None:
            return
        try:
            self._connect(ready.metadata.name, ready.port).close()
        except ApiError as wrong:
            if wrong.code == 403:
                raise
        except OSError:
            return
        self._checked = True

    def _forwarded(self, name: str, port: int) -> Place:
        if name not in self._forwards:
            self._forwards[name] = Forward(lambda: self._connect(name, port))
        return self._forwards[name].place

    def close(self) -> None:
        """Take no more connections."""
        for forward in self._forwards.values():
            forward.close()
        self._forwards.clear()


def _answers(place: Place) -> bool:
    try:
        with socket.create_connection(place, timeout=_CONNECT_S):
            return True
    except OSError:
        return False
