"""What the stand-in's threads share: a connection in the making is ended too, a pod that ends keeps its log."""

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest

from tests.fixtures.kubernetes.jobs import Finished, Jobs
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.postgres import MemoryPostgres
from tests.fixtures.kubernetes.relays import Relay
from tests.fixtures.kubernetes.state import Order
from tests.fixtures.kubernetes.store import Object, Store
from tests.fixtures.tiers import each


# rows: drop, close
@each([Relay.drop, Relay.close])
def test_a_relay_ends_the_connection_that_it_is_just_making(end: Callable[[Relay], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def there() -> tuple[str, int]:
            end(relay)
            return str(server.getsockname()[0]), int(server.getsockname()[1])

        relay = Relay(("127.0.0.1", 0), there)
        with socket.create_connection(relay._listening.getsockname(), timeout=10) as client:
            client.settimeout(10)
            assert client.recv(1) == b""
        relay.close()


@pytest.mark.parametrize("end", [Relay.drop, Relay.close], ids=["drop", "close"])
@pytest.mark.parametrize("connections", [1, 3])
def test_a_relay_ends_the_connections_that_were_held_by_it(end: Callable[[Relay], None], connections: int) -> None:
    """Their threads go on after it: what they made of a closed relay no later cut would hold."""
    ended, waiting = threading.Event(), threading.Semaphore(0)

    class Held(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.release()
            return ended.wait(timeout)

    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        relay = Relay(("127.0.0.1", 0), lambda: ("127.0.0.1", int(server.getsockname()[1])))
        relay.open, here = Held(), relay._listening.getsockname()
        clients = [stack.enter_context(socket.create_connection(here, timeout=10)) for _ in range(connections)]
        for _ in clients:
            assert waiting.acquire(timeout=60)
        end(relay)
        ended.set()
        for client in clients:
            assert client.recv(1) == b""
        relay.close()


def test_the_log_of_a_pod_that_ends_just_now_is_there() -> None:
    read: list[str] = []
    pod: Object = {
        "metadata": {"name": "load-0", "namespace": "default", "labels": {"job-name": "load"}},
        "spec": {"containers": [{"name": "load"}]}, "status": {"phase": "Pending"},
    }  # fmt: skip
    reading = threading.Thread(target=lambda: read.append(jobs.log(made)))

    class Ends(Finished):
        def log(self) -> str:
            if threading.current_thread() is not reading and not reading.ident:
                reading.start()
                reading.join(0.2)  # too short, and it waits for the pod's end; long enough, and it asks meanwhile
            return "all of it"

    jobs = Jobs(Store(), lambda *_: Ends())
    made = jobs.store.create(named("Pod"), pod)
    for _ in range(2):
        jobs._tick()
    reading.join(60)
    assert read == ["all of it"]


# rows: kill, stop fast
@each([Order("kill", "pg-1"), Order("stop", "pg-1", "fast")])
def test_what_is_dialled_while_the_member_ends_is_refused_or_ended(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres, pair = MemoryPostgres(), socket.socketpair

    def meanwhile() -> tuple[socket.socket, socket.socket]:
        postgres.carry_out(order, "pg-1")
        return pair()

    monkeypatch.setattr(socket, "socketpair", meanwhile)
    with pytest.raises(ConnectionRefusedError):
        postgres.dial("pg-1", 5432)
    assert postgres.clients("pg-1") == ()
