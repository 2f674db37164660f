"""Looks at Patroni's leader lease through the REST of the other members; reads only."""

from walproof.errors import Error
from walproof.model.facts import LEADER_ROLES
from walproof.model.leader_lease import LeaseSeen
from walproof.model.patroni_values import is_on, refused, times
from walproof.model.ports import Clock
from walproof.patroni.rest import PatroniRest

_SYNCHRONOUS = ("sync_standby", "quorum_standby")


class PatroniLeaderLease:
    """Asks /cluster of a member that does not lead, which answers from the DCS, and then the leader itself."""

    def __init__(self, rest: PatroniRest, clock: Clock) -> None:
        self._rest, self._clock = rest, clock
        self._others: tuple[str, ...] = ()

    def look(self) -> LeaseSeen | None:
        """What is known now; None where no member's Patroni answers."""
        for url in self._others or ("",):
            try:
                cluster = self._rest.cluster(at=url)
                break
            except Error:
                continue
        else:
            self._others = ()
            return None
        urls = {str(m.get("name")): str(m.get("api_url", "")) for m in cluster["members"]}
        # cluster_as_json (utils.py of Patroni) gives this role to the holder of the leader key, and to no other.
        leader = next((str(m.get("name")) for m in cluster["members"] if m.get("role") in LEADER_ROLES), "")
        self._others = tuple(u.removesuffix("/patroni") for name, u in urls.items() if u and name != leader)
        asked_at, scope = self._clock.now(), str(cluster.get("scope", ""))
        answers = not leader or bool(self._rest.status(urls[leader]))
        ttl_s, loop_wait_s = (None, 0.0) if answers else self._times(url)
        return LeaseSeen(
            asked_at=asked_at,
            at=self._clock.now(),
            scope=scope,
            leader=leader,
            answers=answers,
            synchronous=tuple(str(m.get("name")) for m in cluster["members"] if m.get("role") in _SYNCHRONOUS),
            paused=is_on(cluster, "pause"),
            ttl_s=ttl_s,
            loop_wait_s=loop_wait_s,
        )

    def _times(self, url: str) -> tuple[float | None, float]:
        """ttl and loop_wait in s; no ttl where Patroni goes by former ones, which nobody can read."""
        try:
            config = self._rest.config(at=url)
        except Error:
            return None, 0.0
        ttl, loop_wait, _ = times(config)
        return (None, 0.0) if refused(config) else (float(ttl), float(loop_wait))
