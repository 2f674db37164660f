"""Which timeouts a wished RTO asks for, and the limits below which no timeout can go."""

from walproof.model.advice import Place, Timeouts

TTL_FLOOR_S = 20
"""Patroni refuses a smaller ttl (patroni/config.py; dynamic_configuration)."""
LOOP_FLOOR_S = 1
RETRY_FLOOR_S = 3
PROMOTION_S = 2.0
STOCK = Timeouts()


def fastest(place: Place) -> float | None:
    """The shortest worst case until writes go on after a leader vanished, s; None where nobody fails over."""
    return TTL_FLOOR_S + LOOP_FLOOR_S + PROMOTION_S if place.manager == "patroni" else None


def timeouts_for(rto_s: float | None, place: Place) -> Timeouts:
    """The calmest timeouts that keep the RTO: the longer they are, the fewer needless failovers.

    Patroni demands loop_wait + 2 × retry_timeout <= ttl; a vanished leader is noticed when its key's ttl is over and
    the next loop comes.

    >>> timeouts_for(30.0, Place()).ttl, timeouts_for(None, Place()).ttl
    (27, 30)
    """
    if rto_s is None or place.manager != "patroni":
        return STOCK
    for ttl in range(30, TTL_FLOOR_S - 1, -1):
        for loop in (10, 5, 2, LOOP_FLOOR_S):
            if ttl + loop + PROMOTION_S <= rto_s:
                retry = max(RETRY_FLOOR_S, min(10, (ttl - loop) // 2))
                return Timeouts(ttl, loop, retry, 0, max(5, min(15, int(rto_s // 2))), True)
    return Timeouts(TTL_FLOOR_S, LOOP_FLOOR_S, RETRY_FLOOR_S, 0, 5, True)
