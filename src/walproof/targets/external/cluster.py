"""What every external cluster shares: who is in it, observing, routes, walproof's own database, capabilities.

Injects only the faults that the target file has commands for; changes nothing without a journal. Members are asked for
in the background. The folders of managers (postgres/, patroni/, cnpg/) say who is in it and how it is configured."""

import atexit
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import psycopg

from walproof.errors import ODD, Error, NotUndone, TargetError, WaitTimeout, all_undone, as_error
from walproof.load.local_runner import LocalRunner
from walproof.load.open_session import open_session
from walproof.machine.answering import answering
from walproof.machine.clock import RealClock
from walproof.machine.signals import shielded
from walproof.model.load import LoadLimits, LoadRunner
from walproof.model.ports import (
    SILENT,
    Capabilities,
    Clock,
    Configuration,
    Inspection,
    Notebook,
    Restart,
    Reverting,
    Switchover,
    Workloads,
)
from walproof.model.topology import ClusterView, Description, Endpoint, Role, Route
from walproof.model.waiting import Wait, wait_for
from walproof.targets.configure import NoJournal, check_identity, noted
from walproof.targets.external import own_database
from walproof.targets.external.faults_by_command import (
    BY_COMMAND,
    CommandOperations,
    UserCommands,
)
from walproof.targets.external.membership import Membership
from walproof.targets.external.pricing import ExternalPricing, Sizes
from walproof.targets.external.target_file import WRITES, TargetFile
from walproof.targets.sql.commit_waits import SqlCommitWaits
from walproof.targets.sql.known_servers import made_of
from walproof.targets.sql.ledger import OwnDatabase, SqlLedger, granting_amcheck
from walproof.targets.sql.observe import NOTHING, Known, SqlMemberStates, SqlPoller, observed
from walproof.targets.sql.price import SqlPricer, pool_size
from walproof.targets.sql.settings import settings_of


class ExternalCluster(ABC):
    """A cluster that walproof did not start; a class for each manager says what that manager does by itself."""

    external = True
    manager = "none"
    """What describes it: "patroni" …"""

    def __init__(self, name: str, file: TargetFile, parameters: Endpoint, members: Membership) -> None:
        """`members` are those of now by name, with connection parameters in the database of the DSN."""
        self.name = name
        self.file = file
        self.clock: Clock = RealClock(file.waits_s)
        self.journal: Notebook = NoJournal()
        self.members = members
        self._parameters = parameters
        self._made, self._database = threading.Event(), ""
        self._commands = UserCommands(
            file.faults, self.admin, file.named_hosts, lambda: self.journal, self.name, self.clock, self._who
        )

    def _who(self, member: str, there: Endpoint) -> str | None:
        given = self.file.named_hosts is not None or member in self.file.members or there.hosts[0][0].startswith("/")
        return None if given else made_of(self._parameters.at(there.hosts[0]))

    @property
    def identity(self) -> str:
        """What its servers or its manager say that tells it from others; "" where nothing does, or none answers."""
        return ""

    # observing

    def describe(self) -> Description:
        facts, settings = {"manager": self.manager, **self._manager_facts()}, {}
        view = self.observe()
        members = self.members()
        for member, endpoint in members.items():
            try:
                with open_session(endpoint.conninfo(connect_timeout="2")) as connection, answering(connection):
                    facts[f"postgres version of {member}"] = connection.info.parameter_status("server_version") or "?"
                    if member == view.leader:
                        facts["postgres"] = str(connection.info.server_version // 10000)
                        settings = settings_of(connection)
            except psycopg.Error:
                facts[f"postgres version of {member}"] = "unreachable"
        unaddressed = [m.name for m in view.members if m.name not in members]
        if unaddressed:
            facts["standbys not addressed"] = ", ".join(unaddressed)
        pools = [route.name for route in self.routes() if route.pools]
        sizes = {f"default_pool_size of {name}": pool_size(self.endpoint(name)) for name in pools}
        facts |= {what: size for what, size in sizes.items() if size is not None}
        return Description(self.name, tuple(members), facts, settings)

    def observe(self) -> ClusterView:
        return observed(self.members(), self.clock, self._known())

    def poller(self, *, pace_s: float = 0.5, silent_s: float = 0.9) -> SqlPoller:
        return SqlPoller(self.members, self.clock, pace_s=pace_s, silent_s=silent_s, known=self._known)

    def _known(self) -> Known:
        return NOTHING

    def admin(self, member: str) -> Endpoint:
        """Connection parameters of one member, in the database of the DSN; TargetError for an unknown member."""
        members = self.members()
        if member not in members:
            raise TargetError(
                f"walproof cannot address a member {member!r}", f"known: {', '.join(members)}; name it under [members]"
            )
        return members[member]

    def leader(self) -> str:
        """The leader's name; TargetError when no member leads."""
        leader = self.observe().leader
        if leader is None:
            raise TargetError(f"{self.name} has no leader that answers just now", "walproof doctor --target …")
        return leader

    def elected_at(self, since: float) -> float | None:
        """When the manager elected a successor, by the leader's log where the target file has a command for it."""
        view = self.observe()
        if view.leader is None or "logs" not in self.file.faults:
            return None
        return self._elected_by_log(self._by_command.logs(view.leader), since)

    # routes: always into walproof's own database

    def member_endpoint(self, member: str) -> Endpoint:
        return self._inside(self.admin(member))

    def _addressed(self) -> dict[str, Endpoint]:
        return {name: self._inside(endpoint) for name, endpoint in self.members().items()}

    def routes(self) -> tuple[Route, ...]:
        """Straight to the leader, libpq's list of hosts, and those of the target file."""
        named = tuple(Route(name, pools=part.pools) for name, part in self.file.routes.items())
        return (Route("direct", follows=False), Route("multi-host"), *named)

    def endpoint(self, route: str) -> Endpoint:
        if route == "direct":
            return self.member_endpoint(self.leader())
        if route == "multi-host":
            hosts = tuple(e.hosts[0] for name, e in self.members().items() if name not in self._known().unasked)
            options = {"target_session_attrs": "read-write", "connect_timeout": "2"}
            return self._inside(self._parameters.at(*hosts, **options))
        part = self.file.routes.get(route)
        if part is None:
            raise TargetError(f"{self.name} has no route {route}", f'[routes] {route} = "host:port" in the target file')
        endpoint = self._parameters.at(part.host, connect_timeout="2")
        return replace(self._inside(endpoint), pooled=part.pools)

    def _inside(self, endpoint: Endpoint) -> Endpoint:
        return replace(endpoint, database=self._database) if self._made.is_set() else endpoint

    def open_database(self) -> None:
        """Make walproof's own database anew, journaled before it is made, and go into it."""
        if self._made.is_set():
            return
        leader = self.admin(self.leader())
        own_database.check_system(leader, system := self.identity)
        with shielded():
            self._database = own_database.new_name()
            before, after = self._members_noted, leader.user or None
            self.journal.note(self.clock.now(), self.name, "database", self._database, before=before, after=after)
            try:
                own_database.make(leader, self._database, system)
            except Error:
                self._remove_database()
                raise
            # From here on `close` removes it, also where the wait for the standbys is interrupted.
            self._made.set()
            atexit.register(self.close)
        own_database.arrived(self._answering(Role.STANDBY), self._database, self.clock)

    @property
    def _members_noted(self) -> str | None:
        """What tells it from a copy of it, for the journal; None where nothing does."""
        return None

    def close(self) -> None:
        """Remove walproof's own database; safe to call twice, silent when the cluster is gone."""
        atexit.unregister(self.close)
        if not self._made.is_set():
            return
        with shielded():
            self._remove_database()

    def _remove_database(self) -> None:
        self._made.clear()
        notes = noted(self.journal, self.name, "database", self._database)
        try:
            stay = self._dropped(self._database, None, notes[0].cluster if notes else "", SILENT)
        except ODD:
            # The journal names it: `walproof revert` removes it.
            return
        for change in () if stay else notes:
            self.journal.undone(change)

    def _dropped(self, name: str, after: str | None, system: str, reverting: Reverting) -> list[str]:
        """Drop what a journal's entry names; sentences about what stays, also on another that answers as leader.

        Where a manager is there, it will make that one follow again: what is written there meanwhile would be in its
        way. Where none is, nobody will.
        """
        first, view, stay = self.leader(), self.observe(), []
        others = [m.name for m in view.members if m.role is Role.LEADER and m.name in self.members()]
        for member in dict.fromkeys((first, *others)):
            if member == first or self.manager == "none":
                removed, theirs = own_database.remove(self.admin(member), name, after, system)
                stay += theirs
                for database in removed:
                    reverting.tell("database", database)
            elif own_database.left(self.admin(member), name):
                stay.append(f"{name} stays on {member}, which answers as leader too")
        return stay

    def revert(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """Undo every pending change, remove walproof's own database if one was left; sentences about what stays.

        Commands first, which need no server that answers: what they undo may be why none does.
        """
        self._commands.target, pending = self.name, len(journal.pending(self.name))
        left = self._commands.revert(journal, reverting)
        now_pending = journal.pending(self.name)
        if pending and all(change.what == BY_COMMAND for change in now_pending):
            return left
        if len(now_pending) < pending:
            with suppress(WaitTimeout):
                wait_for(Wait.NEW_LEADER, self._answers, self.clock, pace_s=0.5)
        try:
            self.members()
            check_identity(journal, self)
        except ODD as odd:
            wrong = as_error(odd)
            raise (NotUndone("; ".join([wrong.message, *left]), wrong.hint) if left else wrong) from None
        databases = (partial(self._drop_left, c, journal, reverting) for c in noted(journal, self.name, "database"))
        return all_undone([lambda: left, partial(self.configuration.undo, journal, reverting), *databases])

    def _answers(self) -> bool:
        with suppress(TargetError):
            return self._is_led()
        return False

    def _drop_left(self, change: Any, journal: Notebook, reverting: Reverting) -> list[str]:
        """Drop walproof's own database that a killed run noted, until every standby lacks it too.

        A primary that was just thawed may be handing over, and what it alone had dropped would be back with its
        successor: it must lead before and after. Meanwhile errors may pass, but no lack of a right. Sentences about
        what is there and another role's, which stays in the journal.
        """
        stay: list[str] = []

        def drop() -> None:
            stay[:] = self._dropped(change.name, change.after, change.cluster, reverting)

        def dropped() -> bool:
            with suppress(TargetError):
                if self._is_led() and self._enters_as_owner():
                    drop()
                    return self._have_followed(change.name) and self._is_led()
            return False

        try:
            wait_for(Wait.NEW_LEADER, dropped, self.clock, pace_s=0.5)
        except WaitTimeout:
            drop()  # which says what is wrong; a standby that does not replay is no reason to leave it
        if not stay:
            journal.undone(change)
        return stay

    def _is_led(self) -> bool:
        """Whether the member leads that the manager wants to lead."""
        return self.observe().leader is not None

    def _enters_as_owner(self) -> bool:
        """Whether the role can log in that owns the database."""
        return True

    def _have_followed(self, name: str) -> bool:
        """Whether every member that answers, leader or not, has the same of what a journal's entry names."""
        there = own_database.left(self.admin(self.leader()), name)
        return all(own_database.left(member, name) == there for member in self._answering().values())

    def _answering(self, *roles: Role) -> dict[str, Endpoint]:
        members = self.members()
        seen = (m for m in self.observe().members if m.lsn is not None and (not roles or m.role in roles))
        return {m.name: members[m.name] for m in seen if m.name in members}

    # what it can do

    @cached_property
    @abstractmethod
    def configuration(self) -> Configuration:
        """Parameters and synchronous replication."""

    @abstractmethod
    def _inspection(self) -> Inspection:
        """The doctor's facts."""

    def _manager_facts(self) -> dict[str, str]:
        """Versions and settings of the manager, for the record."""
        return {}

    def _restart(self) -> Restart | None:
        """A restart that the manager does itself."""
        return None

    def _switchover(self) -> Switchover | None:
        """A switchover that the manager does itself."""
        return None

    def _elected_by_log(self, log: str, since: float) -> float | None:
        """When the manager says in the leader's log that it elected a successor."""
        return None

    def load_runner(self) -> LoadRunner:
        """Where load runs: on this machine."""
        return LocalRunner()

    def _load_from_outside(self) -> bool:
        """Whether load comes from where the cluster's own clients are not."""
        return False

    def _sizes(self) -> Sizes | None:
        """What gives servers other processors and memory, where the manager does so itself."""
        return None

    @cached_property
    def pricing(self) -> Workloads:
        """Samples under the caps of the target file."""
        return ExternalPricing(
            SqlPricer(self, runner=self.load_runner(), outside=self._load_from_outside()),
            self.file.caps,
            self.configuration,
            journal=lambda: self.journal,
            database=self._own_database,
            sizes=self._sizes(),
        )

    @property
    def _own_database(self) -> OwnDatabase:
        return OwnDatabase(self.open_database, self.close)

    @cached_property
    def ledger(self) -> SqlLedger:
        """The ledger, in walproof's own database and under the caps."""
        limits = LoadLimits(self.file.caps.max_clients, self.file.caps.rate or WRITES)
        return SqlLedger(
            self,
            database=self._own_database,
            limits=limits,
            runner=self.load_runner(),
            grant=self.granting_amcheck,
        )

    def granting_amcheck(self, user: str) -> str:
        """What lets a role check data files."""
        return granting_amcheck(user)

    def as_administrator(self, _member: str, statement: str) -> str:
        """How an administrator of that member types a statement."""
        return statement

    @property
    def _by_command(self) -> CommandOperations:
        return CommandOperations(self._commands, self.leader, self.observe, self.clock)

    def capabilities(self) -> Capabilities:
        commands, by_command = self._commands, self._by_command
        refused = commands.refused(self.members())
        return Capabilities(
            pricing=self.pricing,
            ledger=self.ledger,
            workload=self.pricing,
            faults={fault: able for fault, able in commands.faults().items() if fault not in refused},
            restart=by_command if "restart" in commands.commands else self._restart(),
            switchover=by_command if "switchover" in commands.commands else self._switchover(),
            recovery=by_command,
            logs=by_command,
            member_states=SqlMemberStates(self._addressed, self.clock),
            configuration=self.configuration,
            inspection=self._inspection(),
            commit_waits=SqlCommitWaits(self, self.as_administrator),
            limits=LoadLimits(self.file.caps.max_clients, self.file.caps.rate),
            reasons={**commands.reasons(), **refused},
        )
