"""`--require rpo=0,rto=30s`: drills against limits, an exit code, and cases for a CI system. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from walproof.errors import ExitCode, UsageError
from walproof.model.drill import Drill, Verdict
from walproof.model.junit import Case
from walproof.model.salvage import SalvageJudged
from walproof.model.units import counted, duration_s


@dataclass(frozen=True, slots=True)
class Gate:
    """Limits in seconds, None where there is none; rpo 0 means that no acknowledged commit may be lost."""

    rpo_s: float | None = None
    rto_s: float | None = None
    unavailable_s: float | None = None


def gate(text: str) -> Gate:
    """The limits in a text; UsageError for anything else in it.

    >>> gate("rpo=0,rto=30s")
    Gate(rpo_s=0.0, rto_s=30.0, unavailable_s=None)
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in ("rpo", "rto", "unavailable") or not value:
            raise UsageError(f"{part.strip()!r} is not a requirement", "for instance --require rpo=0,rto=30s")
        limits[name] = duration_s(value)
    return Gate(limits.get("rpo"), limits.get("rto"), limits.get("unavailable"))


def exceeded(limits: Gate, drill: Drill) -> str:
    """How a drill exceeds the limits, in a clause; "" when it does not, or when the drill was not decided.

    A broken promise exceeds every limit: no outage is short enough to make up for it. An outage that walproof made
    itself (`no_rto`) exceeds none.
    """
    if not drill.verdict.decided:
        return ""
    clauses: list[str] = []
    lost = drill.findings.lost
    if limits.rpo_s is not None and lost and (limits.rpo_s == 0 or (drill.rpo_s or 0.0) > limits.rpo_s):
        clauses.append(f"{counted(lost, 'acknowledged commit')} lost, of the last {drill.rpo_s or 0.0:.2f} s")
    if limits.rto_s is not None and not drill.no_rto and (drill.rto_s is None or drill.rto_s > limits.rto_s):
        took = "commits did not come back" if drill.rto_s is None else f"commits came back after {drill.rto_s:.1f} s"
        clauses.append(f"{took}, {limits.rto_s:g} s are allowed")
    away = drill.unavailable_s
    if limits.unavailable_s is not None and not drill.no_rto and (away is None or away > limits.unavailable_s):
        took = "how long is not known" if away is None else f"unavailable for {away:.1f} s in all"
        clauses.append(f"{took}, {limits.unavailable_s:g} s are allowed")
    if drill.verdict is Verdict.BROKEN:
        clauses.append(drill.why)
    return "; ".join(clauses)


def exit_code(drills: Sequence[Drill], limits: Gate | None = None, salvages: Sequence[SalvageJudged] = ()) -> ExitCode:
    """BROKEN also when a limit is exceeded; UNDECIDED also when every drill was skipped or none was run."""
    salvaged = {one.verdict for one in salvages}
    broken = (exceeded(limits, d) if limits else d.verdict is Verdict.BROKEN for d in drills)
    if Verdict.BROKEN in salvaged or any(broken):
        return ExitCode.BROKEN
    verdicts = {drill.verdict for drill in drills}
    undecided = Verdict.UNDECIDED in verdicts | salvaged or verdicts <= {Verdict.SKIPPED}
    return ExitCode.UNDECIDED if undecided else ExitCode.HELD


def cases(
    drills: Sequence[Drill], limits: Gate | None = None, salvages: Sequence[SalvageJudged] = ()
) -> Iterator[Case]:
    """A case of JUnit's a drill: failure when broken or exceeded, error when undecided, skipped, or fine."""
    outcomes = {
        Verdict.EXPECTED_LOSS: "system-out", Verdict.UNDECIDED: "error", Verdict.SKIPPED: "skipped"
    }  # fmt: skip
    for drill in drills:
        over = exceeded(limits, drill) if limits else (drill.why if drill.verdict is Verdict.BROKEN else "")
        outcome = "failure" if over else outcomes.get(drill.verdict, "")
        yield Case(
            "walproof prove",
            f"walproof.{drill.fault}.{drill.level}",
            f"drill {drill.number}: {drill.fault} of {drill.victim} at {drill.level}",
            outcome,
            over or drill.why,
            drill.why if outcome in ("failure", "system-out") else "",
            drill.rto_s or 0.0,
        )
    for one in salvages:
        outcome = "failure" if one.verdict is Verdict.BROKEN else outcomes.get(one.verdict, "")
        yield Case("walproof prove", "walproof.salvage", f"drill {one.number}: salvage", outcome, one.text)
