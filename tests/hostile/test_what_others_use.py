"""What the applications of a cluster use beside walproof stays as it is: the pooler in front of it."""

from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import ended, one_sentence
from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.pooler import pooler

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("own_state")]


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
