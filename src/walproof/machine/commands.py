"""Runs one of the machine's own commands and turns its failure into a sentence; never retries, never a shell."""

import subprocess
from collections.abc import Sequence

from walproof.errors import MachineError
from walproof.machine.software import program

_LONGEST_S = 60.0


def run(argv: Sequence[str], *, hint: str = "") -> str:
    """Standard output of the command; MachineError with its own last line when it fails or is missing."""
    try:
        done = subprocess.run(
            [program(argv[0]), *argv[1:]], capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"{argv[0]} did not end within {_LONGEST_S:.0f} s", hint) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise MachineError(f"{argv[0]} failed: {said[-1] if said else f'exit code {done.returncode}'}", hint)
    return done.stdout
