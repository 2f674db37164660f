"""Round trips between members: as a region file's sites ask for them, and as probes measure them, one-way loss too.

Sets and changes no link."""

import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from walproof.errors import MachineError, UsageError
from walproof.links.devices import inside
from walproof.links.settings import Direction, LinkSetting, all_directions, check
from walproof.machine.toml_files import described, read_toml
from walproof.model.units import duration_s

_SHIPPED = files("walproof.links") / "regions"


class RoundTrip(BaseModel):
    """One pair of sites and its round trip, as written."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    between: tuple[str, str]
    rtt: str
    jitter: str = "0ms"


class Regions(BaseModel):
    """A region file. Members take the sites in order, and start over when there are more members than sites."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    source: str
    sites: tuple[str, ...]
    within: str = "0.3ms"
    """Round trip between two members of the same site."""
    round_trip: tuple[RoundTrip, ...] = ()
    members: dict[str, str] = {}
    """Which member is where, when the order does not say it."""


def shipped() -> tuple[str, ...]:
    """Names of the region files that come with walproof."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in _SHIPPED.iterdir() if f.name.endswith(".toml")))


def read_regions(name_or_path: str) -> Regions:
    """A shipped region file by name, or any region file by path; UsageError when it cannot be read or parsed."""
    path = Path(str(_SHIPPED / f"{name_or_path}.toml")) if name_or_path in shipped() else Path(name_or_path)
    tree = read_toml(path, f"the region file {name_or_path}", f"name one of {', '.join(shipped())}, or a file")
    return described(Regions, tree, f"the region file {name_or_path}", "sites = [...], then [[round_trip]] tables")


def matrix(regions: Regions, members: tuple[str, ...]) -> dict[Direction, LinkSetting]:
    """Every direction between members, half the round trip each way; UsageError where the file does not name a pair."""
    site = sites_of(regions, members)
    table = {}
    for a, b in all_directions(members):
        rtt_s, jitter_s = _between(regions, site[a], site[b])
        table[a, b] = LinkSetting(delay_s=rtt_s / 2, jitter_s=jitter_s / 2)
        check(table[a, b])
    return table


def sites_of(regions: Regions, members: tuple[str, ...]) -> dict[str, str]:
    if not regions.sites:
        raise UsageError("the region file names no site", 'sites = ["london", "paris"]')
    named = regions.members
    for member, site in named.items():
        if member not in members or site not in regions.sites:
            raise UsageError(f"the region file puts {member!r} in {site!r}", f"members are {', '.join(members)}")
    return {m: named.get(m, regions.sites[i % len(regions.sites)]) for i, m in enumerate(members)}


def _between(regions: Regions, one: str, other: str) -> tuple[float, float]:
    if one == other:
        return duration_s(regions.within), 0.0
    for row in regions.round_trip:
        if set(row.between) == {one, other}:
            return duration_s(row.rtt), duration_s(row.jitter)
    raise UsageError(f"the region file does not name {one}–{other}", "add a [[round_trip]] with that pair")


_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_SO_TIMESTAMPNS = 35
_RECEIVE_BUFFER = 8 << 20
_SO_RCVBUFFORCE = 33
_IDENTITY = os.getpid() & 0xFFFF
"""Tells our echoes from those of another walproof that measures the same link."""
_HEADER = struct.Struct("!BBHHH")


@dataclass(frozen=True, slots=True)
class Node:
    """A member on the network: its namespace and its address."""

    namespace: str
    address: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Probes of one ordered pair: round trips in ms, sorted, of those that came back; loss of one-way probes, 0..1."""

    source: str
    destination: str
    round_trips_ms: tuple[float, ...]
    sent: int
    loss: float | None = None

    def quantile_ms(self, share: float) -> float | None:
        """The round trip that `share` of the answered probes did not exceed; None when none was answered."""
        if not self.round_trips_ms:
            return None
        last = len(self.round_trips_ms) - 1
        return self.round_trips_ms[min(last, int(share * (last + 1)))]

    @property
    def median_ms(self) -> float | None:
        return self.quantile_ms(0.5)


@dataclass(frozen=True, slots=True)
class Probing:
    """How much to send: round trips per pair and packets per direction, the pause between, the wait for the last."""

    round_trips: int = 20
    one_way: int = 100
    pace_s: float = 0.01
    grace_s: float = 0.5


@dataclass(slots=True)
class _Echo:
    """One ordered pair being measured: when each probe left, and the round trips that came back."""

    left: dict[int, int] = field(default_factory=dict)
    back: list[float] = field(default_factory=list)


def round_trips(
    nodes: Mapping[str, Node], pairs: Iterable[Direction], probing: Probing
) -> dict[Direction, tuple[float, ...]]:
    """Round trips in ms, sorted, by ordered pair of members: ICMP echoes, answered by the other's kernel.

    The kernel's own receive time is used, as ping(8) does: what is measured is the link, not how busy this process is.
    """
    echoes = {pair: _Echo() for pair in pairs}
    by_address = {node.address: name for name, node in nodes.items()}
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(_raw(nodes[name])) for name in {a for a, _ in echoes}}
        names = {sock: name for name, sock in sockets.items()}
        for number in range(1, probing.round_trips + 1):
            for (a, b), echo in echoes.items():
                echo.left[number] = time.time_ns()
                _send(sockets[a], _echo(number), (nodes[b].address, 0))
            next_at = time.monotonic() + probing.pace_s
            _collect_echoes(names, by_address, echoes, until=next_at)
            _rest(next_at)
        _collect_echoes(names, by_address, echoes, until=time.monotonic() + probing.grace_s)
    return {pair: tuple(sorted(echo.back)) for pair, echo in echoes.items()}


def losses(nodes: Mapping[str, Node], directions: Iterable[Direction], probing: Probing) -> dict[Direction, float]:
    """Share of one-way UDP probes that never arrived, by direction of members."""
    wanted = tuple(directions)
    if not wanted or not probing.one_way:
        return {}
    arrived: dict[Direction, int] = dict.fromkeys(wanted, 0)
    by_address = {node.address: name for name, node in nodes.items()}
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(_datagrams(node)) for name, node in nodes.items()}
        ports = {name: sock.getsockname()[1] for name, sock in sockets.items()}
        names = {sock: name for name, sock in sockets.items()}
        for number in range(probing.one_way):
            for a, b in wanted:
                _send(sockets[a], b"walproof", (nodes[b].address, ports[b]))
            if number % 10 == 9:
                # In small bursts: a burst larger than the device's queue would lose packets the link did not.
                _collect_datagrams(names, by_address, arrived, until=time.monotonic() + probing.pace_s / 10)
        last = time.monotonic() + probing.grace_s
        while time.monotonic() < last and any(n < probing.one_way for n in arrived.values()):
            _collect_datagrams(names, by_address, arrived, until=min(last, time.monotonic() + 0.02))
        _collect_datagrams(names, by_address, arrived, until=last)
    return {direction: 1 - arrived[direction] / probing.one_way for direction in wanted}


def _raw(node: Node) -> socket.socket:
    with inside(node.namespace):
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        except PermissionError as no:
            raise MachineError(
                "links cannot be measured without CAP_NET_RAW", "run as the user who started the lab, or as root"
            ) from no
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    sock.bind((node.address, 0))
    sock.setblocking(False)
    return sock


def _datagrams(node: Node) -> socket.socket:
    with inside(node.namespace):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    sock.bind((node.address, 0))
    sock.setblocking(False)
    return sock


def _send(sock: socket.socket, data: bytes, to: tuple[str, int]) -> None:
    try:
        sock.sendto(data, to)
    except OSError:
        return  # no buffer, no route: a probe that was lost, which is what is being counted


def _echo(number: int) -> bytes:
    """An ICMP echo request (RFC 792) with its checksum (RFC 1071)."""
    return _HEADER.pack(_ECHO_REQUEST, 0, _checksum(number), _IDENTITY, number)


def _checksum(number: int) -> int:
    total = (_ECHO_REQUEST << 8) + _IDENTITY + number
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def _collect_echoes(
    names: Mapping[socket.socket, str],
    by_address: Mapping[str, str],
    echoes: Mapping[Direction, _Echo],
    *,
    until: float,
) -> None:
    while any(echo.left for echo in echoes.values()) and (ready := _ready(names, until)):
        for sock in ready:
            data, ancillary, _, sender = sock.recvmsg(2048, 64)
            body = data[(data[0] & 15) * 4 :]
            kind, _, _, identity, number = _HEADER.unpack_from(body)
            echo = echoes.get((names[sock], by_address.get(sender[0], "")))
            if kind != _ECHO_REPLY or identity != _IDENTITY or echo is None or number not in echo.left:
                continue
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2][:16])
            echo.back.append((seconds * 1_000_000_000 + nanoseconds - echo.left.pop(number)) / 1e6)


def _collect_datagrams(
    names: Mapping[socket.socket, str], by_address: Mapping[str, str], arrived: dict[Direction, int], *, until: float
) -> None:
    while ready := _ready(names, until):
        for sock in ready:
            try:
                while True:
                    _, sender = sock.recvfrom(64)
                    direction = (by_address.get(sender[0], ""), names[sock])
                    if direction in arrived:
                        arrived[direction] += 1
            except BlockingIOError:
                continue


def _ready(names: Mapping[socket.socket, str], until: float) -> list[socket.socket]:
    """Sockets with something to read; when the time is over, what is there already: this process may be late itself."""
    return select.select(list(names), [], [], max(0.0, until - time.monotonic()))[0]


def _rest(until: float) -> None:
    """Keep the pace when everything is back already."""
    select.select([], [], [], max(0.0, until - time.monotonic()))
