"""When a lab's cluster is healthy: a leader, every standby streaming on its timeline, the quorum's names in effect."""

from typing import Any

from walproof.errors import TargetError, WaitTimeout
from walproof.lab import patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.observe import observe
from walproof.model.guarantee import read_standby_names
from walproof.model.ports import Clock
from walproof.model.topology import ClusterView
from walproof.model.waiting import Wait, longest_s, wait_for


def problem(members: tuple[str, ...], view: ClusterView, config: dict[str, Any]) -> str:
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
    mode = str(config.get("synchronous_mode", "off")).lower()
    quorum = read_standby_names(view.standby_names)
    standbys = [m for m in members if m != view.leader]
    if mode in ("off", "false") or not standbys:
        return "" if quorum is None or mode not in ("off", "false") else "standby names are still in effect"
    wanted = min(int(config.get("synchronous_node_count", 1)), len(standbys))
    if quorum is None or "*" in quorum.names:
        return "no standby is named synchronous"
    named = [m for m in standbys if m in quorum.names]
    expected = len(standbys) if mode == "quorum" else wanted
    if len(named) < expected or quorum.k != wanted:
        return f"the names in effect are {quorum.text}"
    synchronous = [m for m in view.synchronous if m in named]
    return "" if len(synchronous) >= expected else "a named standby is not synchronous yet"


def current_problem(blueprint: Blueprint, wanted: dict[str, Any] | None = None) -> str:
    """The same, of the lab now; `wanted` goes over Patroni's configuration, which may lag behind a change."""
    try:
        return problem(blueprint.members, observe(blueprint), {**patroni.config(blueprint), **(wanted or {})})
    except TargetError as error:
        return error.message


def wait_until_healthy(
    blueprint: Blueprint, clock: Clock, wait: Wait = Wait.CLUSTER_HEALTHY, *, wanted: dict[str, Any] | None = None
) -> None:
    """Wait until the cluster is healthy; WaitTimeout says why it is not.

    A member that is not streaming after half of the wait is cloned again from the leader.
    """
    reason = [""]
    started = clock.now()
    cloned: set[str] = set()

    def healthy() -> bool:
        reason[0] = current_problem(blueprint, wanted)
        if reason[0] and clock.now() - started > longest_s(wait, clock) / 2:
            _clone_again(blueprint, cloned)
        return not reason[0]

    try:
        wait_for(wait, healthy, clock, pace_s=0.25)
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
                patroni.reinitialize(blueprint, seen.name)
            except TargetError:
                # Its Patroni is busy or down: the wait goes on and reports it at its end.
                continue
