"""The reader of commit waits before servers that refuse, lie, hang or die, with names and numbers of every size."""

import re
import socket
from collections.abc import Iterator
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import errors, pq

from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.load.statistics_connection import StatsConnection
from walproof.machine.clock import RealClock
from walproof.model.topology import ClusterView, Endpoint
from walproof.targets.sql import commit_waits
from walproof.targets.sql.commit_waits import SqlCommitWaits

RIGHTS = ("t", "7", "f", "monitor")
COUNTERS = ("1000", "1", "0", "0", "ANY 1 (n2)", "1", "0", "0", "{}", "{}", "0")
_WAITS = {"sessions": "1", "busy": "1", "standby": "1"}
OPENS = "walproof.load.statistics_connection.open_session"


class Clock:
    patience = 0.01

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds


class Server:
    """Answers each statement by its name; a query takes `took_s`."""

    process, version, dies = 7, 18, False

    def __init__(self, clock: Clock, answers: dict[str, Any], took_s: float = 0.001) -> None:
        self.opened, self.in_flight, self.most_in_flight = list[float](), 0, 0
        self.clock, self.answers, self.took_s, self.statements, self.ids = clock, answers, took_s, list[str](), 0

    def query(self, statement: bytes, *values: str) -> list[Any]:
        name = next((n for n, text in commit_waits._SQL.items() if text == statement), "counters")
        self.clock.time += self.took_s + (float(values[0]) if name == "waits" else 0)
        if self.dies:
            self.dies = False
            raise psycopg.OperationalError("terminating connection due to administrator command")
        self.statements.append(name)
        if name == "counters":
            self.ids += 100
            return [tuple(str(self.ids) if v == "{}" else v for v in COUNTERS)]
        found: Any = self.answers.get(
            name, {"rights": [RIGHTS], "level": [("on",)], "outcomes": [("64", "0")]}.get(name, [])
        )
        if isinstance(found, Exception):
            raise found
        rows: list[Any] = found() if callable(found) else found
        return rows

    def open(self) -> "Server":
        self.opened.append(self.clock.time)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return self

    def close(self) -> None:
        self.in_flight = 0


def watching(
    monkeypatch: pytest.MonkeyPatch, *, took_s: float = 0.001, leader: str | None = "n1", **answers: Any
) -> tuple[SqlCommitWaits, Server]:
    clock = Clock()
    server = Server(clock, answers, took_s)

    def connect(conninfo: str, _clock: object) -> Server:
        if isinstance(answers.get("connect"), Exception):
            raise answers["connect"]
        assert "default_transaction_read_only=on" in conninfo
        assert "statement_timeout" in conninfo
        return server.open()

    monkeypatch.setattr(commit_waits, "StatsConnection", connect)
    target: Any = SimpleNamespace(
        name="there",
        clock=clock,
        observe=lambda: ClusterView(0.0, (), leader),
        member_endpoint=lambda name: Endpoint((("h", 1),)),
    )
    return SqlCommitWaits(target), server


def some(waits: SqlCommitWaits, number: int = 3) -> list[Any]:
    return list(islice(waits.watch(1.0, lambda: False), number))


def session(name: str = "app", **more: str) -> tuple[str, ...]:
    sums = dict.fromkeys(("sessions", "busy", "writing", "writing_s", "standby", "flush", "lock"), "0")
    return ("db", "role", name, "", *(sums | _WAITS | more).values(), "1.5", "{2}")


@each(
    [
        ({"rights": [("f", "7", "f", 'o"dd')]}, "may not see what other sessions wait for"),
        ({"rights": [("t", "8", "f", "me")]}, "a connection pooler answers in place of n1"),
        ({"rights": [("t", "7", "t", "me")]}, "n1 is a standby"),
        (
            {"connect": psycopg.OperationalError("FATAL: unsupported startup parameter: options")},
            "a connection pooler answers in place of the server",
        ),
        ({"connect": psycopg.OperationalError("password authentication failed")}, "password is refused"),
        ({"rights": psycopg.OperationalError("server closed the connection")}, "does not answer"),
        ({"leader": None}, "has no leader"),
        *(({"version": other}, f"n1 runs PostgreSQL {other}; walproof knows 14 to 18") for other in (9, 13, 19)),
        ({"waits": errors.QueryCanceled("canceling statement due to statement timeout")}, "in distress"),
        ({"took_s": 0.6}, "in distress"),
    ]
)
def test_one_clear_sentence(answers: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, server = watching(monkeypatch, **answers)
    server.version = answers.pop("version", 18)
    with pytest.raises(TargetError, match=says) as wrong:
        some(waits, 10)
    assert wrong.value.hint


@each([("monitor", '"monitor"'), ('no"body', '"no""body"'), ("a; DROP", '"a; DROP"'), ('"', '""""')])
def test_the_grant_to_paste_names_the_role_as_sql_does(role: str, typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, _ = watching(monkeypatch, rights=[("f", "7", "f", role)])
    with pytest.raises(TargetError) as wrong:
        some(waits)
    assert wrong.value.hint == f"GRANT pg_monitor TO {typed}"


@pytest.mark.parametrize("statement", ["waits", "standbys", "level", "overrides", "rights"])
@pytest.mark.parametrize(("state", "words"), [
    ("57014", "storniere Anfrage wegen Zeitüberschreitung"),
    ("57014", "выполнение оператора отменено по запросу пользователя"),
    ("55P03", "ロックのタイムアウトのためステートメントをキャンセルしています"),
    ("53100", "could not write: kein Speicherplatz"),
    ("53200", "memoria agotada"),
    ("53300", "sorry, too many clients already"),
    ("53400", "configuration limit exceeded"),
])  # fmt: skip
def test_distress_is_a_sqlstate_in_every_language(
    monkeypatch: pytest.MonkeyPatch, statement: str, state: str, words: str
) -> None:
    answers: dict[str, Any] = {statement: errors.lookup(state)(words)}
    waits, server = watching(monkeypatch, **answers)
    with pytest.raises(TargetError, match=f"n1 is in distress.*{state}: {words}"):
        some(waits)
    assert len(server.opened) == 1


@pytest.mark.parametrize("statement", ["waits", "level", "overrides"])
@pytest.mark.parametrize("wrong", [
    errors.AdminShutdown("terminating connection"),
    errors.InternalError_("a relation named statement timeout"),
    errors.InsufficientPrivilege("keine Berechtigung"),
    psycopg.OperationalError("no answer: connection reset by peer"),
],ids=str)  # fmt: skip
def test_a_member_that_fails_again_and_again_is_asked_ever_less_often_and_then_gone(
    monkeypatch: pytest.MonkeyPatch, statement: str, wrong: Exception
) -> None:
    answers: dict[str, Any] = {statement: wrong}
    waits, server = watching(monkeypatch, **answers)
    with pytest.raises(TargetError, match="n1 is gone: 6 attempts in a row failed"):
        some(waits)
    pauses = [b - a for a, b in pairwise(server.opened)]
    assert len(pauses) == commit_waits.ATTEMPTS
    assert min(pauses) >= 1.0
    assert sum(pauses) >= 30.0
    assert server.most_in_flight == 1


def test_a_leader_that_dies_is_looked_for_then_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, server = watching(monkeypatch)
    stream = waits.watch(1.0, lambda: False)
    next(stream)
    server.answers = {"waits": psycopg.OperationalError("gone"), "rights": psycopg.OperationalError("gone")}
    with pytest.raises(TargetError, match="n1 is gone: 6 attempts"):
        next(stream)


def test_attempts_count_in_a_row_and_end_when_observing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, server = watching(monkeypatch)
    stream: Iterator[Any] = waits.watch(1.0, lambda: server.clock.time > 60.0)
    for _ in range(3 * commit_waits.ATTEMPTS):
        next(stream)
        server.dies = True
    server.answers = {"waits": psycopg.OperationalError("gone")}
    server.clock.time = 58.0
    assert list(stream) == []
    assert server.clock.time < 61.5


class _Failed:
    """A libpq result and connection with one error that the server words in its own language."""

    socket, status, nfields = 0, pq.ExecStatus.FATAL_ERROR, 0

    def __init__(self, state: str | None) -> None:
        self.state = state

    def error_field(self, _field: object) -> bytes | None:
        return self.state.encode() if self.state else None

    def get_error_message(self, _encoding: str = "utf-8") -> str:
        return "ошибка"

    def get_result(self) -> "_Failed":
        return self

    def is_busy(self) -> bool:
        return False

    def send_prepare(self, *_words: object) -> None: ...


@each(["57014", "55P03", "53200", "57P01", "XX000", None])
def test_the_connection_keeps_the_sqlstate(state: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPENS, lambda *words: SimpleNamespace(pgconn=_Failed(state), fileno=socket.socket().fileno))
    with pytest.raises(psycopg.Error, match="ошибка") as wrong:
        StatsConnection("", RealClock()).query(b"SELECT")
    assert wrong.value.sqlstate == state


def test_silence_is_a_timeout_like_the_servers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, _writing = socket.socketpair()
    busy = SimpleNamespace(socket=reading.fileno(), is_busy=lambda: True, send_prepare=lambda *words: None)
    monkeypatch.setattr(OPENS, lambda *words: SimpleNamespace(pgconn=busy, fileno=reading.fileno))
    with pytest.raises(psycopg.Error) as wrong:
        StatsConnection("", RealClock(), timeout_s=0.0).query(b"SELECT")
    assert wrong.value.sqlstate == "57014"


def test_a_new_leader_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, server = watching(monkeypatch)
    stream: Iterator[Any] = waits.watch(1.0, lambda: False)
    next(stream)
    server.dies = True
    assert next(stream).leader == "n1"


@each(['"; DROP TABLE x; --', "a'b", "\u202egnp", "x" * 64, ""])
def test_names_are_only_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, _ = watching(monkeypatch, waits=[session(name)])
    (first, *_) = some(waits)
    assert {g.application for g in first.groups} == {name}


@each(["{2}", "{-27,0,2,2}", None, "{}"])
def test_ages_are_added_up_over_polls(ages: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = some(watching(monkeypatch, waits=[(*session()[:-1], ages)] * 3)[0], 1)
    each = [int(age) for age in (ages or "{}")[1:-1].split(",") if age]
    assert first.ages == {age: 3 * each.count(age) * first.polls for age in each}


def test_no_text_of_statements_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 MB each, or with what users typed in it."""
    words = " ".join(text.decode() for text in commit_waits._SQL.values())
    assert not re.search(r"\b(query|pg_stat_get_activity|pg_prepared_statements)\b", words)


@each([1000, 20_000])
def test_many_sessions_stay_few_groups_and_no_wait_is_lost(sessions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, _ = watching(monkeypatch, waits=[session(f"app {i}") for i in range(sessions)])
    (first,) = some(waits, 1)
    assert len(first.groups) <= commit_waits._MOST_GROUPS + 1
    assert sum(g.standby for g in first.groups) == sessions * first.polls


def test_many_statements_do_not_hide_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(*session(f"app {i % 5}")[:3], str(i), *session()[4:]) for i in range(1000)]
    (first,) = some(watching(monkeypatch, waits=rows)[0], 1)
    for name in (f"app {i}" for i in range(5)):
        assert sum(g.standby for g in first.groups if g.application == name) == 200 * first.polls
    assert len(first.groups) <= commit_waits._MOST_GROUPS


@pytest.mark.parametrize("names", [("n2", "n3"), ("n2", "n2"), ("", ""), ("walreceiver",) * 3])
def test_standbys_of_one_name_are_several(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    rows = [(name, "streaming", str(1.0 + i), "2", "3", "0", "0", "0", str(i)) for i, name in enumerate(names)]
    (first,) = some(watching(monkeypatch, standbys=rows)[0], 1)
    assert [(s.name, s.lags_ms[0]) for s in first.standbys] == [(name, 1.0 + i) for i, name in enumerate(names)]


# rows: the only one goes, one of two goes, both go, another comes, it connects anew
@each([("2", ""), ("23", "3"), ("23", ""), ("2", "23"), ("2", "4")])
def test_a_standby_that_went_streams_no_more(before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 is the process that serves n2 once it has connected anew."""
    present = before

    def standbys() -> list[Any]:
        names = {"2": "n2", "3": "n3", "4": "n2"}
        return [(names[pid], "streaming", "1", "2", "3", "0", "0", "0", pid) for pid in present]

    stream = watching(monkeypatch, standbys=standbys)[0].watch(1.0, lambda: False)
    assert len(next(stream).standbys) == len(before)
    present = after
    assert [len(next(stream).standbys) for _ in range(2)] == [len(after)] * 2


def wrote(*sessions: tuple[str, str, int]) -> list[Any]:
    return [("db", "role", application, process, str(wal)) for application, process, wal in sessions]


# rows: goes on, begins, ends, is reset, another of its name
@each([
    ([("a", "1", 500)], [("a", "1", 700)], {"a": 200}),
    ([], [("a", "1", 700)], {"a": 700}),
    ([("a", "1", 500), ("b", "2", 9)], [("b", "2", 10)], {"b": 1}),
    ([("a", "1", 500)], [("a", "1", 20)], {"a": 0}),
    ([("a", "1", 500)], [("a", "1", 501), ("a", "3", 7)], {"a": 8}),
])  # fmt: skip
def test_wal_is_what_a_session_wrote_between_two_looks(
    before: list[Any], after: list[Any], expected: dict[str, int]
) -> None:
    polls = commit_waits._Polls()
    first = polls.add_wal(wrote(*before), None)
    assert not polls.groups
    polls.add_wal(wrote(*after), first)
    got = {key: sums[-1] for key, sums in polls.groups.items()}
    assert got == {("db", "role", a, ""): n for a, n in expected.items()}


@each([(14, 0), (16, 0), (17, 0), (18, 100)])
def test_wal_is_looked_at_where_sessions_count_it_and_anew_on_each_server(
    version: int, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def look() -> list[Any]:
        looks.append(0)
        return wrote(("a", "1", 100 * len(looks)))

    waits, server = watching(monkeypatch, wal=look)
    server.version = version
    stream = waits.watch(1.0, lambda: False)
    seen = [next(stream) for _ in range(6)]
    assert sum(g.wal for one in seen for g in one.groups) == max(0, len(looks) - 1) * known
    assert bool(looks) is bool(known)
    server.dies = True
    before = len(looks)
    seen = [next(stream) for _ in range(4)]
    # What the session had written until the first look at the new server does not count.
    assert sum(g.wal for one in seen for g in one.groups) == max(0, len(looks) - before - 1) * known


@each([0.0002, 0.002, 0.02, 0.1])
def test_polls_take_less_than_a_hundredth_of_a_processor(took_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, server = watching(monkeypatch, took_s=took_s, waits=[session(lock="3")], blockers=[("3", "1", "0", "app")])
    polls = sum(one.polls for one in some(waits, 60))
    asked = sum(server.statements.count(name) for name in ("waits", "standbys", "blockers"))
    assert polls <= 20 * server.clock.time * 1.1
    # Once it knows what each query costs; what is read once a second besides comes on top.
    assert asked * took_s <= 0.013 * server.clock.time + 20 * took_s


@each([(0.06, 1), (0.3, 1), (1.0, 1), (0.06, 4)])
def test_slow_first_polls_do_not_say_what_one_costs(cold_s: float, polls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, server = watching(monkeypatch, took_s=cold_s)
    stream = waits.watch(1.0, lambda: False)
    seen = [next(stream)]
    while sum(one.polls for one in seen) < polls:
        seen.append(next(stream))
    server.took_s = 0.001
    assert sum(next(stream).polls for _ in range(8)) >= 24


def test_nothing_is_written_and_only_known_statements_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, server = watching(monkeypatch)
    some(waits)
    assert set(server.statements) <= {*commit_waits._SQL, "counters"}
    for text in commit_waits._SQL.values():
        code = "\n".join(line for line in text.decode().splitlines() if not line.startswith("--"))
        assert code.lstrip().startswith(("SELECT", "WITH"))
