"""Steps of the wall clock change no time that a verdict is derived from."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import walproof
from tests.fixtures.tiers import each
from walproof.load.ledger.task_and_attempt_files import (
    ReaderTask,
    WriterTask,
    read_reader_task,
    read_writer_task,
    task_text,
)
from walproof.machine.clock import OFFSET, RealClock, now
from walproof.model.guarantee import Level
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for

SOURCE = Path(walproof.__file__).parent
WALL = {"time", "time_ns", "gmtime", "localtime"}


@each([5.0, -5.0])
def test_a_step_of_the_wall_clock_is_not_seen(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    before, wall = RealClock().now(), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step_s)
    assert 0 <= RealClock().now() - before < 1
    assert 0 <= now() - before < 1
    assert wait_for(Wait.SETTING_IN_EFFECT, lambda: True, RealClock()) < 1


def test_processes_that_start_after_a_step_keep_the_time_of_the_one_that_started_them(tmp_path: Path) -> None:
    writer = WriterTask("a", Endpoint((("n1", 1),)), Level.ON, 0, 1, 1, connect_timeout_s=1.0)
    (tmp_path / "writer").write_text(task_text(writer))
    (tmp_path / "reader").write_text(task_text(ReaderTask("r", (), (), 1, 1)))
    assert read_writer_task(tmp_path / "writer").clock_offset == OFFSET
    assert read_reader_task(tmp_path / "reader").clock_offset == OFFSET
    stepped = "import time; wall = time.time; time.time = lambda: wall() + 5\n"
    code = (
        stepped + "from walproof.machine.clock import OFFSET, now; print(OFFSET, now(float(__import__('sys').argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(OFFSET)], capture_output=True, text=True, check=True)
    other_offset, there = map(float, done.stdout.split())
    assert other_offset - OFFSET == pytest.approx(5.0, abs=0.5)
    assert 0 <= now() - there < 5


def reads_of_the_wall_clock(path: Path) -> list[str]:
    """Where a file asks the wall clock for the time: time.time(), datetime.now() and their like."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (owner == "time" and name in WALL) or (owner == "datetime" and name in ("now", "utcnow", "today")):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return found


def test_nothing_that_a_verdict_is_derived_from_asks_the_wall_clock() -> None:
    folders = ("proving", "load", "targets", "model", "lab/faults")
    files = [path for folder in folders for path in (SOURCE / folder).rglob("*.py")]
    assert len(files) > 80
    assert [where for path in files for where in reads_of_the_wall_clock(path)] == []
    assert len(reads_of_the_wall_clock(SOURCE / "machine/clock.py")) == 1
