"""`walproof lab link`: the links between members of a lab, shown and shaped."""

from dataclasses import asdict, dataclass
from typing import Any

import click
import cloup
from rich.table import Table

from walproof.cli import options as opt
from walproof.cli.console import console, print_json
from walproof.cli.groups import Command
from walproof.errors import UsageError
from walproof.lab import home, member_links
from walproof.lab.blueprint import Blueprint
from walproof.links.measure import Measured, Probing
from walproof.links.settings import Change, Links, LinkSetting, directions_of
from walproof.links.sites import matrix, read_regions, shipped, sites_of
from walproof.model.units import duration_s, rate_bps, share


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
    def shape(self) -> dict[str, str]:
        """What shapes a link, by option."""
        typed = {"rtt": self.rtt, "delay": self.delay, "jitter": self.jitter, "loss": self.loss, "rate": self.rate}
        return {name: text for name, text in typed.items() if text is not None}

    @property
    def changes(self) -> bool:
        """Whether anything is to be changed at all."""
        return bool(self.shape or self.regions or self.clear)


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
def link(probes: int, lab: str | None, as_json: bool, **options: Any) -> int:
    """Show the links, or shape them while the cluster runs: all, those of a member, a pair, or one direction."""
    given = LinkOptions(**options)
    blueprint = home.load(lab)
    if given.changes:
        change(blueprint, given)
    elif given.members:
        directions_of(given.members, blueprint.members)
    state = member_links.state(blueprint)
    found = member_links.measured(blueprint, Probing(round_trips=probes, one_way=max(100, probes)))
    if as_json:
        print_json(links_json(state, found))
    else:
        print_links(state, found, given.members)
    return 3 if state.dead else 0


def change(blueprint: Blueprint, given: LinkOptions) -> Links:
    """Do what the options ask; UsageError for options that contradict one another, before anything is changed."""
    if given.regions:
        if given.shape or given.clear or given.members:
            raise UsageError("--regions sets every pair at once", "give it alone, then shape single pairs")
        regions = read_regions(given.regions)
        table = matrix(regions, blueprint.members)
        sites = sites_of(regions, blueprint.members)
        click.echo(f"{regions.title}: {', '.join(f'{m} {s}' for m, s in sites.items())} ({regions.source})", err=True)
        return member_links.set_all(blueprint, table)
    directions = directions_of(given.members, blueprint.members)
    if given.clear:
        if given.shape:
            raise UsageError("--clear resets links and the other options shape them", "give one or the other")
        return member_links.reset(blueprint, directions)
    if given.rtt and given.delay:
        raise UsageError("--rtt and --delay both set the delay", "give --rtt for pairs, --delay for directions")
    if given.rtt and any((b, a) not in directions for a, b in directions):
        raise UsageError("one direction has no round trip", "give --delay with n1..n2, or name the pair: n1 n2")
    return member_links.shape(blueprint, directions, change_of(given))


def change_of(given: LinkOptions) -> Change:
    """The options in numbers; UsageError names the one that cannot be read."""
    typed = given.shape
    delay = duration_s(typed["rtt"]) / 2 if "rtt" in typed else duration_s(typed["delay"]) if "delay" in typed else None
    rate = None
    if "rate" in typed:
        rate = float("inf") if typed["rate"] == "none" else rate_bps(typed["rate"])
    return Change(
        delay,
        duration_s(typed["jitter"]) if "jitter" in typed else None,
        share(typed["loss"]) if "loss" in typed else None,
        rate,
    )


def links_json(state: member_links.LinksState, found: tuple[Measured, ...]) -> dict[str, Any]:
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
            for m in found
        ],
    }


def print_links(state: member_links.LinksState, found: tuple[Measured, ...], members: tuple[str, ...]) -> None:
    """The state in one clause, then a row per direction."""
    screen = console()
    screen.print(state.summary, style="bold red" if state.dead else "bold")
    if state.needed and not state.dead and not state.real_time:
        screen.print("the link emulator has no real-time priority here: delays grow on a busy machine", style="yellow")
    table = Table(box=None, pad_edge=False)
    for name in ("link", "configured", "round trip configured", "measured", "p99", "lost one way"):
        table.add_column(name, justify="left" if name in ("link", "configured") else "right")
    wanted = directions_of(members, sorted({m.source for m in found})) if members else None
    for m in found:
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
