"""What must hold of the guard's acts at the moment at which the API carries them out, by what is true, not seen."""

from typing import TYPE_CHECKING

from tests.fixtures.kubernetes.effects import has_quorum
from tests.fixtures.kubernetes.state import HEALTHY, Cluster, Cut, Server

if TYPE_CHECKING:
    from tests.frozen_primary_simulation.world import World

FAILING = "Failing over"
_VETOES = ("hibernate", "pause", "restore")


def manager_runs(cluster: Cluster, name: str) -> bool:
    """Whether that instance's manager runs and reaches the API."""
    one = cluster.member(name)
    runs = (one.pod == "Running" or one.lingers) and one.container == "running"
    return runs and one.cut in (Cut.NONE, Cut.PEERS)


def _late_s(world: "World") -> float:
    """How long a fact may be true before the guard must know it."""
    return 10.0 if {"slow API", "API away"} & world.began.keys() else 2.5


def _since(world: "World", name: str) -> float:
    return world.now - world.began.get(name, world.now)


def wrong_deletion(world: "World") -> list[str]:
    now, c, late_s = world.now, world.cluster, _late_s(world)
    fenced = any(m.fenced for m in c.members)
    brief = world.schedule.freeze == "brief freeze" and "freeze again" not in world.began
    unheard = any(not m.reports for m in c.members)  # to the operator alone
    few = (
        not has_quorum(c)
        and not unheard
        and max(_since(world, f"standby {how}") for how in ("paused", "unready")) > late_s
    )
    broken = {
        "deleted although too few standbys can be chosen": few,
        "deleted a living primary": now - world.frozen_last_s > 5.0 or brief,
        "a second takeover": any(now - at < 600 for at in world.deletions),
        f"deleted while the operator was at work: {c.phase}": c.phase != HEALTHY and _since(world, "roll") > late_s,
        "deleted during a switchover": c.target != c.primary and _since(world, "switchover") > late_s,
        "deleted although an instance is fenced": fenced and _since(world, "fence") > late_s,
        **{f"deleted during {veto}": _since(world, veto) > late_s for veto in (*_VETOES, "lose node", "ALTER SYSTEM")},
    }
    return [f"{what} at {now:.1f}" for what, is_so in broken.items() if is_so]


def wrong_outage(world: "World", alone_s: float) -> list[str]:
    """A deletion may not make an outage much longer than it would have been, where nothing came after it.

    What is late for the operator, the kubelet or the API is no decision of the guard's.
    """
    at_s, late = world.deletions[0], {"operator late", "late dying", "API away", "slow API", "standby unheard"}
    later = any(fault.at_s > at_s - 2.5 or fault.name in late for fault in world.schedule.faults)
    longer = world.outage_s > alone_s + 20.0 and not later
    return [f"no write for {world.outage_s:.1f} s, without a guard for {alone_s:.1f} s"] if longer else []


def wrong_emptying(world: "World") -> list[str]:
    now, c, holder = world.now, world.cluster, world.cluster.lease.holder
    lives = bool(holder) and (c.member(holder).server is not Server.DOWN or manager_runs(c, holder))
    broken = {
        f"emptied the Lease of {holder}, which lives,": lives,
        "emptied for a target that nobody elected": c.phase != FAILING and _since(world, "switchover") > _late_s(world),
        "emptied although the end was not confirmed in time": world.ended_s - world.deletions[-1] > 22.0,
        **{f"emptied during {veto}": _since(world, veto) > _late_s(world) for veto in (*_VETOES, "lose node")},
    }
    return [f"{what} at {now:.1f}" for what, is_so in broken.items() if is_so]
