"""Sessions beside the drills of `benchmarks.salvage_true` that update, delete and insert, all of it to be recomputed.

A chain is what one session does until it breaks: transaction n updates the chain's account, gives it item n, undoes
another in a subtransaction, and deletes item n - 5. Rows are TOASTed, items are partitioned with a foreign key, every
fifth transaction is a two-phase one. So what an unbroken server holds after n transactions is known, and every session
knows how many of its own were acknowledged."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import psycopg

from walproof.model.ports import Target
from walproof.salvaging.report import Tree

DATABASE = "mixed"
Session = psycopg.Connection[Any]
_TABLES = """
CREATE TABLE account (id text PRIMARY KEY, n int NOT NULL, body text NOT NULL);
CREATE TABLE item (id text REFERENCES account, place int, body text NOT NULL, PRIMARY KEY (id, place))
    PARTITION BY HASH (id);
CREATE TABLE item_0 PARTITION OF item FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE item_1 PARTITION OF item FOR VALUES WITH (MODULUS 2, REMAINDER 1)
"""
_KEPT, _TWO_PHASE, _PAUSE_S = 5, 5, 0.02
_GIVES_UP = {
    "connect_timeout": "3", "tcp_user_timeout": "3000",
    "keepalives_idle": "1", "keepalives_interval": "1", "keepalives_count": "3",
}  # fmt: skip
"""A server that is cut off and ended answers nothing, and what its kernel sends may not arrive."""
_Held = dict[str, tuple[int, bool, list[tuple[int, bool]]]]
"""By chain: its number, whether its body is the right one, and its items' places with the same."""


def _body(chain: str, number: int) -> str:
    """2,560 characters, which no compression makes small enough to stay in the row."""
    return "".join(hashlib.md5(f"{chain} {number} {part}".encode()).hexdigest() for part in range(80))


def _right(held: tuple[int, bool, list[tuple[int, bool]]]) -> bool:
    """Whether it is the state after that many transactions."""
    number, is_right, items = held
    places = list(range(max(1, number - _KEPT + 1), number + 1))
    return is_right and items == [(place, True) for place in places]


@contextmanager
def on_the_leader(target: Target, database: str = "", *, autocommit: bool = False) -> Iterator[Session]:
    words = target.endpoint("direct").client_conninfo(**({"dbname": database} if database else {}))
    with psycopg.connect(words, autocommit=autocommit) as connection:
        yield connection


def make(target: Target) -> None:
    """The tables, in a database of their own."""
    with on_the_leader(target, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}".encode())
    with on_the_leader(target, DATABASE) as connection:
        connection.execute(_TABLES.encode())


class Chains:
    """Sessions that make chains; `acknowledged`: by chain, the number of its last transaction that was, -1 for none."""

    def __init__(self, target: Target, level: str) -> None:
        self._dsn = target.endpoint("multi-host").client_conninfo(
            dbname=DATABASE, options=f"-c synchronous_commit={level}", **_GIVES_UP
        )
        self._ended = threading.Event()
        self.acknowledged: dict[str, int] = {}

    @contextmanager
    def running(self, sessions: int = 2) -> Iterator[None]:
        """So many sessions until the block ends."""
        threads = [threading.Thread(target=self._run) for _ in range(sessions)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            self._ended.set()
            for one in threads:
                one.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            with suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True) as connection:
                chain = uuid4().hex
                self.acknowledged[chain] = -1
                while not self._ended.wait(_PAUSE_S):
                    _transaction(connection, chain, self.acknowledged[chain] + 1)
                    self.acknowledged[chain] += 1

    def differing(self, target: Target, *, may_be_missing: bool) -> dict[str, str]:
        """Chains that the leader does not hold as an unbroken server would, and what it holds; a transaction that was
        asked for and not acknowledged may be there. `may_be_missing`: acknowledged ones may not be, to the last."""
        held, wrong = _held(target), dict[str, str]()
        for chain, acknowledged in self.acknowledged.items():
            there = held.get(chain)
            number = there[0] if there else -1
            enough = may_be_missing or number >= acknowledged
            if not enough or number > acknowledged + 1 or (there is not None and not _right(there)):
                wrong[chain] = f"{acknowledged} acknowledged, there {there}"
        return wrong


def _transaction(connection: Session, chain: str, number: int) -> None:
    connection.execute("BEGIN")
    body = _body(chain, number)
    if number == 0:
        connection.execute("INSERT INTO account VALUES (%s, 0, %s)", (chain, body))
    else:
        connection.execute("UPDATE account SET n = %s, body = %s WHERE id = %s", (number, body, chain))
        for place, end in ((-number, "ROLLBACK TO"), (number, "RELEASE")):
            connection.execute("SAVEPOINT part")
            connection.execute("INSERT INTO item VALUES (%s, %s, %s)", (chain, place, body))
            connection.execute(f"{end} part".encode())
        connection.execute("DELETE FROM item WHERE id = %s AND place = %s", (chain, number - _KEPT))
    if number % _TWO_PHASE:
        connection.execute("COMMIT")
    else:
        connection.execute(f"PREPARE TRANSACTION '{chain}'".encode())
        connection.execute(f"COMMIT PREPARED '{chain}'".encode())


def finish(target: Target, tree: Tree) -> bool:
    """Commit what the old primary had committed and the new one holds prepared, as the report tells; whether any."""
    names = [str(one["gid"]) for one in tree["prepared_on_new_primary"] if one["database"] == DATABASE]
    _end("COMMIT PREPARED", target, names)
    return bool(names)


def give_up(target: Target) -> None:
    """Roll back what is still prepared: no server's WAL says that it committed."""
    with on_the_leader(target, DATABASE) as connection:
        found = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (DATABASE,)).fetchall()
    _end("ROLLBACK PREPARED", target, [str(gid) for (gid,) in found])


def _end(how: str, target: Target, names: list[str]) -> None:
    with on_the_leader(target, DATABASE, autocommit=True) as connection:
        for name in names:
            connection.execute(f"{how} '{name}'".encode())


def _held(target: Target) -> _Held:
    with on_the_leader(target, DATABASE) as connection:
        accounts = connection.execute("SELECT id, n, body FROM account").fetchall()
        items = connection.execute("SELECT id, place, body FROM item ORDER BY id, place").fetchall()
    held: _Held = {chain: (number, body == _body(chain, number), []) for chain, number, body in accounts}
    for chain, place, body in items:
        held[chain][2].append((place, body == _body(chain, place)))
    return held
