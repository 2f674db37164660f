"""RTO by the steps of a failover that the manager shows: operator, lease, promotion, endpoint, client. Pure."""

from collections.abc import Sequence

from walproof.model.topology import ClusterView
from walproof.model.verdict import Mark, Recovery
from walproof.proving.outage import Outage

_PARTS = ("operator", "lease", "promotion", "endpoint", "client")


def split_by_steps(
    out: Outage, steps: Sequence[Mark], views: Sequence[ClusterView], leader_before: str | None
) -> tuple[Recovery, tuple[Mark, ...]] | None:
    """The parts, which add up to the RTO, and the marks of the picture; None where the manager showed no step.

    operator: last success until it named another target; lease: until that one took it; promotion: until SQL says that
    it leads; endpoint: until the write service leads to it; client: until the first success. Where the same leader came
    back, promotion is until it leads again. A part not seen is None, and its time goes to the next one that was.
    """
    end = out.first_after
    if end is None:
        return None
    within = [step for step in steps if out.last_before < step.at <= end]
    if not within:
        return None
    seen: dict[str, Mark | None] = {
        "operator": next((s for s in within if s.what == "operator" and s.member != leader_before), None),
        "lease": next((s for s in within if s.what == "lease" and s.member != leader_before), None),
        "promotion": _promotion(out.last_before, end, views, leader_before),
        "endpoint": next((s for s in reversed(within) if s.what == "endpoint"), None),
        "client": Mark(end, "client"),
    }
    marks, lengths, reached = [Mark(out.last_before, "last acknowledgement", leader_before or "")], {}, out.last_before
    for part in _PARTS:
        mark = seen[part]
        if mark is None or mark.at <= reached:
            continue
        lengths[part], reached = mark.at - reached, mark.at
        marks.append(Mark(mark.at, "first acknowledgement" if part == "client" else part, mark.member))
    get = lengths.get
    recovery = Recovery(
        promotion_s=get("promotion"),
        client_s=get("client"),
        operator_s=get("operator"),
        lease_s=get("lease"),
        endpoint_s=get("endpoint"),
    )
    return recovery, tuple(marks)


def _promotion(begin: float, end: float, views: Sequence[ClusterView], leader_before: str | None) -> Mark | None:
    """The first view with another leader; else the first with a leader again after one without."""
    within = [view for view in views if begin < view.at <= end]
    other = next((view for view in within if view.leader not in (None, leader_before)), None)
    without = next((view.at for view in within if view.leader is None), None)
    again = next((v for v in within if without is not None and v.at > without and v.leader is not None), None)
    found = other or again
    return None if found is None else Mark(found.at, "promotion", found.leader or "")


def as_clause(recovery: Recovery) -> str:
    """The parts in words, "" where the manager showed none.

    >>> as_clause(Recovery(promotion_s=4.0, client_s=2.0, operator_s=3.0, lease_s=0.25))
    'outage: operator 3.0 s, lease 0.2 s, promotion 4.0 s, client 2.0 s'
    """
    parts = {part: getattr(recovery, f"{part}_s") for part in _PARTS}
    if not any(parts[part] is not None for part in ("operator", "lease", "endpoint")):
        return ""
    return "outage: " + ", ".join(f"{part} {s:.1f} s" for part, s in parts.items() if s is not None)
