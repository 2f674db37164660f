"""`walproof salvage` beside casts: which could run for a table, and which merely begin at a type that it has too."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.fixtures.plain_pair import PlainPair, plain_pair, wheel_bin
from tests.fixtures.tiers import every
from walproof.salvaging.rows import own_code

pytestmark = [pytest.mark.lab, pytest.mark.nightly]


@pytest.fixture(scope="module")
def pair() -> Iterator[PlainPair]:
    with plain_pair(wheel_bin()) as made:
        for text in (
            *(f"CREATE TYPE {name} AS ENUM ('a')" for name in ("mood", "other", "of_a_stranger")),
            "CREATE TABLE moody (id int PRIMARY KEY, v text, m mood, o other[])",
        ):
            made.sql("n1", text)
        yield made


def test_a_cast_counts_where_something_of_the_table_could_name_its_target(pair: PlainPair) -> None:
    """Whoever may connect can make a type, and a cast from any type to his own."""

    def is_counted(source: str, target: str, counts: bool) -> None:
        with psycopg.connect(pair.member_endpoint("n1").client_conninfo()) as session:
            session.execute(
                f"CREATE FUNCTION cast_of({source}) RETURNS {target} LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
                f" CREATE CAST ({source} AS {target}) WITH FUNCTION cast_of({source})"
            )
            ((table,),) = session.execute("SELECT 'moody'::regclass::oid::int8").fetchall()
            session.execute("SET LOCAL search_path = pg_catalog")
            found = [own_code(session, table, writes=writes) for writes in (False, True)]
            session.rollback()
        assert found == ["public.cast_of" if counts else ""] * 2

    rows = [
        ("mood", "text", True),  # as text || mood, quote_literal and to_json look for: its owner's
        ("mood", "json", True),
        ("other", "json", True),
        ("mood", "other", True),
        ("int", "mood", True),
        ("int", "json", True),  # a superuser's
        ("int", "of_a_stranger", False),
        ("text", "of_a_stranger", False),
        ("mood", "of_a_stranger", False),
        ("of_a_stranger", "text", False),
        ("of_a_stranger", "mood", False),
    ]
    every(rows, is_counted)
