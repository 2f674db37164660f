"""The fault catalogue: operations, victims, what is lost, what it needs, and its story. Injects nothing."""

from dataclasses import replace
from typing import Any

from walproof.errors import UsageError
from walproof.model.drill import Capability, Victim
from walproof.model.guarantee import Loss
from walproof.proving.fault_steps import Fault, Step, StepVictim, Story

_ONE_MEMBER = (Victim.LEADER, Victim.SYNC_STANDBY, Victim.STANDBY)
_ANY_MEMBER = (*_ONE_MEMBER, Victim.ALL_STANDBYS)
_STANDBYS = (Victim.SYNC_STANDBY, Victim.STANDBY, Victim.ALL_STANDBYS)
_TAKEOVER = (
    "remote_write, on and remote_apply: what a surviving standby has is kept; off and local promise nothing here"
)


def _single(operation: Capability, victims: tuple[Victim, ...], story: Story, **more: Any) -> Fault:
    """A fault of one operation, of the same name; `more`: other fields of a Fault."""
    return Fault(operation.value, victims, (Step(operation),), story, **more)


def _takeover(operation: Capability, victims: tuple[Victim, ...], story: Story, **more: Any) -> Fault:
    """One after which a standby takes over when the leader is the victim."""
    return _single(operation, victims, story, loss=Loss.LEADER_GONE, **more)


_ALL_GONE = (
    "local and stronger where the old leader leads again; without it remote_write and stronger, after a power cut on"
    " and remote_apply"
)
_NOTHING_LOST = "nothing is lost at any level; commits that wait for this standby wait longer"
_OF_STANDBYS = (
    (
        Capability.CRASH_RESTART,
        "the standby's background writer is killed with -9, as by the OOM killer: every other process restarts",
        "by itself: it replays what it has, and until then says that it has less",
    ),
    (
        Capability.PARTITION_WAL,
        "what PostgreSQL of the others sends to the standby is lost: no WAL arrives; REST and the DCS go on",
        "packets arrive again",
    ),
    (
        Capability.PARTITION_ACKS,
        "what the standby sends to PostgreSQL of the others is lost: it acknowledges nothing; the DCS goes on",
        "packets arrive again",
    ),
    (Capability.PAUSE_REPLAY, "the standby receives WAL and replays none (pg_wal_replay_pause)", "replay is resumed"),
)
_ALL = (
    _takeover(
        Capability.KILL,
        _ANY_MEMBER,
        Story("the postmaster is killed with -9", _TAKEOVER, "the manager starts it again, rewound when needed"),
    ),
    _single(
        Capability.STOP,
        _ANY_MEMBER,
        Story(
            "PostgreSQL is stopped in an orderly way",
            "an orderly stop ships all WAL to connected standbys first: nothing should be lost at any level",
            "the manager starts it again",
        ),
    ),
    _takeover(
        Capability.KILL_MEMBER,
        _ANY_MEMBER,
        Story(
            "every process of the member, manager and DCS too, is killed with -9", _TAKEOVER, "all are started again"
        ),
    ),
    _takeover(
        Capability.KILL_CONTAINER,
        _ANY_MEMBER,
        Story(
            "the first process of the member's container ends at once, and every other with it",
            f"{_TAKEOVER}; restarted in place, local keeps too",
            "the kubelet starts the container again in place",
        ),
    ),
    _takeover(
        Capability.FREEZE,
        _ANY_MEMBER,
        Story("every process of the member is paused, as in a paused virtual machine", _TAKEOVER, "it is resumed"),
        hold_s=3.0,
    ),
    _single(
        Capability.HANG_POSTMASTER,
        _ONE_MEMBER,
        Story(
            "the postmaster alone is stopped: sessions go on, new connections get no answer (patroni#1371)",
            "nothing is lost at any level",
            "it is resumed",
        ),
        hold_s=8.0,
        noticed=False,
    ),
    _takeover(
        Capability.HANG_MANAGER,
        _ONE_MEMBER,
        Story(
            "the manager alone is stopped: PostgreSQL takes writes, the leader lock expires, another member takes over",
            f"{_TAKEOVER}; two members may acknowledge at once where no watchdog resets the machine",
            "it is resumed, and demotes a leader that lost its lock",
        ),
        serves_after=False,
        hold_s=45.0,
        noticed=False,
    ),
    _single(
        Capability.HANG_REST,
        _ONE_MEMBER,
        Story(
            "the manager's REST API alone does not answer: routes that ask it lose a healthy leader (patroni#2263)",
            "nothing is lost at any level; commits stop where the route asks REST, as HAProxy does",
            "it answers again",
        ),
        serves_after=False,
        hold_s=10.0,
        noticed=False,
    ),
    _takeover(
        Capability.POWER_CUT,
        _ANY_MEMBER,
        Story("the member loses power: what was not flushed is lost", _TAKEOVER, "power on, file system mounted again"),
    ),
    _takeover(
        Capability.PARTITION,
        _ANY_MEMBER,
        Story(
            "the member loses the others and the DCS, its clients stay: it acknowledges until it demotes",
            _TAKEOVER,
            "the links come back",
        ),
        hold_s=3.0,
    ),
    _takeover(
        Capability.ISOLATE,
        _ANY_MEMBER,
        Story("the member is cut from all others, clients too", _TAKEOVER, "the links come back"),
        hold_s=3.0,
    ),
    _takeover(
        Capability.PARTITION_ONE_WAY,
        _ONE_MEMBER,
        Story(
            "what the member sends no longer reaches the others; what they send arrives", _TAKEOVER, "links come back"
        ),
        serves_after=False,
        hold_s=30.0,
        noticed=False,
    ),
    *(
        _single(of, _STANDBYS, Story(happens, _NOTHING_LOST, recovers), hold_s=4.0, noticed=False, leaves_serving=True)
        for of, happens, recovers in _OF_STANDBYS
    ),
    _single(
        Capability.SLOW_DISK,
        _ANY_MEMBER,
        Story(
            "every flush of the member takes 20 ms longer",
            "nothing is lost at any level; commits wait",
            "flushes take their usual time again",
        ),
        hold_s=4.0,
        noticed=False,
        leaves_serving=True,
        slow_flush_s=0.02,
    ),
    _takeover(
        Capability.FAILING_DISK,
        _ONE_MEMBER,
        Story("every flush of the member fails with EIO: PostgreSQL panics", _TAKEOVER, "the disk works again"),
        hold_s=3.0,
    ),
    _takeover(
        Capability.FULL_DISK,
        _ONE_MEMBER,
        Story("every write of the member fails with ENOSPC", _TAKEOVER, "there is free space again"),
        serves_after=False,
        hold_s=3.0,
        noticed=False,
    ),
    _single(
        Capability.LINK_DELAY,
        _ANY_MEMBER,
        Story(
            "what the member sends to the others takes 50 ms longer",
            "nothing is lost at any level; commits that wait for a standby wait longer",
            "packets take their usual time again",
        ),
        hold_s=4.0,
        noticed=False,
    ),
    _single(
        Capability.CPU_STRESS,
        _ANY_MEMBER,
        Story(
            "other processes keep the member's processors busy",
            "nothing is lost at any level; commits may wait, and the manager may take a slow leader for a dead one",
            "the processes end",
        ),
        hold_s=4.0,
        noticed=False,
    ),
    _takeover(
        Capability.DCS_LOSS,
        (Victim.CLUSTER,),
        Story("the majority of the DCS is lost: the leader must demote itself", _TAKEOVER, "the DCS comes back"),
        serves_after=False,
        hold_s=25.0,
        noticed=False,
    ),
    _single(
        Capability.RESTART,
        _ONE_MEMBER,
        Story(
            "PostgreSQL is restarted through the manager",
            "an orderly restart keeps everything at every level",
            "by itself",
        ),
        noticed=False,
    ),
    _single(
        Capability.SWITCHOVER,
        (Victim.LEADER,),
        Story(
            "a planned change of leader through the manager",
            "nothing is lost at any level; no transaction fails where clients are held meanwhile, as by a pooler",
            "by itself",
        ),
        noticed=False,
    ),
    Fault(
        "kill-all",
        (Victim.CLUSTER,),
        (Step(Capability.KILL, StepVictim.ALL),),
        Story(
            "every postmaster is killed with -9 at once",
            "local and stronger survive a crash of PostgreSQL on the local disk alone; off does not",
            "the manager starts them again",
        ),
        Loss.POSTGRES_CRASH,
    ),
    *(
        Fault(
            f"{operation}-all",
            (Victim.CLUSTER,),
            (Step(operation, StepVictim.ALL),),
            Story(happens, _ALL_GONE, "all come back at once, or one after another (--return-order)"),
            loss,
            serves_after=False,
            hold_s=5.0,
        )
        for operation, happens, loss in (
            (Capability.KILL_MEMBER, "every process of every member is killed with -9", Loss.POSTGRES_CRASH),
            (Capability.POWER_CUT, "every member loses power at once: what was not flushed is lost", Loss.POWER_CUT),
        )
    ),
    Fault(
        "crash-in-place",
        (Victim.LEADER,),
        # Standbys that cannot start leave the manager no member to fail over to.
        (Step(Capability.FAILING_DISK, StepVictim.STANDBYS), Step(Capability.KILL, StepVictim.LEADER)),
        Story(
            "the leader's postmaster is killed with -9 while every standby is down with a failing disk",
            "local and stronger survive a crash of PostgreSQL on the local disk alone; off does not",
            "the manager starts the leader again in place; the disks work again",
        ),
        Loss.POSTGRES_CRASH,
        serves_after=False,
        hold_s=8.0,
    ),
    Fault(
        "double-kill",
        (Victim.CLUSTER,),
        (Step(Capability.KILL_MEMBER, StepVictim.LEADER), Step(Capability.KILL, StepVictim.STANDBYS)),
        Story(
            "the leader is lost for good while PostgreSQL crashes on every standby",
            "remote_write and stronger: the standby's operating system still has what it wrote",
            "the standbys recover and elect one; the old leader comes back as a standby",
        ),
        Loss.LEADER_AND_STANDBY_POSTGRES,
    ),
    Fault(
        "double-power",
        (Victim.CLUSTER,),
        (
            # The standbys first: a leader that stops a moment earlier gives them time to flush what it acknowledged.
            # One after another: the last alone acknowledges then, and no other has flushed what it had only written.
            Step(Capability.POWER_CUT, StepVictim.STANDBYS, apart_s=0.3),
            Step(Capability.POWER_CUT, StepVictim.LEADER),
            Step(Capability.POWER_CUT, StepVictim.STANDBYS, after_s=1.0, undo=True),
        ),
        Story(
            "the leader is lost for good while every standby, whose disk takes 5 ms a flush, loses power",
            "on and remote_apply: the standby flushed before the acknowledgement; remote_write does not promise this",
            "the standbys get power back and elect one; the old leader comes back as a standby",
        ),
        Loss.LEADER_AND_STANDBY_POWER,
        prepares=(Step(Capability.SLOW_DISK, StepVictim.STANDBYS),),
        slow_flush_s=0.005,
    ),
    Fault(
        "none",
        (Victim.CLUSTER,),
        (),
        Story(
            "nothing happens", "nothing is lost; at remote_apply what is acknowledged is visible on the standby", "-"
        ),
        hold_s=4.0,
        noticed=False,
    ),
)

CATALOGUE: dict[str, Fault] = {fault.name: fault for fault in _ALL}
STORM = Fault(
    "storm",
    (Victim.CLUSTER,),
    (),
    Story(
        "faults of several members overlap, many just after a takeover; one member at least is left alone",
        "remote_write and stronger where PostgreSQL crashed, on and stronger where power was cut",
        "each fault is cleared after its time",
    ),
)
"""Faults drawn from a seed (campaign.py): not in the catalogue, because its steps are drawn."""
SHRUNK = replace(STORM, name="shrunk storm")
"""A storm that broke a promise, tried again with fewer faults; apart, because it was chosen for having broken."""
IN_STORMS = (
    "kill", "kill-member", "freeze", "power-cut", "partition", "isolate", "restart", "switchover", "slow-disk", "stop",
    "crash-restart", "partition-wal", "partition-acks", "pause-replay",
)  # fmt: skip
"""Faults that storms are drawn from; their order is part of what a seed means."""

_VICTIM_ALIASES = {
    "sync": Victim.SYNC_STANDBY,
    "synchronous": Victim.SYNC_STANDBY,
    "standby": Victim.STANDBY,
    "standbys": Victim.ALL_STANDBYS,
    "all-standbys": Victim.ALL_STANDBYS,
}


def fault(name: str) -> Fault:
    """The fault of that name; UsageError lists the catalogue."""
    try:
        return CATALOGUE[name.strip().lower()]
    except KeyError:
        raise UsageError(f"{name!r} is not a fault", f"the faults are {', '.join(CATALOGUE)}") from None


def victim(text: str) -> Victim:
    """The victim of that name (leader, sync, standby, all-standbys, cluster); UsageError lists them."""
    name = text.strip().lower()
    try:
        return _VICTIM_ALIASES.get(name) or Victim(name)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a victim", "the victims are leader, sync, standby, all-standbys, cluster"
        ) from None


def loss_of(the_fault: Fault, on: Victim) -> Loss | None:
    """What is lost for good when this fault falls on this victim; None when a healthy leader stays."""
    return the_fault.loss if on.takes_the_leader else None
