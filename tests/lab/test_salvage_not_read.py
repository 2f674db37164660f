"""`walproof salvage` where it is not told what became of a row: it says so, and no SQL changes it.

One failover: rows that cannot be read, transactions that were prepared before it, and a stranger's casts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, start, stop, wheel_bin
from tests.fixtures.salvaged import do, dsn, fork, on, psql, typed
from walproof.salvaging.rows import UNLOGGED_SINCE

__all__ = ["own_folder"]
pytestmark = [pytest.mark.lab, pytest.mark.nightly]
LIMIT = 1_500_000_000
"""Bytes of memory that stand for half of a machine's."""
BYTES = (
    "CREATE TABLE accounts (id int PRIMARY KEY, v text)",
    "INSERT INTO accounts SELECT i, 'x' FROM generate_series(1, 10) i",
    "CREATE TABLE named (k text PRIMARY KEY, v text)",
    "INSERT INTO named VALUES ('a', 'x'), ('b', 'x')",
    *(b"CREATE TABLE %s (id int PRIMARY KEY)" % name for name in (b"before", b"victim", b'"caf\xe9"', b"after")),
    b'CREATE TABLE columned (id int PRIMARY KEY, "caf\xe9" int REFERENCES victim)',
    b'CREATE SEQUENCE "s\xe9"; CREATE SEQUENCE s',
)
LOST_BYTES = (
    b"UPDATE accounts SET v = 'caf\xe9' WHERE id IN (1, 2, 3)",
    b"INSERT INTO accounts VALUES (600, 'caf\xe9')",
    b"DELETE FROM accounts WHERE id = 5",
    b"UPDATE named SET k = 'caf\xe9' WHERE k = 'a'",
    b"DELETE FROM named WHERE k = 'b'",
    *(b"INSERT INTO %s VALUES (1)" % name for name in (b"before", b"victim", b'"caf\xe9"', b"columned", b"after")),
    b"SELECT nextval('\"s\xe9\"'), nextval('s')",
)
NEW_BYTES = (b'CREATE TABLE "new\xe9" (id int)', b'CREATE TABLE late ("\xe9" int REFERENCES before)')
NAMED, DAMAGED, CLOSED = "ERROR:  x", "damaged", "closed"
"""Databases: of which a line of the log says the name, of which a catalog is damaged, that takes no sessions."""
IN_LATIN = ('CREATE DATABASE "caf\u00e9"',)
"""The new one's name is bytes, and no UTF-8."""
IN_EACH = ("CREATE TABLE t (id int PRIMARY KEY)",)
LOST_IN_EACH = ("INSERT INTO t VALUES (1)",)
BEFORE = (
    *(f"CREATE DATABASE {name}" for name in (DAMAGED, CLOSED)),
    f"CREATE DATABASE \"{NAMED}\" TEMPLATE template0 COLLATION_VERSION 'bogus'",
    "CREATE TABLE log (v text)",
    "CREATE TABLE logged (id int PRIMARY KEY, v text)",
    *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("t", "cast_of")),
    "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 30) i",
    "CREATE TABLE keyless (id int, v text)",
    "INSERT INTO keyless VALUES (1, 'x'), (2, 'x')",
    "CREATE TABLE zeros (id int PRIMARY KEY, v text)",
    "INSERT INTO zeros SELECT i, repeat('x', 1000) FROM generate_series(1, 40) i",
    "CREATE TABLE cut (id int PRIMARY KEY, v text)",
    *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("a1", "large", "z1")),
    "CREATE ROLE mallory LOGIN PASSWORD 'mallory'",
    "BEGIN; UPDATE t SET v = 'xa' WHERE id = 3; SAVEPOINT s; INSERT INTO t VALUES (702, 'xa');"
    " PREPARE TRANSACTION 'on both'",
    "BEGIN; INSERT INTO t VALUES (703, 'xa'); SAVEPOINT s; INSERT INTO t VALUES (704, 'xa');"
    " PREPARE TRANSACTION 'on the new primary'",
    "BEGIN; INSERT INTO t VALUES (705, 'xa'); PREPARE TRANSACTION 'held'",
    "INSERT INTO log VALUES ('before')",
    "BEGIN; INSERT INTO log VALUES ('on both'); PREPARE TRANSACTION 'keyless on both'",
)
LOST = (
    "COMMIT PREPARED 'on both'",
    "COMMIT PREPARED 'keyless on both'",
    "INSERT INTO log VALUES ('lost')",
    "ROLLBACK PREPARED 'on the new primary'",
    "UPDATE t SET v = 'later' WHERE id = 3",
    "UPDATE t SET v = 'later' WHERE id = 9",
    "DELETE FROM t WHERE id = 8",
    "INSERT INTO t VALUES (703, 'other'), (704, 'other')",
    "UPDATE keyless SET v = 'y' WHERE id = 1",
    "DELETE FROM keyless WHERE id = 2",
    "INSERT INTO keyless VALUES (3, 'z')",
    "INSERT INTO cast_of VALUES (1, 'paid')",
    "INSERT INTO logged VALUES (1, 'paid')",
    "ALTER TABLE logged SET UNLOGGED",
    "UPDATE zeros SET v = repeat('y', 1000) WHERE id <= 20",
    "DELETE FROM zeros WHERE id = 40",
    "INSERT INTO cut SELECT i, repeat('x', 1000) FROM generate_series(1, 14) i",
    "CREATE ROLE made",
    *(f"INSERT INTO {name} VALUES (1, 'x')" for name in ("a1", "z1")),
    # Three of 200 MB, and then ever smaller ones that fill what these leave.
    "INSERT INTO large SELECT g, repeat('x', 200000000) FROM generate_series(1, 3) g",
    *(f"INSERT INTO large VALUES ({20 + at}, repeat('x', {100_000_000 >> at}))" for at in range(16)),
    "ROLLBACK PREPARED 'held'",
    f"ALTER DATABASE {CLOSED} ALLOW_CONNECTIONS false",
    # Its locks were the copy's: neither the table nor any database was read.
    f"BEGIN; LOCK t, log; ALTER DATABASE {CLOSED} CONNECTION LIMIT 5; INSERT INTO t VALUES (800, 'xa');"
    " PREPARE TRANSACTION 'lost'",
    "CHECKPOINT",
)


def _casts(pair: PlainPair, member: str) -> "psycopg.Connection[Any]":
    """What any role may make that may connect, and what is there until it leaves."""
    session = psycopg.connect(dsn(pair, member, "mallory"), autocommit=True)
    session.execute("CREATE TYPE pg_temp.m AS (x int)")
    for source in ("int", "text"):
        session.execute(
            f"CREATE FUNCTION pg_temp.f({source}) RETURNS pg_temp.m LANGUAGE plpgsql AS"
            f" $$ BEGIN RETURN NULL; END $$; CREATE CAST ({source} AS pg_temp.m) WITH FUNCTION pg_temp.f({source})"
        )
    return session


@pytest.fixture(scope="module")
def failed_over() -> Iterator[PlainPair]:
    """n2 leads; n1 committed LOST and is stopped without a checkpoint."""
    with plain_pair(wheel_bin()) as pair:
        for member in ("n1", "n2"):
            with (pair.data(member) / "postgresql.conf").open("a") as file:
                file.write("max_prepared_transactions = 10\nwal_keep_size = '2GB'\n")
        for stopping in ("n2", "n1"):
            stop(pair, stopping, "fast")
        for starting in ("n1", "n2"):
            start(pair, starting)
        for name, encoding in (("bytes", "SQL_ASCII"), ("latin", "LATIN1")):
            pair.sql("n1", f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        on(pair, "n1", BYTES, "bytes", "SQL_ASCII")
        on(pair, "n1", BEFORE)
        for name in (NAMED, DAMAGED, CLOSED):
            on(pair, "n1", IN_EACH, name)
        on(pair, "n1", IN_LATIN, "latin")
        fork(pair)
        on(pair, "n2", [f"COMMIT PREPARED '{one}'" for one in ("on both", "keyless on both", "on the new primary")])
        on(pair, "n2", NEW_BYTES, "bytes", "SQL_ASCII")
        on(pair, "n1", LOST_BYTES, "bytes", "SQL_ASCII")
        for name in (NAMED, DAMAGED, CLOSED):
            on(pair, "n1", LOST_IN_EACH, name)
        on(pair, "n1", LOST)
        ((catalog,),) = do(dsn(pair, "n1", "postgres", DAMAGED), "SELECT pg_relation_filepath('pg_namespace')")
        ((zeros, cut),) = pair.sql("n1", "SELECT pg_relation_filepath('zeros'), pg_relation_filepath('cut')")
        with _casts(pair, "n1"), _casts(pair, "n2"):
            stop(pair, "n1")
            for path, at, raw in ((catalog, 0, b"\xff" * 8192), (zeros, 7 * 8192, bytes(8192))):
                with (pair.data("n1") / str(path)).open("r+b") as file:
                    file.seek(at)
                    file.write(raw)
            os.truncate(pair.data("n1") / str(cut), 8192)
            yield pair


def _salvaged(pair: PlainPair, out: Path) -> tuple[int, dict[str, Any]]:
    """Of a machine that has no more memory than LIMIT."""
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))"
    code += "; from walproof.cli.main import main; sys.exit(main())"
    argv = typed(pair, "--out", str(out), "--check", "--allow", "load", "--json")
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False, cwd=out.parent
    )
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, told


def test_what_was_not_read_is_changed_by_no_sql_and_told(failed_over: PlainPair, own_folder: Path) -> None:
    """Bytes that are no UTF-8 in one name, and a few large rows of one table, each made a database unsalvageable."""
    pair = failed_over
    code, told = _salvaged(pair, own_folder / "lost")
    of = {(one["database"], table["table"]): table for one in told["databases"] for table in one["tables"]}
    counts = {
        name: tuple(table[kind] for kind in ("inserted", "updated", "deleted", "conflict", "there"))
        for name, table in of.items()
    }
    not_read = {name: (table["not_read"], table["versions_not_read"]) for name, table in of.items()}
    checks = {one["database"]: one["check"] for one in told["databases"]}
    # An unread version whose key is read is of that row; of one whose key is not, any row may be the one.
    assert counts["bytes", "public.accounts"] == (0, 0, 1, 0, 0)
    assert not_read["bytes", "public.accounts"] == (3, 4)
    assert counts["bytes", "public.named"] == (0, 0, 0, 0, 0)
    assert not_read["bytes", "public.named"] == (2, 1)
    # What 'on both' wrote is not lost. 703 and 704 are the new primary's too: after the fork, by an older transaction.
    assert counts["postgres", "public.t"] == (2, 2, 1, 2, 0)
    assert of["postgres", "public.t"]["notes"] == []
    assert counts["postgres", "public.cast_of"] == (1, 0, 0, 0, 0)
    assert of["postgres", "public.cast_of"]["clean"] == 1 and of["postgres", "public.cast_of"]["notes"] == []
    # A write that the disk has lost, and a file that was cut off: nothing is deleted for what is not there.
    assert counts["postgres", "public.zeros"][2] == 0 and of["postgres", "public.zeros"]["notes"][0].startswith(
        "1 block of it, as 7, is not what the WAL wrote there"
    )
    assert 0 < counts["postgres", "public.cut"][0] < 14
    # A table keeps no other one from being read.
    whole = [*(("bytes", f"public.{name}") for name in ("before", "victim", "after")), ("postgres", "public.a1")]
    whole += [("postgres", "public.z1"), (NAMED, "public.t"), (CLOSED, "public.t")]
    assert {name: counts[name][0] for name in whole} == dict.fromkeys(whole, 1)
    assert [counts["bytes", f"public.{name}"][0] for name in ("caf\\xe9", "columned")] == [0, 0]
    assert code == 4
    latin = {"database caf\\xe9 cannot be read"}  # where autovacuum wrote there
    assert {one.split(": ")[0] for one in told["undecided"] if "--check" not in one} - latin == {
        "public.accounts of bytes", "public.named of bytes", "public.logged of postgres",
        "public.zeros of postgres", "public.cut of postgres", "public.large of postgres",
        "public.caf\\xe9 of bytes", "public.columned of bytes", "sequence public.s\\xe9 of bytes cannot be read",
        "database damaged cannot be read",
        "prepared after the fork, neither committed nor rolled back, and not read",
        "ROLLBACK PREPARED was lost of what the new primary holds prepared",
    }  # fmt: skip
    assert (of["postgres", "public.logged"]["notes"], told["ddl_of_cluster"]) == ([f"not read: {UNLOGGED_SINCE}"], 2)
    assert {"public.accounts: in no SQL: not read: 4", "public.named: in no SQL: not read: 2"} <= {*checks["bytes"]}
    damaged = ("public.zeros", "public.cut", "public.large")
    assert {one for one in checks["postgres"] if not one.startswith(damaged)} == {
        "public.keyless: in no SQL: without a key: 2", "public.logged: in no SQL: what was not read of it"
    }  # fmt: skip
    files = {path.name.partition("_")[2] for path in (own_folder / "lost").glob("*/*")}
    assert files >= {f"public.{name}.{kind}" for name in ("a1", "z1", "after") for kind in ("sql", "csv")}
    assert {"public.before.csv", "public.victim.csv", "sequences.sql"} <= files
    assert [one for one in files if "unfinished" in one or "caf" in one or "columned" in one] == []
    for one in told["databases"]:
        for path in sorted(Path(one["files"] or "nowhere").glob("*.sql")):
            done = psql(dsn(pair, database=one["database"]), [path], "-1", "-v", "ON_ERROR_STOP=1")
            says = [line for line in done.stderr.splitlines() if not line.startswith("WARNING:  database")]
            assert (done.returncode, says) == (0, []), path.name
    in_bytes, in_postgres = (dsn(pair, "n2", "postgres", name) for name in ("bytes", "postgres"))
    assert do(in_bytes, "SELECT array_agg(id ORDER BY id) FROM accounts") == [([1, 2, 3, 4, 6, 7, 8, 9, 10],)]
    assert do(in_bytes, "SELECT count(*) FROM named") == [(2,)]
    assert do(in_postgres, "SELECT count(*) FROM zeros") == [(40,)]
    assert do(in_postgres, "SELECT array_agg(v ORDER BY v) FROM log") == [(["before", "lost", "on both"],)]
    assert do(in_postgres, "SELECT id, v FROM t WHERE id IN (3, 8, 9) OR id > 700 ORDER BY id") == [
        (3, "later"), (9, "later"), (702, "xa"), (703, "xa"), (704, "xa")
    ]  # fmt: skip
