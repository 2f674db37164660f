"""Undoing ALTER SYSTEM sets again what walproof had set, and no setting of anybody else's."""

import json
from pathlib import Path

import pytest

from tests.fixtures.external_cluster import opened, pair_file
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.tiers import each
from walproof.model.guarantee import ConfigChange
from walproof.records.journal import Journal
from walproof.targets.configure import configure

pytestmark = [pytest.mark.lab, pytest.mark.nightly]
SET = {"wal_sender_timeout": "'50s'", "temp_tablespaces": "pg_default, ''"}
"""The second is a list whose items PostgreSQL quotes one by one: set again as one text, it would be one item."""
NOW = "SELECT name, setting FROM pg_file_settings WHERE name = ANY('{wal_sender_timeout,temp_tablespaces}') ORDER BY 1"


# rows: behind what is undone, in a stranger's journal
@each([True, False])
def test_a_list_stays_as_it_is(ours: bool, pair: PlainPair, tmp_path: Path) -> None:
    for name in SET if ours else reversed(SET):
        pair.sql("n1", f"ALTER SYSTEM SET {name} = {SET[name]}")
    try:
        before = pair.sql("n1", NOW)
        with opened(str(pair_file(pair, tmp_path))) as target:
            target.journal = Journal(tmp_path / "journal.jsonl")
            if ours:
                configure(target.configuration, ConfigChange({"wal_sender_timeout": "20s"}), target.journal)
            what, order = f"auto.conf order {target.leader()}", json.dumps(list(SET))
            target.journal.note(1.0, target.name, what, "order", before=order, after=None)
            assert target.revert(target.journal) == []
            assert target.journal.pending() == ()
        assert pair.sql("n1", NOW) == before
    finally:
        for name in SET:
            pair.sql("n1", f"ALTER SYSTEM RESET {name}")
        pair.sql("n1", "SELECT pg_reload_conf()")


def test_a_value_whose_name_is_written_in_capitals_is_put_back(pair: PlainPair, tmp_path: Path) -> None:
    pair.sql("n1", "ALTER SYSTEM SET \"WAL_Sender_Timeout\" = '50s'")
    try:
        with opened(str(pair_file(pair, tmp_path))) as target:
            target.journal = Journal(tmp_path / "journal.jsonl")
            configure(target.configuration, ConfigChange({"wal_sender_timeout": "20s"}), target.journal)
            assert target.revert(target.journal) == []
        assert pair.sql("n1", NOW) == [("wal_sender_timeout", "50s")]
    finally:
        pair.sql("n1", "ALTER SYSTEM RESET wal_sender_timeout")
        pair.sql("n1", "SELECT pg_reload_conf()")
