"""`walproof lab link|cut|isolate|heal`: the links of a lab from the command line. Decides nothing."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from walproof.errors import UsageError
from walproof.lab import member_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.home import load
from walproof.links.measure import Measured, Probing
from walproof.links.settings import Change, Links, LinkSetting, directions_of
from walproof.links.sites import matrix, read_regions, shipped, sites_of
from walproof.model.units import duration_s, rate_bps, share


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `lab link`, as typed."""

    members: tuple[str, ...]
    rtt: str | None
    delay: str | None
    jitter: str | None
    loss: str | None
    rate: str | None
    cut: bool
    regions: str | None
    clear: bool

    @property
    def shape(self) -> dict[str, str]:
        """What shapes a link, by option."""
        words = {"rtt": self.rtt, "delay": self.delay, "jitter": self.jitter, "loss": self.loss, "rate": self.rate}
        return {name: word for name, word in words.items() if word is not None}

    @property
    def changes(self) -> bool:
        """Whether anything is to be changed at all."""
        return bool(self.shape or self.cut or self.regions or self.clear)


@click.command("link", context_settings={"ignore_unknown_options": False})
@click.argument("members", nargs=-1, metavar="[MEMBER...]")
@click.option("--rtt", metavar="10ms", help="Round trip of a pair, half each way.")
@click.option("--delay", metavar="5ms", help="Delay of each direction.")
@click.option("--jitter", metavar="1ms", help="Each delay varies by up to ± this.")
@click.option("--loss", metavar="0.1%", help="Share of packets that vanish.")
@click.option("--rate", metavar="100mbit/s", help="Bits per second, or none.")
@click.option("--cut", is_flag=True, help="Nothing passes.")
@click.option("--regions", metavar="FILE|NAME", help=f"A whole matrix from a region file: {', '.join(shipped())}.")
@click.option("--clear", is_flag=True, help="Unshape; what is cut stays cut (lab heal).")
@click.option(
    "--probes", metavar="N", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Round trips a pair."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def link(probes: int, as_json: bool, **options: Any) -> int:
    """Show the links, or set them while the cluster runs.

    \b
    walproof lab link                       asked and measured, every pair
    walproof lab link --rtt 10ms            all pairs
    walproof lab link n1 n3 --rtt 40ms --loss 0.1%
    walproof lab link n1..n2 --cut          one way only
    walproof lab link --regions europe
    walproof lab link --clear
    """
    asked = Asked(**options)
    blueprint = load()
    if asked.changes:
        change(blueprint, asked)
    elif asked.members:
        directions_of(asked.members, blueprint.members)
    state = member_links.state(blueprint)
    found = member_links.measured(blueprint, Probing(round_trips=probes, one_way=max(100, probes)))
    if as_json:
        click.echo(json.dumps(as_object(state, found)))
    else:
        show(state, found, asked.members)
    return 3 if state.dead else 0


@click.command("cut")
@click.argument("member")
def cut(member: str) -> int:
    """Cut MEMBER from every other member; clients still reach it."""
    return _said(
        member_links.partition(load(), member), f"{member} is cut from every other member; clients still reach it."
    )


@click.command("isolate")
@click.argument("member")
def isolate(member: str) -> int:
    """Cut MEMBER from everybody, clients too."""
    return _said(member_links.isolate(load(), member), f"{member} is cut from everybody, clients too.")


@click.command("heal")
def heal() -> int:
    """Undo every fault, cut and isolation and wait until the cluster is whole; the shape of the links stays."""
    from walproof.lab.faults.recover import recover

    blueprint = load()
    dead = member_links.state(blueprint).dead
    undone = (*(["death of the link emulator"] if dead else []), *recover(blueprint))
    click.echo(
        f"The cluster is whole. Undone: {', '.join(undone)}."
        if undone
        else "The cluster is whole; nothing had to be undone."
    )
    return 0


def change(blueprint: Blueprint, asked: Asked) -> Links:
    """Do what the options ask; UsageError for options that contradict one another, before anything is changed."""
    if asked.regions:
        if asked.shape or asked.clear or asked.cut or asked.members:
            raise UsageError("--regions sets every pair at once", "give it alone, then shape single pairs")
        regions = read_regions(asked.regions)
        table = matrix(regions, blueprint.members)
        home = sites_of(regions, blueprint.members)
        click.echo(f"{regions.title}: {', '.join(f'{m} {s}' for m, s in home.items())} ({regions.source})", err=True)
        return member_links.set_all(blueprint, table)
    directions = directions_of(asked.members, blueprint.members)
    if asked.clear:
        if asked.shape or asked.cut:
            raise UsageError("--clear takes the shape away and the other options set it", "give one or the other")
        return member_links.reset(blueprint, directions)
    if asked.rtt and asked.delay:
        raise UsageError("--rtt and --delay say the same twice", "give --rtt for pairs, --delay for directions")
    if asked.rtt and any((b, a) not in directions for a, b in directions):
        raise UsageError("one way has no round trip", "give --delay with n1..n2, or name the pair: n1 n2")
    return member_links.shape(blueprint, directions, change_of(asked))


def change_of(asked: Asked) -> Change:
    """The options in numbers; UsageError names the one that cannot be read."""
    words = asked.shape
    delay = duration_s(words["rtt"]) / 2 if "rtt" in words else duration_s(words["delay"]) if "delay" in words else None
    rate = None
    if "rate" in words:
        rate = float("inf") if words["rate"] == "none" else rate_bps(words["rate"])
    return Change(
        delay,
        duration_s(words["jitter"]) if "jitter" in words else None,
        share(words["loss"]) if "loss" in words else None,
        rate,
        True if asked.cut else None,
    )


def as_object(state: member_links.LinksState, found: tuple[Measured, ...]) -> dict[str, Any]:
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
                "asked": asdict(links.setting((m.source, m.destination))),
                "asked_rtt_ms": _rtt_ms(links, m),
                "rtt_ms": m.median_ms,
                "rtt_p99_ms": m.quantile_ms(0.99),
                "answered": len(m.round_trips_ms),
                "sent": m.sent,
                "loss": m.loss,
            }
            for m in found
        ],
    }


def show(state: member_links.LinksState, found: tuple[Measured, ...], members: tuple[str, ...]) -> None:
    """The conclusion, then a row a direction."""
    console = Console()
    console.print(state.summary, style="bold red" if state.dead else "bold")
    if state.needed and not state.dead and not state.real_time:
        console.print("the link emulator has no real-time priority here: delays grow on a busy machine", style="yellow")
    table = Table(box=None, pad_edge=False)
    for name in ("link", "asked", "round trip asked", "measured", "p99", "lost one way"):
        table.add_column(name, justify="left" if name in ("link", "asked") else "right")
    wanted = directions_of(members, sorted({m.source for m in found})) if members else None
    for m in found:
        if wanted is None or (m.source, m.destination) in wanted:
            table.add_row(
                f"{m.source} → {m.destination}",
                words_of(state.links.setting((m.source, m.destination))),
                f"{_rtt_ms(state.links, m):g} ms",
                _ms(m.median_ms),
                _ms(m.quantile_ms(0.99)),
                "–" if m.loss is None else f"{m.loss:.1%}",
            )
    console.print(table)


def words_of(setting: LinkSetting) -> str:
    """One direction in short words.

    >>> words_of(LinkSetting(delay_s=0.005, loss=0.001))
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


def _said(links: Links, words: str) -> int:
    click.echo(words)
    if links.cuts:
        click.echo("  next: walproof lab heal")
    return 0
