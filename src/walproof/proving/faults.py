"""The fault catalogue: what is done to whom, what is lost by it, what it needs, and its story. Does nothing."""

from dataclasses import dataclass
from enum import StrEnum

from walproof.errors import UsageError
from walproof.model.guarantee import Loss
from walproof.model.ports import Capability
from walproof.model.verdict import Victim


class Deed(StrEnum):
    """One thing done to a cluster, by the name of the capability that does it (model.ports.Capability)."""

    KILL = "kill"
    STOP = "stop"
    KILL_MEMBER = "kill-member"
    FREEZE = "freeze"
    POWER_CUT = "power-cut"
    PARTITION = "partition"
    ISOLATE = "isolate"
    PARTITION_ONE_WAY = "partition-one-way"
    SLOW_DISK = "slow-disk"
    FAILING_DISK = "failing-disk"
    FULL_DISK = "full-disk"
    DCS_LOSS = "dcs-loss"
    RESTART = "restart"
    SWITCHOVER = "switchover"


class Whom(StrEnum):
    """On whom a step falls."""

    VICTIM = "the victim"
    LEADER = "the leader"
    STANDBYS = "every standby"
    EVERYBODY = "every member"


@dataclass(frozen=True, slots=True)
class Step:
    """A deed; steps of one drill follow each other after `after_s`.

    On several members it goes out at once, or one after another `apart_s` later.
    """

    deed: Deed
    whom: Whom = Whom.VICTIM
    after_s: float = 0.0
    apart_s: float = 0.0
    undo: bool = False
    """Undo it instead: power on, programs started."""


@dataclass(frozen=True, slots=True)
class Story:
    """What happens, what the levels promise, how it heals: one sentence each."""

    happens: str
    promises: str
    heals: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry. `loss` is what is gone when the victim is the leader; None when nothing acknowledged is at risk.

    `prepares` are steps before the moment of the fault. `serves_after`: commits go on by themselves afterwards; else
    only healing brings them back. `hold_s`: how long it is left in effect once commits go on, or in all.
    """

    name: str
    victims: tuple[Victim, ...]
    needs: tuple[Capability, ...]
    steps: tuple[Step, ...]
    story: Story
    loss: Loss | None = None
    prepares: tuple[Step, ...] = ()
    serves_after: bool = True
    hold_s: float = 2.0


_ANY_MEMBER = (Victim.LEADER, Victim.SYNC_STANDBY, Victim.STANDBY, Victim.ALL_STANDBYS)
_ONE_MEMBER = (Victim.LEADER, Victim.SYNC_STANDBY, Victim.STANDBY)
_TAKEOVER = (
    "remote_write, on and remote_apply: what a surviving standby has is kept; off and local promise nothing here"
)

_ALL = (
    Fault(
        "kill",
        _ANY_MEMBER,
        (Capability.KILL,),
        (Step(Deed.KILL),),
        Story("the postmaster is killed with -9", _TAKEOVER, "the manager starts it again, rewound when needed"),
        Loss.LEADER_GONE,
    ),
    Fault(
        "stop",
        _ANY_MEMBER,
        (Capability.STOP,),
        (Step(Deed.STOP),),
        Story(
            "PostgreSQL is stopped in an orderly way",
            "an orderly stop ships all WAL to connected standbys first: nothing should be lost at any level",
            "the manager starts it again",
        ),
    ),
    Fault(
        "kill-member",
        _ANY_MEMBER,
        (Capability.KILL_MEMBER,),
        (Step(Deed.KILL_MEMBER),),
        Story(
            "every process of the member, manager and DCS too, is killed with -9", _TAKEOVER, "all are started again"
        ),
        Loss.LEADER_GONE,
    ),
    Fault(
        "freeze",
        _ANY_MEMBER,
        (Capability.FREEZE,),
        (Step(Deed.FREEZE),),
        Story("every process of the member stands still, as in a paused virtual machine", _TAKEOVER, "it is woken"),
        Loss.LEADER_GONE,
        hold_s=3.0,
    ),
    Fault(
        "power-cut",
        _ANY_MEMBER,
        (Capability.POWER_CUT,),
        (Step(Deed.POWER_CUT),),
        Story(
            "the member's power goes: what was not flushed is gone", _TAKEOVER, "power on, file system mounted again"
        ),
        Loss.LEADER_GONE,
    ),
    Fault(
        "partition",
        _ANY_MEMBER,
        (Capability.PARTITION,),
        (Step(Deed.PARTITION),),
        Story(
            "the member loses the others and the DCS, its clients stay: it acknowledges until it demotes",
            _TAKEOVER,
            "the links come back",
        ),
        Loss.LEADER_GONE,
        hold_s=3.0,
    ),
    Fault(
        "isolate",
        _ANY_MEMBER,
        (Capability.ISOLATE,),
        (Step(Deed.ISOLATE),),
        Story("the member is cut from everybody, clients too", _TAKEOVER, "the links come back"),
        Loss.LEADER_GONE,
        hold_s=3.0,
    ),
    Fault(
        "partition-one-way",
        _ONE_MEMBER,
        (Capability.PARTITION_ONE_WAY,),
        (Step(Deed.PARTITION_ONE_WAY),),
        Story(
            "what the member sends no longer reaches the others; what they send arrives", _TAKEOVER, "links come back"
        ),
        Loss.LEADER_GONE,
        serves_after=False,
        hold_s=30.0,
    ),
    Fault(
        "slow-disk",
        _ANY_MEMBER,
        (Capability.SLOW_DISK,),
        (Step(Deed.SLOW_DISK),),
        Story(
            "every flush of the member takes 20 ms longer",
            "nothing is lost at any level; commits wait",
            "it is quick again",
        ),
        hold_s=4.0,
    ),
    Fault(
        "failing-disk",
        _ONE_MEMBER,
        (Capability.FAILING_DISK,),
        (Step(Deed.FAILING_DISK),),
        Story("every flush of the member fails with EIO: PostgreSQL panics", _TAKEOVER, "the disk works again"),
        Loss.LEADER_GONE,
        hold_s=3.0,
    ),
    Fault(
        "full-disk",
        _ONE_MEMBER,
        (Capability.FULL_DISK,),
        (Step(Deed.FULL_DISK),),
        Story("every write of the member fails with ENOSPC", _TAKEOVER, "there is room again"),
        Loss.LEADER_GONE,
        hold_s=3.0,
        serves_after=False,
    ),
    Fault(
        "dcs-loss",
        (Victim.CLUSTER,),
        (Capability.DCS_LOSS,),
        (Step(Deed.DCS_LOSS),),
        Story("the majority of the DCS is gone: the leader must demote itself", _TAKEOVER, "the DCS comes back"),
        Loss.LEADER_GONE,
        serves_after=False,
        hold_s=25.0,
    ),
    Fault(
        "restart",
        _ONE_MEMBER,
        (Capability.RESTART,),
        (Step(Deed.RESTART),),
        Story(
            "PostgreSQL is restarted through the manager",
            "an orderly restart keeps everything at every level",
            "by itself",
        ),
    ),
    Fault(
        "switchover",
        (Victim.LEADER,),
        (Capability.SWITCHOVER,),
        (Step(Deed.SWITCHOVER),),
        Story(
            "a planned change of leader through the manager",
            "nothing is lost at any level, no transaction fails",
            "by itself",
        ),
    ),
    Fault(
        "kill-all",
        (Victim.CLUSTER,),
        (Capability.KILL,),
        (Step(Deed.KILL, Whom.EVERYBODY),),
        Story(
            "every postmaster is killed with -9 at once",
            "local and stronger survive a crash of PostgreSQL on the local disk alone; off does not",
            "the manager starts them again",
        ),
        Loss.POSTGRES_CRASH,
    ),
    Fault(
        "double-kill",
        (Victim.CLUSTER,),
        (Capability.KILL_MEMBER, Capability.KILL),
        (Step(Deed.KILL_MEMBER, Whom.LEADER), Step(Deed.KILL, Whom.STANDBYS)),
        Story(
            "the leader is gone for good while PostgreSQL crashes on every standby",
            "remote_write and stronger: the standby's operating system still has what it wrote",
            "the standbys recover and elect one; the old leader comes back as a standby",
        ),
        Loss.LEADER_AND_STANDBY_POSTGRES,
    ),
    Fault(
        "double-power",
        (Victim.CLUSTER,),
        (Capability.POWER_CUT, Capability.SLOW_DISK),
        (
            # The standbys first: a leader that stops a moment earlier gives them time to flush what it acknowledged.
            # One after another: the last alone acknowledges then, and no other has flushed what it had only written.
            Step(Deed.POWER_CUT, Whom.STANDBYS, apart_s=0.3),
            Step(Deed.POWER_CUT, Whom.LEADER),
            Step(Deed.POWER_CUT, Whom.STANDBYS, after_s=1.0, undo=True),
        ),
        Story(
            "the leader is gone for good while every standby, whose disk takes 5 ms a flush, loses power",
            "on and remote_apply: the standby flushed before the acknowledgement; remote_write does not promise this",
            "the standbys get power back and elect one; the old leader comes back as a standby",
        ),
        Loss.LEADER_AND_STANDBY_POWER,
        prepares=(Step(Deed.SLOW_DISK, Whom.STANDBYS),),
    ),
    Fault(
        "none",
        (Victim.CLUSTER,),
        (),
        (),
        Story(
            "nothing happens", "nothing is lost; at remote_apply what is acknowledged is visible on the standby", "-"
        ),
        hold_s=4.0,
    ),
)

CATALOGUE: dict[str, Fault] = {fault.name: fault for fault in _ALL}
SLOW_FLUSH_S = {"slow-disk": 0.02, "double-power": 0.005}

_VICTIM_WORDS = {
    "leader": Victim.LEADER,
    "sync": Victim.SYNC_STANDBY,
    "synchronous": Victim.SYNC_STANDBY,
    "standby": Victim.STANDBY,
    "standbys": Victim.ALL_STANDBYS,
    "all-standbys": Victim.ALL_STANDBYS,
    "cluster": Victim.CLUSTER,
}


def fault(name: str) -> Fault:
    """The fault of that name; UsageError lists the catalogue."""
    try:
        return CATALOGUE[name.strip().lower()]
    except KeyError:
        raise UsageError(f"{name!r} is not a fault", f"the faults are {', '.join(CATALOGUE)}") from None


def victim(text: str) -> Victim:
    """The victim of that name (leader, sync, standby, all-standbys, cluster)."""
    try:
        return _VICTIM_WORDS.get(text.strip().lower()) or Victim(text.strip().lower())
    except ValueError:
        raise UsageError(
            f"{text!r} is not a victim", "the victims are leader, sync, standby, all-standbys, cluster"
        ) from None


def loss_of(the_fault: Fault, on: Victim) -> Loss | None:
    """What is gone for good when this fault falls on this victim; None when a healthy leader stays."""
    return the_fault.loss if on in (Victim.LEADER, Victim.CLUSTER) else None
