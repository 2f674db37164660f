"""A reader that left, a full disk or a closed stream never looks like a verdict, for no verb and neither stream."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.tiers import each
from walproof.errors import ExitCode

__all__ = ["walproof"]

RECORDS = Path(__file__).parents[1] / "replay/records"
SICK = f"advise {RECORDS}/demo --max-commit-latency 1us"
"""Its verdict is 1: refused."""
LINES = ("", "doctor --list", "price --target sim --dry-run", f"report {RECORDS}/demo --json", SICK)
"""Help, sentences, JSON and a table."""


def run(line: str, redirection: str) -> tuple[int, str, str]:
    """walproof as the shell starts it: exit code, and what is left of standard output and error."""
    command = f"{shlex.quote(sys.executable)} -m walproof {line} {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env={**os.environ})
    return done.returncode, done.stdout, done.stderr


def reader_left(line: str, *, output: bool = True, error: bool = False) -> tuple[int, str]:
    """Exit code and standard error where one of the streams, or both, is a pipe that is not read any more."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "walproof", *shlex.split(line)],
        stdout=writing if output else subprocess.DEVNULL,
        stderr=writing if error else subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    return done.returncode, done.stderr or ""


@each(LINES)
def test_a_reader_that_left_is_no_verdict(line: str) -> None:
    assert reader_left(line) == (ExitCode.READER_LEFT, "")
    assert reader_left(line, error=True) == (ExitCode.READER_LEFT, "")


@pytest.mark.parametrize("line", [LINES[0], SICK])
@pytest.mark.parametrize(("redirection", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
def test_a_result_that_cannot_be_written_is_an_error_of_the_machine(line: str, redirection: str, why: str) -> None:
    one_sentence(run(line, redirection), f"standard output cannot be written: {why}", ExitCode.ENVIRONMENT)


@each(["2>/dev/full", "2>&-"])
def test_losing_standard_error_changes_neither_result_nor_verdict(redirection: str) -> None:
    code, out, _ = run(f"{SICK} --json", redirection)
    assert (code, bool(json.loads(out)["refused"])) == (ExitCode.BROKEN, True)
    assert run("price --no-such-option", redirection)[0] == ExitCode.USAGE
    assert reader_left(SICK, output=False, error=True)[0] == ExitCode.BROKEN


@each([BrokenPipeError(32, "Broken pipe"), ConnectionResetError(104, "reset")])
def test_a_broken_pipe_to_a_program_or_server_is_neither_verdict_nor_a_reader_that_left(
    broken: OSError, monkeypatch: pytest.MonkeyPatch, walproof: Run
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise broken

    monkeypatch.setattr("walproof.cli.doctor.choose", fails)
    code, _, err = walproof("doctor")
    assert (code, err != "") == (ExitCode.ENVIRONMENT, True)


def test_junit_of_prove_goes_to_standard_output_and_a_full_disk_takes_no_verdict_away(walproof: Run) -> None:
    proved = ("prove", "--target", "sim", "--levels", "on", "--record", "r")
    code, out, _ = walproof(*proved, "--junit", "-")
    assert (code, out.startswith("<?xml")) == (0, True)
    assert not Path("-").exists()
    code, out, err = walproof(*proved[:-1], "r2", "--junit", "/dev/full")
    assert (code, "all " in out) == (ExitCode.ENVIRONMENT, True)
    assert "cannot write /dev/full: No space left on device" in err
    one_sentence(walproof(*proved[:-1], "r3", "--junit", "-", "--json"), "only one thing can go to standard output")
