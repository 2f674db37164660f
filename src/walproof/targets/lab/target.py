"""The lab as a target: everything walproof can do to a cluster, it can do to its own. Delegates; decides nothing."""

import platform
from functools import cached_property

import psutil
import psycopg

from walproof.errors import TargetError
from walproof.lab import access, home, member_links, members, patroni, switchover
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import availability, disks, power, recover
from walproof.lab.faults import processes as member_faults
from walproof.lab.observe import look
from walproof.machine.clock import RealClock
from walproof.model.attempt import Rows
from walproof.model.guarantee import SyncMode
from walproof.model.plan import Sample, Scenario, Workload
from walproof.model.ports import Capability, Clock, LedgerOrder, LedgerRun
from walproof.model.sample import SampleResult
from walproof.model.topology import ClusterView, Description, Endpoint, LinkView, Route
from walproof.targets.lab.scenarios import LabSettings
from walproof.targets.sql.ledger import SqlLedger
from walproof.targets.sql.poller import Eyes
from walproof.targets.sql.price import SqlPricer

SETTINGS = (
    "synchronous_standby_names",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_sync_method",
    "commit_delay",
    "commit_siblings",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_sender_timeout",
    "max_connections",
    "data_checksums",
)


class LabTarget:
    """A lab that is up, with every capability this machine allows."""

    name = "lab"

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.clock: Clock = RealClock()

    @cached_property
    def _pricer(self) -> SqlPricer:
        return SqlPricer(
            self,
            pgbench=self.blueprint.postgres_bin / "pgbench",
            pids=lambda member: [p.pid for p in members.processes(self.blueprint, member)],
            others=lambda: [p.pid for p in members.marked(self.blueprint)],
        )

    @cached_property
    def _ledger(self) -> SqlLedger:
        return SqlLedger(self)

    @cached_property
    def _settings(self) -> LabSettings:
        return LabSettings(self.blueprint, self.clock)

    def describe(self) -> Description:
        """Versions, machine and settings in effect on the leader."""
        settings: dict[str, str] = {}
        try:
            with psycopg.connect(self.endpoint(Route.MULTI_HOST).conninfo(), autocommit=True) as connection:
                rows = connection.execute(
                    "SELECT name, setting || coalesce(unit, '') FROM pg_settings WHERE name = ANY(%s) ORDER BY name",
                    (list(SETTINGS),),
                ).fetchall()
                settings = {str(name): str(value) for name, value in rows}
        except psycopg.Error:
            settings = {}
        b = self.blueprint
        facts = {
            "postgres": str(b.postgres_version),
            "kernel": platform.release(),
            "processors": str(psutil.cpu_count()),
            "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
            "sync": f"{b.sync} {b.quorum}",
            "disk": b.disk.kind + (", WAL on its own volume" if b.disk.wal_volume else ""),
            "timing": b.timing,
            "cpu per member": "all" if b.cores is None else f"{b.cores:g}",
        }
        return Description(f"lab {b.name}", b.members, facts, settings)

    def observe(self) -> ClusterView:
        """One look at every member."""
        return look(self.blueprint)

    def closely(self) -> Eyes:
        """Eyes that see a promotion within a tenth of a second."""
        return Eyes(self, pace_s=0.1, silent_s=0.4)

    def endpoint(self, route: Route) -> Endpoint:
        """The clients' way to the leader; direct asks who leads now."""
        if route is not Route.DIRECT:
            return self.blueprint.endpoint(route)
        leader = self.observe().leader
        if leader is None:
            raise TargetError("the lab has no leader just now", "walproof lab status; walproof lab heal")
        return self.blueprint.member_endpoint(leader)

    def member_endpoint(self, member: str) -> Endpoint:
        """Straight to one member."""
        return self.blueprint.member_endpoint(member)

    def why_not(self, capability: Capability) -> str | None:
        """What this machine forbids."""
        return availability.why_not(self.blueprint, capability)

    # what price needs

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs."""
        self._pricer.prepare(workload)

    def check(self, setting: Scenario) -> None:
        """Refuse factors that this lab or this machine cannot bring into effect."""
        self._settings.check(setting)

    def enter(self, setting: Scenario) -> dict[str, float]:
        """Bring the outer factors into effect; measured round trips in ms by "a-b"."""
        measured = self._settings.enter(setting)
        self._pricer.link_measured(measured, setting.rtt_ms)
        return measured

    def leave(self) -> None:
        """Put back what `enter` changed."""
        self._settings.leave()

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """Run one sample and look beside it."""
        return self._pricer.run_sample(planned, seconds, seed)

    # what prove needs

    def open_ledger(self, order: LedgerOrder) -> LedgerRun:
        """Start the writers."""
        return self._ledger.open_ledger(order)

    def read_ledger(self, member: str, drill: int) -> Rows:
        """The rows of one drill as that member holds them."""
        return self._ledger.read_ledger(member, drill)

    def check_data(self, member: str) -> str:
        """Checksums and amcheck of that member."""
        return self._ledger.check_data(member)

    def drop_ledger(self) -> None:
        """Remove the ledger's own table."""
        self._ledger.drop_ledger()

    # faults

    def kill(self, member: str) -> None:
        """Postmaster killed with -9."""
        member_faults.kill(self.blueprint, member)

    def stop(self, member: str) -> None:
        """PostgreSQL stopped in an orderly way."""
        member_faults.stop(self.blueprint, member)

    def kill_member(self, member: str) -> None:
        """Every process of the member killed."""
        member_faults.kill_member(self.blueprint, member)

    def freeze(self, member: str) -> None:
        """Every process of the member stopped."""
        member_faults.freeze(self.blueprint, member)

    def thaw(self, member: str) -> None:
        """Go on after freeze."""
        member_faults.thaw(self.blueprint, member)

    def cut_power(self, member: str) -> None:
        """File system shut down unflushed, processes killed, cable down."""
        power.cut_power(self.blueprint, member)

    def restart(self, member: str) -> None:
        """PostgreSQL restarted through Patroni."""
        member_faults.restart(self.blueprint, member)

    def lose_dcs(self) -> None:
        """Take etcd's majority away."""
        member_faults.lose_dcs(self.blueprint)

    def cut(self, member: str) -> None:
        """Cut from every other member."""
        member_links.cut(self.blueprint, member)

    def isolate(self, member: str) -> None:
        """Cut from everybody."""
        member_links.isolate(self.blueprint, member)

    def cut_one_way(self, source: str, destination: str) -> None:
        """Packets from source no longer reach destination."""
        member_links.cut_one_way(self.blueprint, source, destination)

    def hurt_disk(self, member: str, error: str, slow_s: float = 0.0) -> None:
        """Slow, failing or full."""
        disks.hurt(self.blueprint, member, error, slow_s)

    def switch_over(self, to: str | None = None) -> None:
        """Planned, clients held in PgBouncer."""
        leader = self.observe().leader
        if leader is None:
            raise TargetError("there is no leader to switch over from", "walproof lab status; walproof lab heal")
        switchover.switch_over(self.blueprint, leader, to, self.clock)

    def heal(self) -> None:
        """Undo every fault and wait until the cluster is whole."""
        recover.heal(self.blueprint, self.clock)

    def revive(self, member: str) -> None:
        """Bring one member back while faults elsewhere stay."""
        recover.revive(self.blueprint, member)

    def logs(self, member: str) -> str:
        """The last lines of every log of the member."""
        return members.logs(self.blueprint, member)

    # what watching shows

    def links_drawn(self) -> tuple[LinkView, ...]:
        """Every direction that is shaped or cut, as asked."""
        asked = member_links.asked(self.blueprint)
        trips = {d: 1000 * (s.delay_s + asked.setting((d[1], d[0])).delay_s) for d, s in asked.table.items()}
        shaped = [LinkView(a, b, rtt_ms=trips[a, b] or None, cut=s.cut) for (a, b), s in asked.table.items()]
        others = {m: [o for o in self.blueprint.members if o != m] for m in asked.isolated}
        alone = [LinkView(a, b, cut=True) for a in others for b in others[a] if (a, b) not in asked.table]
        return (*shaped, *alone)

    def pool_clients(self) -> dict[str, int]:
        """PgBouncer's clients by state."""
        return access.pool_clients(self.blueprint)

    # configuration

    def set_parameters(self, parameters: dict[str, str | None]) -> None:
        """Set parameters through Patroni and wait until they are in effect."""
        patroni.set_parameters(self.blueprint, parameters)

    def set_sync(self, mode: SyncMode, quorum: int) -> None:
        """Set synchronous mode and quorum, and wait until the names are in effect."""
        patroni.set_sync(self.blueprint, mode, quorum)


def lab_target(name: str | None = None) -> LabTarget:
    """The lab of that name (or WALPROOF_LAB, or "lab"); MachineError when it is not up."""
    return LabTarget(home.load(name))
