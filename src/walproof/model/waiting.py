"""Every wait has a name, a length and a place in this table; one multiplier serves slow machines."""

from collections.abc import Callable
from enum import Enum

from walproof.errors import WaitTimeout
from walproof.model.ports import Clock


class Wait(Enum):
    """Named waits: (seconds, what is awaited)."""

    PROGRAM_READY = (30.0, "a program of the lab to answer")
    FIRST_LEADER = (60.0, "a first leader")
    STANDBYS_STREAMING = (60.0, "every standby to stream")
    QUORUM_NAMED = (60.0, "every standby of the quorum to be named")
    PROGRAM_GONE = (15.0, "a process to end")
    ANOTHER_CHANGE = (60.0, "another walproof to end its change of the lab")
    DISKS_FREE = (15.0, "the lab's disks to be unmounted and free")
    NEW_LEADER = (90.0, "a new leader")
    TAKEOVER = (45.0, "another member to lead")
    CLUSTER_HEALTHY = (120.0, "the cluster to be healthy")
    REPLAYED = (20.0, "every standby to replay what the leader has")
    FIRST_COMMIT_AFTER = (90.0, "a first commit after the fault")
    SERVICE_LASTS = (60.0, "commits to go on without another outage")
    SETTING_IN_EFFECT = (30.0, "a setting to be in effect")
    ROLE_MADE = (5.0, "the operator to make walproof's role")
    WRITERS_UP = (30.0, "the writers to commit")
    LOAD_PODS = (120.0, "every load pod to be ready")
    POD_PLACED = (60.0, "an instance's pod to be made")
    INSTANCES_SCALED = (900.0, "every instance to run with its processors and memory")
    SWITCHOVER = (60.0, "a planned switchover")
    SUCCESSOR_NAMED = (120.0, "the operator to name a successor")
    CHAOS_INJECTED = (60.0, "Chaos Mesh to inject the fault")
    CHAOS_GONE = (60.0, "Chaos Mesh to undo the fault")
    PITFALL_SHOWN = (40.0, "a pitfall to show itself")

    @property
    def seconds(self) -> float:
        """How long, before the multiplier."""
        return float(self.value[0])

    @property
    def what(self) -> str:
        return str(self.value[1])


def longest_s(wait: Wait, clock: Clock, times: float = 1.0) -> float:
    """How long a wait may take on this clock's target: its seconds there, times patience, times `times`."""
    return clock.waits.get(wait.name, wait.seconds) * clock.patience * times


def wait_for(wait: Wait, done: Callable[[], bool], clock: Clock, *, pace_s: float = 0.1, times: float = 1.0) -> float:
    """Ask `done` every `pace_s` until it is true; seconds waited. WaitTimeout names the wait when it runs out.

    It runs out after the wait's seconds times the clock's patience, and times `times` where one wait takes longer.
    """
    started = clock.now()
    most_s = longest_s(wait, clock, times)
    while not done():
        if clock.now() - started > most_s:
            raise WaitTimeout(
                f"timed out after {most_s:.0f} s waiting for {wait.what} ({wait.name})",
                "see `walproof lab status` and `walproof lab logs`; WALPROOF_PATIENCE=2 doubles every wait",
            )
        clock.pause(pace_s)
    return clock.now() - started
