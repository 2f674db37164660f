"""The judge of `benchmarks.salvage_true`: it lets no row pass that salvage missed or made up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.salvage_true import ALL, Found, Judged, Key, crashed_at, judge
from walproof.model.guarantee import Level
from walproof.model.load import Outcome
from walproof.salvaging.wal import Span

ATTEMPTS = (
    # outcome, on the leader, position
    (Outcome.ACKNOWLEDGED, True, 100),
    (Outcome.ACKNOWLEDGED, False, 200),
    (Outcome.ACKNOWLEDGED, False, 300),
    (Outcome.UNKNOWN, False, 400),
    (Outcome.UNKNOWN, True, 500),
    (Outcome.REFUSED, False, 0),
)
HISTORY: Any = SimpleNamespace(
    planned=SimpleNamespace(level=Level.OFF),
    attempts=SimpleNamespace(
        writer=np.zeros(len(ATTEMPTS), np.int32),
        number=np.arange(len(ATTEMPTS), dtype=np.int64),
        outcome=np.array([one[0] for one in ATTEMPTS], np.int8),
        lsn=np.array([one[2] for one in ATTEMPTS], np.uint64),
    ),
    readings=(SimpleNamespace(present=np.array([one[1] for one in ATTEMPTS])),),
)


@pytest.mark.parametrize(
    ("rows", "read_to", "says"),
    [
        ({(0, 1), (0, 2)}, 1000, Judged(2, 2, 0, 0, 0)),
        ({(0, 1), (0, 2), (0, 3)}, 1000, Judged(2, 3, 0, 0, 0)),  # a commit that nobody heard the end of
        ({(0, 1)}, 1000, Judged(2, 1, 0, 1, 0)),
        ({(0, 1)}, 300, Judged(2, 1, 1, 0, 0)),  # no WAL reached it
        (set(), 250, Judged(2, 0, 1, 1, 0)),
        ({(0, 0), (0, 1), (0, 2)}, 1000, Judged(2, 3, 0, 0, 1)),  # the leader has it
        ({(0, 1), (0, 2), (0, 4)}, 1000, Judged(2, 3, 0, 0, 1)),
        ({(0, 1), (0, 2), (0, 5)}, 1000, Judged(2, 3, 0, 0, 1)),  # refused
        ({(0, 1), (0, 2), (7, 1)}, 1000, Judged(2, 3, 0, 0, 1)),  # of no attempt
    ],
)
def test_rows_found_are_held_against_the_ledger(rows: set[Key], read_to: int, says: Judged) -> None:
    assert judge(HISTORY, Found(frozenset(rows), read_to, (), 1)) == says


@pytest.mark.parametrize("level", [Level.LOCAL, Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY])
@pytest.mark.parametrize("found", [Found(frozenset(), 0, (), 0), Found(frozenset(), 250, (), 1)])
def test_only_commits_at_off_may_be_in_no_servers_wal(level: Level, found: Found) -> None:
    history: Any = SimpleNamespace(**{**vars(HISTORY), "planned": SimpleNamespace(level=level)})
    assert judge(history, found) == Judged(2, 0, 0, 2, 0)


def test_a_refusal_found_nothing_of_what_was_in_the_wal() -> None:
    assert judge(HISTORY, Found(frozenset(), ALL, ("refused",), 1)) == Judged(2, 0, 0, 2, 0)


@pytest.mark.parametrize(
    ("records", "at"),
    [
        (["43F0048 CHECKPOINT_SHUTDOWN redo", "5000028 CHECKPOINT_SHUTDOWN redo"], 0x43F0048),
        (["43F0018 OVERWRITE_CONTRECORD lsn", "43F0048 CHECKPOINT_SHUTDOWN redo"], 0x43F0018),
        (["43F0018 CHECKPOINT_ONLINE redo", "43F0D68 SWITCH "], ALL),
        ([], ALL),
    ],
)
def test_wal_that_was_written_over_what_was_lost_at_a_crash_is_not_what_was_lost(
    tmp_path: Path, records: list[str], at: int
) -> None:
    head = "rmgr: XLOG        len (rec/tot):    114/   114, tx:          0, lsn: 0/0"
    lines = [f"{head}{one.split()[0]}, prev 0/043EFF40, desc: {one.partition(' ')[2]}" for one in records]
    (tmp_path / "pg_waldump").write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    (tmp_path / "pg_waldump").chmod(0o755)
    old = SimpleNamespace(programs=tmp_path, wal=tmp_path)
    chosen: Any = SimpleNamespace(spans=(Span(1, 0x43EFFF8),), old=old)
    assert crashed_at(chosen) == at


def test_a_row_that_the_sql_did_not_bring_back_is_wrong() -> None:
    done = judge(HISTORY, Found(frozenset({(0, 1), (0, 2)}), 1000, (), 1, absent=1))
    assert (done, done.wrong) == (Judged(2, 2, 0, 0, 0, 1), 1)
    assert judge(HISTORY, Found(frozenset({(0, 1), (0, 2)}), 1000, (), 1)).wrong == 0
