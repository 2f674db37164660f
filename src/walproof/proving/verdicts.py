"""From findings to a verdict: held, broken, expected loss or undecided, with one sentence why. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from walproof.model.guarantee import Level, Loss, survives
from walproof.model.units import counted
from walproof.model.verdict import Findings, Verdict


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that must be true for a drill to mean anything, and the reason to give when it is not."""

    name: str
    holds: bool
    failure: str
    invalidates_loss: bool = False
    """Whether rows that are missing prove nothing either when it does not hold."""


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What was gone for good, and whether the level is documented to survive it; None and None when nothing was."""

    level: Level
    loss: Loss | None
    promise: bool | None
    weaker: str = ""
    """Why lost commits waited for less than the level promises, in a clause; "" when they did not."""


def promised(level: Level, loss: Loss | None) -> bool | None:
    """Whether the level is documented to survive the loss; None when nothing is at risk."""
    return None if loss is None else survives(level, loss)


def violations(findings: Findings, damage: Sequence[str] = ()) -> list[str]:
    """What, besides lost commits, contradicts a sound cluster, each in a clause; `damage`: clauses about the data."""
    counts = (
        (findings.out_of_order, "commit lost from before others that were kept: WAL cannot lose those alone"),
        (findings.corrupted, "row corrupted"),
        (findings.duplicate, "row duplicate"),
        (findings.phantom, "phantom row"),
        (findings.broken_freshness, "acknowledged row not visible at once"),
        (findings.backward_reads, "read that showed less than an earlier one"),
        (findings.divergent, "row in which a standby that has replayed everything differs from the leader"),
    )
    clauses = [_several(count, what) for count, what in counts if count]
    if findings.two_leaders_s > 0:
        clauses.append(f"two leaders acknowledged at once for {findings.two_leaders_s:.1f} s")
    return [*clauses, *damage]


def _several(count: int, what: str) -> str:
    """A count with its noun, the first word, in the plural where it is not one.

    >>> _several(2, "phantom row"), _several(1, "row corrupted"), _several(3, "commit lost from before others")
    ('2 phantom rows', '1 row corrupted', '3 commits lost from before others')
    """
    noun = next(n for n in ("phantom row", "acknowledged row", "commit", "row", "read") if what.startswith(n))
    return counted(count, noun) + what[len(noun) :]


def decided(
    findings: Findings,
    assumptions: Iterable[Assumption],
    risk: AtRisk,
    damage: Sequence[str] = (),
) -> tuple[Verdict, str]:
    """The verdict and one sentence why.

    A proven loss wins over every failed assumption but those without which missing rows prove nothing. What was lost
    without a promise is an expected loss; anything else that contradicts a sound cluster is broken.
    """
    failed = [a for a in assumptions if not a.holds]
    reasons = [a.failure for a in failed if a.failure != risk.weaker]
    if any(a.invalidates_loss for a in failed):
        return Verdict.UNDECIDED, "; ".join([*reasons, *_missing(findings)])
    others = violations(findings, damage)
    if findings.lost:
        lost = f"{counted(findings.lost, 'acknowledged commit')} lost"
        if risk.promise is False and not others:
            expected = f"expected loss: {lost}, which {risk.level} does not promise to keep after {_after(risk.loss)}"
            return Verdict.EXPECTED_LOSS, "; ".join([expected, *reasons])
        return Verdict.BROKEN, "; ".join([f"{lost}, {_promise(risk)}", *others, *reasons])
    if others:
        return Verdict.BROKEN, "; ".join([*others, *reasons])
    if failed:
        return Verdict.UNDECIDED, "; ".join(reasons)
    return Verdict.HELD, f"all {findings.acknowledged:,} acknowledged commits are there"


_AFTER = {
    Loss.POSTGRES_CRASH: "a crash of PostgreSQL",
    Loss.POWER_CUT: "a power cut",
    Loss.LEADER_GONE: "the loss of the leader",
    Loss.LEADER_AND_STANDBY_POSTGRES: "the loss of the leader and a crash of the standby's PostgreSQL",
    Loss.LEADER_AND_STANDBY_POWER: "the loss of the leader and a power cut of the standby",
}


def _after(loss: Loss | None) -> str:
    return "this fault" if loss is None else _AFTER[loss]


def _promise(risk: AtRisk) -> str:
    if risk.weaker:
        return f"because {risk.weaker}"
    if risk.promise is None:
        return "though nothing was at risk"
    if risk.promise:
        return f"which {risk.level} promises to keep after {_after(risk.loss)}"
    return f"which {risk.level} does not promise to keep after {_after(risk.loss)}"


def _missing(findings: Findings) -> list[str]:
    if not findings.lost:
        return []
    rows = "row of an acknowledged commit is" if findings.lost == 1 else "rows of acknowledged commits are"
    return [f"{findings.lost:,} {rows} missing, which proves nothing then"]
