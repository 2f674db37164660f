"""Whether a priced arm meets a wish: reasons against it, and what is only assumed where it does."""

from dataclasses import dataclass

from walproof.advising.timeouts import fastest
from walproof.model.advice import Evidence, PricedArm, Proven, Requirements
from walproof.model.guarantee import Level

CRASH_LOSS_OFF_S = 0.6
"""Level off loses up to 3 × wal_writer_delay (200 ms): PostgreSQL manual, wal-async-commit."""
ASSUMED_LAG_S = 1.0
"""How far an asynchronous standby is taken to be behind when no drill says."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an arm does not meet one wish, and by how much (0: just, 1: by as much as the wish itself)."""

    wish: str
    why: str
    short: float


def guards(arm: PricedArm) -> bool:
    """Whether its commits are on another member when they are acknowledged."""
    return arm.level.remote and arm.quorum > 0


def effective(arm: PricedArm) -> Level:
    """The level it comes to: without standby names every remote level is local."""
    return Level.LOCAL if arm.level.remote and arm.quorum == 0 else arm.level


def of_leader(evidence: Evidence, level: Level) -> tuple[Proven, ...]:
    """What drills on the leader say about that level."""
    return tuple(p for p in evidence.proven if p.level is level and p.victim == "leader")


def reasons(arm: PricedArm, wish: Requirements, evidence: Evidence) -> tuple[Reason, ...]:
    """Every wish the arm does not meet."""
    found = (
        _rpo(arm, wish, evidence),
        _latency(arm, wish),
        _tps(arm, wish),
        _reads(arm, wish, evidence),
        _rto(wish, evidence),
    )
    return tuple(r for r in found if r is not None)


def _rpo(arm: PricedArm, wish: Requirements, evidence: Evidence) -> Reason | None:
    if wish.rpo_s is None:
        return None
    name = f"--rpo {wish.rpo_s:g}s"
    told = of_leader(evidence, effective(arm))
    if wish.rpo_s == 0 or guards(arm):
        if not guards(arm):
            if arm.level.remote:
                return Reason(name, f"{arm.level} was priced with empty standby names, where it means local", 1.0)
            return Reason(name, f"{arm.level} keeps acknowledged commits on the leader only", 1.0)
        broken = next((p for p in told if p.broken), None)
        return None if broken is None else Reason(name, f"{arm.level}: {broken.text} ({broken.record})", 1.0)
    seen = [rpo for p in told for rpo in p.rpo_s]
    if seen and max(seen) > wish.rpo_s:
        worst = max(seen)
        return Reason(name, f"{effective(arm)} lost up to {worst:.1f} s of commits in drills", worst / wish.rpo_s - 1)
    least = CRASH_LOSS_OFF_S if effective(arm) is Level.OFF else 0.0
    least += 0.0 if seen else ASSUMED_LAG_S
    if wish.rpo_s < least:
        return Reason(name, f"{effective(arm)} may lose about {least:g} s with the leader", least / wish.rpo_s - 1)
    return None


def _latency(arm: PricedArm, wish: Requirements) -> Reason | None:
    most = wish.max_commit_latency_ms
    if most is None or arm.p95_ms.value <= most:
        return None
    why = f"{arm.level} at {arm.clients} clients: p95 {arm.p95_ms.value:.1f} ms"
    return Reason(f"--max-commit-latency {most:g}ms", why, arm.p95_ms.value / max(most, 1e-9) - 1)


def _tps(arm: PricedArm, wish: Requirements) -> Reason | None:
    if wish.min_tps is None or arm.tps.value >= wish.min_tps:
        return None
    why = f"{arm.level} at {arm.clients} clients: {arm.tps.value:.0f} transactions/s"
    return Reason(f"--min-tps {wish.min_tps:g}", why, wish.min_tps / max(arm.tps.value, 1e-9) - 1)


def _reads(arm: PricedArm, wish: Requirements, evidence: Evidence) -> Reason | None:
    if not wish.read_your_writes:
        return None
    standbys = evidence.place.standbys
    if arm.level is not Level.REMOTE_APPLY or arm.quorum == 0:
        return Reason("--read-your-writes", f"{effective(arm)} does not wait until a standby shows the commit", 1.0)
    if arm.quorum < standbys:
        why = f"{arm.quorum} of {standbys} standbys have applied it: a read on another one is stale"
        return Reason("--read-your-writes", why, (standbys - arm.quorum) / standbys)
    return None


def _rto(wish: Requirements, evidence: Evidence) -> Reason | None:
    if wish.rto_s is None:
        return None
    name, least = f"--rto {wish.rto_s:g}s", fastest(evidence.place)
    if least is None:
        return Reason(name, "no manager is there to promote a standby", 1.0)
    return None if wish.rto_s >= least else Reason(name, f"a vanished leader takes {least:g} s", least / wish.rto_s - 1)


def assumptions(arm: PricedArm, wish: Requirements, evidence: Evidence) -> tuple[str, ...]:
    """What must be believed: unproven survival, ends of intervals beyond a wish, spread between runs never seen."""
    said = []
    level = effective(arm)
    if guards(arm) and not of_leader(evidence, level):
        said.append(
            f"{level} survives the loss of the leader (no drill in the records: walproof prove --levels {level})"
        )
    if not guards(arm) and wish.rpo_s and not of_leader(evidence, level):
        said.append(
            f"standbys are less than {ASSUMED_LAG_S:g} s behind when the leader is lost (no drill in the records)"
        )
    if wish.max_commit_latency_ms is not None and arm.p95_ms.high > wish.max_commit_latency_ms:
        said.append(f"p95 stays in the lower part of its interval (it may reach {arm.p95_ms.high:.1f} ms)")
    if wish.min_tps is not None and arm.tps.low < wish.min_tps:
        said.append(f"throughput stays in the upper part of its interval (it may fall to {arm.tps.low:.0f}/s)")
    if wish.rto_s is not None and not any(p.rto_s for p in of_leader(evidence, level)):
        said.append("promotion takes about 2 s (no failover in the records)")
    if arm.runs < 2:
        said.append("another run differs from the one recorded by about 10 % (only one was recorded)")
    return tuple(said)


def given_up(arm: PricedArm, evidence: Evidence, strict: bool) -> tuple[str, ...]:
    """What this configuration does not give, worst first."""
    level, standbys = effective(arm), evidence.place.standbys
    losses = {
        Level.OFF: [
            f"a crash of PostgreSQL alone loses up to {CRASH_LOSS_OFF_S:g} s of acknowledged commits",
            "with the leader everything not yet streamed is lost; a cut-off leader goes on acknowledging until its ttl",
        ],
        Level.LOCAL: [
            "with the leader everything not yet streamed is lost; a cut-off leader goes on acknowledging until its ttl"
        ],
        Level.REMOTE_WRITE: ["leader gone and the standby's power cut together lose acknowledged commits"],
        Level.ON: [],
        Level.REMOTE_APPLY: ["a long query on a standby can freeze every commit (max_standby_streaming_delay)"],
    }[level]
    if guards(arm) and strict:
        losses.append(f"writes stop while fewer than {arm.quorum} standbys stream")
        if standbys and standbys <= arm.quorum:
            losses.append(f"with {standbys} standbys and {arm.quorum} needed, any standby's restart stops writes")
    elif guards(arm):
        losses.append("when the last standby goes, commits silently become local")
    if guards(arm):
        losses.append(f"leader and {arm.quorum} standbys that answered, lost together, lose commits")
    if level is not Level.REMOTE_APPLY or arm.quorum < standbys:
        losses.append("reads on a standby may be stale")
    return tuple(losses)
