"""How soon writes can be back after a leader failure, and what an RTO assumes: by who fails over. Pure.

Patroni's is set by its timeouts. CloudNativePG's delays cannot be set, so its drills tell; where there are none, what a
real cluster took (model/cloudnative_pg.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from walproof.advising.timeouts import SHORTEST
from walproof.model.advice import DrillSummary, Evidence
from walproof.model.cloudnative_pg import CUT_S, DELETED_S, KILLED_S, MANAGER
from walproof.model.units import counted

NO_TAKEOVER = ("freeze",)
"""Faults from which CloudNativePG takes over only once they end (pitfall K1), whatever is set."""
CUTS = ("isolate", "partition", "power-cut")


@dataclass(frozen=True, slots=True)
class ShortestRto:
    """The shortest RTO of a leader failure, s; what limits it; the nearest requirement that is possible."""

    seconds: float
    limit: str
    nearest: str


def shortest_rto(evidence: Evidence) -> ShortestRto | None:
    """What can be promised at best; None where nobody fails over."""
    manager = evidence.cluster.manager
    if manager == MANAGER:
        return _cloudnative_pg(evidence)
    if manager != "patroni":
        return None
    least = SHORTEST.leader_failure_s
    limit = f"Patroni's ttl cannot go under 20 s: after a leader failure writes are away for up to {least:g} s"
    return ShortestRto(least, limit, f"--rto {least:g}s (ttl 20, loop_wait 1, retry_timeout 3)")


def _cloudnative_pg(evidence: Evidence) -> ShortestRto:
    took = {fault: times for fault, times in _times(evidence).items() if fault not in NO_TAKEOVER}
    if not took:
        limit = f"CloudNativePG took {KILLED_S:g} s to replace a killed primary, {DELETED_S:g} s a deleted pod"
        return ShortestRto(KILLED_S, limit, f"--rto {KILLED_S:g}s; drills tell what it takes here: walproof prove")
    worst = max(took, key=lambda fault: median(took[fault]))
    seconds = median(took[worst])
    limit = f"after {worst} writes were away for {seconds:.0f} s (median of {counted(len(took[worst]), 'drill')})"
    return ShortestRto(seconds, f"{limit}, and CloudNativePG has no setting for it", f"--rto {math.ceil(seconds)}s")


def _times(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """RTOs of drills of the leader, s, by fault, of every level: they wait for no level."""
    found: dict[str, list[float]] = {}
    for drill in evidence.drills:
        if drill.victim == "leader" and drill.rto_s and drill.fault != "switchover":
            found.setdefault(drill.fault, []).extend(drill.rto_s)
    return found


def rto_assumptions(rto_s: float, evidence: Evidence, drills: Sequence[DrillSummary]) -> list[str]:
    """What a choice that meets the RTO assumes; `drills`: those of the leader at its level."""
    if evidence.cluster.manager != MANAGER:
        return [] if any(d.rto_s for d in drills) else ["promotion takes about 2 s (no failover in the records)"]
    took, found = _times(evidence), []
    if not set(took) - set(NO_TAKEOVER):
        found.append(
            f"a failover takes {KILLED_S:g} s (primary killed) to {DELETED_S:g} s (pod deleted), as on another cluster "
            "with default settings (no failover in the records)"
        )
    if not set(took) & set(CUTS) and rto_s < CUT_S:
        found.append(
            f"no node and no network fails: never drilled here; a cut network took up to {CUT_S:g} s on another cluster"
        )
    frozen = took.get("freeze", ())
    drilled = f": when drilled writes were away for {median(frozen):.0f} s" if frozen else ""
    found.append(f"PostgreSQL never freezes: CloudNativePG takes over only once it is thawed (K1){drilled}")
    return found
