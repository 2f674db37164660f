"""The lab as a target: everything walproof can do to a cluster, it can do to its own."""

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path

import psutil
import psycopg

from walproof.errors import Error, TargetError
from walproof.lab import home, members, patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.client_access import haproxy_cfg, pgbouncer_ini
from walproof.lab.configuration import dynamic_config
from walproof.lab.faults import catalogue
from walproof.lab.members import LabTraces
from walproof.lab.patroni import observe
from walproof.machine import untrusted
from walproof.machine.answering import BoundedLogin, answering
from walproof.machine.clock import RealClock
from walproof.machine.signals import shielded
from walproof.model.drill import Capability
from walproof.model.patroni_values import times
from walproof.model.ports import SILENT, Capabilities, Clock, Configuration, Notebook, Reverting
from walproof.model.sample import Sample, SampleResult, Scenario
from walproof.model.topology import ClusterView, Description, Endpoint, Route, memory_fact
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.rest import facts_of
from walproof.targets.configure import NoJournal
from walproof.targets.files.access_path import access_path
from walproof.targets.lab.faults import LabOperations, dcs_loss, faults_of, partition_one_way, slow_disk
from walproof.targets.lab.scenarios import LabScenarios
from walproof.targets.patroni.configuration import PatroniConfiguration
from walproof.targets.patroni.leader_lease import PatroniLeaderLease
from walproof.targets.patroni.target import NO_TAKEOVER, elected_at
from walproof.targets.sql.commit_waits import SqlCommitWaits
from walproof.targets.sql.connection import connection_error, session
from walproof.targets.sql.doctor_facts import Inspector
from walproof.targets.sql.ledger import SqlLedger
from walproof.targets.sql.observe import SqlMemberStates, SqlPoller
from walproof.targets.sql.price import SqlPricer, pooler_console
from walproof.targets.sql.settings import settings_of


@dataclass(frozen=True, slots=True)
class LabOldDisks:
    """Data directories of old leaders, copied beside them; `leader`: the endpoint of the leader now."""

    programs: Path
    blueprint: Blueprint
    clock: Clock
    leader: Callable[[], Endpoint]

    @contextmanager
    def kept(self, script: str) -> Iterator[None]:
        """The script is Patroni's pg_rewind meanwhile, and the role of replication may read and lock every table.

        What a killed run left is made anew.
        """
        program = self.blueprint.home / "pg_rewind_after_copy"
        program.write_text(script)
        program.chmod(0o755)
        list(self.copies())
        try:
            self._ask("GRANT pg_read_all_data, pg_write_all_data TO replicator")
            patroni.patch_config(self.blueprint, {"postgresql": {"bin_name": {"pg_rewind": str(program)}}})
            _, loop_wait, _ = times(dynamic_config(self.blueprint))
            self.clock.pause(loop_wait + 1.0)  # every member's Patroni reads the configuration once in its loop
            yield
        finally:
            with shielded():
                with suppress(Error):
                    patroni.patch_config(self.blueprint, {"postgresql": {"bin_name": None}})
                with suppress(Error):
                    self._ask("REVOKE pg_read_all_data, pg_write_all_data FROM replicator")
                list(self.copies())

    def _ask(self, statement: str) -> None:
        try:
            with session(self._leader()) as connection:
                connection.execute("SET synchronous_commit = local")  # a cluster without a standby would wait for ever
                connection.execute(statement.encode())
        except psycopg.Error as wrong:
            raise connection_error(wrong) from None

    def copies(self) -> Iterator[tuple[str, Path]]:
        for member in self.blueprint.members:
            for path in sorted(self.blueprint.data_dir(member).parent.glob("data.before-rewind.*")):
                if path.is_symlink() or not path.is_dir():
                    path.unlink(missing_ok=True)  # pg_rewind's stand-in makes folders: the member's server made this
                    continue
                try:
                    yield member, path
                finally:
                    with suppress(OSError):
                        untrusted.remove_tree(path)

    def dsn(self) -> str:
        return self._leader().client_conninfo(user="replicator")

    def _leader(self) -> Endpoint:
        """Waits for one: Patroni on a busy machine may be silent for a second."""
        led: list[Endpoint] = []

        def is_there() -> bool:
            with suppress(TargetError):
                led.append(self.leader())
            return bool(led)

        wait_for(Wait.NEW_LEADER, is_there, self.clock)
        return led[0]


class LabTarget:
    """A lab that is up, with every capability this machine allows."""

    external = False
    identity = ""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.clock: Clock = RealClock()
        self.name = "lab" if blueprint.name == "lab" else f"lab:{blueprint.name}"
        self.journal: Notebook = NoJournal()

    # observing

    def describe(self) -> Description:
        b = self.blueprint
        settings: dict[str, str] = {}
        failover = times(dynamic_config(b))
        try:
            conninfo = self.endpoint("multi-host").conninfo()
            with BoundedLogin.connect(conninfo, autocommit=True) as connection, answering(connection):
                settings = settings_of(connection)
        except psycopg.Error:
            settings = {}
        facts = {
            "manager": "patroni",
            "patroni": version("patroni"),
            "postgres": str(b.postgres_version),
            "kernel": platform.release(),
            "processors": str(psutil.cpu_count()),
            "memory": memory_fact(psutil.virtual_memory().total),
            "sync": f"{b.sync} {b.quorum}",
            "disk": b.disk.kind + (", WAL on its own volume" if b.disk.wal_volume else ""),
            "timeouts": b.timeouts,
            **{f"patroni {k}": str(v) for k, v in zip(("ttl", "loop_wait", "retry_timeout"), failover, strict=True)},
            "cpu per member": "all" if b.cores is None else f"{b.cores:g}",
        }
        return Description(f"lab {b.name}", b.members, facts, settings, b.disk.wal_volume, failover[0])

    def observe(self) -> ClusterView:
        return observe(self.blueprint)

    def poller(self, *, pace_s: float = 0.5, silent_s: float = 0.9) -> SqlPoller:
        return SqlPoller(self._members, self.clock, pace_s=pace_s, silent_s=silent_s)

    def elected_at(self, since: float) -> float | None:
        """When the current leader's Patroni says that it took the leader lock."""
        leader = self.observe().leader
        return None if leader is None else elected_at(members.logs(self.blueprint, leader), since)

    def _members(self) -> Mapping[str, Endpoint]:
        return {m: self.blueprint.member_endpoint(m) for m in self.blueprint.members}

    # routes

    def routes(self) -> tuple[Route, ...]:
        return (Route("direct", follows=False), Route("multi-host"), Route("haproxy"), Route("pgbouncer", pools=True))

    def endpoint(self, route: str) -> Endpoint:
        """Connection parameters of a route; direct asks who leads now."""
        if route != "direct":
            return self.blueprint.endpoint(route)
        leader = self.observe().leader
        if leader is None:
            raise TargetError("the lab has no leader just now", "walproof lab status; walproof lab fault clear")
        return self.blueprint.member_endpoint(leader)

    def member_endpoint(self, member: str) -> Endpoint:
        return self.blueprint.member_endpoint(member)

    # what it can do

    @cached_property
    def pricing(self) -> "LabPricing":
        """Samples under the lab's scenarios."""
        return LabPricing(self)

    @cached_property
    def ledger(self) -> SqlLedger:
        return SqlLedger(self)

    @cached_property
    def operations(self) -> LabOperations:
        """Restart, switchover, recovery, logs, links and pool."""
        return LabOperations(self.blueprint, self.clock, self.observe)

    @cached_property
    def configuration(self) -> Configuration:
        b = self.blueprint
        return PatroniConfiguration(f"lab:{b.name}", self.clock, patroni.rest(b), self._members, self.observe)

    def _inspector(self) -> Inspector:
        rest = patroni.rest(self.blueprint)
        access = partial(access_path, haproxy_cfg(self.blueprint), pgbouncer_ini(self.blueprint, (1, 21)))
        return Inspector(f"lab {self.blueprint.name}", self._members, lambda: facts_of(rest), access)

    def capabilities(self) -> Capabilities:
        """Everything, but for what this machine forbids."""
        b, reasons = self.blueprint, catalogue.reasons(self.blueprint)
        operations = self.operations
        factors = {Capability.SHAPE_LINKS, Capability.LIMIT_PROCESSORS} - set(reasons)
        return Capabilities(
            pricing=self.pricing,
            ledger=self.ledger,
            workload=self.pricing,
            faults=faults_of(b, reasons),
            slow_disk=None if Capability.SLOW_DISK in reasons else slow_disk(b),
            partition_one_way=partition_one_way(b),
            dcs_loss=dcs_loss(b),
            restart=operations,
            switchover=operations,
            recovery=operations,
            logs=operations,
            member_states=SqlMemberStates(self._members, self.clock, partial(catalogue.seen_on_machine, b)),
            traces=LabTraces(b),
            old_disks=LabOldDisks(b.postgres_bin, b, self.clock, partial(self.endpoint, "direct")),
            configuration=self.configuration,
            inspection=self._inspector(),
            commit_waits=SqlCommitWaits(self),
            leader_lease=PatroniLeaderLease(patroni.rest(b), self.clock),
            links=operations,
            pool=operations,
            scenario_factors=frozenset(factors),
            no_takeover=NO_TAKEOVER,
            reasons=reasons,
        )

    def revert(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        return self.configuration.undo(journal, reverting)

    def close(self) -> None:
        """Nothing is kept: the lab ends as a whole."""


class LabPricing(SqlPricer):
    """Samples on the lab under scenarios of its own: quorum, links, processors, parameters."""

    def __init__(self, target: LabTarget) -> None:
        blueprint = target.blueprint
        super().__init__(
            target,
            pgbench=blueprint.postgres_bin / "pgbench",
            pids=lambda member: [p.pid for p in members.processes(blueprint, member)],
            others=lambda: [p.pid for p in members.marked(blueprint)],
        )
        self._scenarios = LabScenarios(blueprint, target.clock)
        self._pool: int | None = None

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """The pool's size is set before, where the arm asks for one other than now."""
        pool = planned.arm.pool
        if pool is not None and pool != self._pool:
            try:
                with pooler_console(self._target.endpoint(planned.arm.route)) as console:
                    console.execute(f"SET default_pool_size = {int(pool)}".encode())
                    console.execute(b"RECONNECT")
            except psycopg.Error as error:
                raise TargetError(
                    f"PgBouncer's pool cannot be set to {pool}: {str(error).strip()}", "walproof lab logs"
                ) from None
            self._pool = pool
        return super().run_sample(planned, seconds, seed)

    def check(self, scenario: Scenario) -> None:
        self._scenarios.check(scenario)

    def enter(self, scenario: Scenario) -> dict[str, tuple[float, ...]]:
        measured = self._scenarios.enter(scenario)
        self.link_measured(measured, scenario.rtt_ms)
        return measured

    def leave(self) -> None:
        """Revert what `enter` changed; what was measured is checkpointed."""
        self._scenarios.leave()
        self.checkpoint_now()


def open_lab(name: str | None = None) -> LabTarget:
    """The lab of that name (or WALPROOF_LAB, or "lab"); MachineError when it is not up."""
    return LabTarget(home.load(name))
