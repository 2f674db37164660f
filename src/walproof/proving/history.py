"""Everything a verdict is derived from: how the drill went, every attempt, what each member holds, what readers saw.

And the same as one compressed file, and back: magic, sizes of the three parts, CRC-32 of them; then the header (JSON,
compressed), the attempts, and which of them each member holds. Times of attempts are kept to the microsecond, their
checksums are not kept. Pure."""

import struct
import zlib
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from walproof.errors import UsageError
from walproof.machine.untrusted import from_json
from walproof.model.drill import Mark, Victim
from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome, WitnessReport
from walproof.model.topology import ClusterView, MemberState
from walproof.model.units import counted
from walproof.proving import history_compression
from walproof.proving.campaign import PlannedDrill, Strike, Struck
from walproof.proving.faults import SHRUNK, STORM, fault
from walproof.proving.history_compression import Damaged
from walproof.proving.lost_commits import MemberReading


@dataclass(frozen=True, slots=True)
class DrillRun:
    """How a drill went, as recorded while it ran; times are seconds since the epoch on walproof's clock."""

    victims: tuple[str, ...]
    before: ClusterView
    fault_at: float
    cleared_at: float
    stopped_at: float
    views: tuple[ClusterView, ...] = ()
    states: tuple[MemberState, ...] = ()
    """Signs of the members: `before` the fault, while it is in effect, and `after` everything has recovered."""
    recovered: bool = True
    error: str = ""
    """Why the cluster did not recover."""
    happens: str = ""
    """What the fault does on this target, where that is not what the catalogue says."""
    stalled: str = ""
    """The wait that ran out because no commit came back while the fault was in effect, in words."""
    timed_out: str = ""
    """The same once the fault had been cleared."""
    after: ClusterView | None = None
    elected_at: float | None = None
    """When a successor took the leader's lock, by the manager's log."""
    refused: str = ""
    """Why the target refused to inject the fault."""
    struck: tuple[Struck, ...] = ()
    """The faults of a storm, in order."""
    steps: tuple[Mark, ...] = ()
    """Steps of the failover as the manager shows them: operator, lease, endpoint, with the member each is about."""
    guard_log: str = ""
    """What the guard of Patroni wrote meanwhile, of histories kept before it was removed."""
    no_takeover: str = ""
    """Why no member takes over while the fault lasts: the outage is as long as walproof made it, "" where not so."""
    returned: tuple[Mark, ...] = ()
    """When each member was brought back, one after another; none where all were at once."""
    incomplete: str = ""
    """Why the ledger is not complete: a writer or reader died, the disk was full."""

    @property
    def carried_out(self) -> tuple[Struck, ...]:
        """The faults of a storm but for those that the target refused."""
        return tuple(one for one in self.struck if not one.refused)

    @property
    def perhaps_carried_out(self) -> tuple[Struck, ...]:
        """Those too of which the target may have done a part."""
        return tuple(one for one in self.struck if not one.refused or one.partly)

    @property
    def injected(self) -> bool:
        """Whether the fault was injected, or one of a storm's at least: else no outage is its."""
        return not self.refused and (bool(self.carried_out) or not self.struck)

    @property
    def leader_after(self) -> str | None:
        return self.after.leader if self.after else None

    @property
    def timeline_after(self) -> int | None:
        """The leader's timeline afterwards, None where it is not known."""
        return self.after.leader_timeline if self.after else None

    @property
    def taken_over(self) -> bool | None:
        """Whether another member leads afterwards, on a higher timeline; None when no member does."""
        if self.leader_after is None:
            return None
        older, newer = self.before.leader_timeline, self.timeline_after
        return self.leader_after != self.before.leader and (older is None or newer is None or newer > older)

    @property
    def same_timeline(self) -> bool:
        """Whether another member claims to lead without a timeline of its own: no promotion ever does that."""
        return self.leader_after not in (None, self.before.leader) and self.taken_over is False


@dataclass(frozen=True, slots=True)
class History:
    """One drill as it was: judging it again needs nothing else. The surviving leader's reading comes first."""

    planned: PlannedDrill
    run: DrillRun
    attempts: Attempts
    witness: WitnessReport
    readings: tuple[MemberReading, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)
    """What went wrong where: "n2 unread" and "n2 unchecked" → why, "data of n2" → what amcheck found."""


MAGIC = b"walproof history 1\n"
_SIZES = struct.Struct("<IIII")
_MOST_HEADER = 1 << 24
"""Bytes of JSON: a thousand views of ten members and everything that readers saw are a megabyte."""
_MOST_HEADER_RATIO = 500
"""Views that repeat compress to a hundredth at best: what shrinks more holds nothing that a drill leaves."""
_MOST_SECONDS = 1e11
_MOST_RATIO = 100
_MOST_ATTEMPTS = 50_000_000
"""Every attempt has a time of its own: a hundred of them are more than a byte, and a drill makes no more of them."""


@dataclass(frozen=True, slots=True)
class _Reading:
    member: str
    duplicate: int
    corrupted: int
    phantom: int
    caught_up: bool | None


@dataclass(frozen=True, slots=True)
class _Header:
    """Everything but the columns."""

    number: int
    fault: str
    victim: Victim
    level: Level
    route: str
    writers: int
    warm_s: float
    run: DrillRun
    witness: WitnessReport
    readings: tuple[_Reading, ...]
    problems: dict[str, str]
    attempts: int
    origin: float
    servers: tuple[str, ...]
    standby_names: tuple[str, ...]
    storm: tuple[Strike, ...] = ()
    guarded: bool = False
    client_timeout_s: float = 3.0
    return_order: tuple[str, ...] = ()
    clocks_apart_s: float = 0.0


_AS_PLANNED = tuple(one.name for one in fields(PlannedDrill) if one.name != "fault")
_ADAPTER: TypeAdapter[_Header] = TypeAdapter(_Header)
_WRITER: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="strings"))


def history_name(number: int) -> str:
    """The name of a drill's history in the record.

    >>> history_name(3)
    'drill-3.history'
    """
    return f"drill-{number}.history"


def encode(history: History) -> bytes:
    """The history as one file."""
    attempts = history.attempts
    origin = float(np.floor(attempts.started.min())) if len(attempts) else 0.0
    places = history_compression.order(attempts)
    parts = (
        zlib.compress(_WRITER.dump_json(_header(history, origin))),
        history_compression.pack(attempts, places, origin),
        history_compression.pack_bits([reading.present[places] for reading in history.readings]),
    )
    checksum = zlib.crc32(b"".join(parts))
    return MAGIC + _SIZES.pack(*(len(part) for part in parts), checksum) + b"".join(parts)


def decode(data: bytes) -> History:
    """The history in a file, its attempts ordered by writer and number; UsageError when it is damaged or another's."""
    try:
        return _decoded(data)
    except (ValueError, struct.error, zlib.error) as wrong:  # Damaged and JSON's errors are ValueErrors
        raise UsageError(
            f"the history is damaged: {str(wrong).splitlines()[0]}", "copy the record again from where it was made"
        ) from None


def _header(history: History, origin: float) -> _Header:
    planned = history.planned
    return _Header(
        **{name: getattr(planned, name) for name in _AS_PLANNED},
        fault=planned.fault.name,
        run=history.run,
        witness=replace(history.witness, stale_ms=tuple(round(ms, 3) for ms in history.witness.stale_ms)),
        readings=tuple(_Reading(r.member, r.duplicate, r.corrupted, r.phantom, r.caught_up) for r in history.readings),
        problems=history.problems,
        attempts=len(history.attempts),
        origin=origin,
        servers=history.attempts.servers,
        standby_names=history.attempts.standby_names,
        clocks_apart_s=history.attempts.clocks_apart_s,
    )


def _decoded(data: bytes) -> History:
    if not data.startswith(MAGIC):
        raise Damaged("it does not begin as a history does")
    *sizes, checksum = _SIZES.unpack_from(data, len(MAGIC))
    begin = len(MAGIC) + _SIZES.size
    if len(data) != begin + sum(sizes) or zlib.crc32(memoryview(data)[begin:]) != checksum:
        raise Damaged("its checksum is another one")
    ends = np.cumsum([begin, *sizes]).tolist()
    first, second, third = (data[a:b] for a, b in pairwise(ends))
    # Not validate_json: each of its errors holds a copy of everything, gigabytes where a forger wants that.
    try:
        header = _ADAPTER.validate_python(from_json(_plain(first)))
    except ValidationError as wrong:  # never as text: it would show all of what it was given, once for each error
        raise Damaged(f"{counted(wrong.error_count(), 'field')} of its header cannot be read") from None
    if not 0 <= header.attempts <= min(_MOST_RATIO * len(data), _MOST_ATTEMPTS):
        raise Damaged("it claims more attempts than it can hold")
    if not abs(header.origin) < _MOST_SECONDS:
        raise Damaged("its first attempt has no time")
    columns: dict[str, NDArray[Any]] = history_compression.unpack(second, header.attempts, header.origin)
    _check(columns, header)
    attempts = Attempts(
        **columns,
        servers=header.servers,
        standby_names=header.standby_names,
        clocks_apart_s=header.clocks_apart_s,
    )
    present = history_compression.unpack_bits(third, header.attempts, len(header.readings))
    return History(
        PlannedDrill(
            fault=next((storm for storm in (STORM, SHRUNK) if storm.name == header.fault), None) or fault(header.fault),
            **{name: getattr(header, name) for name in _AS_PLANNED},
        ),
        header.run,
        attempts,
        header.witness,
        tuple(
            MemberReading(r.member, held, r.duplicate, r.corrupted, r.phantom, r.caught_up)
            for r, held in zip(header.readings, present, strict=True)
        ),
        header.problems,
    )


def _check(columns: dict[str, NDArray[Any]], header: _Header) -> None:
    """Damaged when a column holds what no ledger writes."""
    ranges = {
        "outcome": (0, len(Outcome)),
        "level": (-1, len(Level)),
        "server": (-1, len(header.servers)),
        "names": (-1, len(header.standby_names)),
    }
    for name, (least, end) in ranges.items():
        column = columns[name]
        if len(column) and not (column.min() >= least and column.max() < end):
            raise Damaged(f"a {name} is out of range")


def _plain(part: bytes) -> bytes:
    reader = zlib.decompressobj()
    plain = reader.decompress(part, min(_MOST_HEADER, _MOST_HEADER_RATIO * len(part)))
    if not reader.eof:
        raise Damaged("its header is cut short, or longer than any drill's")
    return plain
