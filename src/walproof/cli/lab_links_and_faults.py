"""`walproof lab link` and `lab fault`: links shown and shaped, faults injected, listed and cleared."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import click
import cloup

from walproof.cli import options as opt
from walproof.cli.options import Command, Group
from walproof.errors import ExitCode, MachineError, UsageError
from walproof.lab import home, network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import catalogue, crashes, disks
from walproof.lab.faults.active import CLEAR
from walproof.lab.faults.acts import ON_A_MEMBER
from walproof.lab.faults.catalogue import FAULTS
from walproof.links.round_trips import Measured, Probing, matrix, read_regions, shipped, sites_of
from walproof.links.settings import Change, Links, LinkSetting, check_members, directions_of
from walproof.model.drill import Capability
from walproof.model.units import counted, duration_s, rate_bps, share
from walproof.reporting.console_output import console, plain_table, print_json, print_result


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The options of `lab link`, as typed."""

    members: tuple[str, ...]
    rtt: str | None = None
    delay: str | None = None
    jitter: str | None = None
    loss: str | None = None
    rate: str | None = None
    regions: str | None = None
    clear: bool = False

    @property
    def shape(self) -> bool:
        """Whether anything is given that shapes a link."""
        return any(text is not None for text in (self.rtt, self.delay, self.jitter, self.loss, self.rate))


@cloup.command(cls=Command)
@opt.member("members", nargs=-1, metavar="[MEMBER…]")
@opt.group(
    "Shape",
    opt.option("--rtt", "10ms", "Round trip of a pair, half each way."),
    opt.option("--delay", "5ms", "Delay of each direction."),
    opt.option("--jitter", "1ms", "Each delay varies by up to ± this."),
    opt.option("--loss", "0.1%", "Share of packets that are lost."),
    opt.option("--rate", "100mbit/s", "Bits per second, or none."),
    opt.option("--regions", "FILE|NAME", f"Every pair from a region file: {', '.join(shipped())}."),
    opt.flag("--clear", "Reset delay, jitter, loss and rate; a partition stays."),
)
@opt.option("--probes", "N", "Round trips measured per pair.", type=click.IntRange(1, 100_000), default=20)
@opt.of_a_lab
def link(probes: int, lab: str | None, as_json: bool, **options: Any) -> ExitCode:
    """Show the links, or shape them while the cluster runs: all, those of a member, a pair, or one direction."""
    given = LinkOptions(**options)
    blueprint = home.load(lab)
    if given.shape or given.regions or given.clear:
        change(blueprint, given)
    elif given.members:
        directions_of(given.members, blueprint.members)
    state = network_links.state(blueprint)
    measured = network_links.measured(blueprint, Probing(round_trips=probes, one_way=max(100, probes)))
    if as_json:
        print_json(links_json(state, measured))
    else:
        print_links(state, measured, given.members)
    return ExitCode.ENVIRONMENT if state.dead else ExitCode.HELD


def change(blueprint: Blueprint, given: LinkOptions) -> Links:
    """Do what the options ask; UsageError for options that contradict one another, before anything is changed."""
    if given.regions:
        if given.shape or given.clear or given.members:
            raise UsageError(
                "--regions cannot be used with other options or members", "it sets every pair; shape pairs later"
            )
        regions = read_regions(given.regions)
        table = matrix(regions, blueprint.members)
        sites = sites_of(regions, blueprint.members)
        click.echo(f"{regions.title}: {', '.join(f'{m} {s}' for m, s in sites.items())} ({regions.source})", err=True)
        return network_links.set_all(blueprint, table)
    directions = directions_of(given.members, blueprint.members)
    if given.clear:
        if given.shape:
            raise UsageError("--clear cannot be used with options that shape links", "give one or the other")
        return network_links.reset(blueprint, directions)
    if given.rtt and given.delay:
        raise UsageError("--rtt cannot be used with --delay", "give --rtt for pairs, --delay for directions")
    if given.rtt and any((b, a) not in directions for a, b in directions):
        raise UsageError("--rtt needs both directions of a pair", "give --delay with n1..n2, or name the pair: n1 n2")
    return network_links.shape(blueprint, directions, change_of(given))


def change_of(given: LinkOptions) -> Change:
    """The options in numbers; UsageError names the one that cannot be read."""

    def read(parse: Callable[[str], float], text: str | None) -> float | None:
        return None if text is None else parse(text)

    rtt = read(duration_s, given.rtt)
    delay = read(duration_s, given.delay) if rtt is None else rtt / 2
    rate = float("inf") if given.rate == "none" else read(rate_bps, given.rate)
    return Change(delay, read(duration_s, given.jitter), read(share, given.loss), rate)


def links_json(state: network_links.LinksState, measured: tuple[Measured, ...]) -> dict[str, Any]:
    """Everything `lab link` knows, for programs. Times in ms, loss as a share of 1."""
    links = state.links
    return {
        "link_emulator": state.emulator,
        "pid": state.pid,
        "real_time": state.real_time,
        "isolated": sorted(links.isolated),
        "links": [
            {
                "from": m.source,
                "to": m.destination,
                "configured": asdict(links.setting((m.source, m.destination))),
                "configured_rtt_ms": _rtt_ms(links, m),
                "rtt_ms": m.median_ms,
                "rtt_p99_ms": m.quantile_ms(0.99),
                "answered": len(m.round_trips_ms),
                "sent": m.sent,
                "loss": m.loss,
            }
            for m in measured
        ],
    }


def print_links(state: network_links.LinksState, measured: tuple[Measured, ...], members: tuple[str, ...]) -> None:
    """The state in one clause, then a row per direction."""
    screen = console()
    screen.print(state.summary, style="bold red" if state.dead else "bold")
    if state.needed and not state.dead and not state.real_time:
        screen.print("the link emulator has no real-time priority here: delays grow on a busy machine", style="yellow")
    table = plain_table("link", "configured", ">round trip configured", ">measured", ">p99", ">lost one way")
    wanted = directions_of(members, sorted({m.source for m in measured})) if members else None
    for m in measured:
        if wanted is None or (m.source, m.destination) in wanted:
            table.add_row(
                f"{m.source} → {m.destination}",
                setting_text(state.links.setting((m.source, m.destination))),
                f"{_rtt_ms(state.links, m):g} ms",
                _ms(m.median_ms),
                _ms(m.quantile_ms(0.99)),
                "–" if m.loss is None else f"{m.loss:.1%}",
            )
    screen.print(table)


def setting_text(setting: LinkSetting) -> str:
    """One direction in short.

    >>> setting_text(LinkSetting(delay_s=0.005, loss=0.001))
    '5 ms, 0.1% lost'
    """
    if setting.cut:
        return "cut"
    parts = []
    if setting.delay_s or setting.jitter_s:
        spread = f" ±{setting.jitter_s * 1e3:g}" if setting.jitter_s else ""
        parts.append(f"{setting.delay_s * 1e3:g}{spread} ms")
    if setting.loss:
        parts.append(f"{setting.loss * 100:g}% lost")
    if setting.rate_bps is not None:
        parts.append(f"{setting.rate_bps / 1e6:g} Mbit/s")
    return ", ".join(parts) or "unshaped"


def _rtt_ms(links: Links, m: Measured) -> float:
    there, back = links.setting((m.source, m.destination)), links.setting((m.destination, m.source))
    return round((there.delay_s + back.delay_s) * 1e3, 6)


def _ms(value: float | None) -> str:
    return "no answer" if value is None else f"{value:.2f} ms"


_CLEAR = f"`{CLEAR}` ends it"


@cloup.group(cls=Group)
def fault() -> None:
    """Inject a fault into the lab, list faults, or clear them."""


_INJECT, _MANAGE = cloup.Section("Inject"), cloup.Section("Show and clear")


def _injected(name: str, member: str | None, sentence: str, as_json: bool) -> None:
    print_result({"fault": name, "member": member}, sentence, as_json=as_json)


def _add(one: catalogue.Fault, inject: Callable[..., object]) -> None:
    """One command `lab fault NAME MEMBER`."""

    def command(member: str, lab: str | None, as_json: bool) -> None:
        inject(home.load(lab), member)
        ended = _CLEAR if one.cleared_by == CLEAR else one.cleared_by
        _injected(one.name, member, f"{one.name} of {member}: {one.happens}; {ended}", as_json)

    text = f"{one.happens[0].upper()}{one.happens[1:]}."
    fault.command(one.name, help=text, section=_INJECT)(opt.member()(opt.of_a_lab(command)))


for _fault in FAULTS:
    if _fault.capability in ON_A_MEMBER and _fault.capability is not Capability.PARTITION:
        _add(_fault, ON_A_MEMBER[_fault.capability][0])


@fault.command(section=_INJECT)
@opt.member("members", nargs=-1, required=True)
@opt.of_a_lab
def partition(members: tuple[str, ...], lab: str | None, as_json: bool) -> None:
    """Cut a member from every other one, or two members from one another; clients still reach them."""
    blueprint = home.load(lab)
    one_way = any(".." in one for one in members)
    if len(members) == 1 and not one_way:
        network_links.partition(blueprint, members[0])
    else:
        network_links.shape(blueprint, directions_of(members, blueprint.members), Change(cut=True))
    others = "" if one_way else " from every other member" if len(members) == 1 else " from one another"
    _injected("partition", ",".join(members), f"{' and '.join(members)} cut{others}; {_CLEAR}", as_json)


@fault.command(section=_INJECT)
@opt.member("source")
@opt.member("destination")
@opt.of_a_lab
def partition_one_way(source: str, destination: str, lab: str | None, as_json: bool) -> None:
    """Drop every packet from SOURCE to DESTINATION, not those of the other direction."""
    blueprint = home.load(lab)
    cut = directions_of((f"{source}..{destination}",), blueprint.members)
    network_links.shape(blueprint, cut, Change(cut=True))
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
    crashes.lose_dcs(home.load(lab))
    _injected("dcs-loss", None, f"etcd has no majority; {_CLEAR}", as_json)


@fault.command("list", section=_MANAGE)
@opt.of_a_lab
def list_faults(lab: str | None, as_json: bool) -> None:
    """Every fault, what it needs, whether it is available here; and the faults in effect."""
    try:
        blueprint = home.load(lab)
    except MachineError:
        blueprint = None
    reasons = catalogue.reasons(blueprint)
    now = catalogue.all_in_effect(blueprint) if blueprint else ()
    if as_json:
        print_json({"faults": [_as_json(one, reasons) for one in FAULTS], "in_effect": [asdict(one) for one in now]})
        return
    possible = sum(one.capability not in reasons for one in FAULTS)
    click.echo(f"{possible} of {counted(len(FAULTS), 'fault')} available here")
    table = plain_table("walproof …", "what happens", "capability", "here")
    table.columns[0].no_wrap = True
    for one in FAULTS:
        table.add_row(one.command, one.happens, one.capability.value, reasons.get(one.capability, "yes"))
    console().print(table)
    for present in now:
        click.echo(f"in effect: {catalogue.clause(present)}")


def _as_json(one: catalogue.Fault, reasons: dict[Capability, str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "happens": one.happens,
        "needs": one.capability.value,
        "available": one.capability not in reasons,
        "why_not": reasons.get(one.capability),
        "command": f"walproof {one.command}",
        "clear": one.cleared_by,
    }


@fault.command(section=_MANAGE)
@opt.member(required=False)
@opt.of_a_lab
def clear(member: str | None, lab: str | None, as_json: bool) -> None:
    """Undo every fault, or MEMBER's, and wait until the cluster is healthy; shaped links stay shaped."""
    blueprint = home.load(lab)
    check_members(() if member is None else (member,), blueprint.members)
    dead = False
    with suppress(MachineError):  # a damaged list of links keeps nothing from being cleared
        dead = network_links.state(blueprint).dead
    cleared = [*(["death of the link emulator"] * dead), *catalogue.recover(blueprint, member=member)]
    left = [catalogue.clause(one) for one in catalogue.all_in_effect(blueprint)]
    first = f"Cleared: {', '.join(cleared)}" if cleared else "Nothing had to be cleared"
    then = f"still in effect: {', '.join(left)}" if left else "the cluster is healthy"
    tree = {"cleared": cleared, "in_effect": left, "healthy": not left}
    print_result(tree, f"{first}; {then}.", as_json=as_json)
