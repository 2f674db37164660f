"""What each fault of a schedule does to a run, and what undoes it."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.guard_simulation.patroni_keys import Tags
from tests.guard_simulation.schedule import Fault
from tests.guard_simulation.world import Process

if TYPE_CHECKING:
    from tests.guard_simulation.simulate import Simulation

Undo = Callable[[], None] | None


def _kill(run: "Simulation", fault: Fault) -> Undo:
    if run.servers[fault.who].process.dead:
        return None
    for process in run.processes(fault.who):
        run.world.kill(process)
    run.servers[fault.who].stop()
    return lambda: run.revive(fault.who)


def _ends(run: "Simulation", name: str) -> list[tuple[str, str]]:
    hosts = [*run.names, "e1", "e2", "e3", "g1", "g2"]
    here = (name, f"e{name[1:]}")
    return [(h, other) for h in here for other in hosts if other not in here]


def _cut(run: "Simulation", pairs: list[tuple[str, str]]) -> Undo:
    for a, b in pairs:
        run.world.cut(a, b)

    def undo() -> None:
        for a, b in pairs:
            run.world.cut(a, b, -1)

    return undo


def _isolate(run: "Simulation", fault: Fault) -> Undo:
    return _cut(run, _ends(run, fault.who))


def _power_cut(run: "Simulation", fault: Fault) -> Undo:
    cut = _cut(run, _ends(run, fault.who))
    kill = _kill(run, fault)
    member = f"e{fault.who[1:]}"
    if member in run.etcd.hosts and member not in run.etcd.down:
        run.etcd.down.append(member)
        if run.etcd.hosts[run.etcd.leader] == member:
            run.etcd.elect(1.0 + run.world.random("power cut").random())

    def undo() -> None:
        assert cut is not None
        cut()
        if member in run.etcd.down:
            run.etcd.down.remove(member)
        if kill is not None:
            kill()

    return undo


def _freeze(run: "Simulation", fault: Fault) -> Undo:
    return _frozen(run, run.processes(fault.who))


def _frozen(run: "Simulation", processes: list[Process]) -> Undo:
    held = [p for p in processes if not p.dead]
    for process in held:
        run.world.freeze(process)

    def undo() -> None:
        for process in held:
            run.world.thaw(process)

    return undo


def _freeze_patroni(run: "Simulation", fault: Fault) -> Undo:
    return _frozen(run, [run.patronis[fault.who].process])


def _streams(run: "Simulation", leader: str, standby: str) -> Undo:
    return _cut(run, [(f"stream {leader}", f"stream {standby}")])


def _suspect(run: "Simulation", fault: Fault) -> Undo:
    """The leader lives, but neither a guard nor, for a while, a standby hears of it."""
    random = run.world.random("suspect")
    for standby in run.names:
        if standby != fault.who:
            undo = _streams(run, fault.who, standby)
            assert undo is not None
            run.world.after(fault.lasts * (0.4 + 0.6 * random.random()), undo)
    return _cut(run, [("g1", fault.who), ("g2", fault.who)])


def _cut_stream(run: "Simulation", fault: Fault) -> Undo:
    return _cut(run, [(f"stream {other}", f"stream {fault.who}") for other in run.names if other != fault.who])


def _crash(run: "Simulation", fault: Fault) -> Undo:
    run.servers[fault.who].crash()
    return None


def _pause_replay(run: "Simulation", fault: Fault) -> Undo:
    run.servers[fault.who].pause_replay()
    return run.servers[fault.who].resume_replay


def _set(name: str) -> Callable[["Simulation", Fault], Undo]:
    def act(run: "Simulation", fault: Fault) -> Undo:
        on: Any = run.patronis[fault.who].view if name == "slow_s of watch" else run.servers[fault.who]
        on.slow_s = fault.what

        def undo() -> None:
            on.slow_s = 0.0

        return undo

    return act


def _freeze_guard(run: "Simulation", fault: Fault) -> Undo:
    host = run.host_of(fault.who)
    return _frozen(run, [host.process]) if host is not None else None


def _kill_guard(run: "Simulation", fault: Fault) -> Undo:
    if (host := run.host_of(fault.who)) is None:
        return None
    run.world.kill(host.process)

    def again() -> None:
        run.world.revive(host.process)
        host.start()

    return again


def _lose(run: "Simulation", fault: Fault) -> Undo:
    if (host := run.host_of(fault.who)) is not None:
        host.clients.lose_answers = fault.what
    return None


def _slow_answers(run: "Simulation", fault: Fault) -> Undo:
    host = run.host_of(fault.who)
    if host is None:
        return None
    slow = host.signs.slow
    slow[fault.what] = 1.0

    def undo() -> None:
        slow.pop(fault.what, None)

    return undo


def _cut_from(run: "Simulation", fault: Fault) -> Undo:
    return _cut(run, [(f"g{fault.who[-1]}", fault.what)])


def _cut_from_etcd(run: "Simulation", fault: Fault) -> Undo:
    return _cut(run, [(f"g{fault.who[-1]}", e) for e in run.etcd.hosts])


def _cut_from_dcs(run: "Simulation", fault: Fault) -> Undo:
    return _cut(run, [(fault.who, host) for host in run.etcd.hosts])


def _elect(run: "Simulation", fault: Fault) -> Undo:
    run.etcd.elect(fault.what)
    return None


def _configure(run: "Simulation", **settings: Any) -> None:
    config = {**json.loads(run.etcd.keys["config"].value), **settings}
    run.etcd.put("config", json.dumps(config), 0, "operator")


def _pause(run: "Simulation", fault: Fault) -> Undo:
    _configure(run, pause=True)
    return lambda: _configure(run, pause=False)


def _node_count(run: "Simulation", fault: Fault) -> Undo:
    _configure(run, synchronous_node_count=fault.what)
    return None


def _ask(leader: bool, scheduled: bool) -> Callable[["Simulation", Fault], Undo]:
    def act(run: "Simulation", fault: Fault) -> Undo:
        holder = run.etcd.keys.get("leader")
        value = {"leader": holder.value if holder else fault.who} if leader else {}
        value |= {"member": fault.what} if fault.what else {}
        value |= {"scheduled_at": "2999-01-01T00:00:00+00:00"} if scheduled else {}
        asked = run.etcd.put("failover", json.dumps(value), 0, "operator")

        def cancel() -> None:
            if run.etcd.keys["failover"].version == asked:
                run.etcd.put("failover", "{}", 0, "operator")

        return cancel if fault.lasts > 0 else None

    return act


def _tag(run: "Simulation", fault: Fault) -> Undo:
    patroni = run.patronis[fault.who]
    patroni.tags = Tags({**patroni.tags.given, **fault.what})
    return None


def _new_lease(run: "Simulation", fault: Fault) -> Undo:
    """Its Patroni starts anew: its key ends, and comes back on another lease."""
    key, etcd = run.etcd.keys.get(f"members/{fault.who}"), run.etcd
    if key is not None and key.lease in etcd.leases and etcd.leases[key.lease].keys == [f"members/{fault.who}"]:
        etcd.drop(key.lease, "etcd")
    return None


KINDS: dict[str, Callable[["Simulation", Fault], Undo]] = {
    "kill": _kill,
    "power-cut": _power_cut,
    "isolate": _isolate,
    "freeze": _freeze,
    "freeze patroni": _freeze_patroni,
    "suspect": _suspect,
    "cut stream": _cut_stream,
    "crash-restart": _crash,
    "pause replay": _pause_replay,
    "slow stream": _set("slow_s of stream"),
    "slow watch": _set("slow_s of watch"),
    "freeze guard": _freeze_guard,
    "kill guard": _kill_guard,
    "lose answers": _lose,
    "slow answers": _slow_answers,
    "cut from": _cut_from,
    "cut from etcd": _cut_from_etcd,
    "elect": _elect,
    "cut from dcs": _cut_from_dcs,
    "pause": _pause,
    "switchover": _ask(leader=True, scheduled=False),
    "failover": _ask(leader=False, scheduled=False),
    "scheduled switchover": _ask(leader=True, scheduled=True),
    "node count": _node_count,
    "tag": _tag,
    "new lease": _new_lease,
}
"""What each fault does; what undoes it."""
