"""What the answer to one commit means: acknowledged, downgraded, refused or unknown. Pure; any client can ask it."""

from collections.abc import Iterable
from dataclasses import dataclass

from walproof.model.load import Outcome

SUCCESS = "00000"
_MAYBE_COMMITTED = ("08", "57P", "XX")
"""Connection error, shutdowns and internal errors: the commit record may be on disk already."""
_WAIT_CANCELLED = ("01000", "57P01")
"""The warnings of SyncRepWaitForLSN (syncrep.c), recognised by code because the text follows lc_messages."""
_READ_ONLY = "25006"


def outcome(sqlstate: str | None, severity: str | None = "", warnings: Iterable[str] = ()) -> Outcome:
    """The outcome of an autocommitted statement.

    `sqlstate`: "00000" for success, "" or None when the connection ended without an answer. `severity`: not localised
    (SEVERITY_NONLOCALIZED). `warnings`: SQLSTATEs of the warnings that came with the answer.

    Success with the warning that a wait for standbys was cancelled is DOWNGRADED. An ERROR aborts the transaction:
    REFUSED. FATAL, PANIC and errors that may come after the local commit leave it UNKNOWN.

    >>> outcome("00000").name, outcome("00000", warnings=["01000"]).name
    ('ACKNOWLEDGED', 'DOWNGRADED')
    >>> outcome("57P01", "FATAL").name, outcome("25006", "ERROR").name, outcome(None).name
    ('UNKNOWN', 'REFUSED', 'UNKNOWN')
    """
    if sqlstate == SUCCESS:
        cancelled = any(code in _WAIT_CANCELLED for code in warnings)
        return Outcome.DOWNGRADED if cancelled else Outcome.ACKNOWLEDGED
    if severity != "ERROR" or (sqlstate or "").startswith(_MAYBE_COMMITTED):
        return Outcome.UNKNOWN
    return Outcome.REFUSED


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one statement, as `outcome` takes it."""

    sqlstate: str
    severity: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def success(self) -> bool:
        return self.sqlstate == SUCCESS

    @property
    def outcome(self) -> Outcome:
        """What the answer means for an autocommitted INSERT."""
        return outcome(self.sqlstate, self.severity, self.warnings)

    @property
    def leave_server(self) -> bool:
        """Whether the writer should go to another server: this one is read-only or shutting down."""
        return not self.success and (self.outcome is Outcome.UNKNOWN or self.sqlstate == _READ_ONLY)
