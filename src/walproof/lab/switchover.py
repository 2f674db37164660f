"""A planned switchover: clients are held in the pool, the leader hands over, clients resume. Loses no transaction."""

from walproof.errors import Error
from walproof.lab import access, patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.observe import observe
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for


def switch_over(blueprint: Blueprint, leader: str, to: str | None, clock: Clock, *, hold: bool = True) -> str:
    """Switch over from `leader` to `to` (None: Patroni chooses); the new leader's name.

    With `hold`, PgBouncer lets transactions end and holds new ones until HAProxy sends writers to the new leader.
    """
    if hold:
        access.pool_command(blueprint, "PAUSE")
    try:
        patroni.switchover(blueprint, leader, to)
        return _wait_for_other(blueprint, leader, clock)
    finally:
        if hold:
            access.pool_command(blueprint, "RESUME")


def _wait_for_other(blueprint: Blueprint, leader: str, clock: Clock) -> str:
    found: list[str] = []

    def handed() -> bool:
        try:
            now = observe(blueprint).leader
        except Error:
            return False
        if now is None or now == leader or access.routed_leader(blueprint) != now:
            return False
        found[:] = [now]
        return True

    wait_for(Wait.SWITCHOVER, handed, clock, pace_s=0.05)
    return found[0]
