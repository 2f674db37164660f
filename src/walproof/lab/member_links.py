"""The lab's links: what is asked of them, kept beside the lab, and brought into effect by devices, routes and the wire.

Knows neither PostgreSQL nor Patroni. Every function may be called from any process: the state is in the lab's home.
"""

import fcntl
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from walproof.errors import MachineError, UsageError
from walproof.lab.blueprint import Blueprint
from walproof.lab.home import environment
from walproof.lab.privileges import write_private
from walproof.links import control, devices
from walproof.links.measure import Measured, Place, Probing, losses, round_trips
from walproof.links.namespaces import exists
from walproof.links.settings import Change, Direction, Links, LinkSetting, all_directions, directions_of, links_of
from walproof.machine.clock import RealClock

_PROBING = Probing()


@dataclass(frozen=True, slots=True)
class WiringState:
    """What stands: links asked, whether they need the wire, whether its process lives, and that in words."""

    links: Links
    needed: bool
    pid: int | None
    real_time: bool

    @property
    def dead(self) -> bool:
        """Links are asked for and nobody carries them: their packets vanish."""
        return self.needed and self.pid is None

    @property
    def wire(self) -> str:
        """One word for programs: up, dead or not needed."""
        return "dead" if self.dead else "up" if self.needed else "not needed"

    @property
    def words(self) -> str:
        """One clause for `lab status`."""
        if self.dead:
            return "the wire is dead: packets on shaped and cut links vanish; `walproof lab heal` starts it again"
        if not self.needed:
            return "links unshaped"
        shaped = sum(not replace(s, cut=False).plain for s in self.links.asked.values())
        parts = [f"{shaped} directions shaped"] if shaped else []
        parts += [f"{len(self.links.cuts)} cut"] if self.links.cuts else []
        parts += [f"isolated: {', '.join(sorted(self.links.isolated))}"] if self.links.isolated else []
        return ", ".join(parts)


def end(blueprint: Blueprint) -> None:
    """End the wire and take its devices away; safe when there is none, or no namespace any more."""
    control.end(_files(blueprint), RealClock())
    for member in blueprint.members:
        if exists(blueprint.namespace(member)):
            devices.lift(blueprint.namespace(member))
    _path(blueprint).unlink(missing_ok=True)


def asked(blueprint: Blueprint) -> Links:
    """What is asked of every link now."""
    try:
        return links_of(json.loads(_path(blueprint).read_text()))
    except FileNotFoundError:
        return Links()
    except PermissionError as no:
        raise MachineError(f"no right to read {_path(blueprint)}", "run as the user who started the lab") from no


def state(blueprint: Blueprint) -> WiringState:
    """What stands now, the wire's process included."""
    links = asked(blueprint)
    now = control.look(_files(blueprint)) if links.table else None
    return WiringState(links, bool(links.table), now.pid if now else None, bool(now and now.real_time))


def shape(blueprint: Blueprint, directions: Iterable[Direction], change: Change) -> Links:
    """Change delay, jitter, loss, rate or cut of those directions; the links now asked."""
    wanted = tuple(directions)
    for source, destination in wanted:
        _known(blueprint, source, destination)
    return _bring(blueprint, lambda links: links.changed(wanted, change))


def put(blueprint: Blueprint, table: dict[Direction, LinkSetting]) -> Links:
    """Exactly these settings, such as a matrix of regions, in place of every earlier shape; cuts stay."""
    for source, destination in table:
        _known(blueprint, source, destination)

    def exactly(links: Links) -> Links:
        new = {
            d: replace(table.get(d, LinkSetting()), cut=links.setting(d).cut) for d in all_directions(blueprint.members)
        }
        return replace(links, asked=new)

    return _bring(blueprint, exactly)


def set_round_trip(blueprint: Blueprint, rtt_ms: float) -> Links:
    """The same round trip between all members, in ms; 0 unshapes the delay."""
    change = Change(delay_s=rtt_ms / 2e3)
    return shape(blueprint, all_directions(blueprint.members), change)


def clear(blueprint: Blueprint, directions: Iterable[Direction] | None = None) -> Links:
    """Unshape those directions, all when None; cuts stay."""
    wanted = tuple(all_directions(blueprint.members) if directions is None else directions)
    return _bring(blueprint, lambda links: links.cleared(wanted))


def cut(blueprint: Blueprint, member: str) -> Links:
    """Cut a member from every other one, both directions, silently; clients still reach it."""
    return shape(blueprint, directions_of((member,), blueprint.members), Change(cut=True))


def cut_one_way(blueprint: Blueprint, source: str, destination: str) -> Links:
    """Packets from source no longer reach destination."""
    return shape(blueprint, [(source, destination)], Change(cut=True))


def isolate(blueprint: Blueprint, member: str) -> Links:
    """Cut a member from everybody, clients too."""
    wanted = directions_of((member,), blueprint.members)

    def alone(links: Links) -> Links:
        return replace(links.changed(wanted, Change(cut=True)), isolated=links.isolated | {member})

    return _bring(blueprint, alone)


def heal(blueprint: Blueprint) -> Links:
    """Undo every cut and isolation, start a dead wire again; the shape asked for stays. Safe when all is whole."""
    return _bring(blueprint, Links.healed)


def measured(blueprint: Blueprint, probing: Probing = _PROBING) -> tuple[Measured, ...]:
    """Round trips and one-way losses of every ordered pair of members, as probes find them now."""
    places = {m: Place(blueprint.namespace(m), blueprint.address(m)) for m in blueprint.members}
    directions = all_directions(blueprint.members)
    slowest = max((s.delay_s + s.jitter_s for s in asked(blueprint).asked.values()), default=0.0)
    patient = replace(probing, grace_s=probing.grace_s + 2 * slowest)
    back = round_trips(places, directions, patient)
    lost = losses(places, directions, patient)
    return tuple(Measured(a, b, back[a, b], probing.round_trips, lost.get((a, b))) for a, b in directions)


def round_trips_ms(blueprint: Blueprint) -> dict[str, float]:
    """Median measured round trip in ms by "a-b", for the record; a pair that does not answer is left out."""
    pairs = [(a, b) for a, b in all_directions(blueprint.members) if a < b]
    places = {m: Place(blueprint.namespace(m), blueprint.address(m)) for m in blueprint.members}
    slowest = max((s.delay_s + s.jitter_s for s in asked(blueprint).asked.values()), default=0.0)
    found = round_trips(places, pairs, Probing(grace_s=0.3 + 2 * slowest))
    rows = {f"{a}-{b}": Measured(a, b, found[a, b], 20).median_ms for a, b in pairs}
    return {pair: round(median, 3) for pair, median in rows.items() if median is not None}


def _bring(blueprint: Blueprint, make: Callable[[Links], Links]) -> Links:
    """One change at a time: decide the new links, bring them into effect, then write them down."""
    with _alone(blueprint):
        old = asked(blueprint)
        new = make(old)
        _enforce(blueprint, old, new)
        _store(blueprint, new)
        return new


def _enforce(blueprint: Blueprint, old: Links, new: Links) -> None:
    files, table = _files(blueprint), new.table
    wire = control.look(files)
    by_address = {(blueprint.address(a), blueprint.address(b)): setting for (a, b), setting in table.items()}
    if wire is not None:
        control.set_table(files, by_address)
    elif table:
        _launch(blueprint, by_address)
    if table or old.table:
        # Where a route is new the table must already know its setting: hence the order.
        for member in blueprint.members:
            over = [blueprint.address(b) for a, b in table if a == member]
            devices.route(blueprint.namespace(member), blueprint.address(member), over)
    for member in sorted(old.isolated ^ new.isolated):
        _isolate(blueprint, member, apart=member in new.isolated)


def _launch(blueprint: Blueprint, table: control.Table) -> None:
    control.end(_files(blueprint), RealClock())
    for member in blueprint.members:
        devices.lay(blueprint.namespace(member))
    places = {blueprint.namespace(m): blueprint.address(m) for m in blueprint.members}
    control.launch(_files(blueprint), places, table, RealClock(), environment=environment(blueprint))


def _isolate(blueprint: Blueprint, member: str, *, apart: bool) -> None:
    """Disable the member's port of the bridge: frames vanish both ways, while the cable shows no sign of it.

    Its hardware address is pinned meanwhile, or clients here would be told "no route to host" after a few seconds,
    which a partition beyond the next switch never says.
    """
    address, bridge = blueprint.address(member), blueprint.bridge
    if apart:
        link = json.loads(devices.ip("-j", "link", "show", "eth0", namespace=blueprint.namespace(member)))
        hardware = link[0]["address"]
        devices.ip("neigh", "replace", address, "lladdr", hardware, "dev", bridge, "nud", "permanent")
    devices.bridge_port(blueprint.veth(member), forwarding=not apart)
    if not apart:
        devices.ip("neigh", "replace", address, "dev", bridge, "nud", "none")


def _known(blueprint: Blueprint, *members: str) -> None:
    for member in members:
        if member not in blueprint.members:
            raise UsageError(f"no member is called {member!r}", f"members are {', '.join(blueprint.members)}")


def _files(blueprint: Blueprint) -> control.WireFiles:
    return control.WireFiles(blueprint.home / "wire")


def _path(blueprint: Blueprint) -> Path:
    return blueprint.home / "links.json"


def _store(blueprint: Blueprint, links: Links) -> None:
    write_private(_path(blueprint), json.dumps(links.as_json(), indent=1), given=False)


@contextmanager
def _alone(blueprint: Blueprint) -> Iterator[None]:
    with (blueprint.home / "links.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
