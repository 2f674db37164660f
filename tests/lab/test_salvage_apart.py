"""`walproof salvage` where a table cannot be read, or be named: it keeps no other one from being read and written."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.lost_rows import SALVAGER
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, await_replay, plain_pair, promote, stop, wheel_bin

__all__ = ["own_folder"]
pytestmark = pytest.mark.lab
LIMIT = 1_500_000_000
"""Bytes of memory that stand for half of a machine's."""
NAMED = (
    b"CREATE TABLE before (id int PRIMARY KEY)",
    b"CREATE TABLE victim (id int PRIMARY KEY)",
    b'CREATE TABLE "caf\xe9" (id int PRIMARY KEY)',
    b'CREATE TABLE columned (id int PRIMARY KEY, "caf\xe9" int REFERENCES victim)',
    b'CREATE SEQUENCE "s\xe9"; CREATE SEQUENCE s',
    b"CREATE TABLE after (id int PRIMARY KEY)",
)
LOST_NAMED = (
    *(b"INSERT INTO %s VALUES (1)" % name for name in (b"before", b"victim", b'"caf\xe9"', b"columned", b"after")),
    b"SELECT nextval('\"s\xe9\"'), nextval('s')",
)
NEW_NAMED = (b'CREATE TABLE "new\xe9" (id int)', b'CREATE TABLE late ("\xe9" int REFERENCES before)')


def _do(pair: PlainPair, member: str, texts: tuple[bytes, ...], database: str) -> None:
    dsn = make_conninfo(pair.member_endpoint(member).client_conninfo(), dbname=database)
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("SET client_encoding = 'SQL_ASCII'")
        for text in texts:
            session.execute(text)


@pytest.fixture(scope="module")
def failed_over() -> Iterator[PlainPair]:
    """n2 leads; n1 committed rows of all tables alone."""
    with plain_pair(wheel_bin()) as pair:
        pair.sql("n1", "CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
        tables = tuple(b"CREATE TABLE %s (id int PRIMARY KEY, v text)" % name for name in (b"a1", b"large", b"z1"))
        _do(pair, "n1", NAMED, "bytes")
        _do(pair, "n1", tables, "postgres")
        await_replay(pair)
        promote(pair)
        _do(pair, "n1", LOST_NAMED, "bytes")
        _do(pair, "n2", NEW_NAMED, "bytes")
        large = b"INSERT INTO large SELECT g, repeat('x', %d) FROM generate_series(1, 3) g"
        # Three of 200 MB, and then ever smaller ones that fill what these leave.
        rows = (large % 200_000_000, *(b"INSERT INTO large VALUES (%d, repeat('x', %d))" % (20 + at, 100_000_000 >> at)
                                       for at in range(16)))  # fmt: skip
        _do(pair, "n1", (*rows, b"INSERT INTO a1 VALUES (1, 'x')", b"INSERT INTO z1 VALUES (1, 'x')"), "postgres")
        pair.sql("n2", SALVAGER)
        stop(pair, "n1")
        yield pair


def test_a_table_keeps_no_other_from_being_read(failed_over: PlainPair, own_folder: Path) -> None:
    """Bytes that are no UTF-8 in one name, and a few large rows of one table, each made a database unsalvageable."""
    dsn = make_conninfo(failed_over.member_endpoint("n2").client_conninfo(), user="salvager", password="salvager")
    typed = ["salvage", "--old", str(failed_over.data("n1")), "--new", dsn, "--bin", str(failed_over.bin), "--json"]
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))"
    code += "; from walproof.cli.main import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, *typed, "--out", str(own_folder / "lost")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    told = json.loads(done.stdout)
    of: dict[tuple[str, str], Any] = {
        (one["database"], table["table"]): table for one in told["databases"] for table in one["tables"]
    }
    inserted = {name: table["inserted"] for name, table in of.items() if name != ("postgres", "public.large")}
    bad = {("bytes", "public.caf\\xe9"): 0, ("bytes", "public.columned"): 0}
    assert inserted == bad | {
        ("bytes", "public.before"): 1, ("bytes", "public.victim"): 1, ("bytes", "public.after"): 1,
        ("postgres", "public.a1"): 1, ("postgres", "public.z1"): 1,
    }  # fmt: skip
    undecided = sorted(one.partition(": ")[0] for one in told["undecided"])
    assert undecided[:3] == [
        "public.caf\\xe9 of bytes", "public.columned of bytes", "public.large of postgres"
    ]  # fmt: skip
    assert undecided[3:] == ["sequence public.s\\xe9 of bytes cannot be read"]
    files = {path.name.partition("_")[2] for path in (own_folder / "lost").glob("*/*")}
    assert files >= {f"public.{name}.{kind}" for name in ("a1", "z1", "after") for kind in ("sql", "csv")}
    assert {"public.before.csv", "public.victim.csv"} <= files and "sequences.sql" in files
    assert not {one for one in files if "unfinished" in one or "caf" in one or "columned" in one}
