"""walproof's own database when its maker is killed at every statement, and databases that only look like it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened, pair_file
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.records import recorded
from walproof.errors import MachineError, TargetError
from walproof.records.journal import Journal
from walproof.targets.external import own_database

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("own_state")]
DRAFT = "walproof_draft_" + "0" * 32
KILLED = """
import os, pathlib, sys
import psycopg
from walproof.cli.runs import keep_journal
from walproof.targets.choose import choose

real, first = psycopg.Connection.execute, sys.argv[3]

def execute(self, query, *more, **words):
    text = query.as_string(self) if hasattr(query, "as_string") else str(query)
    before, _, last = first.partition(" ")
    if last == "sent" and text.startswith(before):
        os.kill(os.getpid(), 9)
    done = real(self, query, *more, **words)
    if last == "done" and text.startswith(before):
        os.kill(os.getpid(), 9)
    return done

psycopg.Connection.execute = execute
target = choose(sys.argv[1])
keep_journal(target, pathlib.Path(sys.argv[2]))
target.open_database()
os.kill(os.getpid(), 9)
"""


def databases(pair: PlainPair) -> set[str]:
    """Every database that is not PostgreSQL's."""
    rows = pair.sql("n1", "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'")
    return {str(name) for (name,) in rows}


OTHERS = {DRAFT, "walproof_own_2", "walproof_draft_"}


@pytest.fixture
def others(pair: PlainPair) -> Iterator[set[str]]:
    """Databases of another's, with names and comments that come near to ours; they stay."""
    for name in OTHERS - databases(pair):
        pair.sql("n1", f"CREATE DATABASE {name}")
    pair.sql("n1", "COMMENT ON DATABASE walproof_own_2 IS 'made by walproof; safe to drop?'")
    yield OTHERS
    assert databases(pair) == OTHERS


@pytest.mark.parametrize(
    "case",
    [
        ("CREATE sent", "nothing"),
        ("CREATE done", "draft"),
        ("COMMENT sent", "draft"),
        ("COMMENT done", "draft"),
        ("ALTER sent", "draft"),
        ("ALTER done", "draft"),
        ("it is open", "walproof_own"),
    ],
)
def test_killed_at_any_statement_no_unmarked_database_bears_the_name_and_revert_removes_what_is_left(
    pair: PlainPair, others: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], case: tuple[str, str]
) -> None:
    moment, left = case
    file, record = str(pair_file(pair, tmp_path)), tmp_path / "record"
    recorded(record, "price")
    words = [sys.executable, "-c", KILLED, file, str(record), moment]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == -9, done.stderr
    mine = databases(pair) - others
    assert mine == {"walproof_own"} if left == "walproof_own" else "walproof_own" not in mine
    assert len(mine) == (left != "nothing")
    assert ended(capsys, ["revert", str(record)])[0] == 0
    assert databases(pair) == others


ENDED = (
    KILLED[: KILLED.index("target = choose")].replace("os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)")
    + """
from walproof.cli.main import main
main(["prove", "--target", sys.argv[1], "--fault", "none", "--levels", "local", "--writers", "1", "--allow", "load",
      "--record", sys.argv[2]])
"""
)


@pytest.mark.parametrize("moment", ["CREATE sent", "CREATE done", "COMMENT done", "ALTER sent", "ALTER done"])
def test_ended_by_sigterm_at_any_statement_nothing_is_left(
    pair: PlainPair, others: set[str], tmp_path: Path, moment: str
) -> None:
    words = [sys.executable, "-c", ENDED, str(pair_file(pair, tmp_path)), str(tmp_path / "record"), moment]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 143, done.stderr
    assert databases(pair) == others


@pytest.mark.parametrize("claimed", ["postgres", "walproof_own_2", "walproof_draft_", "walproof_own", DRAFT[:-1], None])
def test_a_journal_that_claims_a_database_of_somebody_else_drops_nothing(
    pair: PlainPair, others: set[str], tmp_path: Path, claimed: str | None
) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        journal = Journal(tmp_path / "journal.jsonl")
        journal.note(1.0, target.name, "database", "walproof_own", before=None, after=claimed)
        pair.sql("n1", "CREATE DATABASE walproof_own")
        try:
            assert target.revert(journal) == []
            assert databases(pair) == {*others, "walproof_own"}
        finally:
            pair.sql("n1", "DROP DATABASE walproof_own")


def test_a_database_that_another_run_made_since_is_not_dropped_by_an_older_journal(
    pair: PlainPair, others: set[str], tmp_path: Path
) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        journal, draft = Journal(tmp_path / "journal.jsonl"), own_database.draft_name()
        own_database.make(target.admin(target.leader()), "walproof_own", draft)
        for after, left in ((own_database.draft_name(), {*others, "walproof_own"}), (draft, others)):
            journal.note(1.0, target.name, "database", "walproof_own", before=None, after=after)
            assert target.revert(journal) == []
            assert databases(pair) == left and journal.pending() == ()


def test_a_database_that_somebody_makes_meanwhile_is_left_alone_and_the_draft_removed(
    pair: PlainPair, others: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(pair_file(pair, tmp_path))) as target:
        target.journal = Journal(tmp_path / "journal.jsonl")
        monkeypatch.setattr(own_database, "is_missing", lambda leader, name: True)
        pair.sql("n1", "CREATE DATABASE walproof_own")
        try:
            with pytest.raises(TargetError, match="already exists"):
                target.open_database()
            assert databases(pair) == {*others, "walproof_own"}
            monkeypatch.undo()
            with pytest.raises(MachineError, match="not walproof's"):
                target.open_database()
        finally:
            pair.sql("n1", "DROP DATABASE walproof_own")
