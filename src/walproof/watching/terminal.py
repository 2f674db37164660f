"""The picture as lines for a terminal. Pure: picture in, rich renderables out."""

from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from walproof.estimating.observed_waits import Cause
from walproof.machine.untrusted import field
from walproof.model.guarantee import Level
from walproof.model.topology import Role
from walproof.watching.picture import STALE_S, Picture
from walproof.watching.silent_leader import NOT_FAILOVER

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
_STYLES = {"bad": "bold red", "warn": "bold yellow", "good": "bold green", "": "dim"}


def sparkline(values: list[float]) -> str:
    """A line of bars, the highest value at full height.

    >>> sparkline([0, 1, 2])
    '▁▅█'
    """
    peak = max(values, default=0)
    return "".join(BARS[min(len(BARS) - 1, int(v / peak * (len(BARS) - 1) + 0.5))] if peak else BARS[0] for v in values)


def rendered(picture: Picture, stale_s: float | None = None) -> RenderableType:
    """Synchronous replication first, then members, links, throughput, latency and events; and whether it is old."""
    old = f"not renewed for {stale_s:.0f} s: this may no longer be so\n" if stale_s and stale_s > STALE_S else ""
    return Group(
        Text(old, "bold red", end=""),
        _head(picture),
        _members(picture),
        *_links(picture),
        *_series(picture),
        *_events(picture),
    )


def _head(picture: Picture) -> Text:
    head = Text(f"{field(picture.target)}: ", style="dim")
    head.append(field(picture.summary) or "no snapshot yet", style=_STYLES[picture.severity])
    if picture.waiting and picture.longest_wait_s is not None:
        sessions = f"{picture.waiting} session{'s wait' if picture.waiting > 1 else ' waits'}"
        head.append(f"\n{sessions} for a standby, the longest {picture.longest_wait_s:.1f} s", "yellow")
    if picture.waits:
        head.append(f"\n{field(picture.waits)}", "dim")
    if silent := picture.silent_leader:
        head.append(f"\n{field(silent.text)}\ntype: {field(silent.command)}", "bold red")
        head.append(f"\n{NOT_FAILOVER}", "yellow")
    return head


def _members(picture: Picture) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("member", "role", "state", "sync"):
        table.add_column(name)
    for name in ("timeline", "lag"):
        table.add_column(name, justify="right")
    for m in picture.members:
        role = Text("unreachable", "red") if m.role is Role.UNKNOWN else Text(m.role, "green" * (m.role is Role.LEADER))
        lag = "–" if m.lag_bytes is None else f"{m.lag_bytes / 1024:,.0f} kB"
        table.add_row(field(m.name), role, field(m.state), field(m.sync_state or "–"), str(m.timeline or "–"), lag)
    return table


def _links(picture: Picture) -> list[Text]:
    cut = [field(f"{link.source} → {link.destination}") for link in picture.links if link.cut]
    delayed = sorted({f"{link.rtt_ms:g} ms" for link in picture.links if link.rtt_ms})
    lines = [Text("partitioned: " + ", ".join(cut), "red")] if cut else []
    return lines + ([Text("round trips: " + ", ".join(delayed), "dim")] if delayed else [])


def _series(picture: Picture) -> list[Text]:
    lines = []
    tps = [p.tps for p in picture.points if p.series == "all" and p.tps is not None][-WIDTH:]
    if tps:
        lines.append(Text(f"commits/s {tps[-1]:>9,.0f}  {sparkline(tps)}"))
    shown = {}
    for series in (*Level, *Cause):
        ms = [p.ms if p.waited is None else p.waited for p in picture.points if p.series == series][-WIDTH:]
        shown[series] = [one for one in ms if one is not None]
    names = [series for series, known in shown.items() if any(known)]
    width = max(map(len, names), default=0)
    lines += [Text(f"{name:<{width}} {shown[name][-1]:>8.2f} ms  {sparkline(shown[name])}") for name in names]
    if picture.probes:
        lines.append(Text("canary: " + ", ".join(f"{n:,} {outcome}" for outcome, n in picture.probes.items()), "dim"))
    return lines


def _events(picture: Picture) -> list[Text]:
    return [Text.assemble((_time(e.at), "dim"), field(e.text)) for e in picture.events[-12:]]


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%H:%M:%S  ")
    except (ValueError, OverflowError, OSError):
        return "–  "  # a record may be a stranger's
