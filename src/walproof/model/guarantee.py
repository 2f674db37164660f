"""What a commit may promise: the five levels, the quorum, and the manual's table of what each survives.

And a change of a cluster's configuration, as values: what is asked, what it would change, on which version."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from walproof.errors import UsageError
from walproof.model.standby_names import folded, parsed, quoted


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


SERVER, MACHINE = " on the server ", " on a machine of "
"""In the name of a kind of change: what follows tells the server; and in that, where the role may look, its machine."""


def same_server(one: str, other: str) -> bool:
    """Whether two texts that tell a server tell the same one; a machine counts where both tell it.

    >>> same_server("/data, made at 7 on a machine of 3", "/data, made at 7"), same_server("", "")
    (True, False)
    >>> same_server("/data, made at 7 on a machine of 3", "/data, made at 7 on a machine of 4")
    False
    """
    (made, _, here), (other_made, _, there) = one.partition(MACHINE), other.partition(MACHINE)
    return bool(made) and made == other_made and (here == there or not (here and there))


@dataclass(frozen=True, slots=True)
class Quorum:
    """The meaning of synchronous_standby_names: kind, how many (k), and the names."""

    kind: QuorumKind
    k: int
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """As written in postgresql.conf."""
        return f"{self.kind} {self.k} ({', '.join(map(quoted, self.names))})"

    @property
    def open(self) -> bool:
        """Whether `*` is listed: whatever streams counts."""
        return "*" in self.names

    @property
    def of_all(self) -> bool:
        """Whether every standby that may count must answer."""
        return not self.open and self.k >= len(self.distinct)

    @property
    def distinct(self) -> frozenset[str]:
        """The names as they are compared, each once."""
        return frozenset(map(folded, self.names))

    def priority(self, name: str) -> int:
        """sync_priority of a standby that streams under this name, 0 where it does not count (syncrep.c).

        >>> read_standby_names("FIRST 1 (n3, N2)").priority("n2"), read_standby_names("ANY 1 (n3, n2)").priority("n2")
        (2, 1)
        """
        places = (i for i, listed in enumerate(self.names, 1) if listed == "*" or folded(listed) == folded(name))
        place = next(places, 0)
        return place if self.kind is QuorumKind.FIRST else min(place, 1)

    def counts(self, name: str) -> bool:
        """Whether a standby that streams under this name may count."""
        return self.priority(name) > 0


AskedQuorum = tuple[QuorumKind, int | None]
"""How many standbys, None for all there are, confirm a commit, as it is asked for before their names are known."""


def read_quorum(text: str) -> AskedQuorum:
    """any2, first1 or all; UsageError otherwise.

    >>> read_quorum("any1"), read_quorum("FIRST 2"), read_quorum("all")
    ((<QuorumKind.ANY: 'ANY'>, 1), (<QuorumKind.FIRST: 'FIRST'>, 2), (<QuorumKind.FIRST: 'FIRST'>, None))
    """
    words = text.strip().upper()
    match = re.fullmatch(r"(ANY|FIRST)\s*([1-9][0-9]{0,8})", words)
    if match is None and words != "ALL":
        raise UsageError(f"{text!r} is not a quorum", "write it like --quorum any1, first2 or all")
    return (QuorumKind(match[1]), int(match[2])) if match else (QuorumKind.FIRST, None)


def read_standby_names(text: str) -> Quorum | None:
    """The quorum that synchronous_standby_names states, None when it is empty; UsageError where PostgreSQL refuses it.

    >>> read_standby_names("ANY 1 (n2, n3)").text
    'ANY 1 ("n2", "n3")'
    >>> read_standby_names("n2,n3").kind, read_standby_names("") is None
    (<QuorumKind.FIRST: 'FIRST'>, True)
    """
    if not text:
        return None
    kind, k, names = parsed(text)
    return Quorum(QuorumKind(kind), k, names)


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


PARAMETERS = frozenset(
    (
        "synchronous_commit",
        "synchronous_standby_names",
        "wal_sender_timeout",
        "wal_receiver_timeout",
        "tcp_user_timeout",
        "tcp_keepalives_idle",
        "tcp_keepalives_interval",
        "tcp_keepalives_count",
        "commit_delay",
        "commit_siblings",
        "wal_compression",
    )
)
"""Every parameter of PostgreSQL that walproof changes on a cluster it did not start; no file can name another one."""
_MANAGERS = (
    "ttl",
    "loop_wait",
    "retry_timeout",
    "primary_start_timeout",
    "master_start_timeout",
    "failsafe_mode",
    "synchronous_mode",
    "synchronous_mode_strict",
    "synchronous_node_count",
    "synchronous",
    "minSyncReplicas",
    "maxSyncReplicas",
)
SETTABLE = PARAMETERS | frozenset(_MANAGERS)
"""And every key of a failover manager's configuration."""


@dataclass(frozen=True, slots=True)
class SyncReplication:
    """Synchronous replication: method (None is asynchronous), how many standbys, and what happens without them.

    `strict`: commits wait when too few standbys are there; where it is False the number degrades, down to none. None
    leaves that as the manager has it; on CloudNativePG, where the three stand and fall together, it is `required`.
    """

    method: QuorumKind | None = QuorumKind.ANY
    number: int = 1
    strict: bool | None = None

    @property
    def asked(self) -> int:
        """How many standbys must answer; 0 is asynchronous."""
        return 0 if self.method is None else self.number

    @property
    def text(self) -> str:
        """As in tables: ANY 1, FIRST 2 strict, asynchronous."""
        if not self.asked:
            return "asynchronous"
        return f"{self.method} {self.number}{' strict' if self.strict else ''}"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What is asked: parameters of PostgreSQL (None resets one), synchronous replication, the manager's own keys.

    `manager` holds keys of the failover manager's configuration (Patroni: ttl, loop_wait, …); targets without such a
    manager leave it out.
    """

    parameters: Mapping[str, str | None] = field(default_factory=dict)
    replication: SyncReplication | None = None
    manager: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of what a plan would change: a member (or "cluster"), name, value now, value then."""

    where: str
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a change, whatever it is now, by the name that the target's configuration has; None removes it."""

    name: str
    value: str | None

    @property
    def text(self) -> str:
        """As in lists."""
        return f"{self.name} removed" if self.value is None else f"{self.name} = {self.value or repr('')}"


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """What a change sets, and which of it differs now; `version`: the target's own token of the configuration;
    `caveats`: what it does besides, a sentence each."""

    change: ConfigChange
    settings: tuple[Setting, ...]
    differences: tuple[Difference, ...]
    version: str
    caveats: tuple[str, ...] = ()
