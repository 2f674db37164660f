"""The guard of one Cluster at work: asks every instance, and in each turn reads the API, decides, sends.

Decides nothing itself (guarding/kubernetes_freeze.py). It writes one annotation, deletes one pod in order, never with
force, and empties one Lease: each onto what was read just before, and never after its time.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import resources
from math import inf
from time import monotonic
from typing import Any

import httpx2
import psycopg
from psycopg.rows import class_row

from walproof.errors import Error, MachineError, TargetError, UsageError
from walproof.guarding import kubernetes_freeze as freeze
from walproof.guarding.kubernetes_freeze import Act, Action, Policy, State
from walproof.guarding.kubernetes_sight import READ_S, ClusterSeen, LeaseSeen, Sight, StandbySeen, Way
from walproof.guarding.status_and_metrics import GuardStatus, Log
from walproof.load.open_session import open_session
from walproof.model.cnpg_facts import why_not_guarded
from walproof.model.ports import Clock
from walproof.model.standby_names import parsed
from walproof.model.topology import Endpoint
from walproof.targets.cnpg.cluster_by_uid import ClusterReplaced
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, LEASES, PODS, KubernetesApi, Tree
from walproof.targets.cnpg.objects import Cluster, Lease, Pod, Read, read
from walproof.targets.cnpg.rbac import Names, for_guard, named_instances, refusal
from walproof.targets.cnpg.state_and_doctor_facts import (
    FENCED,
    RECONCILIATION,
    TAKEN,
    facts_of,
    is_instance,
    pods_named,
)
from walproof.targets.cnpg.state_and_doctor_facts import State as Observed

HIBERNATION = "cnpg.io/hibernation"
SERVICE, MANAGER = "the write service", "the instance manager of the primary"
_QUERY = (resources.files("walproof.targets.cnpg") / "instance.sql").read_bytes()
_PACE_S, _CALM_S, _STALL_S, _RIGHTS_S, _LOGIN_S = 0.1, 0.5, 1.0, 60.0, 30.0
_SAME_S, _LONGEST_S = 10.0, 5.0
"""After so long without a reading an address may be another's; the longest --suspect-after (GUARD_ACTS_S)."""
_GRACE_S = 1
"""Of the deleted pod, 2 in effect: a frozen PostgreSQL makes no use of it, and its manager waits for that."""
_WORDS = {
    "application_name": "walproof guard", "connect_timeout": "2", "tcp_user_timeout": "1000", "keepalives_idle": "1",
    "keepalives_interval": "1", "keepalives_count": "2", "dbname": "postgres", "sslmode": "require",
    "channel_binding": "require", "require_auth": "scram-sha-256",
    "options": "-c default_transaction_deferrable=off -c extra_float_digits=1",
}  # fmt: skip
"""A lost node's connection ends within seconds, for it would look like a frozen server. Not in the application's
database: its owner could lock or replace what is asked there, or have a deferrable question of their own role wait
(ALTER ROLE). SCRAM gives no password away; bound to the channel, nobody who relays it has the session."""


class Row(Read):
    """What instance.sql answers; of the manager nothing."""

    in_recovery: bool = False
    standby_names: str = ""
    timeline: int | None = None
    silent_s: float | None = None
    pings_s: float = 0.0
    behind: bool = False


Ask = Callable[[str, Pod | None], Row]
"""Asks SERVICE (without a pod), MANAGER or the instance of that name, in its pod; raises where there is no answer."""


class Network:
    """Asks one place over the network, by SQL over one connection as long as its address stays the same."""

    def __init__(self, endpoint: Callable[[tuple[str, int]], Endpoint], service: tuple[str, int]) -> None:
        self._endpoint, self._service = endpoint, service
        self._to: Endpoint | None = None
        self.since = inf
        """Of a login or a manager's answer that is under way: whoever answers there has no other limit of time."""
        self._open: psycopg.Connection[Row] | None = None

    def __call__(self, place: str, pod: Pod | None) -> Row:
        """One question; that the manager answers shows that it lives: nothing else is taken from it."""
        to = self._endpoint((pod.status.pod_ip, pod.port) if pod else self._service)
        self.since = monotonic()
        try:
            if pod and place == MANAGER:
                return _managed(pod)
            if self._open is None or self._open.closed or self._to != to:
                if self._open is not None:
                    self._open.close()
                self._to = to
                self._open = open_session(to.conninfo(**_WORDS), class_row(Row))
        finally:
            self.since = inf
        row = self._open.execute(_QUERY).fetchone() or Row()
        if pod is None and row.in_recovery:
            self._open.close()
            raise TargetError("the write service leads to a standby")
        return row


def _managed(pod: Pod) -> Row:
    tls = "s" if any("--status-port-tls" in one.command for one in pod.spec.containers) else ""  # specs/pods.go
    at = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    url = f"http{tls}://{at}:8000/failsafe"
    with httpx2.stream("GET", url, verify=False, trust_env=False, timeout=1.0) as answer:
        answer.raise_for_status()  # a sidecar's 503 is no manager
    return Row()


class Asker:
    """Asks one place ten times a second. `answer`: when the last question that was answered was put, and its row."""

    def __init__(self, clock: Clock, ask: Callable[[], Row]) -> None:
        self.way = Way()
        self.answer = (0.0, Row())
        self._clock, self._ask = clock, ask
        self.thread: Any = clock.every(_PACE_S, self._once)

    def _once(self) -> None:
        asked_at = self._clock.now()
        if self.way.waiting_since is None:
            self.way = replace(self.way, waiting_since=asked_at)
        try:
            row = self._ask()
        except (Error, psycopg.Error, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError):
            # A refusal, an end, a login that takes too long, which any role can bring about: not the silence of a
            # frozen server, whose open session waits.
            self.way = Way(self.way.answered_at)
            return
        self.answer, self.way = (asked_at, row), Way(self._clock.now())


def cluster_seen(cluster: Cluster, row: Row) -> ClusterSeen:
    """What decides. row: of its primary."""
    meta, status, sync = cluster.metadata, cluster.status, cluster.spec.postgresql.synchronous
    names, notes = tuple(status.instance_names), meta.annotations
    by_spec = why_not_guarded(facts_of(Observed(cluster, {})))
    reasons = {
        by_spec: by_spec,
        f"the annotation {RECONCILIATION} is disabled": notes.get(RECONCILIATION) == "disabled",
        f"the annotation {FENCED} fences instances": notes.get(FENCED, "[]") not in ("", "[]"),
        f"the annotation {HIBERNATION} is not off": notes.get(HIBERNATION, "off") != "off",
        "spec.nodeMaintenanceWindow.inProgress is true": cluster.spec.node_maintenance_window.in_progress,
    }
    hands_off = next((reason for reason, is_so in reasons.items() if is_so), "")
    primary, number = (status.current_primary, status.target_primary, status.phase), sync.number if sync else 0
    waits = 0 if row.in_recovery else _waits_for(row.standby_names, names)
    by, uid, at = [*(word[:80] for word in notes.get(TAKEN, "").split(" ")), "", ""][:3]
    claim = (by or "somebody", uid, at) if TAKEN in notes else ("", "", "")
    return ClusterSeen(meta.resource_version, *primary, names, number, waits, hands_off, claim)


def _waits_for(standby_names: str, instances: tuple[str, ...]) -> int:
    """How many of these instances a commit waits for by synchronous_standby_names; 0 where others could do as well."""
    try:
        _, number, names = parsed(standby_names)
    except UsageError:
        return 0
    return number if set(names) <= set(instances) else 0


class FrozenPrimaryGuard:
    """Threads ask each instance, the service and the manager; another takes turns."""

    def __init__(
        self, of: tuple[KubernetesApi, str], ways: Callable[[], Ask], clock: Clock, policy: Policy, log: Log
    ) -> None:
        """`ways` opens one. UsageError where it can do nothing, ApiError without the rights that it needs."""
        (self._api, self._name), self._ways, self._clock, self._policy, self._log = of, ways, clock, policy, log
        self.memory, self._wrong = freeze.Memory(), ""
        self._askers, self._asks = dict[str, Asker](), list[Any]()
        self._turned_at = clock.now()
        if policy.suspect_after_s > _LONGEST_S:
            raise UsageError(f"--suspect-after may be {_LONGEST_S:g}s here: later the pod is not Ready", "leave it out")
        self._read()
        if never := why_not_guarded(facts_of(Observed(self._cluster, {}))):
            raise UsageError(f"nothing to guard: {never}", "docs/guard.md says why: When it does not act")
        self._ask_rights()
        if self._lacks:
            raise self._lacks
        self._rights: Any = clock.every(_RIGHTS_S, self._ask_rights)

    def turn(self) -> None:
        """See, decide, act, and a short pause; ClusterReplaced; MachineError when a thread that sees has ended."""
        # A request is no stall: places are asked meanwhile, and what was read or asked too long ago is not believed.
        stalled = self._clock.now() - self._turned_at > _PACE_S + _STALL_S
        if self.memory.state not in freeze.CALM or self._clock.now() - self._tried_at >= _CALM_S:
            try:
                self._read()
            except ClusterReplaced:
                raise
            except Error as wrong:
                self._wrong = f": {wrong.message}"
        memory, action = freeze.turn(self.memory, self._sight(stalled), self._policy)
        self._remember(memory)
        if action is not None:
            self._send(action)
        # How long a login computes is the server's to say (SCRAM's iterations): no timeout ends that.
        late = any(monotonic() - getattr(one, "since", inf) > _LOGIN_S for one in self._asks)
        if late or self._rights.failed or any(one.thread.failed for one in self._askers.values()):
            raise MachineError(
                "the guard cannot see any more: one of its threads ended by the error above",
                "start it again; as a service with Restart=always",
            )
        self._turned_at = self._clock.now()
        self._clock.pause(_PACE_S)

    def close(self) -> None:
        """The threads that ask end with the process: a frozen server may keep one waiting."""

    def status(self) -> GuardStatus:
        """What it does now."""
        m, hangs = self.memory, self._clock.now() - self._turned_at > READ_S + _PACE_S
        why = f"a request to the Kubernetes API takes more than {READ_S:g} s" if hangs else m.why_not
        return GuardStatus(m.state, m.primary, why, m.suspicions, m.takeovers, self._policy.dry_run)

    def _read(self) -> None:
        """The Cluster, the Lease, each instance's pod by its name; that of the watched one as long as it is one."""
        at, api, name = self._clock.now(), self._api, self._name
        self._tried_at = at
        cluster = read(Cluster, api.get(CLUSTERS, name))
        status, watched, lease = cluster.status, self.memory.primary, read(Lease, api.get(LEASES, name))
        names = [one for one in (*status.instance_names, status.current_primary, watched) if one]
        pods = pods_named(api, dict.fromkeys(named_instances(name, names)))
        self._read_at, self._cluster, self._pods, self._lease, self._wrong = at, cluster, pods, lease, ""

    def _ask_rights(self) -> None:
        """In a thread of its own: one request for each right takes longer than a turn may."""
        needs = for_guard(Names(self._name, tuple(self._cluster.status.instance_names)))
        needs = tuple(replace(rule, verbs=("get",)) for rule in needs) if self._policy.dry_run else needs
        self._lacks = refusal(self._api, needs, "a guard")

    def _way(self, place: str) -> Asker:
        if place not in self._askers:
            self._asks.append(self._ways())
            self._askers[place] = Asker(self._clock, partial(self._asked, self._asks[-1], place))
        return self._askers[place]

    def _asked(self, ask: Ask, place: str) -> Row:
        pod = self._pods.get(self._cluster.status.current_primary if place == MANAGER else place)
        if place != SERVICE and (pod is None or not pod.status.pod_ip):
            raise TargetError(f"{place} has no address")
        if self._clock.now() - self._read_at > _SAME_S:
            raise TargetError("its address may be another's by now")
        return ask(place, pod)

    def _sight(self, stalled: bool) -> Sight:
        cluster, pods, memory = self._cluster, self._pods, self.memory
        primary, standbys = cluster.status.current_primary, {}
        for name in cluster.status.instance_names:
            (asked_at, row), way = self._way(name).answer, self._way(name).way
            if row.in_recovery:
                streams = row.silent_s is not None and row.timeline == cluster.status.timeline_id
                silent_s = max(row.silent_s or 0.0, 0.0)  # below 0 where its clock was put back meanwhile
                heard_at = way.answered_at - silent_s if streams else 0.0
                ready = name in pods and pods[name].ready
                standbys[name] = StandbySeen(asked_at, heard_at, streams, ready, row.pings_s or inf, row.behind)
        watches = memory.state in (*freeze.CALM, State.SUSPECTING)
        pod = pods.get(primary if watches else memory.primary)
        # None is begun with another owner's pod; one that lost its owner afterwards is there all the same.
        pod = None if watches and pod and not is_instance(pod, cluster.metadata.uid) else pod
        uid, ready = (pod.metadata.uid, pod.ready) if pod else ("", False)
        held, its, retry_s = self._lease.spec, self._lease.metadata, cluster.spec.primary_lease.retry_period_seconds
        lease = LeaseSeen(its.resource_version, held.holder_identity or "", held.renew_time or "", max(2.0, retry_s))
        seen = cluster_seen(cluster, self._way(primary).answer[1])
        if (lacks := self._lacks) is not None and memory.state is not State.DELETED:  # then the API refuses by itself
            seen = replace(seen, hands_off=lacks.message)
        ways = (self._way(SERVICE).way, self._way(primary).way, self._way(MANAGER).way)
        times = self._clock.now(), self._read_at
        return Sight(*times, seen, uid, ready, lease, *ways, standbys, stalled, self._wrong)

    def _send(self, action: Action) -> None:
        """The only place that changes anything; what became of it is remembered."""
        onto: Tree = {"resourceVersion": action.onto}
        try:
            if self._clock.now() >= action.until:
                raise TargetError("its time is over")
            match action.act:
                case Act.CLAIM:
                    words = f"{self._policy.name} {self.memory.uid} {self._clock.now():.3f}"
                    self._api.patch(CLUSTERS, self._name, {"metadata": {**onto, "annotations": {TAKEN: words}}})
                case Act.DELETE_POD:
                    if not self._api.delete(PODS, self.memory.primary, _GRACE_S, uid=action.onto):
                        raise TargetError("it is gone already, or made anew")
                case Act.EMPTY_LEASE:
                    self._api.patch(LEASES, self._name, {"metadata": onto, "spec": {"holderIdentity": None}})
            memory = freeze.done(self.memory, action, self._clock.now())
        except Error as wrong:
            memory = freeze.not_done(self.memory, action, wrong.message)
        self._remember(memory)

    def _remember(self, memory: freeze.Memory) -> None:
        """Keep it, and log what is new."""
        before, self.memory = self.memory.state, memory
        if memory.state is not before:
            self._log(f"{memory.primary}: {memory.state}{': ' if memory.why_not else ''}{memory.why_not}")
