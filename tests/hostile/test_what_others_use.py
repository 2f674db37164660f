"""What the applications of a cluster use beside walproof stays theirs: the pooler in front of it, sessions."""

import select
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import ended, one_sentence
from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.pooler import pooler
from walproof.errors import UsageError
from walproof.load.ledger.task_and_attempt_files import WriterTask
from walproof.load.ledger.writer import conninfos
from walproof.load.ledger.writer_connection import NO_SESSION_LEFT, Stage, WriterConnection
from walproof.model.guarantee import Level
from walproof.targets.sql.room import need_room

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("own_state")]


@pytest.mark.nightly
def test_the_pools_size_of_a_pooler_is_written_down_and_left_alone(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pooler(pair, "auth_type=trust\nadmin_users=postgres\npool_mode=transaction\ndefault_pool_size=7") as port:
        file = tmp_path / "pooled.toml"
        route = f'[routes]\npgbouncer = "127.0.0.1:{port}"\n'
        file.write_text(f'kind = "postgres"\ndsn = "{pair_dsn(pair, "n1", "n2")}"\n{route}')
        words = ["price", "--target", str(file), "--route", "pgbouncer", "--levels", "local", "--clients", "2"]
        refused = ended(capsys, [*words, "--pool", "3", "--allow", "load", "--record", str(tmp_path / "record")])
        one_sentence(refused, "the size of its pool is left alone")
        with psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=pgbouncer", autocommit=True) as console:
            shown = psycopg.ClientCursor(console).execute("SHOW CONFIG").fetchall()
        assert [row[1] for row in shown if row[0] == "default_pool_size"] == ["7"]
        with opened(str(file)) as target:
            assert target.describe().facts["default_pool_size of pgbouncer"] == "7"


@pytest.fixture
def lowly(pair: PlainPair) -> Iterator[str]:
    """A DSN of a role that may have 9 sessions, 3 of which are there."""
    password = pair.passfile.read_text().strip().rpartition(":")[2]
    pair.sql("n1", f"CREATE ROLE lowly LOGIN CREATEDB CONNECTION LIMIT 9 PASSWORD '{password}'")
    dsn = f"host=127.0.0.1 port={pair.ports['n1']} user=lowly dbname=postgres password={password}"
    held = [psycopg.connect(dsn) for _ in range(3)]
    try:
        yield dsn
    finally:
        for one in held:
            one.close()
        pair.sql("n1", "DROP ROLE lowly")


@pytest.mark.nightly
def test_a_handful_of_sessions_is_left_for_superusers_too(pair: PlainPair) -> None:
    need_room(pair.endpoint(), 200)
    with pytest.raises(UsageError, match=r"297 sessions may log in to the server, \d+ are there: 293 more"):
        need_room(pair.endpoint(), 293)


@pytest.mark.parametrize("words", ["prove --fault none --writers 2", "price --clients 2 --workload insert"])
def test_no_load_begins_that_takes_the_sessions_of_others(
    words: str, lowly: str, pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--levels", "local", "--target", lowly, "--allow", "load", "--record", str(tmp_path / "record")]
    code, _, err = ended(capsys, [*words.split(), *more])
    assert code == 2 and "9 sessions may log in to role lowly" in err, err
    assert pair.sql("n1", "SELECT datname FROM pg_database WHERE datname LIKE 'walproof%'") == []


@pytest.mark.nightly
def test_a_writer_knows_a_server_that_has_no_session_left(pair: PlainPair, lowly: str) -> None:
    pair.sql("n1", "ALTER ROLE lowly CONNECTION LIMIT 3")
    task = WriterTask("", replace(pair.member_endpoint("n1"), user="lowly"), Level.LOCAL, 0, 1, 0)
    words = psycopg.conninfo.conninfo_to_dict(lowly)
    conninfo = psycopg.conninfo.make_conninfo(conninfos(task)[0], password=words["password"])
    writer = WriterConnection(conninfo, task, 0, 0)
    while writer.stage is not Stage.LOST:
        select.select([writer.socket], [writer.socket] if writer.wants_write else [], [])
        writer.on_ready()
    assert writer.sqlstate == NO_SESSION_LEFT
    assert writer.error.endswith('FATAL:  too many connections for role "lowly"')
