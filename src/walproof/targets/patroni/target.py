"""A Patroni cluster by the REST address of any member: everything else is asked of Patroni, anew as members change.

When a successor was elected is read from Patroni's log."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from walproof.errors import Error, TargetError
from walproof.machine.quoting import pasted
from walproof.model.drill import Capability
from walproof.model.facts import LEADER_ROLES, PatroniFacts
from walproof.model.patroni_values import refused, times
from walproof.model.ports import Capabilities, Configuration, Notebook, Reverting
from walproof.model.topology import Description, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.known_cluster import listing_of
from walproof.patroni.rest import PatroniRest, RestAccess, facts_of, members_of
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.external.membership import Membership
from walproof.targets.named_hosts import with_named_hosts
from walproof.targets.patroni.configuration import PatroniConfiguration, elsewhere
from walproof.targets.patroni.leader_lease import PatroniLeaderLease
from walproof.targets.patroni.target_file import PatroniFile, read_address, secret
from walproof.targets.sql.connection import resolved
from walproof.targets.sql.doctor_facts import Inspector
from walproof.targets.sql.observe import Known

NO_TAKEOVER = {
    Capability.HANG_POSTMASTER: "Patroni keeps the leader lock for as long as its own session with PostgreSQL answers",
    Capability.HANG_REST: "Patroni renews the leader lock without its REST API",
}
"""Faults of the leader during which Patroni has no reason to fail over: patroni#1371, patroni#2263."""
_TOOK = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO: promoted self to leader by acquiring session lock", re.MULTILINE
)


def elected_at(log: str, since: float) -> float | None:
    """The first time after `since` (seconds since the epoch) that Patroni says it took the lock; None when it does not.

    Patroni writes its machine's local time; the member runs on this one.
    """
    moments = [datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() for text in _TOOK.findall(log)]
    return next((at for at in sorted(moments) if at > since), None)


@dataclass(frozen=True, slots=True)
class PatroniOperations:
    rest: PatroniRest
    cluster: ExternalCluster

    def restart(self, member: str) -> None:
        self.rest.restart(self.rest.member_url(member))

    def switch_over(self, to: str | None = None) -> None:
        """Hand over to `to` (None: Patroni chooses); returns when another member leads. TargetError while paused."""
        if self.rest.cluster().get("pause") and to is None:
            raise TargetError("Patroni is paused: it switches over only to a member that is named", "patronictl resume")
        clock, leader = self.cluster.clock, self.cluster.leader()
        patroni = facts_of(self.rest)
        if to is not None and (why := patroni.ineligible.get(to)):
            raise TargetError(f"Patroni does not let {to} lead: {why}", "name another member, or patronictl list")
        if to is not None and patroni.synchronous != "off":
            wait_for(Wait.QUORUM_NAMED, lambda: self._may_lead(to), clock, pace_s=0.3)
        self.rest.switch_over(leader, to)

        def changed() -> bool:
            now = self.cluster.observe().leader
            return now is not None and now != leader

        wait_for(Wait.SWITCHOVER, changed, clock)

    def _may_lead(self, member: str) -> bool:
        """Patroni hands over only to a standby that counts, where it names synchronous ones."""
        view = self.cluster.observe()
        return not view.standby_names or member in view.synchronous


class PatroniCluster(ExternalCluster):
    """An external cluster of Patroni."""

    manager = "patroni"

    def __init__(self, name: str, file: PatroniFile, rest: PatroniRest) -> None:
        parameters = with_named_hosts(resolved(file.dsn or "", file.service), file)
        super().__init__(name, file, parameters, Membership(partial(_listed, rest, parameters)))
        self.rest = rest

    @property
    def identity(self) -> str:
        """The system identifier of PostgreSQL, which Patroni knows of a member that does not answer too."""
        with suppress(Error):
            return self.rest.identity()
        return ""

    def _known(self) -> Known:
        return Known(system=self.rest.meant.system)

    @cached_property
    def configuration(self) -> Configuration:
        return PatroniConfiguration(self.name, self.clock, self.rest, self.members, self.observe)

    def describe(self) -> Description:
        """As every external cluster's, and Patroni's ttl."""
        config = self.rest.config()
        return replace(super().describe(), ttl_s=None if refused(config) else times(config)[0])

    @property
    def _members_noted(self) -> str:
        return json.dumps(listing_of(self.rest.members()))

    def _drop_left(self, change: Any, journal: Notebook, reverting: Reverting) -> list[str]:
        by_hand = pasted("DROP DATABASE {name:sql_name} WITH (FORCE)", name=change.name)
        stays = elsewhere(self.rest, json.loads(change.before or "{}"), f"database {change.name}: made", by_hand)
        return [stays] if stays else super()._drop_left(change, journal, reverting)

    def capabilities(self) -> Capabilities:
        """As every external cluster's, and the faults that Patroni does not fail over for."""
        lease = PatroniLeaderLease(self.rest, self.clock)
        return replace(super().capabilities(), leader_lease=lease, no_takeover=NO_TAKEOVER)

    def _manager_facts(self) -> dict[str, str]:
        """Versions of Patroni, whether it is paused, and its timeouts."""
        cluster = self.rest.cluster()
        versions = self.rest.versions(cluster)
        facts = {"patroni": min(versions.values(), default="?")}
        if len(set(versions.values())) > 1:
            facts["patroni versions"] = ", ".join(f"{n} {v}" for n, v in versions.items())
        if cluster.get("pause"):
            facts["patroni paused"] = "yes: no failover"
        config = self.rest.config()
        barred = PatroniFacts(config, members_of(cluster, versions)).barred
        if barred:
            facts["patroni never names"] = ", ".join(f"{name} ({why})" for name, why in barred.items())
        return facts | {f"patroni {k}": str(config[k]) for k in ("ttl", "loop_wait", "retry_timeout") if k in config}

    def _inspection(self) -> Inspector:
        return Inspector(self.name, self.members, lambda: facts_of(self.rest))

    def _restart(self) -> PatroniOperations:
        return PatroniOperations(self.rest, self)

    _switchover = _restart

    def _elected_by_log(self, log: str, since: float) -> float | None:
        return elected_at(log, since)


def _listed(rest: PatroniRest, parameters: Endpoint) -> dict[str, Endpoint]:
    """The members that Patroni lists now; TargetError when none answers."""
    # libpq's own defaults (PGUSER, pgpass, service) hold for everything but the host.
    return {
        str(m["name"]): parameters.at((str(m["host"]), int(m.get("port", 5432))))
        for m in rest.cluster()["members"]
        if m.get("host")
    }


def open_patroni(address: str, *, answering: bool = True) -> PatroniCluster:
    """Ask any member for /cluster and take every member's address from it; TargetError when none answers.

    Not `answering`: those that answer must be of one cluster, and all else is asked later, when it is needed.
    """
    name, file = read_address(address)
    part = file.restapi
    password = part.password.get_secret_value() or secret(part.password_file, "restapi.password_file")
    same = part.model_dump(exclude={"password", "password_file"})
    rest = PatroniRest(RestAccess(file.rest, password=password, **same))
    cluster = PatroniCluster(name, file, rest)
    rest.check_one_cluster()
    if not answering:
        return cluster
    if not cluster.members():
        raise TargetError("Patroni names no member that has an address", "patronictl list")
    roles = {str(m.get("role")) for m in rest.cluster()["members"]}
    if "standby_leader" in roles and not roles & set(LEADER_ROLES):
        raise TargetError("this is a standby cluster: it takes no writes", "name the cluster it replicates from")
    return cluster
