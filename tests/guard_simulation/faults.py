"""What each fault of a schedule does to a run, and what undoes it."""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.guard_simulation.patroni_keys import Tags
from tests.guard_simulation.schedule import Fault
from tests.guard_simulation.world import Process

if TYPE_CHECKING:
    from tests.guard_simulation.simulate import Simulation

Undo = Callable[[], object] | None
Kind = Callable[["Simulation", Fault], Undo]
KINDS: dict[str, Kind] = {}
"""By its name: does it, and returns what undoes it."""


def _kind(*names: str) -> Callable[[Kind], Kind]:
    def named(act: Kind) -> Kind:
        KINDS.update(dict.fromkeys(names, act))
        return act

    return named


def _cut(run: "Simulation", pairs: Iterable[tuple[str, str]]) -> Callable[[], object]:
    pairs = list(pairs)
    for a, b in pairs:
        run.world.cut(a, b)

    def undo() -> None:
        for a, b in pairs:
            run.world.cut(a, b, -1)

    return undo


def _frozen(run: "Simulation", processes: list[Process]) -> Undo:
    held = [p for p in processes if not p.dead]
    for process in held:
        run.world.freeze(process)

    def undo() -> None:
        for process in held:
            run.world.thaw(process)

    return undo


# Members.


@_kind("kill")
def _kill(run: "Simulation", fault: Fault) -> Undo:
    if run.servers[fault.who].process.dead:
        return None
    for process in run.processes(fault.who):
        run.world.kill(process)
    run.servers[fault.who].stop()
    return lambda: run.revive(fault.who)


@_kind("isolate")
def _isolate(run: "Simulation", fault: Fault) -> Undo:
    hosts, here = [*run.names, "e1", "e2", "e3", "g1", "g2"], (fault.who, f"e{fault.who[1:]}")
    return _cut(run, ((h, other) for h in here for other in hosts if other not in here))


@_kind("power-cut")
def _power_cut(run: "Simulation", fault: Fault) -> Undo:
    cut, kill, member = _isolate(run, fault), _kill(run, fault), f"e{fault.who[1:]}"
    if member in run.etcd.hosts and member not in run.etcd.down:
        run.etcd.down.append(member)
        if run.etcd.hosts[run.etcd.leader] == member:
            run.etcd.elect(1.0 + run.world.random("power cut").random())

    def back() -> None:
        if member in run.etcd.down:
            run.etcd.down.remove(member)

    def undo() -> None:
        for act in filter(None, (cut, back, kill)):
            act()

    return undo


@_kind("freeze", "freeze patroni")
def _freeze(run: "Simulation", fault: Fault) -> Undo:
    return _frozen(run, run.processes(fault.who)[-1 if fault.kind == "freeze patroni" else 0 :])


@_kind("suspect")
def _suspect(run: "Simulation", fault: Fault) -> Undo:
    """The leader lives, but neither a guard nor, for a while, a standby hears of it."""
    random = run.world.random("suspect")
    for standby in run.names:
        if standby != fault.who:
            undo = _cut(run, [(f"stream {fault.who}", f"stream {standby}")])
            run.world.after(fault.lasts * (0.4 + 0.6 * random.random()), undo)
    return _cut(run, [("g1", fault.who), ("g2", fault.who)])


@_kind("cut stream")
def _cut_stream(run: "Simulation", fault: Fault) -> Undo:
    return _cut(run, ((f"stream {other}", f"stream {fault.who}") for other in run.names if other != fault.who))


@_kind("cut from dcs")
def _cut_from_dcs(run: "Simulation", fault: Fault) -> Undo:
    return _cut(run, ((fault.who, host) for host in run.etcd.hosts))


@_kind("crash-restart")
def _crash(run: "Simulation", fault: Fault) -> Undo:
    run.servers[fault.who].crash()
    return None


@_kind("pause replay")
def _pause_replay(run: "Simulation", fault: Fault) -> Undo:
    run.servers[fault.who].pause_replay()
    return run.servers[fault.who].resume_replay


@_kind("slow stream", "slow watch")
def _slow(run: "Simulation", fault: Fault) -> Undo:
    on = run.servers[fault.who] if fault.kind == "slow stream" else run.members[fault.who].view
    on.slow_s = fault.what
    return lambda: setattr(on, "slow_s", 0.0)


@_kind("tag")
def _tag(run: "Simulation", fault: Fault) -> Undo:
    patroni = run.members[fault.who]
    patroni.tags = Tags({**patroni.tags.given, **fault.what})
    return None


@_kind("new lease")
def _new_lease(run: "Simulation", fault: Fault) -> Undo:
    """Its Patroni starts anew: its key ends, and comes back on another lease."""
    key, etcd = run.etcd.keys.get(f"members/{fault.who}"), run.etcd
    if key is not None and key.lease in etcd.leases and etcd.leases[key.lease].keys == [f"members/{fault.who}"]:
        etcd.drop(key.lease, "etcd")
    return None


# Guards; in a run without them nothing.


@_kind("freeze guard")
def _freeze_guard(run: "Simulation", fault: Fault) -> Undo:
    host = run.guards.get(fault.who)
    return _frozen(run, [host.process]) if host is not None else None


@_kind("kill guard")
def _kill_guard(run: "Simulation", fault: Fault) -> Undo:
    if (host := run.guards.get(fault.who)) is None:
        return None
    run.world.kill(host.process)

    def again() -> None:
        run.world.revive(host.process)
        host.start()

    return again


@_kind("lose answers")
def _lose(run: "Simulation", fault: Fault) -> Undo:
    if (host := run.guards.get(fault.who)) is not None:
        host.clients.lose_answers = fault.what
    return None


@_kind("slow answers")
def _slow_answers(run: "Simulation", fault: Fault) -> Undo:
    if (host := run.guards.get(fault.who)) is None:
        return None
    slow = host.signs.slow
    slow[fault.what] = 1.0
    return lambda: slow.pop(fault.what, None)


@_kind("cut from", "cut from etcd")
def _cut_from(run: "Simulation", fault: Fault) -> Undo:
    others = [fault.what] if fault.kind == "cut from" else run.etcd.hosts
    return _cut(run, ((f"g{fault.who[-1]}", other) for other in others))


# etcd, and what operators ask for there.


@_kind("elect")
def _elect(run: "Simulation", fault: Fault) -> Undo:
    run.etcd.elect(fault.what)
    return None


def _configure(run: "Simulation", **settings: Any) -> None:
    config = {**json.loads(run.etcd.keys["config"].value), **settings}
    run.etcd.put("config", json.dumps(config), 0, "operator")


@_kind("pause")
def _pause(run: "Simulation", fault: Fault) -> Undo:
    _configure(run, pause=True)
    return lambda: _configure(run, pause=False)


@_kind("node count")
def _node_count(run: "Simulation", fault: Fault) -> Undo:
    _configure(run, synchronous_node_count=fault.what)
    return None


@_kind("switchover", "failover", "scheduled switchover")
def _ask(run: "Simulation", fault: Fault) -> Undo:
    holder = run.etcd.keys.get("leader")
    value = {"leader": holder.value if holder else fault.who} if fault.kind != "failover" else {}
    value |= {"member": fault.what} if fault.what else {}
    value |= {"scheduled_at": "2999-01-01T00:00:00+00:00"} if fault.kind == "scheduled switchover" else {}
    asked = run.etcd.put("failover", json.dumps(value), 0, "operator")

    def cancel() -> None:
        if run.etcd.keys["failover"].version == asked:
            run.etcd.put("failover", "{}", 0, "operator")

    return cancel if fault.lasts > 0 else None
