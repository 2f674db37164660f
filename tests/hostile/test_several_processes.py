"""The processes of a simulation end with it: killed, interrupted, or one of them killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import MachineError
from walproof.machine.clock import RealClock
from walproof.machine.processors import several_processes
from walproof.model.waiting import Wait, wait_for

PROGRAM = """
import os, sys, time
from pathlib import Path
from walproof.cli import main
from walproof.machine.processors import several_processes

def work(number):
    Path(str(os.getpid())).touch()
    time.sleep(0.2)
    Path("done", str(number)).touch()

def run(arguments):
    try:
        with several_processes() as each:
            return len(list(each(work, range(1000))))
    except KeyboardInterrupt:
        return 0

Path("done").mkdir()
main._run = run
main.main([])
"""


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A command that shares out three minutes of work, once its processes are at it."""
    (folder / "program.py").write_text(PROGRAM)
    command = subprocess.Popen([sys.executable, "program.py"], cwd=folder, stderr=subprocess.PIPE)
    wait_for(Wait.PROGRAM_READY, lambda: len(processes(folder)) == len(os.sched_getaffinity(0)), RealClock())
    return command


def processes(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir() if file.name.isdecimal()]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_no_process_outlives_a_command_that_was_killed(tmp_path: Path) -> None:
    with started(tmp_path) as command:
        command.kill()
        wait_for(Wait.PROGRAM_GONE, lambda: gone(processes(tmp_path)), RealClock())


@each([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_with_its_code_once_the_items_in_work_are_done(number: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path) as command:
        command.send_signal(number)
        assert command.wait(60) == 128 + number
    assert gone(processes(tmp_path))
    assert len(list((tmp_path / "done").iterdir())) < 500


def _killed(_number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_that_is_killed_ends_the_work_with_a_sentence() -> None:
    with pytest.raises(MachineError, match="a process of the simulation was killed"), several_processes() as each:
        list(each(_killed, range(10)))
