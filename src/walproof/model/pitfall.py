"""What came of trying to reproduce a known pitfall."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the pitfall showed itself, and what was seen; None where it could not be tried, and why."""

    reproduced: bool | None
    evidence: str
