"""One run of a schedule: builds the cluster in its steady state, lets the faults come, judges."""

import json
from dataclasses import dataclass, replace

from tests.guard_simulation.etcd import SimulatedEtcd
from tests.guard_simulation.faults import KINDS
from tests.guard_simulation.guard import GuardHost
from tests.guard_simulation.judge import Judge, Violation
from tests.guard_simulation.patroni import Patroni, Watchdog
from tests.guard_simulation.patroni_keys import Tags
from tests.guard_simulation.postgres import FIRST, Postgres
from tests.guard_simulation.schedule import FOREVER, GUARDS, Fault, Schedule
from tests.guard_simulation.wal import Branch, Names, Sender
from tests.guard_simulation.world import Happened, Process, World
from walproof.guarding import decide

_CALM_S = 2.5
"""For how long a cluster must have had one leader and no guard at work until a run is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run of a schedule. wrong: what counts against the guard; fired: when each of its faults came."""

    schedule: Schedule
    wrong: tuple[Violation, ...]
    patroni_losses: int
    seals: int
    hand_overs: int
    promotions: int
    ended: float
    fired: tuple[float | None, ...]
    story: tuple[Happened, ...] = ()


class Simulation:
    """A cluster and its guards in virtual time."""

    def __init__(self, schedule: Schedule, recorded: bool = False, guarded: bool = True) -> None:
        self.schedule = schedule
        self.world = World(str(schedule.seed))
        self.world.recording = recorded
        names = [f"n{i + 1}" for i in range(schedule.members)]
        self.names = names
        self.etcd = SimulatedEtcd(self.world, ("e1", "e2", "e3"), schedule.least_ttl)
        branch = Branch(1, fork=FIRST)
        self.members: dict[str, Patroni] = {}
        self.servers: dict[str, Postgres] = {}
        self.judge = Judge(self.world, self.etcd, self.members, [branch])
        self._write_keys()
        for name in names:
            self._add(name, branch)
        self._steady()
        self.judge.plain = schedule.plain
        self.guards = self.judge.guards
        for i in range(schedule.guards if guarded else 0):
            self.guards[GUARDS[i]] = self._guard(i)
        self.fired: list[float | None] = [None] * len(schedule.faults)
        self.pending = 0
        self._quiet_since: float | None = None
        for i, fault in enumerate(schedule.faults):
            self._arm(i, fault)

    # The cluster in its steady state.

    def _write_keys(self) -> None:
        s, etcd = self.schedule, self.etcd
        config = {
            "ttl": s.times.ttl, "loop_wait": s.times.loop_wait, "retry_timeout": s.times.retry_timeout,
            "synchronous_mode": s.synchronous and ("quorum" if s.any_of else True), "synchronous_node_count": s.k,
            "synchronous_mode_strict": s.strict, "failsafe_mode": s.failsafe,
            **s.odd.get("config", {}),
        }  # fmt: skip
        etcd.put("config", json.dumps(config), 0, "start")
        etcd.put("initialize", "1", 0, "start")
        etcd.put("status", '{"optime":1050}', 0, "start")
        lease = etcd.grant(s.times.ttl)
        self.lease = lease
        etcd.put("leader", "n1", lease, "start")
        limit_s, since_s = s.limit
        if limit_s:
            limit = etcd.grant(2 * limit_s)
            etcd.leases[limit].ends -= since_s
            etcd.leases[limit].renewed -= since_s
            etcd.put("walproof_guard_limit", json.dumps({"limit_s": limit_s}), limit, "start")

    def _add(self, name: str, branch: Branch) -> None:
        s, world = self.schedule, self.world
        postgres = Postgres(
            world, name, Process(f"{name} postgres", name), branch, self.servers, self.judge.acknowledged,
            interval_s=s.interval_s, delay_s=s.delays.get(name, 0.0),
        )  # fmt: skip
        self.servers[name] = postgres
        self.members[name] = patroni = Patroni(
            world, self.etcd, Process(f"{name} patroni", name), postgres, s.times, self.members, self.judge.promoted,
            Tags(dict(s.tags.get(name, {}))), Watchdog(name in s.watchdogs, name not in s.watchdogs),
        )  # fmt: skip
        patroni.version = s.odd.get(f"version {name}", patroni.version)
        patroni.dcs.lease = self.lease if name == "n1" else self.etcd.grant(s.times.ttl)
        postgres.role = "primary" if name == "n1" else "standby"
        self.etcd.put(f"members/{name}", patroni.description(), patroni.dcs.lease, name)

    def _steady(self) -> None:
        s, leader, etcd = self.schedule, self.servers["n1"], self.etcd
        able = []
        for name in self.names[1:]:
            tags, server = self.members[name].tags, self.servers[name]
            source = tags.replicatefrom if tags.replicatefrom not in (None, name) else "n1"
            server.conninfo = server._startup_conninfo = source
            server.received, server._receiving = server.flushed, "1"
            server.receiver, server.source = "streaming", source
            self.servers[source].senders[name] = Sender(server.flushed, 0.0)
            server._watch_stream(server._connection)
            if not tags.nosync and source == "n1":
                able.append(name)
        preferred = sorted(able, key=lambda n: (self.members[n].tags.nofailover, n))
        voters = preferred[: s.k]
        if s.any_of:
            promotable = [n for n in able if not self.members[n].tags.nofailover]
            voters = promotable if len(promotable) >= s.k else voters
        k = min(s.k, len(voters))
        sync = {"leader": "n1", "sync_standby": ",".join(sorted(voters)) or None, "quorum": len(voters) - k}
        etcd.put("sync", json.dumps(sync, separators=(",", ":")), 0, "start")
        leader.names = Names(k, tuple(sorted(voters)), s.any_of)
        handler = self.members["n1"].sync
        handler.ready, handler.known = list(voters), leader.names
        for patroni in self.members.values():
            patroni._promote_at = 0.001
            patroni.view.rebuild()
        leader.lead()

    def _guard(self, i: int) -> GuardHost:
        schedule, name = self.schedule, GUARDS[i]
        dry = {"dry_run": True} if name in schedule.dry else {}
        settings = {"learns_s": 1.0, **schedule.policy, **dry}
        policy = decide.Policy(name, **{k: v for k, v in settings.items() if v is not None})
        process = Process(name, f"g{i + 1}")
        host = GuardHost(self.world, self.etcd, self.members, process, policy, schedule.skews[i], schedule.odd)
        host.wrong, host.logged = self.judge.wrong, self.judge.logged
        host.start()
        return host

    # The run.

    def run(self) -> Outcome:
        """To the end, and what came of it."""
        faults = self.schedule.faults
        ends = max((f.at + (f.lasts if f.lasts < FOREVER else 0.0) for f in faults), default=0.0)
        self.world.run(ends + 2 * self.schedule.times.ttl + 8.0, self._over)
        judge = self.judge
        judge.finish(2 * self.schedule.members + 6 * len(self.guards))
        if self.guards:
            self._judge_kind()
        self.world.close()
        return Outcome(
            self.schedule, tuple(judge.violations), judge.patroni_losses, len(judge.seals), len(judge.hand_overs),
            len(judge.promotions), self.world.now, tuple(self.fired), tuple(self.world.story),
        )  # fmt: skip

    def _judge_kind(self) -> None:
        judge, schedule = self.judge, self.schedule
        if schedule.untouched and judge.seals:
            judge.wrong("needless", f"a guard took the key {judge.seals[0]:.2f} s after the start")
        for gone in self._awaited():
            led = ", ".join(f"{at:.2f}" for at in judge.promotions) or "none"
            judge.wrong("late", f"the leader is gone at {gone:.2f}; promotions: {led}")

    def _awaited(self) -> list[float]:
        """When each leader went that has no successor which is in time."""
        came = [(self.fired[i], seconds) for i, seconds in self.schedule.due]
        return [
            gone for gone, seconds in came
            if gone is not None and not any(gone < at <= gone + seconds for at in self.judge.promotions)
        ]  # fmt: skip

    def _over(self) -> bool:
        now = self.world.now
        self.judge.observe()
        holder = self.etcd.keys.get("leader")
        leads = [n for n, s in self.servers.items() if s.role == "primary" and not (s.process.dead or s.process.frozen)]
        calm = self.pending == 0 and holder is not None and leads == [holder.value] and now > 4.5
        busy = any(
            h.guard is not None and h.guard.memory.state in (decide.State.SUSPECTING, decide.State.SEALED)
            for h in self.guards.values()
            if not h.process.dead
        )
        if not calm or busy or (self._awaited() and now < 20.0):
            self._quiet_since = None
            return False
        if self._quiet_since is None:
            self._quiet_since = now
        return now - self._quiet_since >= _CALM_S

    # Faults.

    def _arm(self, i: int, fault: Fault) -> None:
        def begin() -> None:
            self.pending += 1
            if fault.after and fault.at == 0.0:
                self._fire(i, fault)
            else:
                self.world.after(fault.at, lambda: self._fire(i, fault))

        if not fault.after:
            begin()
            return
        base = self.schedule.faults[0].at if not self.schedule.faults[0].after else 0.0
        self.world.after(base, lambda: self.world.listeners.setdefault(fault.after, []).append(begin))

    def _fire(self, i: int, fault: Fault) -> None:
        self.fired[i] = self.world.now
        if fault.who == "leader":
            holder = self.etcd.keys.get("leader")
            fault = replace(fault, who=holder.value if holder is not None and holder.value in self.servers else "n1")
        self.world.tell("FAULT", str(replace(fault, after="", at=self.world.now)).split(": ", 1)[1])
        undo = KINDS[fault.kind](self, fault)
        if undo is None or fault.lasts >= FOREVER:
            self.pending -= 1
            return

        def end() -> None:
            self.world.tell("FAULT", f"over: {fault.kind} {fault.who}")
            self.pending -= 1
            undo()

        self.world.after(fault.lasts, end)

    def processes(self, name: str) -> list[Process]:
        """Of a member."""
        return [self.servers[name].process, self.members[name].process]

    def revive(self, name: str) -> None:
        """A member that was killed starts again."""
        patroni, server = self.members[name], self.servers[name]
        for process in self.processes(name):
            self.world.revive(process)
        server.role = "stopped"
        patroni.busy, patroni.dcs.lease = "", 0
        patroni._promote_at, patroni._failsafe = 0.0, (-1000.0, "")
        patroni.view.rebuild()
        patroni._actor = self.world.spawn(patroni.process, patroni._run)


def judge(schedule: Schedule, recorded: bool = False) -> Outcome:
    """Run it; a loss counts only where the same schedule without a guard loses nothing."""
    outcome = Simulation(schedule, recorded=recorded).run()
    if any(v.kind == "loss" for v in outcome.wrong):
        came = zip(schedule.faults, outcome.fired, strict=True)
        faults = tuple(replace(f, after="", at=at) for f, at in came if at is not None)
        if Simulation(replace(schedule, faults=faults), guarded=False).run().patroni_losses:
            return replace(outcome, wrong=tuple(v for v in outcome.wrong if v.kind != "loss"))
    return outcome
