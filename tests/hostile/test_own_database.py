"""walproof's own database when its maker is killed at every statement, and databases that only look like it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened, pair_dsn, pair_file
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.records import recorded
from tests.fixtures.tiers import each
from walproof.errors import MachineError
from walproof.records.journal import Journal

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


OTHERS = {DRAFT, "walproof_own", "walproof_draft_", "walproof_0123"}
OURS = re.compile(r"walproof_[0-9a-f]{32}")


@pytest.fixture
def others(pair: PlainPair) -> Iterator[set[str]]:
    """Databases of another role, with names and comments that come near to ours; they stay."""
    pair.sql("n1", "DROP ROLE IF EXISTS app")
    pair.sql("n1", "CREATE ROLE app LOGIN CREATEDB")
    for name in sorted(OTHERS):
        pair.sql("n1", f"CREATE DATABASE {name} OWNER app")
        pair.sql("n1", f"COMMENT ON DATABASE {name} IS 'made by walproof; safe to drop'")
    yield OTHERS
    assert databases(pair) == OTHERS
    for name in sorted(OTHERS):
        pair.sql("n1", f"DROP DATABASE {name}")
    pair.sql("n1", "DROP ROLE app")


@pytest.mark.parametrize("case", [
    ("CREATE sent", "nothing"),
    ("CREATE done", "closed"),
    ("REVOKE done", "closed"),
    ("GRANT done", "closed"),
    ("COMMENT done", "closed"),
    ("ALTER sent", "closed"),
    ("ALTER done", "open"),
    ("it is open", "open"),
])  # fmt: skip
def test_killed_at_any_statement_revert_removes_what_is_left_and_nobody_could_enter_before_the_end(
    pair: PlainPair, others: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], case: tuple[str, str]
) -> None:
    moment, left = case
    file, record = str(pair_file(pair, tmp_path)), tmp_path / "record"
    recorded(record, "price")
    words = [sys.executable, "-c", KILLED, file, str(record), moment]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == -9, done.stderr
    mine = databases(pair) - others
    assert all(map(OURS.fullmatch, mine)) and len(mine) == (left != "nothing")
    for name in mine:
        allowed, public = pair.sql(
            "n1",
            "SELECT datallowconn, has_database_privilege('app', oid, 'CONNECT') FROM pg_database"
            f" WHERE datname = '{name}'",
        )[0]
        assert allowed is (left == "open")
        assert not (allowed and public)
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


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["CREATE sent", "CREATE done", "REVOKE done", "ALTER done"])
def test_ended_by_sigterm_at_any_statement_nothing_is_left(
    moment: str, pair: PlainPair, others: set[str], tmp_path: Path
) -> None:
    words = [sys.executable, "-c", ENDED, str(pair_file(pair, tmp_path)), str(tmp_path / "record"), moment]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 143, done.stderr
    assert databases(pair) == others


def reverts(pair: PlainPair, folder: Path, name: str, after: str | None, *stay: str) -> None:
    """A revert of a journal that claims one database; those that stay are told, and stay in it."""
    with opened(pair_dsn(pair, "n1", "n2")) as target:
        journal = Journal(folder / "journal.jsonl")
        journal.note(1.0, target.name, "database", name, before=None, after=after)
        left = target.revert(journal)
        assert [sentence.split(" owns it")[0] for sentence in left] == [f"database {one} stays: app" for one in stay]
        assert len(journal.pending()) == bool(stay)


RANDOM = "walproof_" + "0a" * 16


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["walproof_own", "postgres", "walproof_0123", RANDOM])
@pytest.mark.parametrize("after", ["postgres", "walproof_draft_", "walproof_own", DRAFT, DRAFT[:-1], None])
def test_a_journal_that_claims_a_database_of_another_role_drops_nothing(
    pair: PlainPair, others: set[str], tmp_path: Path, name: str, after: str | None
) -> None:
    """Its comment says that it is walproof's, its name is walproof's: its owner is not the role of that run."""
    pair.sql("n1", f"CREATE DATABASE {RANDOM} OWNER app")
    try:
        of_earlier_versions = [one for one in (after, name) if one in (DRAFT, "walproof_own", "walproof_0123")]
        stay = [RANDOM] if name == RANDOM else dict.fromkeys(one for one in of_earlier_versions if one in (DRAFT, name))
        reverts(pair, tmp_path, name, after, *stay)
        assert databases(pair) == {*others, RANDOM}
    finally:
        pair.sql("n1", f"DROP DATABASE {RANDOM}")


@pytest.mark.nightly
@each(["app_2", "walproof_" + "g" * 32, f"{RANDOM}_"])
def test_a_journal_that_claims_a_database_of_the_users_own_drops_nothing(
    name: str, pair: PlainPair, tmp_path: Path
) -> None:
    pair.sql("n1", f"CREATE DATABASE {name}")
    try:
        reverts(pair, tmp_path, name, "postgres")
        assert databases(pair) == {name}
    finally:
        pair.sql("n1", f"DROP DATABASE {name}")


def test_a_superuser_drops_what_the_role_of_a_journals_run_made(pair: PlainPair, tmp_path: Path) -> None:
    pair.sql("n1", "CREATE ROLE runs LOGIN CREATEDB")
    pair.sql("n1", f"CREATE DATABASE {RANDOM} OWNER runs")
    reverts(pair, tmp_path, RANDOM, "runs")
    assert databases(pair) == set()
    pair.sql("n1", "DROP ROLE runs")


@pytest.mark.nightly
@each(["made by walproof; safe to drop", f"made by walproof; safe to drop: {DRAFT}"])
def test_what_a_killed_run_of_an_earlier_version_left_is_removed(mark: str, pair: PlainPair, tmp_path: Path) -> None:
    """Its journal names a fixed name, and the random one under which it was made."""
    other = "walproof_draft_" + "1" * 32
    for name in ("walproof_mine", DRAFT):
        pair.sql("n1", f"CREATE DATABASE {name}")
    pair.sql("n1", f"COMMENT ON DATABASE walproof_mine IS '{mark}'")
    if mark.endswith(DRAFT):
        reverts(pair, tmp_path, "walproof_mine", other)
        assert databases(pair) == {"walproof_mine", DRAFT}, "another run has made it since"
    reverts(pair, tmp_path, "walproof_mine", DRAFT)
    assert databases(pair) == set()


@pytest.mark.nightly
def test_what_cannot_be_made_is_no_longer_noted(pair: PlainPair, tmp_path: Path) -> None:
    pair.sql("n1", "CREATE ROLE poor")
    with opened(f"{pair_dsn(pair, 'n1')} options='-c role=poor'") as target:
        target.journal = Journal(tmp_path / "journal.jsonl")
        with pytest.raises(MachineError, match="may not make walproof's own database"):
            target.open_database()
        assert target.journal.pending() == ()
    pair.sql("n1", "DROP ROLE poor")
