"""A fault as steps on members, with its story: what it is made of. The catalogue of them is faults.py. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from walproof.model.drill import Capability, Victim
from walproof.model.guarantee import Loss
from walproof.model.topology import ClusterView


class StepVictim(StrEnum):
    """The members that a step falls on."""

    VICTIM = "the victim"
    LEADER = "the leader"
    STANDBYS = "every standby"
    ALL = "every member"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, `after_s` after the step before; on several members at once, or `apart_s` after one another."""

    operation: Capability
    victim: StepVictim = StepVictim.VICTIM
    after_s: float = 0.0
    apart_s: float = 0.0
    undo: bool = False
    """Undo it instead: power on, programs started."""


_ORDERLY = (Capability.STOP, Capability.RESTART, Capability.SWITCHOVER)


@dataclass(frozen=True, slots=True)
class Story:
    """What happens, what the levels promise, how the cluster recovers: one sentence each."""

    happens: str
    promises: str
    recovers: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry. `loss` is what is lost when the victim is the leader; None when nothing acknowledged is at risk.

    `prepares` are steps before the moment of the fault. `serves_after`: commits continue without clearing the fault.
    `hold_s`: how long it stays in effect once commits continue, or in all when they do not.
    """

    name: str
    victims: tuple[Victim, ...]
    steps: tuple[Step, ...]
    story: Story
    loss: Loss | None = None
    prepares: tuple[Step, ...] = ()
    serves_after: bool = True
    hold_s: float = 2.0
    noticed: bool = True
    """Whether clients or observers must notice it; of the others, such as a lost DCS under failsafe mode, a healthy
    cluster may show no sign to them."""
    leaves_serving: bool = False
    """Of a storm: its member can still lead, and does not count as harmed."""
    slow_flush_s: float = 0.0
    """How much longer a flush takes on a disk that it slows."""

    @property
    def orderly(self) -> bool:
        """Whether PostgreSQL is stopped or handed over in order: then an attempt without an answer is worth a word."""
        return any(step.operation in _ORDERLY for step in self.steps)

    @property
    def takes_all(self) -> bool:
        """Whether nothing of any member is left until it is brought back: then their order is a choice."""
        down = (Capability.KILL_MEMBER, Capability.POWER_CUT)
        return bool(self.steps) and all(s.victim is StepVictim.ALL and s.operation in down for s in self.steps)

    @property
    def needs(self) -> tuple[Capability, ...]:
        """The capabilities of its steps, each once."""
        return tuple(dict.fromkeys(step.operation for step in (*self.prepares, *self.steps)))


def members_of(step: Step, victims: tuple[str, ...], view: ClusterView) -> tuple[str, ...]:
    """The members that a step falls on, given the drill's victims and the view before it."""
    standbys = tuple(m.name for m in view.members if m.name != view.leader)
    leader = (view.leader,) if view.leader else ()
    return {
        StepVictim.VICTIM: victims,
        StepVictim.LEADER: leader,
        StepVictim.STANDBYS: standbys,
        StepVictim.ALL: (*leader, *standbys),
    }[step.victim]
