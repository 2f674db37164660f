"""The lab's Patroni over REST, member by member: status, configuration, restart, reinitialize, switchover."""

from functools import lru_cache
from typing import Any

from walproof.errors import TargetError
from walproof.lab import home
from walproof.lab.blueprint import Blueprint
from walproof.patroni.rest import LEADER_ROLES, PatroniRest, RestAccess


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


def status(blueprint: Blueprint, member: str, path: str = "/patroni") -> dict[str, Any]:
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
    found = None
    for member in blueprint.members:
        answer = status(blueprint, member)
        if leads(answer):
            return member
        if answer:
            found = found or member
    if found is None:
        raise TargetError("no member's Patroni answers", "walproof lab status")
    return found


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


def reinitialize(blueprint: Blueprint, member: str) -> None:
    """Remove the member's data and clone it from the leader."""
    rest(blueprint).reinitialize(blueprint.rest_url(member))


def switchover(blueprint: Blueprint, leader: str, to: str | None) -> None:
    """Planned switchover; returns when Patroni has done it."""
    rest(blueprint).switch_over(blueprint.rest_url(leader), leader, to)
