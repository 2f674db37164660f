"""What a server's answer to one commit says about it. Pure: acknowledged, downgraded, refused or unknown."""

from dataclasses import dataclass

from walproof.model.attempt import Outcome

_MAYBE_COMMITTED = ("08", "57P", "XX")
"""Connection error, shutdowns and internal errors: the commit record may be on disk already."""
_WAIT_CANCELLED = ("01000", "57P01")
"""The warnings of SyncRepWaitForLSN (syncrep.c); told by code because the text follows lc_messages."""
_READ_ONLY = "25006"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a result said: whether the command succeeded, else SQLSTATE and severity (not localised)."""

    success: bool
    sqlstate: str = ""
    severity: str = ""
    warned: tuple[str, ...] = ()
    """SQLSTATEs of warnings that came with it."""


def outcome(answer: Answer) -> Outcome:
    """The outcome of an autocommitted INSERT that got this answer.

    Success with the warning that a wait for standbys was cancelled is DOWNGRADED. An ERROR aborts the transaction:
    REFUSED. FATAL, PANIC and errors that may come after the local commit leave it UNKNOWN.

    >>> outcome(Answer(True)).name, outcome(Answer(True, warned=("01000",))).name
    ('ACKNOWLEDGED', 'DOWNGRADED')
    >>> outcome(Answer(False, "57P01", "FATAL")).name, outcome(Answer(False, "25006", "ERROR")).name
    ('UNKNOWN', 'REFUSED')
    """
    if answer.success:
        cancelled = any(code in _WAIT_CANCELLED for code in answer.warned)
        return Outcome.DOWNGRADED if cancelled else Outcome.ACKNOWLEDGED
    if answer.severity != "ERROR" or answer.sqlstate.startswith(_MAYBE_COMMITTED):
        return Outcome.UNKNOWN
    return Outcome.REFUSED


def leave_server(answer: Answer) -> bool:
    """Whether the writer should look for another server: this one is read-only or going down."""
    return not answer.success and (outcome(answer) is Outcome.UNKNOWN or answer.sqlstate == _READ_ONLY)
