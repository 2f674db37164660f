"""One command of a target file: its places filled in, run by the shell.

Names and addresses come from the cluster, which may be a liar: what a shell could take for more than a word
is refused."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from string import Formatter

from walproof.errors import PartlyDone, TargetError, UsageError
from walproof.machine.pid_files import identity, machine
from walproof.model.topology import Endpoint

_LONGEST_S = 120
_LAST_S = 5
_GATE = 'read -r _ || exit; exec /bin/sh -c "$1" </dev/null'
"""It waits for a line, and ends without one: where walproof was killed before it could note which process it is."""
_WORD = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,252}")
"""No longer than a host name. First no dash (an option), no dot (a folder). IPv6 comes without brackets."""


def places_in(template: str) -> set[str]:
    """The places {…} of a command, by name; ValueError where it is no template.

    >>> sorted(places_in("ssh {host} kill {member}"))
    ['host', 'member']
    """
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def filled(template: str, places: Mapping[str, str]) -> str:
    """The command with {host}, {port}, {member} and {member2} filled in; UsageError for another place.

    TargetError for a name or an address that a shell could take for more than a word: quotes do not hold where the
    command itself quotes once more (ssh {host} "kill {member}").
    """
    try:
        used = {name: _word(name, places[name]) for name in sorted(places_in(template))}
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
    host, port = endpoint.hosts[0]
    return {"member": member, "host": host, "port": str(port), "member2": other}


class CutOff(PartlyDone):
    """It was ended here before it had ended: what it began on another host may go on."""


def run(command: str, begins: Callable[[str], object] = lambda _: None) -> str:
    """Run it by the shell and give its output; PartlyDone with its last words when it fails.

    It is a process group of its own, none of which outlives the wait for it where we may end it: `CutOff` after two
    minutes. `begins` is
    told which process it is (`pid_files.ended`) before it does anything; whatever it raises, nothing was done.
    """
    process = subprocess.Popen(
        ["/bin/sh", "-c", _GATE, "sh", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,  # and the terminal's session: sudo knows a user by it
    )
    try:
        begins(f"{machine()} {identity(process.pid)}")
        output, errors = process.communicate("\n", timeout=_LONGEST_S)
    except BaseException as wrong:
        with suppress(ProcessLookupError, PermissionError):  # it has become another user's, as `sudo` does
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_S)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with suppress(OSError):
                pipe.close()
        if isinstance(wrong, subprocess.TimeoutExpired):
            raise CutOff(f"your command did not end within {_LONGEST_S} s: {command}", "run it by hand") from None
        raise
    if process.returncode:
        words = (errors or output).strip().splitlines() or ["no output"]
        raise PartlyDone(f"your command failed ({process.returncode}): {command}: {words[-1]}", "run it by hand")
    return output
