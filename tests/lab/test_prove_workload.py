"""`prove --workload` on a real lab: own transactions go on through the kill of the leader, and end with walproof."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.labs import asked, leader_and_standby
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import catalogue
from walproof.load.pgbench import APPLICATION
from walproof.machine.clock import RealClock
from walproof.model.event import LoadSeen, Note
from walproof.model.waiting import Wait, wait_for
from walproof.records.reader import read

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
SESSIONS = f"SELECT count(*)::int FROM pg_stat_activity WHERE application_name = '{APPLICATION}'"


@pytest.fixture
def command(tmp_path: Path, lab: Blueprint) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts `prove` of a kill of the leader beside a user's script."""
    (tmp_path / "tables.sql").write_text(
        "CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, n int, level text);"
    )
    (tmp_path / "own.sql").write_text(
        "\\set n random(1, :most)\nBEGIN;\nINSERT INTO orders (n, level)"
        " VALUES (:n, current_setting('synchronous_commit'));\nSELECT count(*) FROM orders WHERE id = :n;\nEND;\n"
    )
    own = ["--workload", "own.sql", "--init", "tables.sql", "-D", "most=500", "--clients", "3"]
    drill = ["--fault", "kill", "--levels", "on", "--writers", "4", "--lab", lab.name]

    def start(*more: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-m", "walproof", "prove", *own, *drill, *more]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_own_transactions_go_on_after_the_leader_was_killed_and_end_with_walproof(
    lab: Blueprint, tmp_path: Path, command: Callable[..., "subprocess.Popen[str]"]
) -> None:
    try:
        out, err = command("--json", "--record", "rec").communicate(timeout=300)
        told = json.loads(out)
        assert [one["verdict"] for one in told["drills"]] == ["held"], err
        events = read(tmp_path / "rec").events
        (seen,) = (e for e in events if isinstance(e, LoadSeen))
        assert seen.clients == 3 and seen.figures.reconnects >= 1
        assert seen.figures.before_tps > 1 and seen.figures.after_tps > 1 and seen.figures.outage_s > 0
        notes = [e.text for e in events if isinstance(e, Note)]
        assert any("its clients are gone" in text for text in notes), notes
        leader, _ = leader_and_standby(lab)
        rows = asked(lab, leader, "SELECT DISTINCT level, n BETWEEN 1 AND 500 FROM orders")
        assert rows == [("on", True)]
        killed = command("--record", "killed")
        assert killed.stderr is not None
        next(line for line in killed.stderr if "drill 1" in line)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        wait_for(Wait.PROGRAM_READY, lambda: not any(sessions(lab, m) for m in lab.members), RealClock())
    finally:
        catalogue.recover(lab)


def sessions(lab: Blueprint, member: str) -> int:
    """How many of the load's sessions a member has."""
    return int(str(asked(lab, member, SESSIONS)[0][0]))
