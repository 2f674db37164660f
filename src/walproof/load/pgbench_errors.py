"""What pgbench printed when it failed: an error of the user's own script, with its file and line, or of the target.

The messages are pgbench's (pgbench.c: readCommandResponse, commandFailed, syntax_error); it prints no SQLSTATE.
A server's own words are among them: numbers are bounded, as none of pgbench's is longer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from walproof.errors import Error, TargetError, UsageError
from walproof.load.open_session import hint_of_refused_database
from walproof.load.pgbench_script import script_parts

_ERROR = re.compile(r"^pgbench: (?:error|fatal): (.*)", re.MULTILINE)
_COMMAND = re.compile(
    r"client \d+ (?:script (?P<script>\d{1,9}) (?:aborted in )?command (?P<command>\d{1,9}) query \d+: "
    r"|aborted in command (?P<meta>\d{1,9}) \(\w+\) of script (?P<of>\d{1,9}); )"
)
_LINE = re.compile(r"(?:.*/)?(?P<file>[^/]+\.sql):(?P<line>\d{1,9}): ")
_UNFINISHED = re.compile(r"client \d+ aborted: (?=end of script reached)|(?=condition error in script )")
_COPY = "COPY is not supported in pgbench"
_OUTAGE = re.compile(
    r"FATAL:|PANIC:|closed the connection|terminating connection|connection to server|could not create connection"
    r"|establishing connection|lost connection|no connection|backend died|failed to send|SSL (SYSCALL|error)"
    r"|in a read-only transaction|during recovery|canceling statement|out of (shared )?memory|No space left"
    r"|could not \w+ (file|block|directory)|invalid page|prepared statement .* exist",
)
"""Errors that no script makes: of connections, of a server that is down, full, broken or another's standby."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script: its path, "" for one of ours; its text as it is there, and as it was sent, with the level set."""

    path: str
    text: str
    sent: str


def failure(printed: str, scripts: Sequence[tuple[str, Script]]) -> Error:
    """UsageError for an error of a user's script, TargetError for any other; scripts by file name, as numbered."""
    messages = _ERROR.findall(printed) or [line for line in printed.splitlines() if "FATAL" in line or "ERROR" in line]
    first = messages[0] if messages else next(iter(printed.splitlines()), "it ended without a message")
    # Where a statement cannot be prepared, that is said first, and then that there is no such prepared statement.
    outage = any(_OUTAGE.search(message) for message in (m for m in messages if '"P_' not in m or m is first))
    place = None if outage else next(filter(None, (_place(message, scripts) for message in messages)), None)
    if place is None or not place[0].path:
        return TargetError(f"pgbench: {first}", hint_of_refused_database(first) or "is the target up?")
    script, line = place
    message = _COMMAND.sub("", _LINE.sub("", _UNFINISHED.sub("", first)))
    return UsageError(
        f"the script {script.path}, line {line}: {message}", "correct it, and try it once by pgbench -n -t 1 -f FILE"
    )


def _place(message: str, scripts: Sequence[tuple[str, Script]]) -> tuple[Script, int] | None:
    """The script and the line in it, from 1, that a message names; None where it names none."""
    ones = [script for _, script in scripts]
    if match := _COMMAND.match(message):
        number = int(match["script"] or match["of"])
        return _of_command(ones[number], int(match["command"] or match["meta"])) if number < len(ones) else None
    if match := _LINE.match(message):
        script = dict(scripts).get(match["file"])
        if script is None:
            return None
        return script, _line(script, sum(map(len, script.sent.splitlines(keepends=True)[: int(match["line"]) - 1])))
    if _UNFINISHED.match(message):
        return next(((one, _line(one, len(one.sent.rstrip()) - 1)) for one in ones), None)
    if _COPY in message:
        copies = ((one, s) for one in ones for s in script_parts(one.sent).statements if s.words[:1] == ("COPY",))
        return next(((one, _line(one, statement.start)) for one, statement in copies), None)
    return None


def _of_command(script: Script, number: int) -> tuple[Script, int]:
    places = script_parts(script.sent).places
    return script, _line(script, places[min(number, len(places) - 1)])


def _line(script: Script, at: int) -> int:
    """The line, in the script as it is on disk, of a position in what was sent."""
    rest = script.sent[at:].partition("\n")[0]
    found = -1
    for _ in range(script.sent.count(rest, 0, at) + 1):
        found = script.text.find(rest, found + 1)
    return script.text.count("\n", 0, max(0, found)) + 1
