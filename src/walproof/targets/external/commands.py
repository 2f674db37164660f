"""The user's own commands for faults: fills in the member, runs, says what went wrong. Shell as the user wrote it."""

import shlex
import subprocess
from collections.abc import Mapping

from walproof.errors import TargetError, UsageError
from walproof.model.topology import Endpoint

_LONGEST_S = 120


def filled(template: str, places: Mapping[str, str]) -> str:
    """The command with {host}, {port}, {member} and {member2} filled in, each quoted for the shell."""
    try:
        return template.format(**{name: shlex.quote(value) for name, value in places.items()})
    except (KeyError, IndexError, ValueError) as wrong:
        raise UsageError(
            f"the command {template!r} cannot be filled in: {wrong}", "use {host}, {port}, {member}"
        ) from None


def places_of(member: str, endpoint: Endpoint, other: str = "") -> dict[str, str]:
    """What may be filled in."""
    host, port = endpoint.hosts[0]
    return {"member": member, "host": host, "port": str(port), "member2": other}


def run(template: str, places: Mapping[str, str]) -> str:
    """Run it by the shell and give its output; TargetError with its last words when it fails."""
    command = filled(template, places)
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise TargetError(f"your command did not end within {_LONGEST_S} s: {command}", "run it by hand") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise TargetError(f"your command failed ({done.returncode}): {command}: {words[-1]}", "run it by hand")
    return done.stdout
