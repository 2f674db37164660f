"""What a drill sees: signs of a fault of every instance, and steps of a failover at the moment each was first seen.

From inside a container everything shows that a cut network hides: exec comes by the kubelet."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from walproof.errors import Error
from walproof.model.drill import Capability, Mark
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint, MemberState
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, ApiError, KubernetesApi
from walproof.targets.cnpg.objects import Cluster, Pod, read
from walproof.targets.cnpg.state_and_doctor_facts import State, pods_of, with_who_serves
from walproof.targets.sql.observe import SqlMemberStates

LISTING = """\
for process in /proc/[0-9]*; do
  read -r line < "$process/stat" && echo "$line"
done 2>/dev/null; read -r pid < "$PGDATA/postmaster.pid" && echo "postmaster $pid"; true"""
"""A script of the shell: a line of /proc/PID/stat for each process of a container, and the postmaster's pid."""
_PROCESS = re.compile(r"^(\d+) \((.*)\) (\S) (?:\S+ ){18}(\d+)")
"""pid, name, state, start time of a line of /proc/PID/stat (proc(5))."""
_POSTMASTER = re.compile(r"^postmaster (\d+)$", re.MULTILINE)
Injected = Callable[[], Mapping[str, tuple[Capability, ...]] | None]


class CnpgMemberStates:
    """Instances of one Cluster; `injected` gives by member what Chaos Mesh has injected, None where there is none."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: str,
        members: Callable[[], Mapping[str, Endpoint]],
        clock: Clock,
        *,
        injected: Injected,
    ) -> None:
        self._api, self._cluster, self._clock, self._injected = api, cluster, clock, injected
        self._sql = SqlMemberStates(members, clock, self._shown)
        self._known: dict[str, Pod] = {}
        self._pods: dict[str, Pod] = {}
        self._chaos: Mapping[str, tuple[Capability, ...]] | None = None

    def states(self) -> tuple[MemberState, ...]:
        """Every instance now; one without a pod is there as one without processes."""
        try:
            self._pods = pods_of(self._api, self._cluster)
            self._chaos = self._injected()
        except Error:
            self._pods, self._chaos = {}, None
        self._known |= self._pods
        states = self._sql.states()
        names = {state.member for state in states}
        # Those without an address now: deleted, or not started yet.
        missing = [MemberState(name, self._clock.now()) for name in self._known if name not in names]
        return (*states, *map(self._shown, missing))

    def _shown(self, bare: MemberState) -> MemberState:
        pod = self._pods.get(bare.member)
        if not self._pods:
            # Kubernetes does not answer: nothing is known.
            return bare
        if pod is None:
            return replace(bare, postmaster="none", processes="none", manager="none", container="none")
        chaos = None if self._chaos is None else tuple(map(str, self._chaos.get(bare.member, ())))
        shown = replace(bare, container=f"{pod.metadata.uid}/{pod.restarts}", chaos=chaos)
        try:
            done = self._api.exec(bare.member, ["sh", "-c", LISTING])
        except ApiError:
            # Its container is just being started, or its node does not answer.
            return shown
        return seen_inside(shown, done.text) if done.code == 0 else shown


def seen_inside(state: MemberState, listing: str) -> MemberState:
    """The state with what a container's processes tell: lines of /proc/PID/stat, the postmaster's pid. Pure."""
    lines = [match.groups() for line in listing.splitlines() if (match := _PROCESS.match(line))]
    if not lines:
        return state
    stated = [process for _, name, process, _ in lines if name == "postgres"]
    manager = next((process for pid, _, process, _ in lines if pid == "1"), "")
    named = _POSTMASTER.search(listing)
    started = next((f"{pid}@{start}" for pid, _, _, start in lines if named and pid == named[1]), "none")
    return replace(
        state,
        postmaster=started,
        processes=_together(stated),
        manager=_together([manager] if manager else []),
        stressed=any(name.startswith("stress") for _, name, _, _ in lines),
    )


def _together(states: list[str]) -> str:
    """
    >>> _together(["T", "T"]), _together(["T", "S"]), _together([])
    ('frozen', 'running', 'none')
    """
    if not states:
        return "none"
    return "frozen" if all(state in ("T", "t") for state in states) else "running"


_PENDING = "pending"
"""What targetPrimary says while the operator has not chosen."""
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the steps are derived from, at one moment; holder and writable None where they may not be read."""

    target: str
    holder: str | None
    writable: tuple[str, ...] | None


def steps_between(before: Seen, after: Seen, at: float) -> tuple[Mark, ...]:
    """What happened between the two: operator (it named its target), lease (taken), endpoint (the write service leads).

    >>> [m.what for m in steps_between(Seen("pg-1", "", ()), Seen("pg-2", "pg-2", ("pg-2",)), 1.0)]
    ['operator', 'lease', 'endpoint']
    """
    marks = []
    if after.target not in (before.target, _PENDING, ""):
        marks.append(Mark(at, "operator", after.target))
    if after.holder and before.holder is not None and after.holder != before.holder:
        marks.append(Mark(at, "lease", after.holder))
    if after.writable and before.writable is not None and after.writable != before.writable:
        marks.append(Mark(at, "endpoint", after.writable[0]))
    return tuple(marks)


class CnpgFailoverSteps:
    """One Cluster; asked at the pace at which its steps are to be known.

    Lease and endpoints change hands only once the Cluster shows that an instance is missing or another the target:
    while it shows neither they are asked for once a second.
    """

    def __init__(self, api: KubernetesApi, cluster: str, clock: Clock) -> None:
        self._api, self._cluster, self._clock = api, cluster, clock
        self._last: Seen | None = None
        self._asked = float("-inf")

    def since_last(self) -> Sequence[Mark]:
        """Ask once; the steps since it was asked last. Nothing while Kubernetes does not answer."""
        try:
            after = self._seen()
        except Error:
            return ()
        before, self._last = self._last, after
        return () if before is None else steps_between(before, after, self._clock.now())

    def _seen(self) -> Seen:
        cluster = read(Cluster, self._api.get(CLUSTERS, self._cluster))
        status, now = cluster.status, self._clock.now()
        quiet = status.target_primary == status.current_primary and status.ready_instances >= cluster.spec.instances
        if quiet and self._last is not None and now - self._asked < _QUIET_S:
            return replace(self._last, target=status.target_primary)
        self._asked = now if quiet else float("-inf")
        state = with_who_serves(self._api, State(cluster, {}))
        return Seen(status.target_primary, state.holder, state.writable)
