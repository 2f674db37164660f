"""How a cluster's members are shown: one clause, a table for people, one object for programs."""

from typing import Any

from rich.console import Console
from rich.table import Table

from walproof.model.topology import ClusterView
from walproof.model.units import counted


def status_json(view: ClusterView) -> dict[str, Any]:
    """The object of `lab status --json` and `watch --json`."""
    return {
        "members": [
            {
                "name": m.name,
                "role": m.role.value,
                "state": m.state,
                "timeline": m.timeline,
                "lag_bytes": m.lag_bytes,
                "address": m.address,
            }
            for m in view.members
        ],
        "leader": view.leader,
        "synchronous_standby_names": view.standby_names,
    }


def summary(view: ClusterView) -> str:
    """The leader and its standbys in one clause: "leader n1, 2 standbys streaming and synchronous"."""
    if view.leader is None:
        return "no leader"
    others = len(view.members) - 1
    streaming, synchronous = sum(m.state == "streaming" for m in view.members), len(view.synchronous)
    if streaming == synchronous == others:
        return f"leader {view.leader}, {counted(others, 'standby')}" + (" streaming and synchronous" if others else "")
    return f"leader {view.leader}, {streaming} of {counted(others, 'standby')} streaming, {synchronous} synchronous"


def print_status(view: ClusterView, console: Console) -> None:
    """The summary, then a row per member."""
    console.print(summary(view), style="bold" if view.leader else "bold red")
    table = Table(box=None, pad_edge=False)
    for title in ("member", "role", "state", "timeline", "lag, bytes", "synchronous", "address"):
        table.add_column(title, justify="right" if title in ("timeline", "lag, bytes") else "left")
    for m in view.members:
        table.add_row(
            m.name,
            m.role.value,
            m.state,
            "" if m.timeline is None else str(m.timeline),
            "" if m.lag_bytes is None else f"{m.lag_bytes:,}",
            m.sync_state,
            m.address,
        )
    console.print(table)
    console.print(f"synchronous_standby_names: {view.standby_names or '(none)'}", markup=False)
