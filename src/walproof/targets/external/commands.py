"""The user's own commands for faults: fills in the member, runs, says what went wrong. Shell as the user wrote it.

Names and addresses come from the cluster, which may be a liar: what a shell could take for more than a word is refused.
"""

import re
import shlex
import subprocess
from collections.abc import Mapping
from string import Formatter

from walproof.errors import TargetError, UsageError
from walproof.model.topology import Endpoint

_LONGEST_S = 120
_WORD = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,252}")
"""No longer than a host name. First no dash (an option), no dot (a folder). IPv6 comes without brackets."""


def filled(template: str, places: Mapping[str, str]) -> str:
    """The command with {host}, {port}, {member} and {member2} filled in; UsageError for another place.

    TargetError for a name or an address that a shell could take for more than a word: quotes do not hold where the
    command itself quotes once more (ssh {host} "kill {member}").
    """
    try:
        named = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        used = {name: _word(name, places[name]) for name in sorted(named)}
        return template.format(**used)
    except (KeyError, IndexError, ValueError) as wrong:
        raise UsageError(
            f"the command {template!r} cannot be filled in: {wrong}", "use {host}, {port}, {member}"
        ) from None


def _word(place: str, value: str) -> str:
    if value and not _WORD.fullmatch(value):
        raise TargetError(
            f"the cluster gives {value[:80]!r} for {{{place}}}: outside A-Z a-z 0-9 . _ : - it enters no command",
            "rename it, name it under [members], or write the command without that place",
        )
    return shlex.quote(value)


def places_of(member: str, endpoint: Endpoint, other: str = "") -> dict[str, str]:
    """What may be filled in."""
    host, port = endpoint.hosts[0]
    return {"member": member, "host": host, "port": str(port), "member2": other}


def run(command: str) -> str:
    """Run it by the shell and give its output; TargetError with its last words when it fails."""
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
