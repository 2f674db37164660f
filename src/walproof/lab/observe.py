"""One quick look at every member: Patroni's REST in parallel, one question to the leader. Changes nothing."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil
import psycopg

from walproof.lab import members, patroni
from walproof.lab.blueprint import Blueprint
from walproof.model.topology import ClusterView, MemberView, Role

_LEADING = ("primary", "master")


def look(blueprint: Blueprint) -> ClusterView:
    """Every member as it says itself, the leader's standby names; who does not answer in a second is unreachable."""
    with ThreadPoolExecutor(max_workers=len(blueprint.members)) as pool:
        answers = dict(zip(blueprint.members, pool.map(lambda m: _ask(blueprint, m), blueprint.members), strict=True))
    at = time.time()
    leading = [m for m, said in answers.items() if said.get("role") in _LEADING and said.get("state") == "running"]
    leader = max(leading, key=lambda m: answers[m].get("timeline") or 0, default=None)
    names = standby_names(blueprint, leader) if leader is not None else None
    head = _lsn(answers[leader]) if leader is not None else None
    senders = {row.get("application_name"): row for row in answers[leader].get("replication", [])} if leader else {}
    views = []
    for member in blueprint.members:
        said = answers[member]
        lsn = _lsn(said)
        known = head is not None and lsn is not None
        views.append(
            MemberView(
                name=member,
                role=_role(said),
                state=_state(said) if said else _silence(blueprint, member),
                timeline=said.get("timeline"),
                lsn=lsn,
                lag_bytes=None if not known or member == leader else max(0, (head or 0) - (lsn or 0)),
                address=blueprint.address(member),
                sync_state=str(senders.get(member, {}).get("sync_state", "")),
                standby_names=names if member == leader else None,
            )
        )
    return ClusterView(at, tuple(views), leader, names or "")


def _ask(blueprint: Blueprint, member: str) -> dict[str, Any]:
    try:
        _, said = patroni.ask(blueprint, member, "/patroni")
    except OSError:
        return {}
    return said if isinstance(said, dict) else {}


def _role(said: dict[str, Any]) -> Role:
    if not said or said.get("state") != "running":
        return Role.UNKNOWN
    if said.get("role") in _LEADING:
        return Role.LEADER
    return Role.STANDBY


def _state(said: dict[str, Any]) -> str:
    return str(said.get("replication_state") or said.get("state") or "unknown")


def _lsn(said: dict[str, Any]) -> int | None:
    wal = said.get("xlog") or {}
    found = [wal[key] for key in ("location", "received_location", "replayed_location") if wal.get(key) is not None]
    return max(found, default=None)


def _silence(blueprint: Blueprint, member: str) -> str:
    """Why a member may be silent: its processes are gone, stopped, or only unreachable."""
    found = members.processes(blueprint, member)
    if not found:
        return "down"
    try:
        if all(process.status() == psutil.STATUS_STOPPED for process in found):
            return "frozen"
    except psutil.Error:
        pass
    return "unreachable"


def standby_names(blueprint: Blueprint, member: str) -> str | None:
    """synchronous_standby_names in effect on that member, None when it does not say."""
    way = blueprint.member_endpoint(member).conninfo(connect_timeout="2", application_name="walproof look")
    told: list[str] = []

    def ask() -> None:
        with suppress(psycopg.Error), psycopg.connect(way, autocommit=True) as link:
            row = link.execute("SHOW synchronous_standby_names").fetchone()
            told.extend(str(value) for value in row or ())

    # A member frozen in the middle of an answer stays silent while its kernel keeps the connection alive.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2.5)
    return told[0] if told else None
