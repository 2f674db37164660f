"""The lab's cluster as its Patroni shows it: REST member by member, one snapshot of all, and when it is healthy.

Healthy: a leader, every standby streaming on its timeline, the quorum's names in effect."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import psutil
import psycopg

from walproof.errors import TargetError, WaitTimeout
from walproof.lab import home, members
from walproof.lab.blueprint import Blueprint
from walproof.machine.answering import BoundedLogin, answering
from walproof.machine.clock import now
from walproof.model.facts import LEADER_ROLES
from walproof.model.guarantee import read_standby_names
from walproof.model.patroni_values import synchronous_mode, synchronous_node_count
from walproof.model.ports import Clock
from walproof.model.standby_names import folded
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.model.waiting import Wait, longest_s, wait_for
from walproof.patroni.rest import PatroniRest, RestAccess


@lru_cache(maxsize=4)
def _client(urls: tuple[str, ...], password: str) -> PatroniRest:
    # Plain HTTP: loading the certificates of a CA would only cost time.
    access = RestAccess(
        urls, "walproof", password, verify=False, timeout_s=1.0, hint="walproof lab status", plain_http=True
    )
    return PatroniRest(access)


def rest(blueprint: Blueprint) -> PatroniRest:
    """The client of this lab's Patroni, made once per process; a member that does not answer costs a second."""
    return _client(tuple(map(blueprint.rest_url, blueprint.members)), home.read_secrets(blueprint)["rest"])


def member_status(blueprint: Blueprint, member: str, path: str = "/patroni") -> dict[str, Any]:
    """GET of that path of a member's Patroni; {} when it does not answer, or the lab is being destroyed."""
    try:
        client = rest(blueprint)
    except OSError:
        return {}
    return client.status(blueprint.rest_url(member) + path)


def leads(status: dict[str, Any]) -> bool:
    """Whether a member says in its /patroni that it runs as the leader."""
    return status.get("role") in LEADER_ROLES and status.get("state") == "running"


def any_answering(blueprint: Blueprint) -> str:
    """A member whose Patroni answers, a leader before others; TargetError when none does."""
    standby = None
    for member in blueprint.members:
        answer = member_status(blueprint, member)
        if leads(answer):
            return member
        if answer:
            standby = standby or member
    if standby is None:
        raise TargetError("no member's Patroni answers", "walproof lab status")
    return standby


def config(blueprint: Blueprint) -> dict[str, Any]:
    """The dynamic configuration, as the leader knows it."""
    return rest(blueprint).config(at=blueprint.rest_url(any_answering(blueprint)))


def patch_config(blueprint: Blueprint, change: dict[str, Any]) -> None:
    """Change the dynamic configuration; None removes a key."""
    rest(blueprint).patch(change, at=blueprint.rest_url(any_answering(blueprint)))


def pause(blueprint: Blueprint, paused: bool) -> None:
    """Maintenance mode: Patroni takes no action."""
    patch_config(blueprint, {"pause": True if paused else None})


def restart(blueprint: Blueprint, member: str) -> None:
    """Restart PostgreSQL of that member; returns when Patroni has done it."""
    rest(blueprint).restart(blueprint.rest_url(member))


def observe(blueprint: Blueprint) -> ClusterView:
    """Every member as its Patroni describes it, the leader's standby names; silent for a second is unreachable."""
    with ThreadPoolExecutor(max_workers=len(blueprint.members)) as pool:
        answers = pool.map(partial(member_status, blueprint), blueprint.members)
        statuses = dict(zip(blueprint.members, answers, strict=True))
    at = now()
    leading = [m for m, status in statuses.items() if leads(status)]
    leader = max(leading, key=lambda m: statuses[m].get("timeline") or 0, default=None)
    names = standby_names(blueprint, leader) if leader is not None else None
    head = _lsn(statuses[leader]) if leader is not None else None
    rows = statuses[leader].get("replication", []) if leader else []
    senders = {folded(row.get("application_name") or ""): row for row in rows}
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
                sync_state=str(senders.get(folded(member), {}).get("sync_state", "")),
                standby_names=names if member == leader else None,
                identity=f"{blueprint.name}/{member}",
            )
        )
    return ClusterView(at, tuple(views), leader, names or "")


def _role(status: dict[str, Any]) -> Role:
    if status.get("state") != "running":
        return Role.UNKNOWN
    return Role.LEADER if leads(status) else Role.STANDBY


def _state(status: dict[str, Any]) -> str:
    return str(status.get("replication_state") or status.get("state") or "unknown")


def _lsn(status: dict[str, Any]) -> int | None:
    wal = status.get("xlog") or {}
    positions = [wal[key] for key in ("location", "received_location", "replayed_location") if wal.get(key) is not None]
    return max(positions, default=None)


def _why_silent(blueprint: Blueprint, member: str) -> str:
    """Why a member does not answer: down (no process), frozen (all stopped), or unreachable."""
    processes = members.processes(blueprint, member)
    if not processes:
        return "down"
    with suppress(psutil.Error):
        if all(process.status() == psutil.STATUS_STOPPED for process in processes):
            return "frozen"
    return "unreachable"


def standby_names(blueprint: Blueprint, member: str) -> str | None:
    """synchronous_standby_names in effect on that member, None when it does not answer within 2.5 s."""
    conninfo = blueprint.member_endpoint(member).conninfo(connect_timeout="2", application_name="walproof observe")
    answer: list[str] = []

    def ask() -> None:
        with (
            suppress(psycopg.Error),
            BoundedLogin.connect(conninfo, autocommit=True) as connection,
            answering(connection, 2.0),
        ):
            row = connection.execute("SHOW synchronous_standby_names").fetchone()
            answer.extend(str(value) for value in row or ())

    # A member frozen in the middle of an answer stays silent while its kernel keeps the connection alive.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2.5)
    return answer[0] if answer else None


def health_problem(members: tuple[str, ...], view: ClusterView, config: dict[str, Any]) -> str:
    """Why the cluster is not healthy, one clause; "" when it is. config is Patroni's, as in the DCS."""
    if view.leader is None:
        return "there is no leader"
    head = view.member(view.leader)
    for member in members:
        seen = view.member(member)
        if seen is None or member == view.leader:
            continue
        if seen.state != "streaming":
            return f"{member} is {seen.state}, not streaming"
        if head is not None and seen.timeline != head.timeline:
            return f"{member} is on timeline {seen.timeline}, the leader on {head.timeline}"
    return _problem_of_names(members, view, config)


def _problem_of_names(members: tuple[str, ...], view: ClusterView, config: dict[str, Any]) -> str:
    mode = synchronous_mode(config)
    quorum = read_standby_names(view.standby_names)
    standbys = [m for m in members if m != view.leader]
    if mode == "off" or not standbys:
        return "" if quorum is None or mode != "off" else "standby names are still in effect"
    wanted = min(synchronous_node_count(config), len(standbys))
    if quorum is None or quorum.open:
        return "no standby is named synchronous"
    named = [m for m in standbys if quorum.counts(m)]
    expected = len(standbys) if mode == "quorum" else wanted
    if len(named) < expected or quorum.k != wanted:
        return f"the names in effect are {quorum.text}"
    synchronous = [m for m in view.synchronous if m in named]
    return "" if len(synchronous) >= expected else "a named standby is not synchronous yet"


def current_problem(blueprint: Blueprint, wanted: dict[str, Any] | None = None) -> str:
    """The same, of the lab now; `wanted` goes over Patroni's configuration, which may lag behind a change."""
    try:
        return health_problem(blueprint.members, observe(blueprint), {**config(blueprint), **(wanted or {})})
    except TargetError as error:
        return error.message


def wait_until_healthy(blueprint: Blueprint, clock: Clock, *, wanted: dict[str, Any] | None = None) -> None:
    """Wait until the cluster is healthy; WaitTimeout says why it is not.

    A member that is not streaming after half of the wait is cloned again from the leader.
    """
    reason = [""]
    started = clock.now()
    cloned: set[str] = set()

    def healthy() -> bool:
        reason[0] = current_problem(blueprint, wanted)
        if reason[0] and clock.now() - started > longest_s(Wait.CLUSTER_HEALTHY, clock) / 2:
            _clone_again(blueprint, cloned)
        return not reason[0]

    try:
        wait_for(Wait.CLUSTER_HEALTHY, healthy, clock, pace_s=0.25)
    except WaitTimeout as timeout:
        raise WaitTimeout(f"{timeout.message}: {reason[0]}", timeout.hint) from None


def _clone_again(blueprint: Blueprint, cloned: set[str]) -> None:
    view = observe(blueprint)
    if view.leader is None:
        return
    for seen in view.members:
        if seen.name != view.leader and seen.state != "streaming" and seen.name not in cloned:
            cloned.add(seen.name)
            try:
                rest(blueprint).reinitialize(blueprint.rest_url(seen.name))
            except TargetError:
                # Its Patroni is busy or down: the wait goes on and reports it at its end.
                continue
