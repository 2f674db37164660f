"""How `walproof lab status` looks: a table for people, one object for programs."""

import json

from rich.console import Console
from rich.table import Table

from walproof.model.topology import ClusterView


def status_json(view: ClusterView, *, wire_dead: bool = False) -> str:
    """The object of `lab status --json`; `"wire": "dead"` in it only when links are asked that nobody carries."""
    return json.dumps(
        {
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
            **({"wire": "dead"} if wire_dead else {}),
        }
    )


def status_table(view: ClusterView, console: Console) -> None:
    """One conclusion, then a row a member."""
    streaming = sum(m.state == "streaming" for m in view.members)
    console.print(
        f"[bold]{view.leader or 'nobody'}[/bold] leads, {streaming} of {len(view.members) - 1} standbys stream, "
        f"{len(view.synchronous)} count for a commit."
        if view.leader
        else "[bold red]There is no leader.[/bold red]"
    )
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
    console.print(f"synchronous_standby_names: {view.standby_names or '(none)'}")
