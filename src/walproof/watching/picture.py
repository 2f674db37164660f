"""The live picture as a value: (picture, what happened) → picture. Pure; the page and the terminal only draw it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from walproof.model.event import (
    ClaimJudged,
    DrillDone,
    DrillStarted,
    Ended,
    Event,
    FaultChanged,
    Note,
    SampleDone,
    ScenarioEntered,
    Started,
)
from walproof.model.histogram import quantile_ms
from walproof.model.topology import LinkView, Role, Snapshot
from walproof.watching.canary import Chirp
from walproof.watching.metrics import promise

KEEP_S = 180.0
"""How much of the past the picture holds."""
RATE_OVER_S = 1.9
"""PostgreSQL's sessions tell their commits once a second each: a shorter span would draw that rhythm."""


@dataclass(frozen=True, slots=True)
class MemberDrawn:
    """One member as drawn: lag in bytes, None when unknown."""

    name: str
    role: str
    state: str
    timeline: int | None
    lag_bytes: int | None
    address: str
    sync_state: str


@dataclass(frozen=True, slots=True)
class Point:
    """A measured moment of one series: throughput (tps) or latency (ms), None where only the other is known."""

    at: float
    series: str
    tps: float | None = None
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """Something on the time axis."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything the page shows."""

    at: float = 0.0
    target: str = ""
    leader: str | None = None
    members: tuple[MemberDrawn, ...] = ()
    links: tuple[LinkView, ...] = ()
    names: str = ""
    in_effect: int = 0
    declared: int = 0
    left: int = 0
    promise: str = ""
    waiting: int = 0
    longest_wait_s: float = 0.0
    commits: int | None = None
    commits_at: float = 0.0
    points: tuple[Point, ...] = ()
    happenings: tuple[Happening, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def drawn(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def looked(picture: Picture, glance: Snapshot) -> Picture:
    """The picture after one look at the cluster; role changes become happenings."""
    view = glance.view
    now = promise(view, max(picture.declared, 0))
    declared = max(picture.declared, now.in_effect)
    now = promise(view, declared)
    members = tuple(
        MemberDrawn(m.name, str(m.role), m.state, m.timeline, m.lag_bytes, m.address, m.sync_state)
        for m in view.members
    )
    drawn = replace(
        picture,
        at=view.at,
        leader=view.leader,
        members=members,
        names=view.standby_names,
        in_effect=now.in_effect,
        declared=declared,
        left=now.left,
        promise=now.words if view.leader else "no leader: nothing can be committed",
        waiting=glance.waiting,
        longest_wait_s=glance.longest_wait_s,
    )
    for text in _changes(picture, drawn):
        drawn = _happened(drawn, Happening(view.at, "cluster", text))
    return _paced(drawn, glance)


def _paced(picture: Picture, glance: Snapshot) -> Picture:
    """Commits per second on the leader over two seconds; a smaller counter is another server's."""
    at, before = glance.view.at, picture.commits
    if glance.commits is None:
        return picture
    counted = replace(picture, commits=glance.commits, commits_at=at)
    if before is None or glance.commits < before:
        return counted
    if at - picture.commits_at < RATE_OVER_S:
        return picture
    return _with_point(counted, Point(at, "all", tps=(glance.commits - before) / (at - picture.commits_at)))


def _changes(before: Picture, after: Picture) -> list[str]:
    if not before.members:
        return []
    old = {m.name: m for m in before.members}
    found = []
    if after.leader != before.leader:
        found.append(f"{after.leader} leads" if after.leader else f"{before.leader} no longer leads")
    for member in after.members:
        was = old.get(member.name)
        if was and was.role != member.role and Role.UNKNOWN in (was.role, member.role):
            found.append(f"{member.name} is silent" if member.role == Role.UNKNOWN else f"{member.name} answers again")
    if before.in_effect and not after.in_effect and after.leader:
        found.append("standby names are empty: remote levels are local")
    return found


def heard(picture: Picture, chirp: Chirp) -> Picture:
    """The picture after one canary."""
    return _with_point(picture, Point(chirp.at, str(chirp.level), ms=chirp.seconds * 1000))


def linked(picture: Picture, links: tuple[LinkView, ...]) -> Picture:
    """The picture with the wire as it is now."""
    return replace(picture, links=links)


def _with_point(picture: Picture, point: Point) -> Picture:
    kept = tuple(p for p in picture.points if p.at > point.at - KEEP_S)
    return replace(picture, points=(*kept, point))


def _happened(picture: Picture, happening: Happening) -> Picture:
    kept = tuple(h for h in picture.happenings if h.at > happening.at - 10 * KEEP_S)[-200:]
    return replace(picture, happenings=(*kept, happening))


def happened(picture: Picture, event: Event) -> Picture:
    """The picture after one event of a record."""
    match event:
        case SampleDone(result=result):
            arm = result.sample.arm
            series = str(arm.level)
            slow = quantile_ms(result.histogram, 0.95) if result.histogram else None
            text = f"{arm.level}, {arm.clients} clients: {result.tps:,.0f} tps"
            counted = _happened(picture, Happening(event.at, "sample", text))
            return _with_point(counted, Point(event.at, series, tps=result.tps, ms=slow))
        case DrillStarted():
            text = f"drill {event.number}: {event.fault} at {event.level}"
        case FaultChanged():
            text = f"{event.fault} {'healed' if event.cleared else 'on'} {', '.join(event.members)}"
        case DrillDone(drill=drill):
            lost = f"{drill.findings.lost} lost" if drill.findings.lost else "nothing lost"
            time = "" if drill.rto_s is None else f", back after {drill.rto_s:.1f} s"
            text = f"{drill.fault} at {drill.level}: {drill.verdict}, {lost}{time}"
        case ScenarioEntered():
            text = f"setting: {event.scenario.text}"
        case ClaimJudged():
            text = f"{event.claim}: {event.verdict}"
        case Note():
            text = event.text
        case Started():
            text = f"{event.verb} begins"
        case Ended():
            text = f"ended: {event.stopped_by}"
        case _:
            return picture
    return _happened(picture, Happening(event.at, event.kind, text))
