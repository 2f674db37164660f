"""The lab's network: a bridge, a namespace and a veth pair for each member; and its links: delays, losses, cuts.

Links come into effect by devices, routes and the link emulator; every function may be called from any process."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from walproof.errors import Error, MachineError, UsageError
from walproof.lab.blueprint import Blueprint
from walproof.lab.home import environment, exclusively
from walproof.lab.privileges import write_private
from walproof.links import control, devices
from walproof.links.devices import NAMESPACES, exists
from walproof.links.round_trips import Measured, Node, Probing, losses, round_trips
from walproof.links.settings import (
    Change,
    Direction,
    Links,
    LinkSetting,
    all_directions,
    check_members,
    links_of,
)
from walproof.machine.clock import RealClock
from walproof.machine.programs import ip, program

# No default route: nothing leaves the machine, and Patroni's lookup of its own name fails at once, not after 10 s.
_INSIDE = ("link set lo up", "link set eth0 up", "addr add {address}/24 dev eth0")
# etcd asks for no password, and pages in the host's browsers may send it what they like (a POST of text/plain): it
# answers members alone. No `blackhole`, which is the sign of a member's network link that is down.
_ETCD = "rule add pref 89 to {gateway}/32 ipproto tcp sport 2379-2380 prohibit"
# The link emulator takes single routes over to its own device: packets may come in by another way than they went out.
_SYSCTL = """\
cd /proc/sys/net/ipv4/conf
for d in all default eth0; do echo 0 > $d/rp_filter; echo 1 > $d/accept_local; echo 0 > $d/send_redirects; done
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true
"""


def build(blueprint: Blueprint) -> None:
    """Create bridge, namespaces and veth pairs; MachineError when the kernel refuses."""
    lines = [
        f"link add {blueprint.bridge} type bridge",
        f"addr add {blueprint.gateway}/24 dev {blueprint.bridge}",
        f"link set {blueprint.bridge} up",
    ]
    if os.geteuid() != 0:
        lines.insert(0, "link set lo up")
    for member in blueprint.members:
        space, veth = blueprint.namespace(member), blueprint.veth(member)
        lines += [
            f"netns add {space}",
            f"link add {veth} type veth peer name eth0 netns {space}",
            f"link set {veth} master {blueprint.bridge} up",
        ]
    ip(batch=lines)
    for member in blueprint.members:
        space = blueprint.namespace(member)
        ip(namespace=space, batch=(line.format(address=blueprint.address(member)) for line in _INSIDE))
        argv = [str(program("nsenter")), f"--net={NAMESPACES / space}", str(program("sh")), "-c", _SYSCTL]
        subprocess.run(argv, check=False, capture_output=True)
        if os.geteuid() == 0:
            with suppress(MachineError):  # a kernel without policy routing
                ip(namespace=space, batch=[_ETCD.format(gateway=blueprint.gateway)])


def remove(blueprint: Blueprint) -> None:
    """Remove what there is of the network; safe when there is none. MachineError names what stays."""
    present = device_names()
    for name in leftovers({blueprint.number}):
        _delete("link" if name in present else "netns", name)
    if left := leftovers({blueprint.number}):
        raise MachineError(f"the kernel does not remove {', '.join(left)}", "ip link; ip netns")


def _delete(kind: str, name: str) -> None:
    # Another process may be quicker; what is still there afterwards is reported by `remove`.
    with suppress(MachineError):
        ip(kind, "del", name)


def device_names() -> set[str]:
    # Not /sys/class/net: a mounted sysfs shows the namespace it was mounted in.
    return {name for _, name in socket.if_nameindex()}


def taken_numbers() -> set[int]:
    """Lab numbers whose bridge, namespaces or subnet exist on this machine already."""
    routes = ip("-4", "route", "show", "table", "all") + ip("-4", "addr", "show")
    return {number for _, number in _numbered()} | {int(n) for n in re.findall(r"\b10\.77\.(\d+)\.", routes)}


def leftovers(numbers: set[int]) -> list[str]:
    """Devices and namespaces of labs of these numbers that still exist."""
    return sorted(name for name, number in _numbered() if number in numbers)


def members_of(number: int) -> set[str]:
    """Names of the members that have a network namespace in the lab of that number."""
    start = f"wp{number}-"
    names = os.listdir(NAMESPACES) if NAMESPACES.is_dir() else ()
    return {name.removeprefix(start) for name in names if name.startswith(start)}


def _numbered() -> list[tuple[str, int]]:
    """(name, lab number) of every device and namespace of any lab."""
    names = [*device_names(), *(os.listdir(NAMESPACES) if NAMESPACES.is_dir() else ())]
    return [(name, int(match[1])) for name in names if (match := re.match(r"wp(\d+)(?:br|v|-)", name))]


_PROBING = Probing()
Redirect = Callable[[str, str, Iterable[str]], None]
"""Given a namespace, its address, and the addresses that are to be reached by the link emulator, or lost."""


@dataclass(frozen=True, slots=True)
class LinksState:
    """Links as configured, whether they need the link emulator, its pid and priority, and that as text.

    Where there are no TUN devices cuts need none.
    """

    links: Links
    needed: bool
    pid: int | None
    real_time: bool

    @property
    def dead(self) -> bool:
        """Links need the link emulator and its process is dead: their packets are lost."""
        return self.needed and self.pid is None

    @property
    def emulator(self) -> str:
        return "dead" if self.dead else "up" if self.needed else "not needed"

    @property
    def summary(self) -> str:
        """One clause for `lab status`."""
        if self.dead:
            return (
                "the link emulator is dead: packets on shaped and cut links are lost; "
                "`walproof lab fault clear` starts it again"
            )
        if not self.links.table:
            return "links unshaped"
        shaped = sum(not replace(s, cut=False).plain for s in self.links.settings.values())
        parts = [f"{shaped} directions shaped"] if shaped else []
        parts += [f"{len(self.links.cuts)} cut"] if self.links.cuts else []
        parts += [f"isolated: {', '.join(sorted(self.links.isolated))}"] if self.links.isolated else []
        return ", ".join(parts)


def end_emulator(blueprint: Blueprint) -> None:
    """End the link emulator and delete its devices; safe when there is none, or no namespace any more."""
    control.end(blueprint.home / "wire", RealClock())
    for member in blueprint.members:
        if exists(blueprint.namespace(member)):
            devices.delete(blueprint.namespace(member))
    _path(blueprint).unlink(missing_ok=True)


def configured(blueprint: Blueprint) -> Links:
    """How every link is configured now; MachineError where that cannot be read."""
    try:
        links = links_of(json.loads(_path(blueprint).read_text()))
        check_members((*chain.from_iterable(links.settings), *links.isolated, *links.apart), blueprint.members)
    except FileNotFoundError:
        return Links()
    except PermissionError as no:
        raise MachineError(f"no right to read {_path(blueprint)}", "run as the user who started the lab") from no
    except (ValueError, TypeError, KeyError, AttributeError, UsageError) as wrong:
        raise MachineError(f"{_path(blueprint)} is damaged: {wrong}", "walproof lab down, then lab up") from None
    return links


def state(blueprint: Blueprint) -> LinksState:
    """The links and the link emulator's process now."""
    links = configured(blueprint)
    needed = bool(links.table) and not _has(blueprint, devices.SINK)
    now = control.status(blueprint.home / "wire") if needed else None
    return LinksState(links, needed, now.pid if now else None, bool(now and now.real_time))


def shape(blueprint: Blueprint, directions: Iterable[Direction], change: Change) -> Links:
    """Change delay, jitter, loss, rate or cut of those directions; the links as configured then."""
    wanted = tuple(directions)
    check_members(chain.from_iterable(wanted), blueprint.members)
    return _change(blueprint, lambda links: links.changed(wanted, change))


def set_all(blueprint: Blueprint, table: dict[Direction, LinkSetting]) -> Links:
    """Exactly these settings, such as a matrix of regions, in place of every earlier one; cuts stay."""
    check_members(chain.from_iterable(table), blueprint.members)

    def exactly(links: Links) -> Links:
        new = {
            d: replace(table.get(d, LinkSetting()), cut=links.setting(d).cut) for d in all_directions(blueprint.members)
        }
        return replace(links, settings=new)

    return _change(blueprint, exactly)


def set_round_trip(blueprint: Blueprint, rtt_ms: float) -> Links:
    """The same round trip between all members, in ms; 0 removes the delay."""
    return shape(blueprint, all_directions(blueprint.members), Change(delay_s=rtt_ms / 2e3))


def reset(blueprint: Blueprint, directions: Iterable[Direction] | None = None) -> Links:
    """Remove delay, jitter, loss and rate of those directions, all when None; cuts stay."""
    wanted = tuple(all_directions(blueprint.members) if directions is None else directions)
    return _change(blueprint, lambda links: links.reset(wanted))


def partition(blueprint: Blueprint, member: str) -> Links:
    """Cut a member from every other one, both directions, silently; clients still reach it."""
    return _change(blueprint, lambda links: links.cut_off(member, blueprint.members))


def partition_one_way(blueprint: Blueprint, source: str, destination: str) -> Links:
    """Packets from source no longer reach destination."""
    return shape(blueprint, [(source, destination)], Change(cut=True))


def isolate(blueprint: Blueprint, member: str) -> Links:
    """Cut a member from the others and from clients; UsageError where its network link is down: it is."""
    check_members((member,), blueprint.members)
    if not _link_is_up(blueprint, member):
        raise UsageError(f"the network link of {member} is down already (power-cut)", "walproof lab fault clear")

    def isolated(links: Links) -> Links:
        return replace(links.cut_off(member, blueprint.members), isolated=links.isolated | {member})

    return _change(blueprint, isolated)


def reconnect_one_way(blueprint: Blueprint, source: str, destination: str) -> Links:
    """Undo `partition_one_way`; where one of them is cut from all others, that stays."""
    direction = (source, destination)
    return _change(
        blueprint, lambda links: links.changed([direction], Change(cut=not links.apart.isdisjoint(direction)))
    )


def recover(blueprint: Blueprint, member: str | None = None) -> Links:
    """Undo every cut and isolation, or one member's, and start a dead link emulator again. Idempotent.

    Delay, jitter, loss and rate stay.
    """
    return _change(blueprint, lambda links: links.without_cuts(member))


def measured(blueprint: Blueprint, probing: Probing = _PROBING) -> tuple[Measured, ...]:
    """Round trips and one-way losses of every ordered pair of members, as probes find them now."""
    nodes, directions = nodes_of(blueprint), all_directions(blueprint.members)
    probing = replace(probing, grace_s=probing.grace_s + 2 * _slowest_s(blueprint))
    back = round_trips(nodes, directions, probing)
    lost = losses(nodes, directions, probing)
    return tuple(Measured(a, b, back[a, b], probing.round_trips, lost.get((a, b))) for a, b in directions)


def round_trips_ms(blueprint: Blueprint) -> dict[str, tuple[float, ...]]:
    """Measured round trips in ms, sorted, by "a-b", for the record; a pair that does not answer is left out."""
    pairs = [(a, b) for a, b in all_directions(blueprint.members) if a < b]
    samples = round_trips(nodes_of(blueprint), pairs, Probing(grace_s=0.3 + 2 * _slowest_s(blueprint)))
    return {f"{a}-{b}": tuple(round(ms, 3) for ms in samples[a, b]) for a, b in pairs if samples[a, b]}


def nodes_of(blueprint: Blueprint) -> dict[str, Node]:
    return {m: Node(blueprint.namespace(m), blueprint.address(m)) for m in blueprint.members}


def _slowest_s(blueprint: Blueprint) -> float:
    return max((s.delay_s + s.jitter_s for s in configured(blueprint).settings.values()), default=0.0)


def _change(blueprint: Blueprint, changed: Callable[[Links], Links]) -> Links:
    """One change at a time: compute the new links, bring them into effect, then store them; where that fails, the old.

    What is cut before or after is stored first: whatever a kill in between leaves is listed, and cleared by the next.
    """
    with exclusively(blueprint.home / "links.lock"):
        old = configured(blueprint)
        new = changed(old)
        if (why_not := _why_no_emulator(blueprint, new)) is not None:
            _check_only_cuts(new.table, why_not)
        isolated = old.isolated | new.isolated
        _store(blueprint, old.with_cuts_of(new))
        try:
            _apply(blueprint, new, isolated)
        except (Error, OSError):
            with suppress(Error, OSError):
                _apply(blueprint, old, isolated)
                _store(blueprint, old)
            raise
        _store(blueprint, new)
        return new


def _why_no_emulator(blueprint: Blueprint, links: Links) -> str | None:
    """Why none can serve these links, None where one runs, can, or is not needed."""
    return devices.why_no_tun() if links.table and control.status(blueprint.home / "wire") is None else None


def _apply(blueprint: Blueprint, new: Links, isolated: frozenset[str]) -> None:
    """Idempotent, whatever is in effect: of that the kernel is asked. isolated: now, perhaps, or from now on."""
    folder, table = blueprint.home / "wire", new.table
    by_address = {(blueprint.address(a), blueprint.address(b)): setting for (a, b), setting in table.items()}
    by_sinks = _why_no_emulator(blueprint, new) is not None
    if control.status(folder) is not None:
        control.set_table(folder, by_address)
    else:
        if table and not by_sinks:
            _start_emulator(blueprint, by_address)
        by_sinks = by_sinks or _has(blueprint, devices.SINK)
    redirect: Redirect = devices.sink if by_sinks else devices.route
    if table or by_sinks or _has(blueprint, devices.DEVICE):
        # Where a route is new the table must already know its setting: hence the order.
        for member in blueprint.members:
            over = [blueprint.address(b) for a, b in table if a == member]
            redirect(blueprint.namespace(member), blueprint.address(member), over)
    for member in sorted(isolated):
        _isolate(blueprint, member, apart=member in new.isolated)


def _check_only_cuts(table: Mapping[Direction, LinkSetting], why_not: str) -> None:
    if any(not replace(setting, cut=False).plain for setting in table.values()):
        reason, _, todo = why_not.partition(": ")
        raise MachineError(f"delay, jitter, loss and rate of links need the link emulator: {reason}", todo)


def _has(blueprint: Blueprint, device: str) -> bool:
    spaces = map(blueprint.namespace, blueprint.members)
    return any(exists(space) and devices.there(space, device) for space in spaces)


def _start_emulator(blueprint: Blueprint, table: control.Table) -> None:
    control.end(blueprint.home / "wire", RealClock())
    for member in blueprint.members:
        devices.create(blueprint.namespace(member))
    addresses = {blueprint.namespace(m): blueprint.address(m) for m in blueprint.members}
    control.launch(blueprint.home / "wire", addresses, table, RealClock(), environment=environment(blueprint))


def _isolate(blueprint: Blueprint, member: str, *, apart: bool) -> None:
    """Disable the member's port of the bridge: frames are lost in both directions, while the link's carrier stays.

    Its hardware address is pinned meanwhile, or clients here would get "no route to host" after a few seconds, which a
    partition beyond the next switch never answers.
    """
    address, bridge = blueprint.address(member), blueprint.bridge
    if apart:
        link = json.loads(ip("-j", "link", "show", "eth0", namespace=blueprint.namespace(member)))
        hardware = link[0]["address"]
        ip("neigh", "replace", address, "lladdr", hardware, "dev", bridge, "nud", "permanent")
    if _link_is_up(blueprint, member):  # without power: the kernel refuses, and forwards once it is up again
        devices.bridge_port(blueprint.veth(member), forwarding=not apart)
    if not apart:
        ip("neigh", "replace", address, "dev", bridge, "nud", "none")


def _link_is_up(blueprint: Blueprint, member: str) -> bool:
    return "UP" in json.loads(ip("-j", "link", "show", blueprint.veth(member)))[0]["flags"]


def _path(blueprint: Blueprint) -> Path:
    return blueprint.home / "links.json"


def _store(blueprint: Blueprint, links: Links) -> None:
    write_private(_path(blueprint), json.dumps(links.as_json(), indent=1))
