"""`walproof lab fault|disk|cpu`: arguments in, calls out, sentences back."""

import json

import click
from rich.console import Console
from rich.table import Table

from walproof.errors import MachineError, UsageError
from walproof.lab import cpu_limits, home
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, availability, disks, power, processes, recover
from walproof.lab.faults.catalogue import Line, catalogue
from walproof.model.units import duration_s

_NAME = click.option("--name", metavar="LAB", default=None, help="Which lab.  [default: $WALPROOF_LAB, or lab]")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
_OF_A_MEMBER = {
    "kill": processes.kill,
    "stop": processes.stop,
    "kill-member": processes.kill_member,
    "freeze": processes.freeze,
    "thaw": processes.thaw,
    "power-cut": power.cut_power,
    "restart": processes.restart,
}
_DONE = {
    "kill": "the postmaster of {m} was killed; Patroni fails over or starts it again",
    "stop": "PostgreSQL of {m} was told to shut down; Patroni fails over or starts it again",
    "kill-member": "{m} is dead; `walproof lab fault --heal` starts it",
    "freeze": "{m} is frozen; `walproof lab fault thaw {m}` or --heal lets it go on",
    "thaw": "{m} goes on",
    "power-cut": "{m} has lost its power; `walproof lab fault --heal` switches it on",
    "restart": "PostgreSQL of {m} was restarted",
    "dcs-loss": "etcd has no majority; `walproof lab fault --heal` gives it back",
}


@click.command()
@click.argument("what", required=False)
@click.argument("member", required=False)
@click.option("--list", "listing", is_flag=True, help="Every fault, what it needs, whether it is available here.")
@click.option("--heal", "healing", is_flag=True, help="Undo every fault and wait until the cluster is whole.")
@_NAME
@_JSON
def fault(
    what: str | None, member: str | None, listing: bool, healing: bool, name: str | None, as_json: bool
) -> None:  # fmt: skip
    """Break a member: kill, stop, kill-member, freeze, thaw, power-cut, restart MEMBER; or dcs-loss."""
    if (what is not None) + listing + healing != 1:
        raise UsageError("say one of: a fault and its member, --list, --heal", "walproof lab fault --list")
    if listing:
        there = _if_up(name)
        now = active.in_effect(there) if there else ()
        _show(catalogue(availability.reasons(there)), now, as_json)
    elif healing:
        _healed(home.load(name), as_json)
    else:
        _inject(home.load(name), str(what), member, as_json)


def _if_up(name: str | None) -> Blueprint | None:
    try:
        return home.load(name)
    except MachineError:
        return None


def _inject(blueprint: Blueprint, what: str, member: str | None, as_json: bool) -> None:
    if what == "dcs-loss":
        if member:
            raise UsageError("dcs-loss concerns the majority, not one member", "walproof lab fault dcs-loss")
        processes.lose_dcs(blueprint)
    elif what not in _OF_A_MEMBER:
        raise UsageError(f"there is no fault {what!r}", "walproof lab fault --list")
    elif member is None:
        raise UsageError(f"{what} needs a member", f"walproof lab fault {what} {'|'.join(blueprint.members)}")
    else:
        _OF_A_MEMBER[what](blueprint, member)
    _say(_DONE[what].format(m=member), {"fault": what, "member": member}, as_json)


def _healed(blueprint: Blueprint, as_json: bool) -> None:
    undone = recover.recover(blueprint)
    said = f"healed: {', '.join(undone)}; " if undone else "nothing was in effect; "
    _say(f"{said}the cluster is whole", {"undone": undone, "whole": True}, as_json)


def _show(lines: tuple[Line, ...], now: tuple[active.ActiveFault, ...], as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": line.fault.name,
                "happens": line.fault.happens,
                "needs": line.fault.capability.value,
                "available": line.why_not is None,
                "why_not": line.why_not,
                "command": f"walproof {line.fault.command}",
                "heals": line.fault.cleared_by,
            }
            for line in lines
        ]
        there = [{"fault": f.fault, "member": f.member, "since": f.since, "detail": f.detail} for f in now]
        click.echo(json.dumps({"faults": rows, "in_effect": there}))
        return
    possible = sum(line.why_not is None for line in lines)
    click.echo(f"{possible} of {len(lines)} faults are available here")
    table = Table(box=None, pad_edge=False)
    table.add_column("walproof …", no_wrap=True)
    for heading in ("what happens", "capability", "here"):
        table.add_column(heading)
    for line in lines:
        table.add_row(line.fault.command, line.fault.happens, line.fault.capability.value, line.why_not or "yes")
    Console().print(table)
    for fault_now in now:
        click.echo(f"in effect: {fault_now.detail or fault_now.fault} {fault_now.member}".rstrip())


@click.command()
@click.argument("member")
@click.option("--slow", metavar="5ms", help="Each flush takes that much longer.")
@click.option("--failing", is_flag=True, help="Flushes fail with an I/O error.")
@click.option("--full", is_flag=True, help="No space is left.")
@click.option("--heal", "healing", is_flag=True, help="Take the error away.")
@_NAME
@_JSON
def disk(member: str, name: str | None, as_json: bool, slow: str | None, **others: bool) -> None:
    """Make a member's disk slow, failing or full while it works, and well again."""
    asked = [error for error, given in others.items() if given] + ([disks.SLOW] if slow is not None else [])
    if len(asked) != 1:
        raise UsageError("say one of --slow 5ms, --failing, --full, --heal", f"walproof lab disk {member} --slow 5ms")
    blueprint = home.load(name)
    if asked == ["healing"]:
        said = "is well again" if disks.clear(blueprint, member) else "was well"
    else:
        disks.inject(blueprint, member, asked[0], duration_s(slow) if slow is not None else 0.0)
        said = f"is {asked[0]}"
    _say(
        f"the disk of {member} {said}",
        {"member": member, "error": None if asked == ["healing"] else asked[0]},
        as_json,
    )


@click.command()
@click.argument("cores", required=False)
@click.argument("member", required=False)
@click.option("--clear", is_flag=True, help="Take every limit away.")
@_NAME
@_JSON
def cpu(cores: str | None, member: str | None, clear: bool, name: str | None, as_json: bool) -> None:
    """Limit every member, or one, to that many cores while it runs; without arguments, say what is in effect."""
    if clear and cores is not None:
        raise UsageError("--clear takes every limit away and needs no number", "walproof lab cpu --clear")
    blueprint = home.load(name)
    if clear:
        cpu_limits.limit(blueprint, None, None)
    elif cores is not None:
        cpu_limits.limit(blueprint, member, _cores(cores))
    limits = {m: cpu_limits.cores_of(blueprint, m) for m in blueprint.members}
    words = ", ".join(f"{m} {c:g} cores" if c else f"{m} unlimited" for m, c in limits.items())
    _say(words, {"cores": limits}, as_json)


def _cores(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number of cores", "write it like 0.5 or 2") from None


def _say(words: str, facts: dict[str, object], as_json: bool) -> None:
    click.echo(json.dumps(facts) if as_json else words)
