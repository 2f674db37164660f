"""A kill -9 of walproof in the moment in which it starts a load leaves no load behind."""

import subprocess
from pathlib import Path

from tests.fixtures.tiers import each
from walproof.load.local_runner import LocalRunner


@each([["echo", "ran"], ["sh", "-c", "echo ran"], ["printf", "ran"]])
def test_a_program_whose_parent_is_another_by_then_is_not_started(program: list[str]) -> None:
    """As after a parent that was killed before its child asked to end with it: another one has adopted the child."""
    (place,) = LocalRunner().open()
    adopting = ["sh", "-c", '"$@"; true', "sh", *place._under, *program]
    assert subprocess.run(adopting, capture_output=True, text=True, check=True).stdout == ""
    place.close()


def test_the_program_is_the_process_that_was_started() -> None:
    (place,) = LocalRunner().open()
    process = place.start(["sh", "-c", 'echo "$0 $1"; exit 7', "a b", "$x"], "log")
    assert process.wait(60) and process.exit_code == 7
    assert (Path(place.directory) / "log").read_text() == "a b $x\n"
    place.close()
