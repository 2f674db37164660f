"""The shipped decisions against the stand-in's operator, managers and kubelet (tests/fixtures/kubernetes).

What it adds to the machine there, in steps of 0.2 s: WAL as whole numbers, an API whose answers come late, a guard that
may be frozen or killed. Each act is judged (judge.py) at the moment at which the API carries it out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from tests.fixtures.kubernetes.events import Machine, next_due
from tests.fixtures.kubernetes.freeze_judge import manager_runs, wrong_deletion, wrong_emptying, wrong_outage
from tests.fixtures.kubernetes.state import PENDING, Cluster, Cut, Member, Server, Synchronous, Template, healthy
from tests.frozen_primary_simulation.schedule import Schedule
from walproof.guarding import kubernetes_freeze, kubernetes_sight
from walproof.guarding.kubernetes_freeze import Policy

STEP_S, END_S = 0.2, 45.0
NAMES = ("pg-1", "pg-2", "pg-3")


class Slow(Machine):
    """A machine whose operator may be late, whose manager may take long to die."""

    def __init__(self, late_s: float, dying_s: float, position: dict[str, int]) -> None:
        super().__init__()
        self.late_s, self.dying_s, self.position = late_s, dying_s, position

    def elect(self, cluster: Cluster, name: str) -> Cluster:
        if cluster.now_s < self.late_s:
            return cluster.after(1.0, self.elect)
        for one, position in self.position.items():
            cluster = cluster.with_member(one, received=position)
        return super().elect(cluster, name)

    def terminate(self, cluster: Cluster, name: str, grace_s: float) -> Cluster:
        return super().terminate(cluster, name, grace_s + self.dying_s)


@dataclass
class Guard:
    """One guard: its memory, what it has read, its request under way, until when it is frozen."""

    name: str
    memory: Any
    readings: dict[str, Any] = field(default_factory=dict)
    reading: list[tuple[float, float, str, float]] = field(default_factory=list)  # done, taken, kind, begun
    request: tuple[float, float, Any] | None = None  # done, carried out, action
    pending: tuple[bool, bool] | None = None  # done by the API, answer lost
    frozen_until: float = 0.0
    last_turn: float = 0.0
    steps: int = 0


@dataclass
class World:
    schedule: Schedule
    decide: ModuleType = kubernetes_freeze
    seen: ModuleType = kubernetes_sight
    wrong: list[str] = field(default_factory=list)
    deletions: list[float] = field(default_factory=list)
    emptied: int = 0
    acked: int = 0
    lsn: int = 0
    last_ack_s: float = 0.0
    outage_s: float = 0.0
    annotation: tuple[str, str, str] = ("", "", "")
    touched: int = 0
    by_hand: str = ""  # who was named, not elected: asked for no WAL, so that what it lacks is not the guard's loss

    def __post_init__(self) -> None:
        s = self.schedule
        self.random = random.Random(s.seed + 1_000_000)
        self.number = 2 if s.of("two of two") else 1
        late = max((f.at_s + f.lasts_s for f in s.of("operator late")), default=0.0)
        self.position = dict.fromkeys(NAMES, 0)
        dying_s = min(sum(f.lasts_s for f in s.of("late dying")), 30.0)
        self.machine = Slow(min(late, 45.0), dying_s, self.position)
        setting = Synchronous(number=self.number, failover_quorum=True)
        self.cluster = healthy(tuple(Member(name) for name in NAMES), synchronous=setting)
        self.heard = dict.fromkeys(NAMES, 0.0)
        self.renewals, self.renewed_s = 0, 0.0
        self.uids: dict[str, int] = dict.fromkeys(NAMES, 1)
        self.waiting: dict[tuple[str, str], float | None] = {}
        self.answered: dict[tuple[str, str], float] = {}
        self.frozen_last_s = float("-inf")
        self.ended_s = 0.0
        self.guards = [self._guard(f"g{n}") for n in range(2 if s.of("second guard") else 1)]
        self.began: dict[str, float] = {}
        self.sql_from = self.wal_from = 0.0  # after a hiccup: once logins are through, TCP has sent again
        self.done: set[tuple[str, int]] = set()

    def _guard(self, name: str) -> Guard:
        return Guard(name, self.decide.Memory())

    @property
    def now(self) -> float:
        return self.cluster.now_s

    def run(self, *, guarded: bool = True) -> "World":
        for n in range(1, int(END_S / STEP_S)):
            self._faults()
            self._step_to(n * STEP_S)
            self._wal()
            for number, guard in enumerate(self.guards if guarded else ()):
                self._ways(guard)
                self._api(guard)
                self._turn(guard, number)
        self.outage_s = max(self.outage_s, self.now - self.last_ack_s)
        return self

    def _step_to(self, now: float) -> None:
        before = self.cluster
        while (due_s := next_due(self.cluster)) is not None and due_s <= now:
            self.cluster = self.machine.step(self.cluster)
        self.cluster = replace(self.cluster, now_s=now, orders=())
        holder = self.cluster.lease.holder
        if self.cluster.lease != before.lease:
            self.touched += 1
        manager_cut = any(self._on(f, now) for f in self.schedule.of("manager cut"))
        if holder and now - self.renewed_s >= 2.0 and manager_runs(self.cluster, holder) and not manager_cut:
            self.renewals, self.renewed_s = self.renewals + 1, now
        for name in NAMES:
            if self.cluster.member(name).generation != before.member(name).generation:
                self.uids[name] += 1
        if self.deletions and self.cluster.member("pg-1").server is not Server.DOWN:
            self.ended_s = now
        if self.cluster.primary != before.primary:
            self._promoted(self.cluster.primary)
        if self.cluster.member(self.cluster.primary).server is Server.FROZEN:
            self.frozen_last_s = now

    def _promoted(self, name: str) -> None:
        if self.deletions and self.position[name] < self.acked and name != self.by_hand:
            self.wrong.append(f"lost: {name} has {self.position[name]} of {self.acked} at {self.now:.1f}")
        self.lsn = self.position[name]
        self.acked = min(self.acked, self.lsn)

    def _wal(self) -> None:
        c, now = self.cluster, self.now
        one = c.member(c.primary)
        led = one.server is Server.RUNNING and one.cut is Cut.NONE and not one.lingers and c.target == c.primary
        if not (led and one.role == "primary"):  # a promotion is over once the write service leads there
            return
        streams = [n for n in NAMES if n != c.primary and self._streams(n)]
        if not self.schedule.idle:
            self.lsn += 1
        for name in streams:
            lag = next((5 for f in self.schedule.of("lag") if f.standby == name and self._on(f, now)), 0)
            moved = max(self.position[name], self.lsn - lag)
            if moved > self.position[name] or now - self.heard[name] >= 2.5:
                self.heard[name] = now
            self.position[name] = moved
        self.position[c.primary] = self.lsn
        held = sorted((self.position[n] for n in NAMES if n != c.primary), reverse=True)
        waits = 0 if self.began.get("ALTER SYSTEM", now) < now else self.number
        safe = held[waits - 1] if waits else self.lsn
        if safe > self.acked:
            self.acked = safe
            self.outage_s, self.last_ack_s = max(self.outage_s, now - self.last_ack_s), now

    def _streams(self, name: str) -> bool:
        one, first = self.cluster.member(name), self.cluster.member(self.cluster.primary)
        alive = first.server is Server.RUNNING and first.cut is Cut.NONE and self.now >= self.wal_from
        alive = alive and not self._active("WAL hiccup")
        return alive and one.server is Server.RUNNING and one.cut is Cut.NONE and bool(one.pod)

    def _on(self, fault: Any, now: float) -> bool:
        return bool(fault.at_s <= now < fault.at_s + fault.lasts_s)

    def _active(self, name: str) -> bool:
        return any(self._on(fault, self.now) for fault in self.schedule.of(name))

    def _once(self, name: str, number: int, due: bool) -> bool:
        if due and (name, number) not in self.done:
            self.done.add((name, number))
            return True
        return False

    def _faults(self) -> None:
        s, m, now = self.schedule, self.machine, self.now
        if s.freeze != "none":
            if self._once("frozen", 0, now >= s.freeze_s) and self.cluster.member("pg-1").server is Server.RUNNING:
                self.cluster = m.freeze(self.cluster, "pg-1")
                self.frozen_last_s = now
            if self._once("thawed", 0, now >= s.freeze_s + s.frozen_for_s):
                self.cluster = m.thaw(self.cluster, "pg-1")
        for number, fault in enumerate(s.faults):
            if self._once(fault.name, number, now >= fault.at_s):
                self._begins(fault.name, fault.standby)
            if self._once(f"{fault.name} over", number, now >= fault.at_s + fault.lasts_s):
                self._ends(fault.name, fault.standby)

    def _begins(self, name: str, standby: str) -> None:
        m, c = self.machine, self.cluster
        self.began.setdefault(name, self.now)
        does: dict[str, Callable[[], Cluster]] = {
            "standby paused": lambda: c.with_member(standby, server=Server.FROZEN) if standby != c.primary else c,
            "standby unready": lambda: c.with_member(standby, ready=False) if standby != c.primary else c,
            "standby unheard": lambda: c.with_member(standby, reports=False) if standby != c.primary else c,
            "switchover": lambda: self._promote(standby),
            "slow replay": lambda: c.with_member(standby, to_replay_s=100.0),
            "roll": lambda: m.change_template(c, Template("2")),
            "fence": lambda: m.fence(c, standby),
            "freeze again": lambda: m.freeze(c, c.primary) if c.primary == c.target else c,
            "peers cut": lambda: m.cut_network(c, "pg-1", Cut.PEERS),
            "primary isolated": lambda: m.cut_network(c, "pg-1"),
            "network hiccup": lambda: m.cut_network(c, "pg-1"),
            "kill": lambda: m.kill_postmaster(c, "pg-1"),
            "lose node": lambda: m.lose_node(c),
            "lease deleted": lambda: m.delete_lease(c) if c.lease.exists else c,
            "delete by force": lambda: m.delete_pod(c, "pg-1") if self._forcible() else c,
            "thaw": lambda: m.thaw(c, "pg-1"),
        }
        self.cluster = does.get(name, lambda: c)()
        if name == "guard frozen":
            self.guards[0].frozen_until = self.now + 30.0
        elif name == "guard killed":
            self.guards[0] = self._guard("g0 again")

    def _promote(self, standby: str) -> Cluster:
        """As kubectl cnpg promote, once."""
        c = self.cluster
        if standby == c.primary or c.target not in (c.primary, PENDING) or not c.member(standby).pod:
            return c
        self.by_hand = "" if c.member(c.primary).server is Server.RUNNING else standby
        return self.machine.switch_over(c, standby)

    def _forcible(self) -> bool:
        """Force on a lost node is a promise of the person who uses it: not drawn together."""
        return bool(self.cluster.member("pg-1").pod and self.deletions and "lose node" not in self.began)

    def _ends(self, name: str, standby: str) -> None:
        m, c = self.machine, self.cluster
        if name == "standby paused" and c.member(standby).server is Server.FROZEN:
            self.cluster = c.with_member(standby, server=Server.RUNNING)
        elif name == "standby unready":
            self.cluster = c.with_member(standby, ready=True)
        elif name == "standby unheard":
            self.cluster = c.with_member(standby, reports=True)
        elif name in ("peers cut", "primary isolated", "network hiccup"):
            self.cluster = m.mend_network(c, "pg-1")
            if name == "network hiccup":
                again = (self.began[name] + 0.2 * (2**tries - 1) for tries in range(1, 10))
                self.wal_from = next(at for at in again if at >= self.now)
                self.sql_from = self.now + self.random.choice((0.1, 0.6, 1.2, 2.0))
        elif name == "fence" and c.member(standby).fenced:
            self.cluster = m.fence(c, standby, False)

    def _ways(self, guard: Guard) -> None:
        """Attempts of this guard over the service, to the pod and to its manager."""
        one, now = self.cluster.member(self.cluster.primary), self.now
        if now < guard.frozen_until:
            return
        apart = one.cut is Cut.ALL
        sql = one.server is not Server.FROZEN and not apart and not self._active("SQL hiccup") and now >= self.sql_from
        manager = (bool(one.pod) or one.lingers) and one.container == "running" and not apart
        service = sql and not self._active("service away")
        for way, answers in {"service": service, "direct": sql, "manager": manager}.items():
            if answers:
                self.waiting[guard.name, way], self.answered[guard.name, way] = None, now
            elif self.waiting.get((guard.name, way)) is None:
                self.waiting[guard.name, way] = now

    def _api(self, guard: Guard) -> None:
        """Readings one after another, each taken at a moment between the question and the answer."""
        now = self.now
        if now < guard.frozen_until:
            return
        away = self._active("API away")
        while guard.reading and guard.reading[0][1] <= now:
            done, _, kind, begun = guard.reading[0]
            taken = guard.readings.setdefault(f"taken {kind}", self._taken(kind, begun, guard))
            if done > now:
                break
            guard.reading.pop(0)
            del guard.readings[f"taken {kind}"]
            if not away:
                guard.readings[kind] = taken
        if not guard.reading:
            slow, at = self._active("slow API"), now
            for kind in self.random.sample(("lease", "cluster", "pod"), 3):
                takes = self.random.uniform(0.5, 4.0) if slow else self.random.uniform(0.0, 0.1)
                guard.reading.append((at + takes, at + takes * self.random.random(), kind, at))
                at += takes

    def _taken(self, kind: str, at: float, guard: Guard) -> Any:
        c, s = self.cluster, self.seen
        if kind == "lease":
            version = f"{self.touched}/{self.renewals}/{c.lease.holder}"
            return at, s.LeaseSeen(version, c.lease.holder, str(self.renewals))
        if kind == "pod":
            one = c.member(guard.memory.primary or c.primary)
            uid = f"{one.name}/{self.uids[one.name]}" if one.pod else ""
            return at, (uid, one.pod == "Running" and one.ready and not one.terminating)
        in_effect = 0 if self.began.get("ALTER SYSTEM", self.now) < self.now else self.number
        fenced = tuple(m.name for m in c.members if m.fenced)
        on = [name for name in ("hibernate", "pause", "restore") if self.began.get(name) is not None]
        hands_off = " and ".join((*on, *fenced))
        version = f"{c.primary}/{c.target}/{c.phase}/{hands_off}/{self.annotation}"
        return at, s.ClusterSeen(
            version, c.primary, c.target, c.phase, NAMES, self.number, in_effect, hands_off, self.annotation
        )

    def _turn(self, guard: Guard, number: int) -> None:
        now = self.now
        if now < guard.frozen_until:
            return
        if guard.request is not None:
            self._requested(guard)
            guard.last_turn = now
            return
        if not {"cluster", "pod", "lease"} <= guard.readings.keys():
            return
        stalled = guard.last_turn > 0 and now - guard.last_turn > 0.6
        guard.last_turn = now
        way = {
            w: self.seen.Way(self.answered.get((guard.name, w), 0.0), self.waiting.get((guard.name, w)))
            for w in ("service", "direct", "manager")
        }
        (at, cluster), (pod_at, pod), (lease_at, lease) = (guard.readings[kind] for kind in ("cluster", "pod", "lease"))
        seen = (now, min(at, pod_at, lease_at), cluster, *pod, lease)
        sight = self.seen.Sight(*seen, **way, standbys=self._standbys(), stalled=stalled)
        guard.memory, action = self.decide.turn(guard.memory, sight, Policy(guard.name))
        if action is None:
            return
        for name, does in (("guard frozen at a step", "freeze"), ("guard killed at a step", "kill")):
            for fault in self.schedule.of(name):
                if number == 0 and guard.steps == fault.step and self._once(name, -1, True):
                    guard.frozen_until = now + fault.lasts_s if does == "freeze" else guard.frozen_until
                    if does == "kill":
                        self.guards[0] = self._guard("g0 again")
                        return
        guard.steps += 1
        if action.act == self.decide.Act.DELETE_POD and now - self.frozen_last_s > 1.0:
            self.wrong.append(f"decided to delete a living primary at {now:.1f}")
        takes = self.random.uniform(0.5, 4.0) if self._active("slow API") else self.random.uniform(0.0, 0.1)
        start = max(now, guard.frozen_until)
        guard.request = (start + takes, start + takes * self.random.random(), action)

    def _requested(self, guard: Guard) -> None:
        """The shell's part: never after `until`; the API carries it out at some moment before its answer."""
        assert guard.request is not None
        ends, carried, action = guard.request
        if guard.pending is None and self.now >= carried:
            deletes = action.act == self.decide.Act.DELETE_POD
            late = deletes and self.now > action.until + 2.0  # as the API server is asked (timeout=2s)
            if late or (guard.frozen_until > action.until and self.now >= guard.frozen_until):
                guard.memory, guard.request = self.decide.not_done(guard.memory, action, "late"), None
                return
            done = not self._active("API away") and self._carried_out(guard, action)
            guard.pending = (done, self._active("answer lost") or self._active("API away"))
        if guard.pending is not None and self.now >= ends:
            done, lost = guard.pending
            if done and not lost:
                guard.memory = self.decide.done(guard.memory, action, self.now)
            else:
                guard.memory = self.decide.not_done(guard.memory, action, "no answer" if lost else "changed")
            guard.request = guard.pending = None

    def _standbys(self) -> dict[str, Any]:
        seen = {}
        for name in NAMES:
            one = self.cluster.member(name)
            if name != self.cluster.primary and one.server is Server.RUNNING and one.pod:
                its = self.now, self.heard[name], self._streams(name), one.ready, 2.5, one.to_replay_s > 0
                seen[name] = self.seen.StandbySeen(*its)
        return seen

    def _carried_out(self, guard: Guard, action: Any) -> bool:
        c = self.cluster
        if action.act == self.decide.Act.CLAIM:
            if action.onto != self._taken("cluster", 0.0, guard)[1].version:
                return False
            self.annotation = (guard.name, guard.memory.uid, str(self.now))
        elif action.act == self.decide.Act.DELETE_POD:
            name = guard.memory.primary
            if action.onto != f"{name}/{self.uids[name]}" or not c.member(name).pod:
                return False
            self.wrong += wrong_deletion(self)
            self.deletions.append(self.now)
            self.cluster = self.machine.terminate(c, name, 1.0)
        else:
            if action.onto != self._taken("lease", 0.0, guard)[1].version:
                return False
            self.wrong += wrong_emptying(self)
            self.emptied += 1
            self.touched += 1
            self.cluster = self.machine.empty_lease(c)
        return True


def judge(schedule: Schedule, decide: ModuleType = kubernetes_freeze, seen: ModuleType = kubernetes_sight) -> World:
    """What becomes of it with a guard, and where that deleted a pod also how long writes stop without one."""
    world = World(schedule, decide, seen).run()
    if world.deletions and not schedule.idle:
        world.wrong += wrong_outage(world, World(schedule, decide, seen).run(guarded=False).outage_s)
    return world
