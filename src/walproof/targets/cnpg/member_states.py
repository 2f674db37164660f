"""Signs of every instance: SQL's answers, its pod and container, its processes seen from inside, Chaos Mesh's status.

From inside a container everything shows that a cut network hides: exec comes by the kubelet, not by the pod's network.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from walproof.errors import Error
from walproof.model.capability import Capability
from walproof.model.member_state import MemberState
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint
from walproof.targets.cnpg.api import ApiError, KubernetesApi
from walproof.targets.cnpg.objects import Pod
from walproof.targets.cnpg.state import pods_of
from walproof.targets.sql.member_states import SqlMemberStates

_LISTING = """\
for process in /proc/[0-9]*; do
  read -r line < "$process/stat" && echo "$line"
done 2>/dev/null; read -r pid < "$PGDATA/postmaster.pid" && echo "postmaster $pid"; true"""
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
        found = self._sql.states()
        names = {state.member for state in found}
        # Those without an address now: deleted, or not started yet.
        missing = [MemberState(name, self._clock.now()) for name in self._known if name not in names]
        return (*found, *map(self._shown, missing))

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
            done = self._api.exec(bare.member, ["sh", "-c", _LISTING])
        except ApiError:
            # Its container is just being started, or its node does not answer.
            return shown
        return seen_inside(shown, done.text) if done.code == 0 else shown


def seen_inside(state: MemberState, listing: str) -> MemberState:
    """The state with what a container's processes tell: lines of /proc/PID/stat, the postmaster's pid. Pure."""
    lines = [found.groups() for line in listing.splitlines() if (found := _PROCESS.match(line))]
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
