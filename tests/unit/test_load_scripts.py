r"""The commit level inside a user's script: where it goes, and which scripts are refused with which reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.load.pgbench_script import check_script, script_parts, with_level
from walproof.model.guarantee import Level

SET = "SET LOCAL synchronous_commit TO on"


@each(
    [
        (
            "\\set a 1\nBEGIN;\nUPDATE t SET x = :a;\nEND;",
            f"\\set a 1\nBEGIN\\;{SET};\nUPDATE t SET x = :a;\nEND;",
            f"\\set a 1\nBEGIN;\n{SET};\nUPDATE t SET x = :a;\nEND;",
        ),
        (
            "begin isolation level serializable, read write; UPDATE t SET x = 1; commit",
            f"begin isolation level serializable, read write\\;{SET}; UPDATE t SET x = 1; commit",
            f"begin isolation level serializable, read write;\n{SET}; UPDATE t SET x = 1; commit",
        ),
        (
            "START TRANSACTION READ WRITE -- why\n;\nSAVEPOINT a;\nROLLBACK TO a;\nCOMMIT;",
            f"START TRANSACTION READ WRITE\\;{SET} -- why\n;\nSAVEPOINT a;\nROLLBACK TO a;\nCOMMIT;",
            f"START TRANSACTION READ WRITE;\n{SET} -- why\n;\nSAVEPOINT a;\nROLLBACK TO a;\nCOMMIT;",
        ),
        (
            "BEGIN; DO $x$ BEGIN INSERT INTO t VALUES (1); END $x$; SELECT 'BEGIN; it''s' /* BEGIN; /* ; */ */; END;",
            f"BEGIN\\;{SET}; DO $x$ BEGIN INSERT INTO t VALUES (1); END $x$; "
            "SELECT 'BEGIN; it''s' /* BEGIN; /* ; */ */; END;",
            f"BEGIN;\n{SET}; DO $x$ BEGIN INSERT INTO t VALUES (1); END $x$; "
            "SELECT 'BEGIN; it''s' /* BEGIN; /* ; */ */; END;",
        ),
        (
            "-- one\n\\set a 1\nINSERT INTO t VALUES (:a) -- the end",
            f"-- one\n\\set a 1\nBEGIN\\;{SET};\nINSERT INTO t VALUES (:a); -- the end\nEND;",
            f"-- one\n\\set a 1\nBEGIN;\n{SET};\nINSERT INTO t VALUES (:a); -- the end\nEND;",
        ),
        (
            "UPDATE t SET n = n + 1 RETURNING n \\gset\n\\if :n > 1\n\\endif\n",
            f"BEGIN\\;{SET};\nUPDATE t SET n = n + 1 RETURNING n \\gset\n\\if :n > 1\n\\endif\nEND;",
            f"BEGIN;\n{SET};\nUPDATE t SET n = n + 1 RETURNING n \\gset\n\\if :n > 1\n\\endif\nEND;",
        ),
    ]
)
def test_the_level_stands_after_begin_and_all_else_stays(script: str, combined: str, prepared: str) -> None:
    assert with_level(script, Level.ON, combined=True) == combined
    assert with_level(script, Level.ON, combined=False) == prepared


@each([
    ("BEGIN; SELECT 1; END; BEGIN; SELECT 2; END;", "holds 2 transactions"),
    ("SELECT 1; SELECT 2;", "each of its 2 statements commits by itself"),
    ("SELECT 1; BEGIN; SELECT 2; END;", "before BEGIN commits by itself"),
    ("BEGIN; SELECT 2; END; SELECT 3;", "does not end once, with its last"),
    ("BEGIN; SELECT 2;", "does not end once, with its last"),
    ("BEGIN; UPDATE t SET a = 1; ABORT;", "ends in ABORT"),
    ("BEGIN; UPDATE t SET a = 1; ROLLBACK;", "ends in ROLLBACK"),
    ("BEGIN; UPDATE t SET a = 1; COMMIT AND CHAIN;", "AND CHAIN"),
    ("BEGIN; UPDATE t SET a = 1; PREPARE TRANSACTION 'x'; COMMIT PREPARED 'x';", "prepared transactions"),
    ("DO $$ BEGIN UPDATE t SET a = 1; COMMIT; END $$;", "body of its DO"),
    ("CALL work();", "CALL needs, or may end"),
    ("\\if :x\nBEGIN;\n\\endif\nSELECT 1;\nEND;", "BEGIN stands between"),
    ("BEGIN;\n\\if :x\nEND;\n\\endif", "END stands between"),
    ("\\if :x\nINSERT INTO t VALUES (1);\n\\endif", "only statement stands between"),
    ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END;", "BEGIN ATOMIC"),
])  # fmt: skip
def test_what_is_not_surely_one_transaction_is_refused_with_the_reason(script: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        with_level(script, Level.ON, combined=True)


@each([("SELECT 1;\nSELECT 'a;", 2), ("/* a /* b */", 1), ("DO $a$ x $b$;", 1), ("SELECT (1;", 1), ('SELECT "a', 1)])
def test_a_quote_that_is_not_closed_is_refused_with_its_line(script: str, line: int) -> None:
    with pytest.raises(UsageError, match=f"opened on line {line} is not closed"):
        script_parts(script)


@each([
    "SET synchronous_commit = off",
    "SET LOCAL SYNCHRONOUS_COMMIT TO local",
    "SELECT set_config('synchronous_commit', 'off', true)",
    "RESET ALL",
    "DO $$ BEGIN SET LOCAL synchronous_commit = off; END $$",
])  # fmt: skip
def test_a_script_that_sets_the_level_itself_is_refused(statement: str) -> None:
    with pytest.raises(UsageError, match="sets synchronous_commit itself"):
        check_script(f"BEGIN; {statement}; END;", "a.sql")
    check_script("BEGIN; SELECT current_setting('synchronous_commit'); END;", "a.sql")


def test_backslash_commands_and_joined_statements_are_different_parts() -> None:
    found = script_parts("\\set x 1 + \\\n  2\nSELECT E'a\\'; b' \\; SELECT 2 AS y \\gset\nSELECT $1;")
    assert found.commands == ("set", "gset")
    assert [s.words for s in found.statements] == [("SELECT",), ("SELECT", "AS", "Y"), ("SELECT",)]
    assert [s.joined for s in found.statements] == [True, False, False]


PIECES = st.lists(
    st.sampled_from(
        ["'a;b'", "$$;BEGIN;$$", '"end;"', "/* ; */", "-- ; BEGIN\n", "(a;b)", "E'\\';'", "word", "1.5", "$x$ $$ ; $x$"]
    ),
    max_size=8,
)


@given(PIECES)
def test_nothing_inside_quotes_comments_and_parentheses_ends_a_statement(pieces: list[str]) -> None:
    inside = "SELECT " + " ".join(pieces)
    made = with_level(f"BEGIN;\n{inside}\n;\nEND;", Level.OFF, combined=False)
    assert made == f"BEGIN;\nSET LOCAL synchronous_commit TO off;\n{inside}\n;\nEND;"
    assert len(script_parts(f"BEGIN;\n{inside}\n;\nEND;").statements) == 3
