"""`walproof lab fault`: every fault of the lab by its name, the list of them, and one way to clear them."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click
import cloup
from rich.table import Table

from walproof.cli import options as opt
from walproof.cli.console import console, print_json, print_result
from walproof.cli.groups import Group
from walproof.errors import MachineError, UsageError
from walproof.lab import home, member_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import availability, disks, power, processes, recover, replay, streams
from walproof.lab.faults.catalogue import FAULTS, Line, catalogue
from walproof.links.settings import Change, directions_of
from walproof.model.units import counted

_CLEAR = "`walproof lab fault clear` ends it"
_BY_ITSELF = "Patroni fails over or starts it again"
_ON_A_MEMBER: dict[str, tuple[Callable[[Blueprint, str], object], str]] = {
    "kill": (processes.kill, f"the postmaster of {{}} was killed; {_BY_ITSELF}"),
    "stop": (processes.stop, f"PostgreSQL of {{}} is shutting down; {_BY_ITSELF}"),
    "crash-restart": (processes.crash_restart, "the background writer of {} was killed; PostgreSQL recovers by itself"),
    "partition-wal": (streams.lose_wal, f"no WAL reaches {{}}; {_CLEAR}"),
    "partition-acks": (streams.lose_acks, f"no acknowledgement of {{}} reaches the leader; {_CLEAR}"),
    "pause-replay": (replay.pause, f"{{}} replays no WAL; {_CLEAR}"),
    "kill-member": (processes.kill_member, f"every process of {{}} was killed; {_CLEAR}"),
    "freeze": (processes.freeze, f"{{}} is frozen; {_CLEAR}"),
    "power-cut": (power.cut_power, f"{{}} has lost its power; {_CLEAR}"),
    "isolate": (member_links.isolate, f"{{}} can reach nobody, and no client reaches it; {_CLEAR}"),
    "failing-disk": (disks.failing, f"flushes of {{}} fail; {_CLEAR}"),
    "full-disk": (disks.full, f"the disk of {{}} is full; {_CLEAR}"),
}
"""Faults of one member: what injects them, and the sentence afterwards."""


@cloup.group(cls=Group)
def fault() -> None:
    """Inject a fault into the lab, list faults, or clear them."""


_INJECT, _MANAGE = cloup.Section("Inject"), cloup.Section("Show and clear")


def _injected(name: str, member: str | None, sentence: str, as_json: bool) -> None:
    print_result({"fault": name, "member": member}, sentence, as_json=as_json)


def _add(name: str, happens: str, inject: Callable[[Blueprint, str], object], sentence: str) -> None:
    """One command `lab fault NAME MEMBER`."""

    def command(member: str, lab: str | None, as_json: bool) -> None:
        inject(home.load(lab), member)
        _injected(name, member, sentence.format(member), as_json)

    text = f"{happens[0].upper()}{happens[1:]}."
    fault.command(name, help=text, section=_INJECT)(opt.member()(opt.of_a_lab(command)))


for _fault in FAULTS:
    if _fault.name in _ON_A_MEMBER:
        _add(_fault.name, _fault.happens, *_ON_A_MEMBER[_fault.name])


@fault.command(section=_INJECT)
@opt.member("members", nargs=-1, required=True)
@opt.of_a_lab
def partition(members: tuple[str, ...], lab: str | None, as_json: bool) -> None:
    """Cut a member from every other one, or two members from one another; clients still reach them."""
    blueprint = home.load(lab)
    member_links.shape(blueprint, directions_of(members, blueprint.members), Change(cut=True))
    others = "every other member" if len(members) == 1 else "one another"
    _injected("partition", ",".join(members), f"{' and '.join(members)} cut from {others}; {_CLEAR}", as_json)


@fault.command(section=_INJECT)
@opt.member("source")
@opt.member("destination")
@opt.of_a_lab
def partition_one_way(source: str, destination: str, lab: str | None, as_json: bool) -> None:
    """Drop every packet from SOURCE to DESTINATION, not those of the other direction."""
    blueprint = home.load(lab)
    cut = directions_of((f"{source}..{destination}",), blueprint.members)
    member_links.shape(blueprint, cut, Change(cut=True))
    _injected("partition-one-way", source, f"nothing from {source} reaches {destination}; {_CLEAR}", as_json)


@fault.command(section=_INJECT)
@opt.member()
@opt.option("--delay", "5ms", "How much longer each flush takes.", type=opt.DURATION, required=True)
@opt.of_a_lab
def slow_disk(member: str, delay: float, lab: str | None, as_json: bool) -> None:
    """Each flush takes that much longer before it is issued."""
    disks.slow(home.load(lab), member, delay)
    _injected("slow-disk", member, f"each flush of {member} takes {delay * 1e3:g} ms longer; {_CLEAR}", as_json)


@fault.command(section=_INJECT)
@opt.of_a_lab
def dcs_loss(lab: str | None, as_json: bool) -> None:
    """Etcd stops answering on a majority of the members."""
    processes.lose_dcs(home.load(lab))
    _injected("dcs-loss", None, f"etcd has no majority; {_CLEAR}", as_json)


@fault.command("list", section=_MANAGE)
@opt.of_a_lab
def list_faults(lab: str | None, as_json: bool) -> None:
    """Every fault, what it needs, whether it is available here; and the faults in effect."""
    try:
        blueprint = home.load(lab)
    except MachineError:
        blueprint = None
    lines = catalogue(availability.reasons(blueprint))
    now = recover.in_effect(blueprint) if blueprint else ()
    if as_json:
        print_json({"faults": [_as_json(line) for line in lines], "in_effect": [asdict(one) for one in now]})
        return
    possible = sum(line.why_not is None for line in lines)
    click.echo(f"{possible} of {counted(len(lines), 'fault')} available here")
    table = Table(box=None, pad_edge=False)
    table.add_column("walproof …", no_wrap=True)
    for heading in ("what happens", "capability", "here"):
        table.add_column(heading)
    for line in lines:
        table.add_row(line.fault.command, line.fault.happens, line.fault.capability.value, line.why_not or "yes")
    console().print(table)
    for one in now:
        click.echo(f"in effect: {recover.clause(one)}")


def _as_json(line: Line) -> dict[str, Any]:
    return {
        "name": line.fault.name,
        "happens": line.fault.happens,
        "needs": line.fault.capability.value,
        "available": line.why_not is None,
        "why_not": line.why_not,
        "command": f"walproof {line.fault.command}",
        "clear": line.fault.cleared_by,
    }


@fault.command(section=_MANAGE)
@opt.member(required=False)
@opt.of_a_lab
def clear(member: str | None, lab: str | None, as_json: bool) -> None:
    """Undo every fault, or MEMBER's, and wait until the cluster is healthy; shaped links stay shaped."""
    blueprint = home.load(lab)
    if member is not None and member not in blueprint.members:
        raise UsageError(f"{member!r} is not a member", f"the members are {', '.join(blueprint.members)}")
    dead = ["death of the link emulator"] if member_links.state(blueprint).dead else []
    cleared = [*dead, *recover.recover(blueprint, member=member)]
    left = [recover.clause(one) for one in recover.in_effect(blueprint)]
    first = f"Cleared: {', '.join(cleared)}" if cleared else "Nothing had to be cleared"
    then = f"still in effect: {', '.join(left)}" if left else "the cluster is healthy"
    tree = {"cleared": cleared, "in_effect": left, "healthy": not left}
    print_result(tree, f"{first}; {then}.", as_json=as_json)
