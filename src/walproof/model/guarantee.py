"""What a commit may promise: the five levels, the quorum, and the manual's table of what each survives."""

import re
from dataclasses import dataclass
from enum import StrEnum

from walproof.errors import UsageError


class Level(StrEnum):
    """The values of synchronous_commit, weakest first."""

    OFF = "off"
    LOCAL = "local"
    REMOTE_WRITE = "remote_write"
    ON = "on"
    REMOTE_APPLY = "remote_apply"

    @property
    def remote(self) -> bool:
        """Whether a commit at this level waits for standbys when standby names are set."""
        return self in (Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY)

    @property
    def strength(self) -> int:
        """0 for off to 4 for remote_apply."""
        return list(Level).index(self)


def level(text: str) -> Level:
    """The level of that name; UsageError names the five."""
    try:
        return Level(text.strip().lower())
    except ValueError:
        raise UsageError(f"{text!r} is not a commit level", f"the levels are {', '.join(Level)}") from None


class QuorumKind(StrEnum):
    """FIRST waits for the first k listed that are connected, ANY for any k of those listed."""

    ANY = "ANY"
    FIRST = "FIRST"


@dataclass(frozen=True, slots=True)
class Quorum:
    """The meaning of synchronous_standby_names: kind, how many (k), and the names."""

    kind: QuorumKind
    k: int
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """As written in postgresql.conf."""
        listed = ", ".join(n if n == "*" else f'"{n}"' for n in self.names)
        return f"{self.kind} {self.k} ({listed})"


_NAMES = re.compile(r"^\s*(?:(ANY|FIRST)\s+)?(?:(\d+)\s*)?\((.*)\)\s*$", re.IGNORECASE | re.DOTALL)


def read_standby_names(text: str) -> Quorum | None:
    """The quorum that synchronous_standby_names states, None when it is empty (runtime-config-replication, PG 18).

    >>> read_standby_names("ANY 1 (n2, n3)").text
    'ANY 1 ("n2", "n3")'
    >>> read_standby_names("n2,n3").kind, read_standby_names("") is None
    (<QuorumKind.FIRST: 'FIRST'>, True)
    """
    if not text.strip():
        return None
    match = _NAMES.match(text)
    kind, k, inner = (match[1] or "FIRST", int(match[2] or 1), match[3]) if match else ("FIRST", 1, text)
    names = tuple(part.strip().strip('"') for part in inner.split(",") if part.strip())
    return Quorum(QuorumKind(kind.upper()), k, names)


class Loss(StrEnum):
    """What is gone for good when the survivor takes over."""

    POSTGRES_CRASH = "postgres crash"
    POWER_CUT = "power cut"
    LEADER_GONE = "leader gone"
    LEADER_AND_STANDBY_POSTGRES = "leader gone, standby's postgres crashed"
    LEADER_AND_STANDBY_POWER = "leader gone, standby's power cut"


def survives(commit_level: Level, loss: Loss) -> bool:
    """PostgreSQL's own table (manual, synchronous_commit): whether an acknowledged commit is promised to survive."""
    needed = {
        Loss.POSTGRES_CRASH: Level.LOCAL,
        Loss.POWER_CUT: Level.LOCAL,
        Loss.LEADER_GONE: Level.REMOTE_WRITE,
        Loss.LEADER_AND_STANDBY_POSTGRES: Level.REMOTE_WRITE,
        Loss.LEADER_AND_STANDBY_POWER: Level.ON,
    }[loss]
    return commit_level.strength >= needed.strength
