"""Which timeouts a required RTO needs, how low Patroni lets them be, and how soon writes can be back. Pure.

Patroni's failover is set by its timeouts. CloudNativePG's delays cannot be set, so its drills tell; where there are
none, what a real cluster took (model/facts.py)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from walproof.model.advice import ClusterProfile, DrillSummary, Evidence, Timeouts
from walproof.model.cnpg_facts import CNPG_CUT_S, CNPG_DELETED_S, CNPG_KILLED_S, CNPG_MANAGER
from walproof.model.patroni_values import LEAST
from walproof.model.units import counted

SHORTEST = Timeouts(**LEAST, network_s=5, rto_required=True)


def timeouts_for(rto_s: float | None, cluster: ClusterProfile) -> Timeouts:
    """The longest timeouts that keep the RTO: the longer they are, the fewer needless failovers.

    A leader failure is detected when the ttl of its key is over and the next loop comes.

    >>> timeouts_for(30.0, ClusterProfile()).ttl, timeouts_for(None, ClusterProfile()).ttl
    (27, 30)
    """
    if cluster.manager == CNPG_MANAGER:
        # Its operator's own; nothing that a longer one would spare restarts or promotes a member.
        return Timeouts(network_s=SHORTEST.network_s)
    if rto_s is None or cluster.manager != "patroni":
        return Timeouts()
    network_s = max(5, min(15, int(rto_s // 2)))
    for ttl in range(30, SHORTEST.ttl - 1, -1):
        for loop in (10, 5, 2, SHORTEST.loop_wait):
            retry = max(SHORTEST.retry_timeout, min(10, (ttl - loop) // 2))
            times = Timeouts(ttl, loop, retry, 0, network_s, rto_required=True)
            if times.leader_failure_s <= rto_s:
                return times
    return SHORTEST


_NAMES = ("ttl", "loop_wait", "retry_timeout")


def failovers(timeouts: Timeouts, evidence: Evidence, prove: str) -> tuple[str, ...]:
    """What Patroni's timeouts brought in drills, what the choice's cost, and the command for what was not drilled.

    `prove`: the command that drills the cluster. Empty where Patroni does not manage it.
    """
    if evidence.cluster.manager != "patroni":
        return ()
    by_times: dict[tuple[float, ...], list[str]] = {}
    for one in evidence.rtos:
        took = f"{median(one.rto_s):.1f} s after {one.fault} (median of {counted(len(one.rto_s), 'drill')})"
        by_times.setdefault(one.times, []).append(took)
    lines = [f"with {_named(times)}: writes back {', '.join(took)}" for times, took in by_times.items()]
    own = (float(timeouts.ttl), float(timeouts.loop_wait), float(timeouts.retry_timeout))
    if timeouts.rto_required:
        silent_s = timeouts.ttl - timeouts.loop_wait
        lines.append(
            f"with {_named(own)} a leader that is silent for more than {silent_s} s may be replaced although it would "
            "have come back: a network that stalls for so long becomes a failover"
        )
        if own[:2] not in {times[:2] for times in by_times}:
            lines.append(f"never drilled with {_named(own)}: walproof apply, then {prove}")
    elif not by_times:
        lines.append(f"no drill of the leader says what the timeouts bring: {prove}")
    return tuple(lines)


def _named(times: tuple[float, ...]) -> str:
    return ", ".join(f"{name} {seconds:g} s" for name, seconds in zip(_NAMES, times, strict=False))


NO_TAKEOVER = ("freeze",)
"""Faults from which CloudNativePG takes over only once they end (pitfall K1), under any settings."""
CUTS = ("isolate", "partition", "power-cut")


@dataclass(frozen=True, slots=True)
class ShortestRto:
    """The shortest RTO of a leader failure, s; what limits it; the nearest requirement that is possible."""

    seconds: float
    limit: str
    nearest: str


def shortest_rto(evidence: Evidence) -> ShortestRto | None:
    """What can be promised at best; None where there is no failover manager."""
    manager = evidence.cluster.manager
    if manager == CNPG_MANAGER:
        return _cloudnative_pg(evidence)
    if manager != "patroni":
        return None
    rto = SHORTEST.leader_failure_s
    why = f"Patroni's ttl cannot go under {SHORTEST.ttl} s: after a leader failure writes are away for up to {rto:g} s"
    return ShortestRto(rto, why, f"--rto {rto:g}s ({', '.join(f'{n} {s}' for n, s in LEAST.items())})")


def _cloudnative_pg(evidence: Evidence) -> ShortestRto:
    took = {fault: times for fault, times in _times(evidence).items() if fault not in NO_TAKEOVER}
    if not took:
        limit = (
            f"CloudNativePG took {CNPG_KILLED_S:g} s to replace a killed primary, {CNPG_DELETED_S:g} s a deleted pod"
        )
        return ShortestRto(
            CNPG_KILLED_S, limit, f"--rto {CNPG_KILLED_S:g}s; drills tell what it takes here: walproof prove"
        )
    worst = max(took, key=lambda fault: median(took[fault]))
    seconds = median(took[worst])
    limit = f"after {worst} writes were away for {seconds:.0f} s (median of {counted(len(took[worst]), 'drill')})"
    return ShortestRto(seconds, f"{limit}, and CloudNativePG has no setting for it", f"--rto {math.ceil(seconds)}s")


def _times(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """RTOs of drills of the leader, s, by fault, of every level: they wait for no level."""
    by_fault: dict[str, list[float]] = {}
    for drill in evidence.drills:
        if drill.victim == "leader" and drill.rto_s and drill.fault != "switchover":
            by_fault.setdefault(drill.fault, []).extend(drill.rto_s)
    return by_fault


def rto_assumptions(rto_s: float, evidence: Evidence, drills: Sequence[DrillSummary]) -> list[str]:
    """What a choice that meets the RTO assumes; `drills`: those of the leader at its level."""
    if evidence.cluster.manager != CNPG_MANAGER:
        return [] if any(d.rto_s for d in drills) else ["promotion takes about 2 s (no failover in the records)"]
    took, assumed = _times(evidence), []
    if not set(took) - set(NO_TAKEOVER):
        assumed.append(
            f"a failover takes {CNPG_KILLED_S:g} s (primary killed) to {CNPG_DELETED_S:g} s (pod deleted), as on "
            "another cluster with default settings (no failover in the records)"
        )
    if not set(took) & set(CUTS) and rto_s < CNPG_CUT_S:
        assumed.append(
            "no node and no network fails: never drilled here; "
            f"a cut network took up to {CNPG_CUT_S:g} s on another cluster"
        )
    frozen = took.get("freeze", ())
    drilled = f": when drilled writes were away for {median(frozen):.0f} s" if frozen else ""
    assumed.append(f"PostgreSQL never freezes: CloudNativePG takes over only once it is thawed (K1){drilled}")
    return assumed
