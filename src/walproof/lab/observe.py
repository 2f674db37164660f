"""One snapshot of every member: Patroni's REST in parallel, one question to the leader. Changes nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import psycopg

from walproof.lab import members, patroni
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import now
from walproof.model.topology import ClusterView, MemberView, Role


def observe(blueprint: Blueprint) -> ClusterView:
    """Every member as its Patroni describes it, the leader's standby names; silent for a second is unreachable."""
    with ThreadPoolExecutor(max_workers=len(blueprint.members)) as pool:
        answers = pool.map(partial(patroni.status, blueprint), blueprint.members)
        statuses = dict(zip(blueprint.members, answers, strict=True))
    at = now()
    leading = [m for m, status in statuses.items() if patroni.leads(status)]
    leader = max(leading, key=lambda m: statuses[m].get("timeline") or 0, default=None)
    names = standby_names(blueprint, leader) if leader is not None else None
    head = _lsn(statuses[leader]) if leader is not None else None
    senders = {row.get("application_name"): row for row in statuses[leader].get("replication", [])} if leader else {}
    views = []
    for member in blueprint.members:
        status = statuses[member]
        lsn = _lsn(status)
        known = head is not None and lsn is not None
        views.append(
            MemberView(
                name=member,
                role=_role(status),
                state=_state(status) if status else _why_silent(blueprint, member),
                timeline=status.get("timeline"),
                lsn=lsn,
                lag_bytes=None if not known or member == leader else max(0, (head or 0) - (lsn or 0)),
                address=blueprint.address(member),
                sync_state=str(senders.get(member, {}).get("sync_state", "")),
                standby_names=names if member == leader else None,
                identity=f"{blueprint.name}/{member}",
            )
        )
    return ClusterView(at, tuple(views), leader, names or "")


def _role(status: dict[str, Any]) -> Role:
    if status.get("state") != "running":
        return Role.UNKNOWN
    return Role.LEADER if patroni.leads(status) else Role.STANDBY


def _state(status: dict[str, Any]) -> str:
    return str(status.get("replication_state") or status.get("state") or "unknown")


def _lsn(status: dict[str, Any]) -> int | None:
    wal = status.get("xlog") or {}
    found = [wal[key] for key in ("location", "received_location", "replayed_location") if wal.get(key) is not None]
    return max(found, default=None)


def _why_silent(blueprint: Blueprint, member: str) -> str:
    """Why a member does not answer: down (no process), frozen (all stopped), or unreachable."""
    found = members.processes(blueprint, member)
    if not found:
        return "down"
    with suppress(psutil.Error):
        if all(process.status() == psutil.STATUS_STOPPED for process in found):
            return "frozen"
    return "unreachable"


def standby_names(blueprint: Blueprint, member: str) -> str | None:
    """synchronous_standby_names in effect on that member, None when it does not answer within 2.5 s."""
    conninfo = blueprint.member_endpoint(member).conninfo(connect_timeout="2", application_name="walproof observe")
    answer: list[str] = []

    def ask() -> None:
        with suppress(psycopg.Error), psycopg.connect(conninfo, autocommit=True) as connection:
            row = connection.execute("SHOW synchronous_standby_names").fetchone()
            answer.extend(str(value) for value in row or ())

    # A member frozen in the middle of an answer stays silent while its kernel keeps the connection alive.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2.5)
    return answer[0] if answer else None
