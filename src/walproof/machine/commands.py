"""Runs one of the machine's own commands and turns its failure into a MachineError; never retries, never a shell."""

import subprocess
from collections.abc import Iterable, Sequence

from walproof.errors import MachineError
from walproof.machine.programs import program

_LONGEST_S = 60.0


def run(argv: Sequence[str], *, stdin: str | None = None, hint: str = "") -> str:
    """Standard output of the command; MachineError with what it printed when it fails, is missing or takes a minute."""
    try:
        done = subprocess.run(
            [program(argv[0]), *argv[1:]], input=stdin, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"{argv[0]} did not end within {_LONGEST_S:.0f} s", hint) from None
    if done.returncode:
        printed = "; ".join((done.stderr or done.stdout).strip().splitlines())
        raise MachineError(f"{argv[0]} failed: {printed or f'exit code {done.returncode}'}", hint)
    return done.stdout


def ip(*arguments: str, namespace: str | None = None, batch: Iterable[str] | None = None) -> str:
    """Standard output of ip(8), in a network namespace and on the lines of a batch where given."""
    argv = [
        "ip",
        *(("-n", namespace) if namespace else ()),
        *arguments,
        *(("-batch", "-") if batch is not None else ()),
    ]
    stdin = None if batch is None else "".join(f"{line}\n" for line in batch)
    return run(argv, stdin=stdin, hint="run as root or as the user who created the lab; see `walproof lab status`")
