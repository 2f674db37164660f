"""The live picture as a value: (picture, news) → picture; and synchronous replication now, declared against in effect.

Pure; the page, the terminal and the exporter only show it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from walproof.estimating.observed_waits import Cause, Observation
from walproof.model.estimate import quantile_ms
from walproof.model.event import (
    ClaimJudged,
    DrillDone,
    DrillStarted,
    Ended,
    Event,
    FaultChanged,
    LoadSeen,
    Note,
    SampleDone,
    ScenarioEntered,
    ScenarioLeftOut,
    Started,
)
from walproof.model.guarantee import read_standby_names
from walproof.model.salvage import SalvageJudged
from walproof.model.topology import ClusterView, LinkView, MemberView, Role, Snapshot
from walproof.watching.canary import Probe
from walproof.watching.silent_leader import NOT_FAILOVER, SilentLeader, beside_sql


@dataclass(frozen=True, slots=True)
class SyncStatus:
    """Standbys a commit waits for, standbys it should wait for, and how many may fail before commits block.

    Who streams may be unseen: spare is None then, and `unseen` says what has to be granted.
    """

    in_effect: int = 0
    declared: int = 0
    spare: int | None = 0
    unseen: str = ""

    @property
    def active(self) -> bool:
        """Whether commits at remote_write and above wait for a standby."""
        return self.in_effect > 0

    @property
    def text(self) -> str:
        """One clause for people."""
        return self._known + (f"; who streams and what waits is not known: {self.unseen}" if self.unseen else "")

    @property
    def _known(self) -> str:
        if not self.active:
            missing = f", {self.declared} declared" if self.declared else ""
            return f"synchronous replication inactive: no standby is named{missing}"
        standbys = f"{self.in_effect} standby{'s' if self.in_effect > 1 else ''}"
        reduced = f" ({self.declared} declared)" if self.in_effect < self.declared else ""
        if self.spare is None:
            return f"synchronous commits wait for {standbys}{reduced}"
        if self.spare < 0:
            return f"synchronous commits are blocked: {standbys} needed, {-self.spare} missing"
        return f"synchronous commits wait for {standbys}{reduced}; spare synchronous standbys: {self.spare}"


def sync_status(view: ClusterView, declared: int) -> SyncStatus:
    """What synchronous_standby_names on the leader asks for; `declared` is the number it should be."""
    quorum = read_standby_names(view.standby_names)
    if quorum is None:
        return SyncStatus(0, declared, 0, view.unseen)
    if view.unseen:
        return SyncStatus(quorum.k, declared, None, view.unseen)
    streaming = [m for m in view.standbys if m.state == "streaming"]
    candidates = sum(quorum.counts(m.name if m.streams_as is None else m.streams_as) for m in streaming)
    return SyncStatus(quorum.k, declared, candidates - quorum.k)


KEEP_S = 180.0
"""How much of the past the picture holds."""
STALE_S = 3.0
"""How long a picture counts as what is now; page.js has the same."""
RATE_OVER_S = 1.9
"""PostgreSQL's sessions report their commits once a second each: a shorter span would draw that rhythm."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured moment of one series: throughput (tps), latency (ms), ms waited per commit; None what it is not."""

    at: float
    series: str
    tps: float | None = None
    ms: float | None = None
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something on the time axis. `kind`: fault, recovery, cluster (a change seen), or the kind of a record's event."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything the page shows. Times are seconds since the epoch; `probes` counts canary commits by outcome."""

    at: float = 0.0
    target: str = ""
    leader: str | None = None
    members: tuple[MemberView, ...] = ()
    links: tuple[LinkView, ...] = ()
    silent_leader: SilentLeader | None = None
    standby_names: str = ""
    sync: SyncStatus = field(default_factory=SyncStatus)
    waiting: int | None = None
    longest_wait_s: float | None = None
    commits: int | None = None
    commits_at: float = 0.0
    points: tuple[Point, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    probes: Mapping[str, int] = field(default_factory=dict)
    waits: str = ""

    @property
    def severity(self) -> str:
        """good; warn: fewer standbys waited for than declared; bad: commits block or are not replicated; "" unknown."""
        if not self.members:
            return ""
        spare = self.sync.spare
        if not self.leader or (spare is not None and spare < 0) or (self.sync.declared and not self.sync.active):
            return "bad"
        if self.sync.in_effect < self.sync.declared:
            return "warn"
        return "" if spare is None else "good"

    @property
    def summary(self) -> str:
        """The state of synchronous replication in one clause; "" before the first snapshot."""
        if not self.members:
            return ""
        return self.sync.text if self.leader else "no leader: nothing can be committed"

    def as_json(self) -> dict[str, Any]:
        silent = self.silent_leader
        shown = silent and {"text": silent.text, "command": silent.command, "not": NOT_FAILOVER}
        return {**asdict(self), "severity": self.severity, "summary": self.summary, "silent_leader": shown}


def with_snapshot(picture: Picture, snapshot: Snapshot) -> Picture:
    """The picture after one snapshot of the cluster; role changes become events."""
    view = snapshot.view
    declared = max(picture.sync.declared, sync_status(view, 0).in_effect)
    after = replace(
        picture,
        at=view.at,
        leader=view.leader,
        members=view.members,
        standby_names=view.standby_names,
        sync=sync_status(view, declared),
        waiting=snapshot.waiting,
        longest_wait_s=snapshot.longest_wait_s,
    )
    for text in _changes(picture, after):
        after = with_timeline_event(after, TimelineEvent(view.at, "cluster", text))
    return _with_throughput(after, snapshot, same_leader=picture.leader == view.leader)


def _with_throughput(picture: Picture, snapshot: Snapshot, *, same_leader: bool) -> Picture:
    """Commits per second on the leader over two seconds; each server counts its own, anew after a crash."""
    at, before = snapshot.view.at, picture.commits
    if snapshot.commits is None:
        return picture
    counted = replace(picture, commits=snapshot.commits, commits_at=at)
    if before is None or not same_leader or snapshot.commits < before:
        return counted
    seconds = at - picture.commits_at
    if seconds < RATE_OVER_S:
        return picture
    return _with_point(counted, Point(at, "all", tps=(snapshot.commits - before) / seconds))


def _changes(before: Picture, after: Picture) -> list[str]:
    if not before.members:
        return []
    old = {m.name: m.role for m in before.members}
    changes = []
    if after.leader != before.leader:
        changes.append(f"{after.leader} is leader" if after.leader else f"{before.leader} is no longer leader")
    for member in after.members:
        was = old.get(member.name, member.role)
        if was is not member.role and Role.UNKNOWN in (was, member.role):
            changes.append(f"{member.name} is {'unreachable' if member.role is Role.UNKNOWN else 'reachable again'}")
    if before.sync.active and not after.sync.active and after.leader:
        changes.append("synchronous replication inactive: synchronous_standby_names is empty")
    return changes


def with_probe(picture: Picture, probe: Probe) -> Picture:
    """The picture after one canary commit: counted by outcome, its latency drawn when it was acknowledged in full."""
    count = picture.probes.get(probe.outcome_name, 0) + 1
    counted = replace(picture, probes={**picture.probes, probe.outcome_name: count})
    if not probe.acknowledged:
        return counted
    return _with_point(counted, Point(probe.at, str(probe.level), ms=probe.seconds * 1000))


def with_waits(picture: Picture, news: tuple[Observation | None, str]) -> Picture:
    """The picture with what commits wait for now, or with the reason why that is not known."""
    made, unknown = news
    if made is None:
        return replace(picture, waits=f"what commits wait for is not known: {unknown}" if unknown else "")
    if math.isinf(made.commit_wait_ms.value):
        what = "waits for standbys" if made.commits_per_s.value else "wrote"
        return replace(picture, waits=f"no commit that {what} ends: sessions wait, {made.longest_first[0]} first")
    for cause in Cause:
        picture = _with_point(picture, Point(picture.at, str(cause), waited=made.causes_ms[cause].value))
    causes = f": {made.parts}" if made.parts else ""
    return replace(picture, waits=f"a commit waits {made.commit_wait_ms.value:.2f} ms{causes}")


def with_silent_leader(picture: Picture, silent: SilentLeader | None) -> Picture:
    """The picture with a leader that is silent while its lease runs; each change of that is an event."""
    now = beside_sql(silent, ClusterView(picture.at, picture.members, picture.leader))
    if now == picture.silent_leader:
        return picture
    was, after = picture.silent_leader, replace(picture, silent_leader=now)
    if now and (was is None or was.seen.leader != now.seen.leader):
        event = TimelineEvent(now.since, "cluster", f"{now.member} silent, its lease runs")
        return with_timeline_event(after, event)
    if was and now is None:
        event = TimelineEvent(picture.at, "cluster", f"{was.member} answers again, or its lease ended")
        return with_timeline_event(after, event)
    return after


def with_links(picture: Picture, links: tuple[LinkView, ...]) -> Picture:
    """The picture with the links between members as they are now."""
    return replace(picture, links=links)


def _with_point(picture: Picture, point: Point) -> Picture:
    kept = tuple(p for p in picture.points if p.at > point.at - KEEP_S)
    return replace(picture, points=(*kept, point))


def with_timeline_event(picture: Picture, event: TimelineEvent) -> Picture:
    """The picture with one more event on its time axis; the last 200 of half an hour are kept."""
    kept = tuple(e for e in picture.events if e.at > event.at - 10 * KEEP_S)[-200:]
    return replace(picture, events=(*kept, event))


def with_record_event(picture: Picture, event: Event) -> Picture:
    kind: str = event.kind
    match event:
        case SampleDone(result=result):
            arm = result.sample.arm
            p95 = quantile_ms(result.histogram, 0.95) if result.histogram else None
            text = f"{arm.level}, {arm.clients} client{'s' if arm.clients > 1 else ''}: {result.tps:,.0f} tps"
            picture = _with_point(picture, Point(event.at, str(arm.level), tps=result.tps, ms=p95))
        case DrillStarted():
            text = f"drill {event.number}: {event.fault} at {event.level}"
        case FaultChanged():
            kind = "recovery" if event.cleared else "fault"
            text = f"{event.fault} {'cleared on' if event.cleared else 'on'} {', '.join(event.members)}"
        case DrillDone(drill=drill):
            lost = f"{drill.findings.lost} lost" if drill.findings.lost else "nothing lost"
            rto = "" if drill.rto_s is None else f", RTO {drill.rto_s:.1f} s"
            text = f"{drill.fault} at {drill.level}: {drill.verdict}, {lost}{rto}"
        case ScenarioEntered():
            text = f"scenario: {event.scenario.text}"
        case ClaimJudged():
            text = f"{event.claim}: {event.verdict}"
        case Note() | ScenarioLeftOut() | LoadSeen() | SalvageJudged():
            text = event.text
        case Started():
            text = f"{event.verb} started"
        case Ended():
            text = f"ended: {event.stopped_by}"
        case _:
            return picture
    return with_timeline_event(picture, TimelineEvent(event.at, kind, text))
