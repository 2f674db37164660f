"""Patroni's leader lease as the REST of other members tells it: who holds it, and whether that member answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """One look. asked_at, at: when the leader was asked, and when the look ended, seconds since the epoch."""

    asked_at: float
    at: float
    scope: str
    leader: str = ""
    """Who holds the leader key, "" where the key is free."""
    answers: bool = True
    """Whether the leader's own REST answered."""
    synchronous: tuple[str, ...] = ()
    """The synchronous standbys in Patroni's key /sync."""
    paused: bool = False
    ttl_s: float | None = None
    """Patroni's ttl, s, read when the leader is silent; None where it is not known."""
    loop_wait_s: float = 0.0
