"""A kill -9 of walproof in the moment in which it starts a load leaves no load behind."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

_STARTS = """
import os
from walproof.load.local_runner import LocalRunner
print(LocalRunner().open()[0].start(["sleep", "300"], "log").pids[0], flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("time", range(4))
def test_what_was_just_started_ends_too(time: int) -> None:
    told = subprocess.run([sys.executable, "-c", _STARTS], capture_output=True, text=True, check=False).stdout
    try:
        started = psutil.Process(int(told))
        started.wait(20)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        started.kill()
        pytest.fail("it outlived walproof")


def test_the_program_is_the_process_that_was_started() -> None:
    from walproof.load.local_runner import LocalRunner

    (place,) = LocalRunner().open()
    process = place.start(["sh", "-c", 'echo "$0 $1"; echo $PPID; exit 7', "a b", "$x"], "log")
    assert process.wait(60) and process.exit_code == 7
    assert (Path(place.directory) / "log").read_text().splitlines()[0] == "a b $x"
    place.close()
