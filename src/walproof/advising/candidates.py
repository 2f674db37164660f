"""Whether a priced arm meets the requirements: reasons against it, assumptions where it does, its trade-offs. Pure."""

from dataclasses import dataclass

from walproof.advising.failovers import rto_assumptions, shortest_rto
from walproof.model.advice import DrillSummary, Evidence, PricedArm, Requirements
from walproof.model.guarantee import Level
from walproof.model.units import counted

CRASH_LOSS_OFF_S = 0.6
"""Level off loses up to 3 × wal_writer_delay (200 ms): PostgreSQL manual, wal-async-commit."""
ASSUMED_LAG_S = 1.0
"""How far an asynchronous standby is assumed to lag when no drill shows it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an arm does not meet one requirement, and by how much (0: just, 1: by as much as the requirement itself)."""

    requirement: str
    why: str
    shortfall: float


def waits_for_standby(arm: PricedArm) -> bool:
    """Whether its commits are on another member when they are acknowledged."""
    return arm.level.remote and arm.quorum > 0


def effective_level(arm: PricedArm) -> Level:
    """The level in effect: without standby names every remote level is local."""
    return Level.LOCAL if arm.level.remote and arm.quorum == 0 else arm.level


def leader_drills(evidence: Evidence, level: Level) -> tuple[DrillSummary, ...]:
    """Drills at that level whose victim was the leader."""
    return tuple(d for d in evidence.drills if d.level is level and d.victim == "leader")


def reasons(arm: PricedArm, required: Requirements, evidence: Evidence) -> tuple[Reason, ...]:
    """Every requirement that the arm does not meet."""
    found = (
        _rpo(arm, required, evidence),
        _latency(arm, required),
        _tps(arm, required),
        _reads(arm, required, evidence),
        _rto(required, evidence),
    )
    return tuple(r for r in found if r is not None)


def _rpo(arm: PricedArm, required: Requirements, evidence: Evidence) -> Reason | None:
    rpo_s = required.rpo_s
    if rpo_s is None:
        return None
    name, level = f"--rpo {rpo_s:g}s", effective_level(arm)
    drills = leader_drills(evidence, level)
    if waits_for_standby(arm):
        broken = next((d for d in drills if d.broken), None)
        return None if broken is None else Reason(name, f"{arm.level}: {broken.text} ({broken.record})", 1.0)
    if rpo_s == 0:
        if arm.level.remote:
            return Reason(name, f"{arm.level} was priced with empty standby names, where it means local", 1.0)
        return Reason(name, f"{arm.level} keeps acknowledged commits on the leader only", 1.0)
    seen = [rpo for d in drills for rpo in d.rpo_s]
    if seen and max(seen) > rpo_s:
        worst = max(seen)
        return Reason(name, f"{level} lost up to {worst:.1f} s of commits in drills", worst / rpo_s - 1)
    least = (CRASH_LOSS_OFF_S if level is Level.OFF else 0.0) + (0.0 if seen else ASSUMED_LAG_S)
    if rpo_s < least:
        return Reason(name, f"{level} may lose about {least:g} s with the leader", least / rpo_s - 1)
    return None


def _latency(arm: PricedArm, required: Requirements) -> Reason | None:
    most = required.max_commit_latency_ms
    if most is None or arm.p95_ms.value <= most:
        return None
    why = f"{_at_clients(arm)}: p95 {arm.p95_ms.value:.1f} ms"
    return Reason(f"--max-commit-latency {most:g}ms", why, arm.p95_ms.value / max(most, 1e-9) - 1)


def _tps(arm: PricedArm, required: Requirements) -> Reason | None:
    if required.min_tps is None or arm.tps.value >= required.min_tps:
        return None
    why = f"{_at_clients(arm)}: {arm.tps.value:.0f} transactions/s"
    return Reason(f"--min-tps {required.min_tps:g}", why, required.min_tps / max(arm.tps.value, 1e-9) - 1)


def _at_clients(arm: PricedArm) -> str:
    return f"{arm.level} at {counted(arm.clients, 'client')}"


def _reads(arm: PricedArm, required: Requirements, evidence: Evidence) -> Reason | None:
    if not required.read_your_writes:
        return None
    standbys = evidence.cluster.standbys
    if arm.level is not Level.REMOTE_APPLY or arm.quorum == 0:
        why = f"{effective_level(arm)} does not wait until a standby shows the commit"
        return Reason("--read-your-writes", why, 1.0)
    if arm.quorum < standbys:
        why = f"{arm.quorum} of {standbys} standbys have applied it: a read on another one is stale"
        return Reason("--read-your-writes", why, (standbys - arm.quorum) / standbys)
    return None


def _rto(required: Requirements, evidence: Evidence) -> Reason | None:
    if required.rto_s is None:
        return None
    name, shortest = f"--rto {required.rto_s:g}s", shortest_rto(evidence)
    if shortest is None:
        return Reason(name, "there is no failover manager to promote a standby", 1.0)
    if required.rto_s >= shortest.seconds:
        return None
    return Reason(name, shortest.limit, shortest.seconds / required.rto_s - 1)


def interval_risks(arm: PricedArm, required: Requirements) -> tuple[str, ...]:
    """Requirements that the prediction meets and an end of its interval does not."""
    risks = []
    if required.max_commit_latency_ms is not None and arm.p95_ms.high > required.max_commit_latency_ms:
        risks.append(f"p95 stays in the lower part of its interval (it may reach {arm.p95_ms.high:.1f} ms)")
    if required.min_tps is not None and arm.tps.low < required.min_tps:
        risks.append(f"throughput stays in the upper part of its interval (it may fall to {arm.tps.low:.0f}/s)")
    return tuple(risks)


def assumptions(arm: PricedArm, required: Requirements, evidence: Evidence) -> tuple[str, ...]:
    """What is assumed: survival without drills, ends of intervals that meet, spread between runs never seen."""
    level, assumed = effective_level(arm), []
    drills = leader_drills(evidence, level)
    if waits_for_standby(arm) and not drills:
        assumed.append(
            f"{level} survives the loss of the leader (no drill in the records: walproof prove --levels {level})"
        )
    if not waits_for_standby(arm) and required.rpo_s and not drills:
        assumed.append(
            f"standbys are less than {ASSUMED_LAG_S:g} s behind when the leader is lost (no drill in the records)"
        )
    assumed += interval_risks(arm, required)
    if required.rto_s is not None:
        assumed += rto_assumptions(required.rto_s, evidence, drills)
    if arm.runs < 2:
        assumed.append("another run differs from the one recorded by about 10 % (only one was recorded)")
    return tuple(assumed)


def trade_offs(arm: PricedArm, evidence: Evidence, strict: bool) -> tuple[str, ...]:
    """What this configuration does not give, worst first."""
    level, standbys = effective_level(arm), evidence.cluster.standbys
    unreplicated = (
        "with the leader everything not yet streamed is lost; a partitioned leader goes on acknowledging until its ttl"
    )
    losses = {
        Level.OFF: [
            f"a crash of PostgreSQL alone loses up to {CRASH_LOSS_OFF_S:g} s of acknowledged commits",
            unreplicated,
        ],
        Level.LOCAL: [unreplicated],
        Level.REMOTE_WRITE: ["loss of the leader together with a power cut on the standby loses acknowledged commits"],
        Level.ON: [],
        Level.REMOTE_APPLY: ["a long query on a standby can freeze every commit (max_standby_streaming_delay)"],
    }[level]
    if waits_for_standby(arm):
        one = arm.quorum == 1
        if strict:
            needed = "no standby streams" if one else f"fewer than {arm.quorum} standbys stream"
            losses.append(f"writes stop while {needed}")
            if standbys and standbys <= arm.quorum:
                losses.append(f"with {standbys} standbys and {arm.quorum} needed, any standby's restart stops writes")
        else:
            losses.append("when the last standby disconnects, commits silently become local")
        answered = "standby" if one else f"{arm.quorum} standbys"
        losses.append(f"losing the leader together with the {answered} that answered loses commits")
    if level is not Level.REMOTE_APPLY or arm.quorum < standbys:
        losses.append("reads on a standby may be stale")
    return tuple(losses)
