"""Plain PostgreSQL by DSN or service: standbys found through pg_stat_replication, anew when a new one streams.

Configured by ALTER SYSTEM on every member, standby names only where they are met."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import psycopg

from walproof.errors import TargetError, UsageError
from walproof.machine.redaction import UNREADABLE, without_secrets
from walproof.model.guarantee import ConfigChange, ConfigPlan, Quorum, Setting, read_standby_names
from walproof.model.ports import SILENT, Clock, Configuration, Notebook, Reverting
from walproof.model.standby_names import folded, is_host_and_port, listed
from walproof.model.topology import ClusterView, Endpoint, MemberView
from walproof.model.waiting import Wait, wait_for
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.external.membership import Membership
from walproof.targets.external.target_file import TargetFile, is_file, read_file
from walproof.targets.named_hosts import with_named_hosts
from walproof.targets.sql.connection import (
    asked,
    check_version,
    connection_error,
    conninfo_of,
    resolved,
    streams_as,
)
from walproof.targets.sql.doctor_facts import Inspector, query
from walproof.targets.sql.known_servers import AUTO, check_one_cluster
from walproof.targets.sql.observe import Known
from walproof.targets.sql.settings import AutoConf

NAMES = "synchronous_standby_names"


def asked_of(change: ConfigChange, names: Iterable[str]) -> dict[str, str | None]:
    """The parameters that a change asks of every member; UsageError for a name that cannot stand among standby names.

    The leader is named too, so that the names hold after it failed: it never streams from itself.
    """
    sync = change.replication
    if sync is None:
        return dict(change.parameters)
    if sync.method is None or sync.number == 0:
        return {**change.parameters, NAMES: ""}
    return {**change.parameters, NAMES: Quorum(sync.method, sync.number, listed(names)).text}


def settings_of(wanted: Mapping[str, str | None]) -> tuple[Setting, ...]:
    """What ALTER SYSTEM sets on every member."""
    return tuple(Setting(name, value) for name, value in wanted.items())


def _streaming(view: ClusterView) -> list[tuple[MemberView, str]]:
    streaming = (m for m in view.members if m.state == "streaming")
    return [(m, m.name if m.streams_as is None else m.streams_as) for m in streaming]


def _own_name(view: ClusterView) -> list[str]:
    """The name that the leader will stream under; none where it has none: host and port are no name."""
    leader = view.member(view.leader or "")
    if leader is None or (not leader.streams_as and is_host_and_port(leader.name)):
        return []
    return [leader.streams_as or leader.name]


def _hang_after_failover(view: ClusterView, quorum: Quorum) -> tuple[str, ...]:
    """The caveat that the names, which every member is given, are not met where another one leads."""
    leader, standbys = view.member(view.leader or ""), [one for one in _streaming(view) if one[0].name != view.leader]
    if leader is None or not quorum.k:
        return ()
    later = [leader.streams_as] if leader.streams_as else []
    hanging = [
        member.name
        for member, _ in standbys
        if sum(map(quorum.counts, [*later, *(name for other, name in standbys if other is not member)])) < quorum.k
    ]
    if not hanging:
        return ()
    return (
        f"after a failover to {' or '.join(hanging)} every commit hangs, with {leader.name} back as a standby too:"
        " it will stream under none of these names; set cluster_name there, restart it, and apply again",
    )


class PostgresConfiguration:
    """Plans, applies and undoes changes on the members that `members` tells; `named`: names that the user gave;
    `system`: tells the system identifier of the cluster that was opened.
    """

    def __init__(
        self,
        target: str,
        clock: Clock,
        members: Callable[[], Mapping[str, Endpoint]],
        observe: Callable[[], ClusterView],
        named: Container[str] = frozenset(),
        system: Callable[[], str] = str,
    ) -> None:
        self._target, self._clock, self._members, self._observe = target, clock, members, observe
        self._named, self._system = named, system

    def _auto(self) -> AutoConf:
        return AutoConf(self._target, self._clock, self._members(), self._named, self._system())

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What ALTER SYSTEM would change on each member; UsageError where the names would hang every commit."""
        view = self._observe()
        wanted = self._parameters(change, view)
        quorum = read_standby_names(wanted.get(NAMES) or "")
        if quorum is not None:
            self._refuse_hanging(quorum, view)
        auto = self._auto()
        caveats = () if quorum is None else _hang_after_failover(view, quorum)
        return ConfigPlan(change, settings_of(wanted), auto.differences(wanted), auto.version(), caveats)

    @staticmethod
    def _parameters(change: ConfigChange, view: ClusterView) -> dict[str, str | None]:
        """Synchronous replication as standby names: who streams now, and the leader."""
        if change.replication is None:
            return dict(change.parameters)
        if change.replication.strict is False:
            raise UsageError("without a manager every commit waits for its standbys", "leave --mode degrading out")
        names = [name for m, name in _streaming(view) if m.name != view.leader]
        if twice := {name for name in names if sum(folded(name) == folded(other) for other in names) > 1}:
            raise UsageError(
                f"more than one standby streams as {' or '.join(sorted(twice))}, which PostgreSQL cannot tell apart",
                "set cluster_name on each, or application_name in its primary_conninfo",
            )
        return asked_of(change, [*names, *_own_name(view)])

    @staticmethod
    def _refuse_hanging(quorum: Quorum, view: ClusterView) -> None:
        streaming = [name for _, name in _streaming(view)]
        able = sum(map(quorum.counts, streaming))
        if able < quorum.k:
            raise UsageError(
                f"{quorum.text} would hang every commit: {able} of its standbys stream now",
                f"streaming: {', '.join(sorted(streaming)) or 'none'}",
            )

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """Set what was planned, by ALTER SYSTEM on every member, each journaled before; TargetError when another user
        changed it."""
        auto = self._auto()
        if auto.version() != plan.version:
            raise TargetError(
                f"postgresql.auto.conf of {self._target} was changed by another user meanwhile", "do it once more"
            )
        auto.set({one.name: one.value for one in plan.settings}, journal)

    def wait(self, plan: ConfigPlan) -> None:
        """Wait until as many standbys count as the planned names ask; parameters were awaited while they were set."""
        names = {s.name: s.value for s in plan.settings}
        if NAMES not in names:
            return
        quorum = read_standby_names(names[NAMES] or "")

        def counts() -> bool:
            synchronous = len(self._observe().synchronous)
            return synchronous == 0 if quorum is None else synchronous >= quorum.k

        wait_for(Wait.QUORUM_NAMED, counts, self._clock, pace_s=0.2)

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        pending = [c for c in journal.pending(self._target) if c.what.startswith(AUTO)]
        return self._auto().undo(pending, journal.undone, reverting, journal.servers()) if pending else []


class Servers:
    """Servers without a failover manager that walproof knows: hosts of the DSN and standbys that stream from them."""

    def __init__(self, file: TargetFile, parameters: Endpoint) -> None:
        self._parameters = parameters
        self._named = {_place(at): label for label, at in file.members.items()}
        self._found: dict[tuple[str, int], _Server] = {}
        self._errors: dict[tuple[str, int], psycopg.Error] = {}
        self.known = Known()
        self.members = Membership(self._find)

    def _reach_named(self) -> None:
        """Reach every host of the DSN and of the target file; TargetError when none answers."""
        for host in dict.fromkeys((*self._parameters.hosts, *self._named)):
            try:
                self._found[host] = _asked(self._parameters.at(host))
                self._errors.pop(host, None)
            except psycopg.Error as wrong:
                self._errors[host] = wrong
        if not self._found:
            raise connection_error(next(iter(self._errors.values())))

    @property
    def leader(self) -> "_Server | None":
        """That of the highest timeline among those that led when they were reached."""
        leaders = (server for server in self._found.values() if server.row.get("leader"))
        return max(leaders, key=lambda server: server.row.get("timeline") or 0, default=None)

    def need_leader(self) -> None:
        """TargetError when none was reached, or servers of two clusters were: which one is meant is not guessed."""
        self.members()
        systems = {f"{h}:{p}": str(one.row.get("system_identifier")) for (h, p), one in self._found.items()}
        check_one_cluster(systems)
        self.known = replace(self.known, system=next(iter(systems.values()), ""))
        if self.leader is None:
            (host, port), standby = next(iter(self._found.items()))
            where = standby.upstream or "see primary_conninfo there"
            raise TargetError(
                f"{host}:{port} is a standby, and no leader was named", f"it streams from {where}: name that host too"
            )

    def identity(self) -> str:
        """The leader's system identifier, or that of a standby where none leads; "" where none answers."""
        with suppress(TargetError):
            self.members()
        first = self.leader or next(iter(self._found.values()), None)
        return "" if first is None else str(first.row.get("system_identifier") or "")

    def _find(self) -> dict[str, Endpoint]:
        """Names → connection parameters, of members as far as known and of every standby of the current leader.

        The file's names first and for good, then how a server streams, else host:port; never two alike: of those that
        stream under one name a server of the file or the DSN has it, if it is the only one of them. TargetError when
        none answers.
        """
        if self.leader is None:
            self._reach_named()
        else:
            self._ask_again()
        answers = (_answer(server.endpoint) for server in list(self._found.values()))
        leader = next((server for server in answers if server and server.row.get("leader")), None)
        if leader is not None:
            self._find_standbys(leader)
        members: dict[str, Endpoint] = {}
        named, labels = {*self._parameters.hosts, *self._named}, {folded(label) for label in self._named.values()}
        streaming = Counter(folded(server.name) for server in self._found.values())
        of_named = Counter(folded(server.name) for place, server in self._found.items() if place in named)
        found: set[str] = set()
        for place, one in self._found.items():
            name = folded(one.name)
            alone = (of_named if place in named else streaming)[name] == 1
            own = one.name if alone and name not in labels and not is_host_and_port(name) else ""
            called = self._named.get(place) or own or f"{place[0]}:{place[1]}"
            members[called] = one.endpoint
            if place not in named:
                found.add(called)
        unasked = set[str]()
        for place in self._errors:
            label = self._named.get(place) or f"{place[0]}:{place[1]}"
            if label not in members:
                members[label] = self._parameters.at(place)
                unasked.add(label)
        self.known = replace(self.known, found=frozenset(found), unasked=frozenset(unasked))
        return members

    def _ask_again(self) -> None:
        """Hosts that were silent so far; one of another cluster stays unasked, and is no member of this one."""
        for place in list(self._errors):
            server = _answer(self._parameters.at(place))
            if server is not None and self.known.system in ("", server.row.get("system_identifier")):
                self._found[place] = server
                del self._errors[place]

    def _find_standbys(self, leader: "_Server") -> None:
        """Standbys of pg_stat_replication by their address, on the leader's port and on 5432, where they answer."""
        known = Counter(folded(server.name) for server in self._found.values() if not server.row.get("leader"))
        streaming = Counter(folded(sender["application_name"]) for sender in leader.senders)
        for sender in leader.senders:
            address, name = str(sender["address"]).split("/")[0], folded(sender["application_name"])
            if not address or streaming[name] <= known[name]:
                continue
            for port in dict.fromkeys((leader.endpoint.hosts[0][1], 5432)):
                if (address, port) in self._found:
                    continue
                other = _answer(self._parameters.at((address, port)))
                if other is None:
                    continue
                same = other.row.get("system_identifier") == leader.row.get("system_identifier")
                if same and not other.row.get("leader"):
                    self._found[address, port] = other
                    break


class PostgresCluster(ExternalCluster):
    """An external cluster without a manager."""

    def __init__(self, name: str, file: TargetFile, parameters: Endpoint, servers: Servers) -> None:
        super().__init__(name, file, parameters, servers.members)
        self._servers = servers

    @property
    def identity(self) -> str:
        """The system identifier of its servers."""
        return self._servers.identity()

    def _known(self) -> Known:
        return self._servers.known

    @cached_property
    def configuration(self) -> Configuration:
        """ALTER SYSTEM on every member."""
        named, system = frozenset(self.file.members), lambda: self._known().system
        return PostgresConfiguration(self.name, self.clock, self.members, self.observe, named, system)

    def _inspection(self) -> Inspector:
        return Inspector(self.name, self.members)


@dataclass(frozen=True, slots=True)
class _Server:
    """A server that answered: its name, whether it leads, who streams from it, and its upstream."""

    endpoint: Endpoint
    name: str
    row: dict[str, Any]
    senders: list[dict[str, Any]]
    upstream: str


def _asked(endpoint: Endpoint) -> _Server:
    with asked(endpoint, target_session_attrs="any", application_name="walproof") as connection:
        check_version(connection.info.server_version, ":".join(map(str, endpoint.hosts[0])))
        row = connection.execute(query("self")).fetchone() or {}
        senders = connection.execute(query("senders")).fetchall()
        received = psycopg.conninfo.conninfo_to_dict(row.get("receiver_conninfo") or "")
    upstream = f"{received.get('host', '')}:{received.get('port', '')}".strip(":")
    name = streams_as(row)
    return _Server(endpoint, "" if name == "walreceiver" else name, row, senders, upstream)


def open_postgres(address: str, *, answering: bool = True) -> PostgresCluster:
    """The cluster of a DSN, a libpq URL or a target file; TargetError when no leader answers.

    Not `answering`: its servers are asked later, when they are needed.
    """
    name, file = read_address(address)
    conninfo_of(file.dsn, file.service)
    parameters = with_named_hosts(resolved(file.dsn, file.service), file)
    servers = Servers(file, parameters)
    if answering:
        servers.need_leader()
    return PostgresCluster(name, file, parameters, servers)


def read_address(address: str) -> tuple[str, TargetFile]:
    """(name without any password, target) of a DSN, a libpq URL or a target file; UsageError when it is not valid."""
    if is_file(address):
        path, file = read_file(TargetFile, address)
        if not (file.dsn or file.service):
            raise UsageError(
                f"the target file {address}: postgres needs dsn or service", 'dsn = "host=a,b user=postgres"'
            )
        return path, file
    name = without_secrets(address)
    if name == UNREADABLE:
        raise UsageError(
            "this DSN cannot be read, and may hold a password",
            "leave the password to ~/.pgpass or PGPASSWORD; in a URL write @ as %40 and / as %2F",
        )
    return name, TargetFile(kind="postgres", dsn=address)


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    return (host, int(port)) if colon and port.isdigit() else (text, 5432)


def _answer(endpoint: Endpoint) -> _Server | None:
    try:
        return _asked(endpoint)
    except (psycopg.Error, TargetError):
        return None
