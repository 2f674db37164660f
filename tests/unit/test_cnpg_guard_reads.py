"""What the guard of a frozen primary reads: the Cluster, places that it asks, silence and what is none."""

import re
import socket
import struct
import threading
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import psycopg
import pytest
from click.testing import CliRunner

from tests.fixtures.kubernetes.state import HEALTHY
from tests.fixtures.kubernetes.store import recorded
from tests.fixtures.kubernetes.virtual_guard import VirtualClock, world
from tests.fixtures.tiers import each
from walproof.cli.guard import guard
from walproof.errors import MachineError, TargetError, UsageError
from walproof.guarding.kubernetes_freeze import Policy, State
from walproof.guarding.kubernetes_sight import Way
from walproof.guarding.status_and_metrics import GuardStatus, Log
from walproof.model.topology import Endpoint
from walproof.targets.cnpg.guard import _QUERY, HIBERNATION, MANAGER, SERVICE, Asker, Network, Row, cluster_seen
from walproof.targets.cnpg.objects import Cluster, Pod, read
from walproof.targets.cnpg.state_and_doctor_facts import FENCED, RECONCILIATION, TAKEN
from walproof.targets.cnpg.target import CnpgCluster

ROW = {"standby_names": 'ANY 1 ("pg-2","pg-3","pg-1")'}
QUORUM = {"method": "any", "number": 1, "failoverQuorum": True}


def seen_of(row: dict[str, Any], notes: dict[str, str] | None = None, **spec: Any) -> Any:
    tree = recorded("cluster")
    tree["spec"] |= {"postgresql": {"parameters": {}, "synchronous": QUORUM}, **spec}
    tree["metadata"].setdefault("annotations", {}).update(notes or {})
    return cluster_seen(read(Cluster, tree), Row.model_validate({**ROW, **row}))


SETTINGS = {
    'ANY 1 ("pg-2","pg-3","pg-1")': 1, 'FIRST 2 ("pg-2","pg-3","pg-1")': 2, "": 0, "*": 0, "ANY 1 (*)": 0,
    'ANY 1 ("pg-2","pg-3","other")': 0, "ANY 1 (": 0,
}  # fmt: skip


@each(SETTINGS.items())
def test_how_many_instances_a_commit_waits_for(text: str, number: int) -> None:
    assert seen_of({"standby_names": text}).in_effect == number
    assert seen_of({"standby_names": text, "in_recovery": True}).in_effect == 0, "a standby's setting is none"


@each([
    ("MaintenanceWindow", {"row": {}, "nodeMaintenanceWindow": {"inProgress": True}}),
    ("hibernation", {"row": {}, "notes": {HIBERNATION: "on"}}),
    ("fences", {"row": {}, "notes": {FENCED: '["*"]'}}),
    ("fences", {"row": {}, "notes": {FENCED: "not to be read"}}),
    ("reconciliation", {"row": {}, "notes": {RECONCILIATION: "disabled"}}),
])  # fmt: skip
def test_why_hands_are_kept_off_is_said(said: str, given: dict[str, Any]) -> None:
    assert said in seen_of(**given).hands_off
    assert (seen_of({}).hands_off, seen_of({}).phase) == ("", HEALTHY)


@each([{"replica": {"enabled": True, "source": "other"}}, {"replica": {"primary": "other", "self": "pg"}}])
def test_a_cluster_that_follows_another_is_never_guarded(more: dict[str, Any]) -> None:
    assert "follows another" in seen_of({}, **more).hands_off


PROBES: dict[str, tuple[str, dict[str, Any]]] = {
    "streaming": ("election", {"type": "streaming"}),
    "streaming, of long periods": ("election", {"type": "streaming", "periodSeconds": 60}),
    "twice a second": ("within 7 s", {"periodSeconds": 1, "failureThreshold": 2}),
    "once": ("within 7 s", {"failureThreshold": 1}),
    "twice in five seconds": ("within 7 s", {"periodSeconds": 5, "failureThreshold": 2}),
}


@each(PROBES.values())
def test_a_readiness_probe_that_ends_the_election_or_comes_first_is_never_guarded(
    said: str, probe: dict[str, Any]
) -> None:
    assert said in seen_of({}, probes={"readiness": probe}).hands_off
    for harmless in ({"type": "pg_isready"}, {"type": "query", "periodSeconds": 5, "failureThreshold": 3}):
        assert seen_of({}, probes={"readiness": harmless}).hands_off == ""
    assert seen_of({}, probes={"liveness": {"periodSeconds": 1, "failureThreshold": 1}}).hands_off == ""


NEVER = {
    "standbyNamesPre": {**QUORUM, "standbyNamesPre": ["elsewhere"]},
    "standbyNamesPost": {**QUORUM, "standbyNamesPost": ["elsewhere"]},
    "failoverQuorum": {"method": "any", "number": 1},
    "failoverQuorum is": {**QUORUM, "failoverQuorum": False},
    "dataDurability": {**QUORUM, "dataDurability": "preferred"},
    "dataDurability is": {**QUORUM, "number": 0},
}


@each(NEVER.items())
def test_what_its_standbys_make_none_of_this_guards(said: str, synchronous: dict[str, Any]) -> None:
    assert said in seen_of({}, postgresql={"parameters": {}, "synchronous": synchronous}).hands_off


@each([1, 60, 300])
def test_a_cluster_whose_operator_waits_is_never_guarded(delay_s: int) -> None:
    assert (
        "failoverDelay" in seen_of({}, failoverDelay=delay_s).hands_off and not seen_of({}, failoverDelay=0).hands_off
    )


CLAIMS = {
    "g u1 12.5": ("g", "u1", "12.5"), "g u": ("g", "u", ""), "g": ("g", "", ""), "g  1": ("g", "", "1"),
    "": ("somebody", "", ""), "g u 1 more": ("g", "u", "1"),
}  # fmt: skip


@each(CLAIMS.items())
def test_an_announcement_is_read_and_not_shown_at_any_length(text: str, claim: tuple[str, str, str]) -> None:
    assert seen_of({}, notes={TAKEN: text}).claim == claim and seen_of({}).claim == ("", "", "")
    long = " ".join(letter * 99_999 for letter in "gut")
    assert list(map(len, seen_of({}, notes={TAKEN: long}).claim)) == [80, 80, 80]


QUERY = re.sub("--.*", "", _QUERY.decode())


@each(["FROM", "JOIN"])
def test_the_question_reads_no_relation_that_any_role_may_lock(word: str) -> None:
    """LOCK TABLE pg_settings is PUBLIC's (UPDATE on it is); ALTER MATERIALIZED VIEW of any view waits for its lock."""
    assert set(re.findall(rf"\b{word} (\w+)(?![\w(])", QUERY)) == set()
    assert re.findall(rf"\b{word} (\w+)(?![\w(])", f"{word} pg_settings LEFT") == ["pg_settings"]


@each(["user", "database", "database user", "global", "client", "session", "interactive"])
def test_what_a_role_set_for_itself_is_not_taken_for_the_wal_receivers(source: str) -> None:
    """GucSource_Names in guc_tables.c; PostgreSQL 19 lets a role set wal_receiver_timeout."""
    (listed,) = re.findall(r"WHEN source IN \((.*?)\) THEN setting", QUERY)
    assert f"'{source}'" not in listed and "ELSE 0 END" in QUERY and Row().pings_s == 0.0, "0 is never ready"


class Connection:
    """Of psycopg, as far as it is used: answers one row."""

    def __init__(self, words: str, in_recovery: bool) -> None:
        self.words, self.closed, self.in_recovery = words, False, in_recovery

    def execute(self, _query: bytes) -> "Connection":
        return self

    def fetchone(self) -> Row:
        return Row(in_recovery=self.in_recovery)

    def close(self) -> None:
        self.closed = True


class Opened(list[Connection]):
    """What was opened; answers as a primary unless told otherwise."""

    in_recovery = False

    def connect(self, words: str, *_given: Any) -> Connection:
        self.append(Connection(words, self.in_recovery))
        return self[-1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    made = Opened()
    monkeypatch.setattr("walproof.targets.cnpg.guard.open_session", made.connect)
    return made


def network() -> Network:
    return Network(lambda place: Endpoint((place,), "app", "app"), ("pg-rw.default", 5432))


def pod_at(address: str, *command: str) -> Pod:
    container = {"name": "postgres", "command": list(command)}
    return read(Pod, {"metadata": {"name": "pg-1"}, "spec": {"containers": [container]}, "status": {"podIP": address}})


def test_a_connection_is_kept_while_its_address_stays_and_ends_with_a_lost_node(opened: Opened) -> None:
    ask = network()
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        ask("pg-1", pod_at(address))
    assert [one.closed for one in opened] == [True, False]
    assert "host='10.0.0.1'" in opened[0].words and "host='10.0.0.2'" in opened[1].words
    assert all(word in opened[0].words for word in ("keepalives_idle='1'", "tcp_user_timeout='1000'"))


@pytest.mark.parametrize("word", [
    "dbname='postgres'", "-c search_path=pg_catalog", "-c default_transaction_deferrable=off", "sslmode='require'",
    "channel_binding='require'", "require_auth='scram-sha-256'",
])  # fmt: skip
def test_neither_the_databases_owner_nor_a_stranger_can_answer_for_postgresql(word: str, opened: Opened) -> None:
    for ask, place, pod in ((network(), "pg-1", pod_at("10.0.0.1")), (network(), SERVICE, None)):
        ask(place, pod)
        assert word in opened[-1].words and "dbname='app'" not in opened[-1].words


@each([3, 5])
def test_a_password_is_not_given_to_who_asks_for_it_in_the_clear_or_as_md5(asks: int, tmp_path: Path) -> None:
    """AuthenticationCleartextPassword (3), AuthenticationMD5Password (5): protocol-message-formats."""
    passfile, got = tmp_path / "pass", list[bytes]()
    passfile.write_text("*:*:*:*:s3cret-of-app\n")
    passfile.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            for _ in range(1):  # it asks for TLS, and is not let down to less
                connection, _address = server.accept()
                with connection:
                    connection.settimeout(5.0)
                    while said := connection.recv(4096):
                        got.append(said)
                        if len(said) == 8:
                            connection.sendall(b"N")
                        else:
                            salt = b"salt" if asks == 5 else b""
                            connection.sendall(struct.pack("!cIi", b"R", 8 + len(salt), asks) + salt)

        threading.Thread(target=listen, daemon=True).start()
        ask = Network(lambda place: Endpoint((place,), "app", "app", passfile=str(passfile)), server.getsockname())
        with pytest.raises(psycopg.OperationalError, match=r"scram-sha-256|server does not support SSL"):
            ask(SERVICE, None)
    assert got and not any(b"s3cret" in said or said[:1] == b"p" for said in got)


@pytest.mark.parametrize("in_recovery", [False, True])
def test_the_service_is_asked_anew_once_a_standby_answers_there(in_recovery: bool, opened: Opened) -> None:
    ask, opened.in_recovery = network(), in_recovery
    for _ in range(3):
        with pytest.raises(TargetError, match="leads to a standby") if in_recovery else nullcontext():
            ask(SERVICE, None)
    assert len(opened) == (3 if in_recovery else 1) and "host='pg-rw.default'" in opened[0].words


URLS = (
    ("10.0.0.1", (), "http://10.0.0.1:8000/failsafe"),
    ("10.0.0.1", ("instance", "run", "--status-port-tls"), "https://10.0.0.1:8000/failsafe"),
    ("fd00::1", (), "http://[fd00::1]:8000/failsafe"),
    ("fd00::1", ("--status-port-tls",), "https://[fd00::1]:8000/failsafe"),
)


@each(URLS)
def test_the_manager_is_asked_at_its_status_port_and_not_listened_to(
    address: str, command: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, pieces = list[str](), list[int]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(200, content=(b"x" * len(pieces.append(n) or "x") for n in range(1_000_000)))  # type: ignore[func-returns-value]

    def stream(method: str, url: str, **given: Any) -> Any:
        assert given["timeout"] == 1.0 and given["trust_env"] is False
        assert ask.since <= monotonic(), "headers that come a byte a second end the guard in the end"
        return httpx2.Client(transport=httpx2.MockTransport(answer)).stream(method, url)

    monkeypatch.setattr("walproof.targets.cnpg.guard.httpx2.stream", stream)
    ask = network()
    assert ask(MANAGER, pod_at(address, *command)) == Row() and ask.since == float("inf")
    assert asked == [url] and len(pieces) < 2, "an answer without an end is not read"


@each([503, 500, 404])
def test_what_answers_for_a_pod_that_cannot_be_reached_is_no_manager(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh's sidecar does."""
    transport = httpx2.MockTransport(lambda request: httpx2.Response(code))
    stream = httpx2.Client(transport=transport).stream
    monkeypatch.setattr("walproof.targets.cnpg.guard.httpx2.stream", lambda method, url, **_given: stream(method, url))
    with pytest.raises(httpx2.HTTPError):
        network()(MANAGER, pod_at("10.0.0.1"))


def test_a_thread_that_has_ended_ends_the_guard() -> None:
    with world() as w:
        guard, _ = w.guard()
        w.run(guard, 1.0)
        guard._askers["pg-2"].thread.failed = True
        with pytest.raises(MachineError, match="one of its threads ended"):
            guard.turn()


@pytest.mark.parametrize(("for_s", "ends"), [(0.0, False), (29.0, False), (31.0, True), (2600.0, True)])
def test_a_login_that_computes_for_long_ends_the_guard(for_s: float, ends: bool, opened: Opened) -> None:
    """SCRAM's iteration count is the server's to choose; libpq computes in the thread, whatever connect_timeout."""
    with world() as w:
        guard, _ = w.guard()
        guard._asks.append(network())
        guard._asks[-1].since = monotonic() - for_s
        if ends:
            with pytest.raises(MachineError):
                guard.turn()
        else:
            guard.turn()
    ask = network()
    ask("pg-1", pod_at("10.0.0.1"))
    assert ask.since == float("inf") and len(opened) == 1


ROWS: tuple[dict[str, Any], ...] = (
    {"silent_s": "soon"},
    {"in_recovery": "perhaps"},
    {"timeline": "x"},
    {"pings_s": None},
    {"standby_names": []},
)


@each(ROWS)
def test_an_odd_row_is_a_refusal_and_ends_no_thread(row: dict[str, Any]) -> None:
    clock = VirtualClock()
    asker = Asker(clock, lambda: Row.model_validate(row))
    clock.pause(0.1)
    assert (asker.way, asker.answer) == (Way(), (0.0, Row()))


def test_the_write_service_is_asked_by_a_name_that_the_guards_own_namespace_cannot_take(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = SimpleNamespace(at=lambda *hosts: Endpoint(hosts))
    access = SimpleNamespace(file=SimpleNamespace(routes={}), write_service=lambda: ("pg-rw.db", 5432), login=login)
    monkeypatch.setattr("walproof.targets.cnpg.target.FrozenPrimaryGuard", lambda *given: given)
    cluster = cast(Any, SimpleNamespace(access=access, _cluster=(None, "pg"), clock=None))
    _, ways, *_ = cast(Any, CnpgCluster.guard(cluster, Policy("g"), print))
    ways()(SERVICE, None)
    assert "host='pg-rw.db.svc'" in opened[0].words


class Asked(CnpgCluster):
    """A Cluster whose other capabilities may not be asked for: their questions go to the application's database."""

    def __init__(self, guard: Any) -> None:
        self.name, self._guard = "cnpg:db/pg", guard

    def capabilities(self) -> Any:
        raise AssertionError("asked for everything")

    def observe(self) -> Any:
        raise AssertionError("observed")

    def guard(self, policy: Policy, log: Log) -> Any:
        return self._guard


@each(["--dry-run", "--allow takeover", "--allow load,takeover"])
def test_a_guard_asks_its_cluster_for_nothing_else(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = SimpleNamespace(turn=lambda: None, close=lambda: None, status=lambda: GuardStatus(State.WATCHING))
    monkeypatch.setattr("walproof.cli.guard.choose_guarded", lambda _where: Asked(watcher))
    done = CliRunner().invoke(guard, ["--target", "cnpg:db/pg", "--duration", "10ms", "--json", *words.split()])
    assert done.exit_code == 0 and "watching" in done.output, done


def test_a_guard_without_consent_is_refused_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walproof.cli.guard.choose_guarded", lambda _where: Asked(None))
    done = CliRunner().invoke(guard, ["--target", "cnpg:db/pg"])
    assert isinstance(done.exception, UsageError) or done.exit_code == 2, done
