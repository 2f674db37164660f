"""What came of trying to reproduce a known pitfall."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the pitfall showed itself, and what was seen."""

    reproduced: bool
    evidence: str
