"""A Patroni cluster by the REST address of any member: everything else is asked of Patroni, anew as members change.

When a successor was elected is read from Patroni's log."""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from walproof.errors import TargetError
from walproof.model.ports import Capabilities, Configuration, Restart, Switchover
from walproof.model.takeover import Takeover
from walproof.model.topology import Description, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import odd_times, times
from walproof.patroni.rest import LEADER_ROLES, PatroniRest, RestAccess, facts_of
from walproof.targets.external.cluster import ExternalCluster, Membership
from walproof.targets.patroni.configuration import PatroniConfiguration
from walproof.targets.patroni.takeover import GuardOfDrills, PatroniTakeover
from walproof.targets.patroni.target_file import PatroniFile, read_address, secret
from walproof.targets.sql.connection import ConnectionParameters, resolved
from walproof.targets.sql.doctor_facts import Inspector

_TOOK = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO: promoted self to leader by acquiring session lock", re.MULTILINE
)


def elected_at(log: str, since: float) -> float | None:
    """The first time after `since` (seconds since the epoch) that Patroni says it took the lock; None when it does not.

    Patroni writes its machine's local time; the member runs on this one.
    """
    moments = [datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() for text in _TOOK.findall(log)]
    return next((at for at in sorted(moments) if at > since), None)


class PatroniManager:
    """Patroni as the manager of an external cluster."""

    name = "patroni"

    def __init__(self, rest: PatroniRest, parameters: ConnectionParameters, file: PatroniFile) -> None:
        self.rest = rest
        self._file = file
        self._parameters = parameters
        self.members = Membership(self._listed)

    def _listed(self) -> dict[str, Endpoint]:
        """Who Patroni lists now; TargetError when nobody answers."""
        # libpq's own defaults (PGUSER, pgpass, service) hold for everything but the host.
        return {
            str(m["name"]): self._parameters.endpoint(((str(m["host"]), int(m.get("port", 5432))),))
            for m in self.rest.cluster()["members"]
            if m.get("host")
        }

    def facts(self) -> dict[str, str]:
        """Versions of Patroni, whether it is paused, and its timeouts."""
        cluster = self.rest.cluster()
        versions = self.rest.versions(cluster)
        facts = {"patroni": min(versions.values(), default="?")}
        if len(set(versions.values())) > 1:
            facts["patroni versions"] = ", ".join(f"{n} {v}" for n, v in versions.items())
        if cluster.get("pause"):
            facts["patroni paused"] = "yes: nobody fails over"
        config = self.rest.config()
        facts.update({f"patroni {k}": str(config[k]) for k in ("ttl", "loop_wait", "retry_timeout") if k in config})
        return facts

    def configuration(self, cluster: ExternalCluster) -> Configuration:
        """Patroni's dynamic configuration."""
        return PatroniConfiguration(cluster.name, cluster.clock, self.rest, self.members, cluster.observe)

    def inspector(self, cluster: ExternalCluster) -> Inspector:
        """The doctor's facts, Patroni's among them."""
        return Inspector(cluster.name, self.members, lambda: facts_of(self.rest))

    def restart(self, cluster: ExternalCluster) -> Restart | None:
        """Patroni restarts PostgreSQL itself."""
        return PatroniRestart(self.rest)

    def switchover(self, cluster: ExternalCluster) -> Switchover | None:
        """Patroni switches over itself."""
        return PatroniSwitchover(self.rest, cluster)

    def takeover(self, cluster: ExternalCluster) -> Takeover:
        """What a guard needs; refuses when it is asked for, where the DCS is not etcd 3 or not named."""
        return PatroniTakeover(self.rest, self._file, self.members, cluster.clock)

    def elected_at(self, log: str, since: float) -> float | None:
        """When Patroni says that it took the leader's lock."""
        return elected_at(log, since)


@dataclass(frozen=True, slots=True)
class PatroniRestart:
    """A restart through Patroni."""

    rest: PatroniRest

    def restart(self, member: str) -> None:
        """Returns when Patroni says that PostgreSQL was restarted."""
        self.rest.restart(self.rest.member_url(member))


@dataclass(frozen=True, slots=True)
class PatroniSwitchover:
    """A switchover through Patroni."""

    rest: PatroniRest
    cluster: ExternalCluster

    def switch_over(self, to: str | None = None) -> None:
        """Hand over to `to` (None: Patroni chooses); returns when another member leads. TargetError while paused."""
        if self.rest.cluster().get("pause") and to is None:
            raise TargetError("Patroni is paused: it switches over only to a member that is named", "patronictl resume")
        clock, leader = self.cluster.clock, self.cluster.leader()
        if to is not None:
            wait_for(Wait.QUORUM_NAMED, lambda: self._may_lead(to), clock, pace_s=0.3)
        # Any member takes the request: one that may be sent the password.
        self.rest.switch_over(self.rest.to_change(), leader, to)

        def changed() -> bool:
            now = self.cluster.observe().leader
            return now is not None and now != leader

        wait_for(Wait.SWITCHOVER, changed, clock)

    def _may_lead(self, member: str) -> bool:
        """Patroni hands over only to a standby that counts, where there are synchronous ones."""
        view = self.cluster.observe()
        return not view.standby_names or member in view.synchronous


class PatroniCluster(ExternalCluster):
    """An external cluster of Patroni; where its target file names etcd, drills may have a guard."""

    @cached_property
    def _guard(self) -> GuardOfDrills | None:
        assert isinstance(self.file, PatroniFile)
        return GuardOfDrills(self.name, self.clock) if self.file.etcd3 is not None else None

    def describe(self) -> Description:
        """As every external cluster's, and Patroni's ttl."""
        assert isinstance(self.manager, PatroniManager)
        config = self.manager.rest.config()
        return replace(super().describe(), ttl_s=None if odd_times(config) else times(config)[0])

    def capabilities(self) -> Capabilities:
        """As every external cluster's, and a guard."""
        return replace(super().capabilities(), guard=self._guard)


def open_patroni(address: str) -> ExternalCluster:
    """Ask any member for /cluster and take every member's address from it; TargetError when nobody answers."""
    name, file = read_address(address)
    part = file.restapi
    password = part.password.get_secret_value() or secret(part.password_file, "restapi.password_file")
    access = RestAccess(file.rest, part.user, password, part.ca_file, part.cert_file, part.key_file, part.verify)
    rest = PatroniRest(replace(access, plain_http=part.plain_http))
    manager = PatroniManager(rest, resolved(file.dsn or "", file.service), file)
    if not manager.members():
        raise TargetError("Patroni names no member that has an address", "patronictl list")
    roles = {str(m.get("role")) for m in rest.cluster()["members"]}
    if "standby_leader" in roles and not roles & set(LEADER_ROLES):
        raise TargetError("this is a standby cluster: it takes no writes", "name the cluster it replicates from")
    return PatroniCluster(name, file, resolved(file.dsn or "", file.service), manager)
