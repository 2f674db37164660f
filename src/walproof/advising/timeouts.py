"""Which timeouts a required RTO needs, and how low they can be set."""

from walproof.model.advice import ClusterProfile, Timeouts
from walproof.model.cloudnative_pg import MANAGER

SHORTEST = Timeouts(ttl=20, loop_wait=1, retry_timeout=3, network_s=5, rto_required=True)
"""Patroni refuses a smaller ttl, loop_wait or retry_timeout (patroni/config.py; dynamic_configuration)."""


def timeouts_for(rto_s: float | None, cluster: ClusterProfile) -> Timeouts:
    """The longest timeouts that keep the RTO: the longer they are, the fewer needless failovers.

    Patroni demands loop_wait + 2 × retry_timeout <= ttl; a leader failure is detected when the ttl of its key is over
    and the next loop comes.

    >>> timeouts_for(30.0, ClusterProfile()).ttl, timeouts_for(None, ClusterProfile()).ttl
    (27, 30)
    """
    if cluster.manager == MANAGER:
        # Its operator's own; nothing that a longer one would spare restarts or promotes anybody.
        return Timeouts(network_s=SHORTEST.network_s)
    if rto_s is None or cluster.manager != "patroni":
        return Timeouts()
    network_s = max(5, min(15, int(rto_s // 2)))
    for ttl in range(30, SHORTEST.ttl - 1, -1):
        for loop in (10, 5, 2, SHORTEST.loop_wait):
            retry = max(SHORTEST.retry_timeout, min(10, (ttl - loop) // 2))
            found = Timeouts(ttl, loop, retry, 0, network_s, rto_required=True)
            if found.leader_failure_s <= rto_s:
                return found
    return SHORTEST
