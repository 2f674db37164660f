"""`walproof salvage` where keys, partitions and unique values go from row to row on both sides: each row is known by a
number that no statement changes, and is there once, or as its new primary left it.

One failover of many databases: each a world of its own, of which the first ones are told, the others made by chance."""

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, stop, wheel_bin
from tests.fixtures.salvaged import do, dsn, fork, psql, salvaged
from tests.fixtures.tiers import every, many
from walproof.salvaging.recovered import HALF_MADE

__all__ = ["own_folder", "walproof"]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
SEEDS = range(many(3, 150))
MADE = (
    "CREATE TABLE g (id int PRIMARY KEY, uid int, u text UNIQUE)",
    "CREATE TABLE t (k int PRIMARY KEY, uid int, u text, v int, g int REFERENCES g, gu text REFERENCES g (u) {})",
    "CREATE UNIQUE INDEX ON t ({})",
    "CREATE TABLE pt (id int, st text, uid int, g int REFERENCES g, v int, PRIMARY KEY (id, st))"
    " PARTITION BY LIST (st)",
    *(f"CREATE TABLE pt_{one} PARTITION OF pt FOR VALUES IN ('{one}')" for one in "abc"),
    "CREATE TABLE ch (id int PRIMARY KEY, uid int, k int REFERENCES t ON DELETE CASCADE, v int)",
)
ROWS = (
    "INSERT INTO g SELECT i, i, 'u' || i FROM generate_series(1, 14) i WHERE i % 5 <> 0",
    "INSERT INTO t SELECT i, 100 + i, 'u' || i, 0, CASE i % 3 WHEN 0 THEN NULL ELSE 1 + i % 4 END,"
    " CASE i % 4 WHEN 0 THEN 'u' || (1 + i % 4) END FROM generate_series(1, 14) i WHERE i % 4 <> 0",
    "INSERT INTO pt SELECT i, substr('abc', 1 + i % 3, 1), 200 + i, 1 + i % 4, 0 FROM generate_series(1, 14) i"
    " WHERE i % 6 <> 0",
    "INSERT INTO ch SELECT i, 300 + i, 1 + i % 3, 0 FROM generate_series(1, 14) i WHERE i % 3 <> 0",
)
NAMES = {"t": [("g", "g", "id"), ("gu", "g", "u")], "pt": [("g", "g", "id")], "ch": [("k", "t", "k")]}
"""Of each table its columns that name another one, that table, and its column."""


class World(NamedTuple):
    """What a database holds at the fork, what was lost, and what the new primary wrote; `fails`: how its SQL ends."""

    made: list[str]
    lost: list[str]
    since: list[str]
    fails: str = ""


PLAIN = [one.format("") for one in MADE[:2]] + [*MADE[3:], *ROWS]
TOLD = {
    # The row of key 10 was pruned, and then got the key of one that was deleted.
    "came": World(
        PLAIN, ["DELETE FROM ch WHERE id = 11", "UPDATE ch SET v = 1 WHERE id = 10", "VACUUM ch",
                "UPDATE ch SET id = 11 WHERE id = 10"], ["UPDATE ch SET v = 7 WHERE id = 10"],
    ),
    # The same, where the deleted row had been updated before: COPY has made both.
    "twice": World(
        [*PLAIN, "DELETE FROM ch", "COPY ch FROM STDIN"],
        ["UPDATE ch SET v = 1 WHERE id IN (1, 2)", "VACUUM ch", "DELETE FROM ch WHERE id = 2", "VACUUM ch",
         "COPY ch FROM STDIN WHERE id = 3", "UPDATE ch SET id = 2 WHERE id = 1", "DELETE FROM ch WHERE id = 3"],
        ["UPDATE ch SET v = 7 WHERE id = 1"],
    ),
    # What the new primary wrote since names the old key: only once the SQL runs is it known.
    "named": World(
        PLAIN, ["UPDATE t SET k = 20 WHERE k = 6"], ["INSERT INTO ch VALUES (20, 2001, 6, 0)"], fails=HALF_MADE
    ),
    # Its transaction wrote another row beside, which the new primary has too: the client has tried it again.
    "again": World(
        PLAIN, ["BEGIN; UPDATE pt SET st = 'b' WHERE id = 3; INSERT INTO pt VALUES (20, 'b', 900, 1, 0); COMMIT"],
        ["INSERT INTO pt VALUES (20, 'b', 900, 1, 0)", "UPDATE pt SET st = 'c' WHERE id = 3"],
    ),
    "deleted": World(
        PLAIN, ["BEGIN; UPDATE pt SET st = 'b' WHERE id = 3; INSERT INTO pt VALUES (20, 'b', 900, 1, 0); COMMIT"],
        ["INSERT INTO pt VALUES (20, 'b', 900, 1, 0)", "DELETE FROM pt WHERE id = 3"],
    ),
    # The new primary gave it another key or partition, of which the old one has lost the version at the fork.
    "rekeyed": World(PLAIN, ["UPDATE ch SET v = 1 WHERE id = 1", "VACUUM ch"], ["UPDATE ch SET id = 31 WHERE id = 1"]),
    "moved": World(PLAIN, ["UPDATE pt SET v = 1 WHERE id = 3", "VACUUM pt"], ["UPDATE pt SET st = 'b' WHERE id = 3"]),
    # There was no key at the fork.
    "keyless": World(
        [*PLAIN, "ALTER TABLE ch DROP CONSTRAINT ch_pkey"],
        ["UPDATE ch SET id = 31 WHERE id = 1", "VACUUM ch", "ALTER TABLE ch ADD PRIMARY KEY (id)"],
        ["UPDATE ch SET v = 9 WHERE id = 1", "VACUUM ch"],
    ),
    # Rewritten, on one side or both: nothing tells of which row a version is.
    "rewritten": World(
        PLAIN, ["UPDATE t SET k = 31 WHERE k = 6", "VACUUM FULL t"], ["INSERT INTO ch VALUES (20, 2001, 6, 0)"]
    ),
    "twofold": World(PLAIN, ["UPDATE ch SET id = 31 WHERE id = 1", "VACUUM FULL ch"], ["VACUUM FULL ch"]),
    "anew": World(PLAIN, ["UPDATE pt SET st = 'b' WHERE id = 3", "VACUUM FULL pt_a"], ["VACUUM FULL pt_a"]),
    # Partitions that lost work took off, or dropped.
    "off": World(
        PLAIN, ["UPDATE pt SET st = 'b' WHERE id = 3", "ALTER TABLE pt DETACH PARTITION pt_b"],
        ["UPDATE pt SET v = 9 WHERE id = 3"],
    ),
    "taken": World(PLAIN, ["UPDATE pt SET st = 'b' WHERE id = 3", "ALTER TABLE pt DETACH PARTITION pt_a"], []),
    "byway": World(
        PLAIN, ["BEGIN; UPDATE pt SET st = 'b' WHERE id = 3; INSERT INTO pt VALUES (20, 'c', 900, 1, 0); COMMIT",
                "UPDATE pt SET st = 'c' WHERE id = 3", "DROP TABLE pt_b"], ["UPDATE pt SET v = 7 WHERE id = 3"],
    ),
    "pruned": World(
        PLAIN, ["UPDATE t SET k = 20 WHERE k = 6", "VACUUM t", "UPDATE t SET v = 1 WHERE k = 20"],
        ["INSERT INTO ch VALUES (20, 2001, 6, 0)"], fails=HALF_MADE,
    ),
}  # fmt: skip


def _statement(by: random.Random, uid: int) -> str:
    k, j, g = (by.randint(1, 14) for _ in range(3))
    u, st = f"'u{j}'", f"'{by.choice('abc')}'"
    table = by.choice(["g", "g", "t", "t", "t", "pt", "pt", "pt", "ch", "ch"])
    insert = {
        "g": [f"g VALUES ({k}, {uid}, {u})"],
        "t": [f"t VALUES ({k}, {uid}, {u}, 0, {by.choice([j, 'NULL'])}, {by.choice([u, 'NULL', 'NULL'])})"] * 3,
        "pt": [f"pt VALUES ({k}, {st}, {uid}, {by.choice([j, 'NULL'])}, 0)"] * 3,
        "ch": [f"ch VALUES ({k}, {uid}, {j}, 0)"] * 2,
    }
    sets = {
        "g": [f"u = {u}", f"id = {j}"],
        "t": ["v = v + 1", f"u = {u}", f"k = {j}", f"k = {j}, g = {g}", f"gu = {u}"],
        "pt": ["v = v + 1", f"st = {st}", f"st = {st}, g = {j}", f"id = {j}"],
        "ch": ["v = v + 1", f"k = {j}", f"id = {j}"],
    }
    key = "k" if table == "t" else "id"
    some = [f"INSERT INTO {one} ON CONFLICT DO NOTHING" for one in insert[table]]
    some += [f"UPDATE {table} SET {one} WHERE {key} = {k}" for one in sets[table]]
    return by.choice([*some, f"DELETE FROM {table} WHERE {key} = {k}"])


def _by_chance(seed: int) -> World:
    by, uid = random.Random(seed), iter(range(500, 10_000))

    def statements(count: int, maintained: float) -> list[str]:
        care = [*(f"VACUUM {one}" for one in ("g", "t", "pt", "ch")), "CHECKPOINT", "SELECT count(*) FROM t"]
        return [by.choice(care) if by.random() < maintained else _statement(by, next(uid)) for _ in range(count)]

    how = by.choice(["", "ON UPDATE CASCADE", "ON UPDATE SET NULL", "ON DELETE SET NULL"])
    made = [MADE[0], MADE[1].format(how), MADE[2].format(by.choice(["u", "lower(u)"])), *MADE[3:], *ROWS]
    lost = statements(by.randint(8, 40), by.choice([0, 0.2]))
    return World(made + statements(15, 0.1), lost, statements(by.choice([4, 10, 25, 40]), by.choice([0, 0.2])))


WORLDS = TOLD | {f"seed{seed}": _by_chance(seed) for seed in SEEDS}
Rows = dict[str, dict[int, list[tuple[dict[str, Any], int]]]]
"""Of each table, by the number of a row, its versions and which transactions wrote them."""
Held = tuple[Rows, Rows, Rows]
"""What there was at the fork, on the old primary at its end, and on the new one when salvage was run."""


def _do(pair: PlainPair, member: str, database: str, texts: list[str]) -> None:
    """One by one: what a constraint refuses is left out."""
    with psycopg.connect(dsn(pair, member, "postgres", database), autocommit=True) as session:
        for text in texts:
            try:
                if text.startswith("COPY"):
                    with session.cursor().copy(text.encode()) as copy:
                        copy.write("1\t301\t1\t0\n2\t302\t2\t0\n3\t303\t3\t0\n")
                else:
                    session.execute(text.encode())
            except psycopg.errors.IntegrityError:
                continue


def _rows(pair: PlainPair, member: str, database: str) -> Rows:
    found: Rows = {}
    for table in ("g", "t", "pt", "ch"):
        by = found[table] = defaultdict(list)
        query = f"SELECT uid, to_jsonb(x), x.xmin::text::int8 FROM {table} x"
        for uid, row, xmin in do(dsn(pair, member, "postgres", database), query):
            by[uid].append((row, xmin))
    return found


class FailedOver(NamedTuple):
    """n2 leads; what each database held; the next transaction id at the fork; whether the WAL tells which transactions
    ran when it begins, so that each row of the fork is known again."""

    pair: PlainPair
    held: dict[str, Held]
    following: int
    is_known: bool


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.nightly)], ids=["known", "unknown"])
def failed_over(request: pytest.FixtureRequest) -> Iterator[FailedOver]:
    with plain_pair(wheel_bin()) as pair:
        for name, world in WORLDS.items():
            pair.sql("n1", f"CREATE DATABASE {name}")
            _do(pair, "n1", name, world.made)
        before = {name: _rows(pair, "n1", name) for name in WORLDS}
        pair.sql("n1", "SELECT pg_switch_wal()")
        for text in ["CHECKPOINT"] * request.param:
            pair.sql("n1", text)
        fork(pair)
        ((following,),) = pair.sql("n2", "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8")
        for name, world in WORLDS.items():
            _do(pair, "n1", name, world.lost)
            _do(pair, "n2", name, world.since)
        held = {name: (before[name], _rows(pair, "n1", name), _rows(pair, "n2", name)) for name in WORLDS}
        stop(pair, "n1")
        assert isinstance(following, int)
        yield FailedOver(pair, held, following, request.param)


def _named(rows: Rows, row: dict[str, Any], column: str, table: str, key: str) -> int | None:
    """The number of the row that it names; None for NULL."""
    if row.get(column) is None:
        return None
    return next(uid for uid, some in rows[table].items() if any(one[key] == row[column] for one, _ in some))


def _wrong(at_fork: Rows, old: Rows, new: Rows, now: Rows, following: int) -> Iterator[str]:
    for table, theirs in new.items():
        for uid, versions in theirs.items():
            here = now[table].get(uid, [])
            is_since = any(xmin >= following for _, xmin in versions)
            is_deleted = uid in at_fork[table] and uid not in old[table]
            if not here and (is_since or not is_deleted):
                yield f"{table} {uid} is nowhere: {versions}"
            if here and is_since and versions[0][0] not in [row for row, _ in here]:
                yield f"{table} {uid} was written since, and is another now: {versions} {here}"
        for uid, versions in now[table].items():
            if len(versions) > 1:
                yield f"{table} {uid} is there twice: {versions}"
            row, sides = versions[0][0], [old, new]
            whose = [side for side in sides if row in [one for one, _ in side[table].get(uid, [])]]
            if not whose:
                yield f"{table} {uid} is as it was nowhere: {row}"
            for column, *key in NAMES.get(table, ()):
                if whose and _named(now, row, column, *key) not in [_named(one, row, column, *key) for one in whose]:
                    yield f"{table} {uid} is under another row: {row}"


def test_each_row_is_there_once_whatever_keys_it_had(failed_over: FailedOver, walproof: Run, own_folder: Path) -> None:
    pair, held, following, is_known = failed_over
    _, told, err = salvaged(walproof, pair, own_folder / "lost")
    assert told, err
    files, ran = {one["database"]: one["files"] for one in told["databases"]}, list[str]()

    def is_there_once(name: str) -> str:
        to, paths = dsn(pair, database=name), sorted(Path(files[name]).glob("*.sql"))
        done = psql(to, paths, "-q", "-1", "-v", "ON_ERROR_STOP=1")
        now = _rows(pair, "n2", name)
        if WORLDS[name].fails and is_known:
            assert WORLDS[name].fails in done.stderr
        if done.returncode:  # all of it, or nothing
            assert now == held[name][2]
            return ""
        ran.append(name)
        return "\n".join(_wrong(*held[name], now, following))

    every(WORLDS, is_there_once)
    assert len(ran) >= len(WORLDS) // 2
