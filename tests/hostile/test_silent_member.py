"""A member that speaks PostgreSQL, logs us in, and then is silent, chatters, or sends rows without end."""

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

import walproof
from tests.fixtures.served_sockets import serving
from tests.fixtures.tiers import each
from walproof.errors import MachineError, TargetError
from walproof.load.ledger.reader import Reader
from walproof.load.ledger.task_and_attempt_files import ReaderTask
from walproof.load.open_session import open_session
from walproof.load.statistics_connection import StatsConnection
from walproof.machine.answering import answering
from walproof.machine.clock import RealClock
from walproof.model.topology import Endpoint
from walproof.salvaging import plan
from walproof.targets.postgres import target as target_module
from walproof.targets.postgres.target import open_postgres
from walproof.targets.sql import observe
from walproof.targets.sql.connection import asked, connected
from walproof.targets.sql.doctor_facts import gathered
from walproof.targets.sql.observe import rows_of

SAYS = ("server_version", "17.0"), ("client_encoding", "UTF8"), ("standard_conforming_strings", "on")


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


LET_IN = (
    message(b"R", struct.pack(">I", 0))
    + b"".join(message(b"S", f"{name}\0{value}\0".encode()) for name, value in SAYS)
    + message(b"Z", b"I")
)
COLUMN = struct.pack(">H", 1) + b"a\0" + struct.pack(">IHIHIH", 0, 0, 25, 65535, 0xFFFFFFFF, 0)
COLUMNS = message(b"1", b"") + message(b"2", b"") + message(b"T", COLUMN)
ROW = message(b"D", struct.pack(">HI", 1, 64) + b"x" * 64)
NOTICE = message(b"N", b"SNOTICE\0C00000\0Mx\0\0")
LIES = {"silent": (b"", b""), "chatters": (b"", NOTICE), "rows": (COLUMNS, ROW)}


@contextmanager
def member(lie: str) -> Iterator[Endpoint]:
    over, (first, again) = threading.Event(), LIES[lie]

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(LET_IN)
        connection.recv(1 << 16)
        connection.sendall(first)
        while not over.wait(0.01):
            connection.sendall(again)

    with serving(serve) as port:
        plain = (("sslmode", "disable"), ("gssencmode", "disable"))
        yield Endpoint((("127.0.0.1", port),), "postgres", "u", None, plain)
        over.set()


@each(LIES)
@pytest.mark.timeout(60)
def test_opening_it_ends_in_one_sentence(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "asked", partial(asked, within_s=0.5))
    with member(lie) as endpoint, pytest.raises(TargetError, match="does not answer"):
        open_postgres(f"host=127.0.0.1 port={endpoint.hosts[0][1]} user=u sslmode=disable gssencmode=disable")


@each(LIES)
@pytest.mark.timeout(60)
def test_a_thread_that_observes_it_ends(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walproof.targets.sql.observe._LONGEST_S", 0.5)
    with member(lie) as endpoint:
        before = threading.active_count()
        assert rows_of({"n1": endpoint}) == {}
        end = time.monotonic() + 20
        while threading.active_count() > before + 1 and time.monotonic() < end:
            time.sleep(0.05)
        # The liar's own thread for the connection may be left.
        assert threading.active_count() <= before + 1


def test_a_login_that_never_ends_is_cut_off_at_its_bytes() -> None:
    """730 MB within the time that is allowed for it; nobody's limit of time ends that."""
    told, sent = message(b"N", b"SNOTICE\0C00000\0M" + b"x" * 60000 + b"\0\0"), [0]

    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(message(b"R", struct.pack(">I", 0)))
        with suppress(OSError):
            while sent[0] < 1 << 28:
                connection.sendall(told)
                sent[0] += len(told)

    with serving(serve) as port, pytest.raises(psycopg.OperationalError, match="login that does not end"):
        open_session(f"host=127.0.0.1 port={port} user=u sslmode=disable gssencmode=disable connect_timeout=20")
    assert sent[0] < 1 << 26


def test_every_session_is_opened_with_that_limit() -> None:
    opens = re.compile(r"psycopg\.(?:\w*Connection\.)?connect\(")
    found = [str(path) for path in Path(walproof.__file__).parent.rglob("*.py") if opens.search(path.read_text())]
    assert found == [], "BoundedLogin.connect, or open_session"


@pytest.mark.timeout(60)
def test_a_new_primary_that_is_silent_when_asked_for_its_history_ends_nobodys_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "answering", partial(answering, within_s=0.3))
    with member("silent") as endpoint, pytest.raises(MachineError, match="history"):
        plan.history(2, [], f"host=127.0.0.1 port={endpoint.hosts[0][1]} user=u sslmode=disable gssencmode=disable")


def test_no_question_waits_within_libpq() -> None:
    """PQexec and its like wait in C: neither Ctrl-C nor SIGTERM ends them."""
    waits = re.compile(r"\bexec_(?:params|prepared)?\(")
    found = [str(path) for path in Path(walproof.__file__).parent.rglob("*.py") if waits.search(path.read_text())]
    assert found == [], "Connection.execute"


def test_one_that_answers_in_time_is_left_alone() -> None:
    with member("silent") as endpoint:
        connection = psycopg.connect(endpoint.conninfo(connect_timeout="2"), autocommit=True)
        before = threading.active_count()
        with answering(connection, 0.2):
            pass
        time.sleep(0.4)
        assert threading.active_count() <= before  # one of a test before may have ended meanwhile
        assert connection.info.status == psycopg.pq.ConnStatus.OK
        connection.close()


@contextmanager
def endless() -> Iterator[tuple[Endpoint, threading.Event]]:
    """A member that shows its options as it should, and then sends rows, until it is cut off or 4 s are over."""
    cut = threading.Event()

    def serve(connection: socket.socket) -> None:
        found = re.search(rb"walproof\.session=(\w+)", connection.recv(1 << 16))
        connection.sendall(LET_IN.replace(b"17.0", b"15.0"))  # of which no SET is asked first
        connection.recv(1 << 16)
        if found:
            shown = message(b"D", struct.pack(">HI", 1, len(found[1])) + found[1]) + message(b"C", b"SHOW\0")
            connection.sendall(COLUMNS + shown + message(b"Z", b"I"))
            connection.recv(1 << 16)
        try:
            connection.sendall(COLUMNS)
            for _ in range(400):
                connection.sendall(ROW * 1000)
                time.sleep(0.01)
        except OSError:
            cut.set()

    with serving(serve) as port:
        plain = (("sslmode", "disable"), ("gssencmode", "disable"))
        yield Endpoint((("127.0.0.1", port),), "postgres", "u", None, plain), cut


@each(["time", "bytes"])
@pytest.mark.timeout(60)
def test_a_poller_cuts_off_rows_that_never_end(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`watch --exporter` is meant to run for ever."""
    monkeypatch.setattr(observe, "_LONGEST_S", 0.2 if limit == "time" else 600.0)
    if limit == "bytes":
        monkeypatch.setattr("walproof.machine.answering.MOST", 1 << 20)
    with endless() as (endpoint, cut):
        poller = observe.SqlPoller(lambda: {"n1": endpoint}, RealClock())
        try:
            assert cut.wait(20)
        finally:
            poller.close()


def configures(endpoint: Endpoint) -> None:
    with connected(endpoint) as connection:
        connection.execute("SELECT 1")


ASKS: dict[str, Callable[[Endpoint], object]] = {
    "configuration": configures,
    "statistics": lambda endpoint: StatsConnection(endpoint.conninfo(), RealClock(), 600.0).query(b"SELECT 1"),
    "ledger": lambda endpoint: Reader("n1", endpoint, ReaderTask("", (), (), 1, 1)).read(),
    "doctor": lambda endpoint: gathered("t", {"n1": endpoint}, None),
}


@each(ASKS)
@pytest.mark.timeout(60)
def test_every_question_is_cut_off_before_memory_is_full(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walproof.machine.answering.MOST", 1 << 20)
    monkeypatch.setattr("walproof.load.statistics_connection.MOST", 1 << 20)
    with endless() as (endpoint, cut):
        with suppress(psycopg.Error):
            ASKS[ask](endpoint)
        assert cut.wait(20)


def test_a_session_that_is_opened_elsewhere_is_asked_within_the_same_limits() -> None:
    """Or it is a client of the application in a lab, of a salvage's own copy, or asked nothing."""
    src = Path(walproof.__file__).parent
    unasked = {
        "load/open_session.py", "salvaging/server.py", "salvaging/plan.py", "studies/pitfalls/pitfall_lab.py",
        "targets/cnpg/pitfalls.py",
    }  # fmt: skip
    texts = {str(path.relative_to(src)): path.read_text("utf-8") for path in src.rglob("*.py")}
    assert {name for name, text in texts.items() if "psycopg.connect(" in text and "answering(" not in text} <= unasked
