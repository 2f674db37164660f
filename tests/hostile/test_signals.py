"""Signals at awkward moments: one ends a command in order, with its own exit code; more of them change nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NUMBERS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from walproof.cli import main
from walproof.machine import signals

def run(arguments):
    try:
        {body}
    except KeyboardInterrupt:
        pass
    finally:
        {cleaning}
        Path("cleaned").touch()
    return {code}

main._run = run
main.main([])
"""


def ended(folder: Path, number: int, body: str, cleaning: str = "pass", code: int = 0) -> int:
    """The exit code of a command whose body and cleaning are these lines."""
    program = PROGRAM.format(body=body, cleaning=cleaning, code=code).replace("NUMBER", str(int(number)))
    (folder / "program.py").write_text(program)
    # By -m: there Python heeds, at its end, what passed through code run from strings.
    command = [sys.executable, "-m", "program"]
    return subprocess.run(command, cwd=folder, timeout=60, check=False).returncode


every_signal = pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS.keys())
KILL = "os.kill(os.getpid(), NUMBER)"


@every_signal
@pytest.mark.parametrize("code", [0, 1, 4])
def test_a_signal_ends_with_its_own_code_whatever_the_command_returned(code: int, number: int, tmp_path: Path) -> None:
    assert ended(tmp_path, number, KILL, code=code) == 128 + number
    assert (tmp_path / "cleaned").exists()


@every_signal
def test_a_signal_inside_code_run_from_a_string_does_too(number: int, tmp_path: Path) -> None:
    assert ended(tmp_path, number, f'exec("{KILL}")') == 128 + number


@every_signal
@pytest.mark.parametrize("second", NUMBERS.values())
def test_a_second_signal_does_not_cut_the_cleaning_short(second: int, number: int, tmp_path: Path) -> None:
    cleaning = f"os.kill(os.getpid(), {int(second)}); time.sleep(0.01); os.kill(os.getpid(), NUMBER)"
    assert ended(tmp_path, number, KILL, cleaning) == 128 + number
    assert (tmp_path / "cleaned").exists()


@every_signal
def test_what_is_shielded_is_done_to_its_end(number: int, tmp_path: Path) -> None:
    body = f'exec(\'with signals.shielded():\\n {KILL}\\n Path("done").touch()\\nPath("after").touch()\')'
    assert ended(tmp_path, number, body) == 128 + number
    assert (tmp_path / "done").exists()
    assert not (tmp_path / "after").exists()


def test_a_hang_up_that_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    program = PROGRAM.format(body=KILL, cleaning="pass", code=0).replace("NUMBER", "1")
    command = ["nohup", sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, timeout=60, check=False, capture_output=True)
    assert done.returncode == 0


def test_an_error_inside_walproof_is_never_exit_code_1(tmp_path: Path) -> None:
    program = (
        "from walproof.cli import main\n"
        "def fails(*_, **__): raise ZeroDivisionError('no')\n"
        "main.walproof.main = fails\n"
        "main.main(['doctor'])"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, timeout=60, check=False, capture_output=True, env={**os.environ})
    assert done.returncode == 3
    assert b"an error inside walproof" in done.stderr
