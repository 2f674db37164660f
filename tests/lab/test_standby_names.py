"""Lists of standby names and application_names at random: what PostgreSQL says of them is what walproof says."""

import random
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn

from tests.fixtures.plain_pair import _PATIENCE_S, PlainPair, debian_pair, plain_pair, stop, wheel_bin
from tests.fixtures.tiers import many
from walproof.errors import UsageError
from walproof.model.guarantee import Quorum, QuorumKind, read_standby_names
from walproof.model.standby_names import SHOWN, quoted, streamed_name

LISTS, A_ROUND, RECEIVERS = 500, 50, 9
ODD = (
    "East,2", "east:send", "10.0.0.2:5432", 'a"b', '""', '"a"', "18/main", "any", "FIRST", "1", "007", "n2 ",
    " n2", "a(b)", "a$1", "_", "$", "É", "Ärger", "\u212aelvin", "naïve-standby", "tab\there", "o'brien", "back\\slash",
    "é" * 40, "x" * 63, "Y" * 80, "*", "", "İ", "\x7f", "db-1.example", "ANY 1 (n2)",
)  # fmt: skip
BARRIER = f"FIRST 1 ({', '.join(f'nobody{i}' for i in range(40))}, *)"
"""With it each receiver has priority 41, which no list under test gives: a walsender that shows another has read it."""


def random_name(rng: random.Random) -> str:
    letters = "abnN2Z" if rng.random() < 0.5 else 'aB1_$-:,."() *éÉ'
    return rng.choice(ODD) if rng.random() < 0.5 else "".join(rng.choices(letters, k=rng.randint(1, 8)))


def random_list(rng: random.Random, names: Sequence[str]) -> str:
    """A list mostly of these names, in either case, quoted or not; every fourth one with a character changed."""
    listed = [rng.choice([name, name.upper(), name.lower()]) for name in rng.choices(names, k=rng.randint(1, 6))]
    text = rng.choice([",", ", ", " ,\t"]).join(quoted(n) if rng.random() < 0.9 else n for n in listed)
    number = rng.choice(["1", "1", "2", "2", "3", "03", "99999999999", "4294967297", rng.choice(["0", "-1", ""])])
    head = rng.choice(["", "", f"{number} ", f"ANY {number}", f"any {number} ", f"First\f{number}"])
    head = rng.choice(["ANY", "anyone 1"]) if rng.random() < 0.05 else head
    text = f"{head}({text})" if head or rng.random() < 0.05 else text
    if rng.random() < 0.25 and text:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", '"', ",", "(", ")", "*", " ", "1", "é", "-", ";"]) + text[at + 1 :]
    return rng.choice(["", " ", "", "*"]) if rng.random() < 0.02 else text


@dataclass(frozen=True, slots=True)
class Receiver:
    """A connection that streams as a standby does, and the application_name that it gave."""

    given: str
    connection: PGconn

    @property
    def pid(self) -> int:
        return self.connection.backend_pid


@contextmanager
def receivers(pair: PlainPair, names: Sequence[str]) -> Iterator[list[Receiver]]:
    """One for each name, all streaming from n1, which has heard from each how far it has flushed."""
    opened = []
    try:
        for name in names:
            words = make_conninfo(
                pair.member_endpoint("n1").client_conninfo(), replication="true", application_name=name
            )
            opened.append(Receiver(name, psycopg.pq.PGconn.connect(words.encode())))
            connection = opened[-1].connection
            at = (connection.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2) or b"").decode()
            started = connection.exec_(f"START_REPLICATION PHYSICAL {at} TIMELINE 1".encode())
            assert started.status == psycopg.pq.ExecStatus.COPY_BOTH, connection.error_message
            high, low = (int(part, 16) for part in at.split("/"))
            position = high << 32 | low
            connection.put_copy_data(struct.pack("!cQQQqB", b"r", position, position, position, 0, 0))
            connection.flush()
        yield opened
    finally:
        for receiver in opened:
            receiver.connection.finish()


def accepted(connection: "psycopg.Connection[tuple[object, ...]]", text: str) -> bool:
    try:
        connection.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(sql.Literal(text)))
    except (psycopg.errors.SyntaxError, psycopg.errors.InvalidParameterValue):
        return False
    connection.execute("SELECT pg_reload_conf()")
    return True


def parsed(text: str) -> "Quorum | str | None":
    try:
        return read_standby_names(text)
    except UsageError:
        return "refused"


def said(quorum: Quorum | None, opened: Sequence[Receiver], version: int) -> dict[int, int]:
    """The priority of each receiver by its process, as walproof has it."""
    names = {r.pid: streamed_name(r.given, version) for r in opened}
    return {pid: quorum.priority(name) if quorum else 0 for pid, name in names.items()}


def states(quorum: Quorum | None, priorities: Sequence[int]) -> Counter[tuple[int, str]]:
    """How many are of each priority and sync_state (pg_stat_get_wal_senders): equal priorities are the order's luck."""
    counting = sorted(p for p in priorities if p)
    words = ["async"] * priorities.count(0)
    if quorum and quorum.kind is QuorumKind.ANY:
        words += ["quorum"] * len(counting)
    elif quorum:
        words += ["sync" if i < quorum.k else "potential" for i in range(len(counting))]
    return Counter(zip([0] * priorities.count(0) + counting, words, strict=True))


Rows = list[tuple[int, str, int, str]]


def settled(connection: "psycopg.Connection[tuple[object, ...]]", wanted: Counter[tuple[int, str]]) -> Rows:
    """pg_stat_replication once it is as wanted, or as it stays: a walsender reads its configuration in its own time."""
    until = time.monotonic() + _PATIENCE_S
    query = "SELECT pid, application_name, sync_priority, sync_state FROM pg_stat_replication WHERE state = 'streaming'"
    while True:
        rows: Rows = connection.execute(query).fetchall()  # type: ignore[assignment]
        if Counter((priority, state) for _, _, priority, state in rows) == wanted or time.monotonic() > until:
            return rows


def disagreements(pair: PlainPair, lists: int, seed: int) -> tuple[list[str], int]:
    """A sentence for each list of which PostgreSQL says something else, and how many it accepted."""
    rng, wrong, taken = random.Random(seed), [], 0
    with psycopg.connect(pair.member_endpoint("n1").client_conninfo(), autocommit=True) as connection:
        for _ in range(lists // A_ROUND):
            names = [random_name(rng) for _ in range(RECEIVERS)]
            with receivers(pair, names) as opened:
                for _ in range(A_ROUND):
                    text = random_list(rng, names)
                    ours = parsed(text)
                    if accepted(connection, text) is (ours == "refused"):
                        wrong.append(f"{text!r}: walproof reads {ours}, PostgreSQL does not agree")
                    elif not isinstance(ours, str):
                        taken += 1
                        wrong += differences(connection, text, ours, opened)
    return wrong, taken


def differences(
    connection: "psycopg.Connection[tuple[object, ...]]", text: str, ours: Quorum | None, opened: Sequence[Receiver]
) -> list[str]:
    """A sentence for each receiver that PostgreSQL shows otherwise than walproof has it, with that list in effect."""
    version = connection.info.server_version
    for names, quorum in ((BARRIER, read_standby_names(BARRIER)), (text, ours)):
        accepted(connection, names)
        expected = said(quorum, opened, version)
        wanted = states(quorum, [*expected.values()])
        rows = settled(connection, wanted)
    there = {pid: (name, priority) for pid, name, priority, _ in rows}
    wrong = [
        f"{text!r}: {r.given!r} shows as {there.get(r.pid)}, not with priority {expected[r.pid]}"
        for r in opened
        if there.get(r.pid) != (streamed_name(r.given, version)[:SHOWN], expected[r.pid])
    ]
    if Counter((priority, state) for _, _, priority, state in rows) != wanted:
        wrong.append(f"{text!r}: {rows}, expected {wanted}")
    return wrong


@pytest.fixture(scope="module", params=["wheel", pytest.param("debian", marks=pytest.mark.nightly)])
def primary(request: pytest.FixtureRequest) -> Iterator[PlainPair]:
    """A primary whose only receivers are the test's."""
    with plain_pair() if request.param == "wheel" else debian_pair() as pair:
        stop(pair, "n2")
        pair.sql("n1", "ALTER SYSTEM SET wal_sender_timeout = 0")
        # Each ALTER SYSTEM flushes a file.
        pair.sql("n1", "ALTER SYSTEM SET fsync = off")
        pair.sql("n1", "SELECT pg_reload_conf()")
        yield pair


def test_what_postgresql_says_of_random_lists_and_names_is_what_walproof_says(primary: PlainPair) -> None:
    lists = many(A_ROUND, LISTS) if primary.bin == wheel_bin() else A_ROUND
    wrong, taken = disagreements(primary, lists, seed=31)
    print(f"{lists} lists, {taken} accepted, {len(wrong)} disagreements")
    assert wrong == []
    assert lists / 4 < taken < lists * 0.9, "the lists are to be of both kinds"
