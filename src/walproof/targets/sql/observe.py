"""One observation of every member over SQL, each asked in a thread of its own, and the members' rows as one view."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

import psycopg
from psycopg.rows import dict_row

from walproof.model.ports import Clock
from walproof.model.topology import ClusterView, Endpoint, MemberView, Role, Snapshot
from walproof.targets.sql.connection import answering

OBSERVE = (resources.files("walproof.targets.sql.queries") / "observe.sql").read_bytes()
_LONGEST_S = 5
_NO_STANDBYS = ("pg_basebackup", "pg_receivewal")
Row = dict[str, Any]


def rows_of(members: Mapping[str, Endpoint]) -> dict[str, Row]:
    """The row of each member that answers within a few seconds, by name."""
    rows: dict[str, Row] = {}

    def ask(name: str, endpoint: Endpoint) -> None:
        options = endpoint.conninfo(connect_timeout="2", application_name="walproof observe")
        try:
            with (
                psycopg.connect(options, autocommit=True, row_factory=dict_row) as connection,
                answering(connection, _LONGEST_S),
            ):
                row = connection.execute(OBSERVE).fetchone()
        except psycopg.Error:
            return
        if row is not None:
            rows[name] = row

    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in members.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=_LONGEST_S)
    return dict(rows)


def observed(members: Mapping[str, Endpoint], clock: Clock) -> ClusterView:
    """One observation of these members and, as the leader sees them, of standbys that could not be addressed."""
    rows = rows_of(members)
    view = combined(clock.now(), members, rows).view
    senders = rows[view.leader]["standbys"] if view.leader in rows and view.leader else []
    addresses = {m.address for m in view.members}
    others = tuple(
        MemberView(s["name"], Role.STANDBY, s["state"], address=s["address"] or "", sync_state=s["sync_state"])
        for s in senders
        if s["name"]
        and s["name"] not in (*members, *_NO_STANDBYS)
        and s["state"] == "streaming"
        and s["address"] not in addresses
    )
    return replace(view, members=(*view.members, *others))


def addresses_of(members: Mapping[str, Endpoint]) -> dict[str, str]:
    """Host per member, with the port where several share a host: an address must not stand for two."""
    hosts = [e.hosts[0][0] for e in members.values()]
    places = {name: e.hosts[0] for name, e in members.items()}
    return {name: f"{host}:{port}" if hosts.count(host) > 1 else host for name, (host, port) in places.items()}


def combined(now: float, members: Mapping[str, Endpoint], rows: Mapping[str, Row]) -> Snapshot:
    """Members' rows as one snapshot: the leader is the one not in recovery on the highest timeline. Pure."""
    addresses = addresses_of(members)
    leaders = [n for n, r in rows.items() if not r["standby"]]
    leader = max(leaders, key=lambda n: rows[n]["timeline"] or 0, default=None)
    first = rows[leader] if leader else None
    senders = {s["name"]: s for s in first["standbys"]} if first else {}
    by_address = {s["address"]: s for s in senders.values() if s["address"]}
    head = int(first["lsn"]) if first else None

    def member(name: str) -> MemberView:
        row = rows.get(name)
        if row is None:
            return MemberView(name, Role.UNKNOWN, "unreachable", address=addresses[name])
        sender = senders.get(name) or by_address.get(addresses[name]) or {}
        lsn = int(row["lsn"])
        return MemberView(
            name,
            Role.STANDBY if row["standby"] else Role.LEADER,
            (str(sender.get("state") or "not streaming") if row["standby"] else "running"),
            row["timeline"],
            lsn,
            None if head is None else max(0, head - lsn),
            addresses[name],
            str(sender.get("sync_state") or ""),
            row["names"],
            identity=name,
        )

    view = ClusterView(now, tuple(member(name) for name in members), leader, first["names"] if first else "")
    if first is None:
        return Snapshot(view)
    return Snapshot(view, int(first["commits"]), int(first["waiting"]), float(first["longest_wait_s"]))
