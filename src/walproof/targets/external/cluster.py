"""A cluster of yours as a target: looks, prices and keeps a ledger over SQL in a database of its own.

Breaks only what your commands break; changes nothing without a journal. postgres.py and patroni.py say who is in it.
"""

import atexit
import threading
from dataclasses import replace
from functools import cached_property

import psycopg
from psycopg.rows import dict_row

from walproof.errors import Error, TargetError, UsageError
from walproof.machine import software
from walproof.machine.clock import RealClock
from walproof.model.attempt import Rows
from walproof.model.guarantee import Quorum, QuorumKind
from walproof.model.plan import Sample, Scenario, Workload
from walproof.model.ports import Capability, Clock, LedgerOrder, LedgerRun
from walproof.model.sample import SampleResult
from walproof.model.topology import ClusterView, Description, Endpoint, MemberView, Role, Route
from walproof.model.waiting import Wait, wait_for
from walproof.targets.external import commands, database
from walproof.targets.external.target_file import TargetFile
from walproof.targets.sql.alter_system import Notebook, need
from walproof.targets.sql.connection import Ways
from walproof.targets.sql.facts import Address
from walproof.targets.sql.ledger import SqlLedger
from walproof.targets.sql.poller import LOOK, joined
from walproof.targets.sql.price import SqlPricer

_SETTINGS = "SELECT name, setting || coalesce(unit, '') AS value FROM pg_settings WHERE name = ANY(%s) ORDER BY name"
SHOWN = (
    "synchronous_standby_names",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_sender_timeout",
    "max_connections",
    "data_checksums",
)


class OwnCluster:
    """What plain PostgreSQL and Patroni have in common. `members` maps names to straight ways in (any database)."""

    manager = "none"

    def __init__(self, name: str, file: TargetFile, ways: Ways, members: dict[str, Endpoint]) -> None:
        self.name = name
        self.file = file
        self.clock: Clock = RealClock()
        self.journal: Notebook | None = None
        self._ways = ways
        self._members = members
        self._made = threading.Event()
        self._entered = Scenario()
        self.unaddressed: tuple[str, ...] = ()
        """Standbys that stream but could not be addressed."""

    # looking

    def describe(self) -> Description:
        """Versions of every member, and the settings in effect on the leader."""
        facts, settings = {"manager": self.manager, **self._facts()}, {}
        leader = self.observe().leader
        for member in self._members:
            try:
                with psycopg.connect(self.admin(member).conninfo(connect_timeout="2"), autocommit=True) as link:
                    facts[f"postgres version of {member}"] = link.info.parameter_status("server_version") or "?"
                    if member == leader:
                        facts["postgres"] = str(link.info.server_version // 10000)
                        settings = {str(n): str(v) for n, v in link.execute(_SETTINGS, (list(SHOWN),)).fetchall()}
            except psycopg.Error:
                facts[f"postgres version of {member}"] = "unreachable"
        if self.unaddressed:
            facts["standbys not addressed"] = ", ".join(self.unaddressed)
        return Description(self.name, tuple(self._members), facts, settings)

    def _facts(self) -> dict[str, str]:
        return {}

    def observe(self) -> ClusterView:
        """One look at every member at once; standbys that cannot be addressed are shown as the leader sees them."""
        rows: dict[str, dict[str, object]] = {}

        def look(member: str) -> None:
            try:
                words = self.admin(member).conninfo(connect_timeout="2", application_name="walproof eyes")
                with psycopg.connect(words, autocommit=True, row_factory=dict_row) as connection:
                    row = connection.execute(LOOK.encode()).fetchone()
            except psycopg.Error:
                return
            if row is not None:
                rows[member] = row

        threads = [threading.Thread(target=look, args=(m,), daemon=True) for m in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=5)
        hosts = [e.hosts[0][0] for e in self._members.values()]
        # Members on one address cannot be told apart by it: the port makes sure that nobody is.
        shared = {h for h in hosts if hosts.count(h) > 1}
        places = {m: e.hosts[0] for m, e in self._members.items()}
        addresses = {m: f"{host}:{port}" if host in shared else host for m, (host, port) in places.items()}
        view = joined(self.clock.now(), tuple(self._members), dict(rows), addresses).view
        told = rows[view.leader]["standbys"] if view.leader in rows and view.leader else []
        others = tuple(
            MemberView(s["name"], Role.STANDBY, s["state"], address=s["address"] or "", sync_state=s["sync_state"])
            for s in (told if isinstance(told, list) else [])
            if s["name"] in self.unaddressed
        )
        return replace(view, members=(*view.members, *others))

    def addresses(self) -> list[Address]:
        """Where the doctor looks."""
        return [
            Address(m, ":".join(map(str, e.hosts[0])), e.conninfo(target_session_attrs="any"))
            for m, e in self._members.items()
        ]

    def admin(self, member: str) -> Endpoint:
        """Straight to one member, in the database of the DSN."""
        if member not in self._members:
            known = ", ".join(self._members)
            raise TargetError(f"there is no way in to a member {member!r}", f"known: {known}; name it under [members]")
        return self._members[member]

    def leader(self) -> str:
        """Who leads now; TargetError when nobody does."""
        found = self.observe().leader
        if found is None:
            raise TargetError(f"{self.name} has no leader that answers just now", "walproof doctor --target …")
        return found

    # ways in: always into walproof's own database

    def member_endpoint(self, member: str) -> Endpoint:
        """Straight to one member."""
        return self._inside(self.admin(member))

    def endpoint(self, route: Route) -> Endpoint:
        """The clients' way to the leader; HAProxy and PgBouncer where the target file names them."""
        if route is Route.DIRECT:
            return self.member_endpoint(self.leader())
        if route is Route.MULTI_HOST:
            hosts = tuple(e.hosts[0] for e in self._members.values())
            return self._inside(self._ways.endpoint(hosts, target_session_attrs="read-write", connect_timeout="2"))
        at = self.file.routes.get("haproxy" if route is Route.HAPROXY else "pgbouncer")
        if at is None:
            raise TargetError(f"no {route} is known here", f'[routes] {route} = "host:port" in the target file')
        host, _, port = at.rpartition(":")
        return self._inside(self._ways.endpoint(((host, int(port)),), connect_timeout="2"))

    def _inside(self, endpoint: Endpoint) -> Endpoint:
        return replace(endpoint, database=self.file.database) if self._made.is_set() else endpoint

    def open_database(self) -> None:
        """Make walproof's own database where it is missing, journaled when there is a journal, and go into it."""
        if self._made.is_set():
            return
        leader = self.leader()
        if database.whose(self.admin(leader), self.file.database) is None and self.journal is not None:
            self.journal.note(
                self.clock.now(), self.name, "database", self.file.database, before=None, after=database.MARK
            )
        database.make(self.admin(leader), self.file.database)
        atexit.register(self.close)
        standbys = [
            self.admin(m.name) for m in self.observe().standbys if m.name in self._members and m.lsn is not None
        ]
        database.arrived(standbys, self.file.database, self.clock)
        self._made.set()

    def close(self) -> None:
        """Remove walproof's own database; safe to call twice, silent when the cluster is gone."""
        atexit.unregister(self.close)
        if not self._made.is_set():
            return
        self._made.clear()
        try:
            database.remove(self.admin(self.leader()), self.file.database)
        except Error:
            # Left behind with its mark: the next run or `walproof restore` removes it.
            return
        if self.journal is not None:
            for change in self.journal.pending(self.name):
                if change.what == "database":
                    self.journal.undone(change)

    def sweep(self) -> None:
        """Remove walproof's own database that an interrupted run left; one without our mark stays."""
        database.remove(self.admin(self.leader()), self.file.database)

    # what it can do

    def why_not(self, capability: Capability) -> str | None:
        """What your target file and your manager allow."""
        if capability in (Capability.PRICE, Capability.LEDGER):
            return None
        if capability in (Capability.SET_PARAMETERS, Capability.SET_SYNC):
            return None
        command = commands.GIVES.get(capability)
        if command is None:
            return "that cannot be done to a cluster of yours"
        if command in self.file.faults or command in self.by_manager():
            return None
        return f"the target file has no command for it ([faults] {command} = …)"

    def by_manager(self) -> frozenset[str]:
        """Faults the manager does itself."""
        return frozenset()

    # price

    @cached_property
    def _pricer(self) -> SqlPricer:
        return SqlPricer(self, pgbench=software.postgres_bin(None) / "pgbench", pids=lambda _: ())

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs, in walproof's own database."""
        self.open_database()
        self._pricer.prepare(workload)

    def check(self, setting: Scenario) -> None:
        """Refuse what shapes machines: on a cluster of yours only quorum and parameters are changed."""
        for what, value in (("rtt", setting.rtt_ms), ("regions", setting.regions), ("cpu", setting.cores)):
            if value is not None:
                raise UsageError(f"--{what} shapes a lab, not a cluster of yours", "leave it out, or price the lab")
        if setting.fsync is not None or setting.wal_volume is not None:
            raise UsageError("fsync and the WAL's volume of your cluster are left alone", "price them on the lab")

    def enter(self, setting: Scenario) -> dict[str, float]:
        """Quorum and parameters, those of the setting before put back first."""
        self.check(setting)
        if setting == self._entered:
            return {}
        if self.journal is not None and self._entered != Scenario():
            self.put_back(self.journal)
        # Before the first change: one that fails halfway is put back at the next setting too.
        self._entered = setting
        if setting.quorum is not None:
            self.set_quorum(setting.quorum_kind or QuorumKind.ANY, setting.quorum)
        if setting.parameters:
            self.set_parameters(dict(setting.parameters))
        return {}

    def leave(self) -> None:
        """Put back every setting that was changed, and remove walproof's own database."""
        if self.journal is not None:
            self.put_back(self.journal)
        self._entered = Scenario()
        self.close()

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """Run one sample under the caps of the target file."""
        caps, arm = self.file.caps, planned.arm
        if caps.max_clients is not None and arm.clients > caps.max_clients:
            raise UsageError(
                f"{arm.clients} clients are more than this target's max_clients = {caps.max_clients}",
                "ask fewer --clients",
            )
        if caps.rate is None or (arm.rate is not None and arm.rate <= caps.rate):
            return self._pricer.run_sample(planned, seconds, seed)
        capped = replace(planned, arm=replace(arm, rate=caps.rate))
        return replace(self._pricer.run_sample(capped, seconds, seed), sample=planned)

    # prove

    @cached_property
    def _ledger(self) -> SqlLedger:
        return SqlLedger(self)

    def open_ledger(self, order: LedgerOrder) -> LedgerRun:
        """Start the writers in walproof's own database."""
        self.open_database()
        return self._ledger.open_ledger(order)

    def read_ledger(self, member: str, drill: int) -> Rows:
        """The rows of one drill as that member holds them."""
        return self._ledger.read_ledger(member, drill)

    def check_data(self, member: str) -> str:
        """Checksums and amcheck of that member."""
        return self._ledger.check_data(member)

    def drop_ledger(self) -> None:
        """Remove the ledger's table and walproof's own database."""
        if self._made.is_set():
            self._ledger.drop_ledger()
        self.close()

    # configuration: who does it is the subclass's

    def set_parameters(self, parameters: dict[str, str | None]) -> None:
        """Set parameters on the whole cluster and wait until they are in effect."""
        raise NotImplementedError

    def set_quorum(self, kind: QuorumKind, k: int) -> None:
        """Name the standbys and wait until they count."""
        raise NotImplementedError

    def put_back(self, journal: Notebook) -> list[str]:
        """Undo every pending change of this target; sentences about what was left alone."""
        raise NotImplementedError

    def _journal(self) -> Notebook:
        return need(self.journal)

    def await_quorum(self, wanted: Quorum | None) -> None:
        """Wait until the views say that as many standbys count as the quorum asks (or none for no quorum)."""

        def counts() -> bool:
            synchronous = len(self.observe().synchronous)
            return synchronous == 0 if wanted is None else synchronous >= wanted.k

        wait_for(Wait.QUORUM_NAMED, counts, self.clock, pace_s=0.2)

    # faults: your commands

    def command(self, fault: str, member: str, other: str = "") -> None:
        """Run your command for that fault; TargetError when there is none."""
        template = self.file.faults.get(fault)
        if template is None:
            raise TargetError(f"the target file has no command for {fault}", f'[faults] {fault} = "ssh {{host}} …"')
        commands.run(template, commands.places_of(member, self.admin(member), other))

    def logs(self, member: str) -> str:
        """What your command prints, "" without one."""
        template = self.file.faults.get("logs")
        return "" if template is None else commands.run(template, commands.places_of(member, self.admin(member)))
