"""The picture as lines for a terminal. Pure: picture in, rich renderables out."""

from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from walproof.model.guarantee import Level
from walproof.watching.picture import Picture, Point

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def spark(values: list[float]) -> str:
    """A line of bars, the highest value at full height.

    >>> spark([0, 1, 2])
    '▁▅█'
    """
    peak = max(values, default=0)
    return "".join(BARS[min(len(BARS) - 1, int(v / peak * (len(BARS) - 1) + 0.5))] if peak else BARS[0] for v in values)


def drawn(picture: Picture) -> RenderableType:
    """Promise first, then members, links, throughput, latency and what happened."""
    return Group(_head(picture), _members(picture), *_links(picture), *_series(picture), *_happenings(picture))


def _head(picture: Picture) -> Text:
    bad = not picture.leader or picture.left < 0 or (picture.declared and not picture.in_effect)
    head = Text(f"{picture.target}: ", style="dim")
    head.append(picture.promise or "no look yet", style="bold red" if bad else "bold green")
    if picture.waiting:
        head.append(
            f"\n{picture.waiting} sessions wait for a standby, the longest {picture.longest_wait_s:.1f} s", "yellow"
        )
    return head


def _members(picture: Picture) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (
        ("member", "left"),
        ("role", "left"),
        ("state", "left"),
        ("sync", "left"),
        ("timeline", "right"),
        ("lag", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for m in picture.members:
        style = {"leader": "green", "unknown": "red"}.get(m.role, "")
        lag = "–" if m.lag_bytes is None else f"{m.lag_bytes / 1024:,.0f} kB"
        role = "silent" if m.role == "unknown" else m.role
        table.add_row(m.name, Text(role, style), m.state, m.sync_state or "–", str(m.timeline or "–"), lag)
    return table


def _links(picture: Picture) -> list[Text]:
    cut = [f"{link.source} → {link.destination}" for link in picture.links if link.cut]
    shaped = sorted({f"{link.rtt_ms:g} ms" for link in picture.links if link.rtt_ms})
    lines = [Text("cut: " + ", ".join(cut), "red")] if cut else []
    return lines + ([Text("round trips: " + ", ".join(shaped), "dim")] if shaped else [])


def _series(picture: Picture) -> list[Text]:
    def of(series: str, value: str) -> list[float]:
        points: list[Point] = [p for p in picture.points if p.series == series and getattr(p, value) is not None]
        return [float(getattr(p, value)) for p in points][-WIDTH:]

    lines = []
    commits = of("all", "tps")
    if commits:
        lines.append(Text(f"commits/s {commits[-1]:>9,.0f}  {spark(commits)}"))
    for level in Level:
        ms = of(level, "ms")
        if ms:
            lines.append(Text(f"{level:<13} {ms[-1]:>6.2f} ms  {spark(ms)}"))
    return lines


def _happenings(picture: Picture) -> list[Text]:
    return [
        Text.assemble((datetime.fromtimestamp(h.at).strftime("%H:%M:%S  "), "dim"), h.text)
        for h in picture.happenings[-12:]
    ]
