"""Whether a fault did what it claims, by signs of each member, and what was lost for good in fact. Pure.

A sign comes from PostgreSQL or from the member's machine, and from the injector of the fault only where nothing else
can tell: what a pod's network or volume drops is known by Chaos Mesh's status alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from walproof.model.drill import Capability, Victim
from walproof.model.guarantee import Loss
from walproof.model.topology import MemberState
from walproof.proving.fault_steps import Fault, members_of
from walproof.proving.faults import CATALOGUE
from walproof.proving.history import DrillRun


@dataclass(frozen=True, slots=True)
class Sign:
    """Whether an operation on a member shows: True, False (signs speak against it) or None (not known)."""

    operation: Capability
    member: str
    seen: bool | None
    what: str
    """One clause: what was seen."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of every member before the fault, and from the fault on, in the order of time."""

    before: Mapping[str, MemberState]
    since: Mapping[str, Sequence[MemberState]]
    during: Mapping[str, Sequence[MemberState]]
    """Those of `since` while the fault was in effect."""

    def tells(self, member: str) -> bool:
        """Whether the member's machine can be asked, not its PostgreSQL alone."""
        before = self.before.get(member)
        return bool(before and before.processes) or any(state.processes for state in self.since.get(member, ()))


def signs_of(run: DrillRun) -> Signs:
    """The states of a run by member; the last one before the fault counts."""
    return _signs_around(run, run.fault_at, run.cleared_at)


def _signs_around(run: DrillRun, begin: float, cleared: float, until: float = float("inf")) -> Signs:
    """The states around one fault, but for those from `until` on."""
    before: dict[str, MemberState] = {}
    since: dict[str, list[MemberState]] = {}
    during: dict[str, list[MemberState]] = {}
    for state in sorted(run.states, key=lambda s: s.at):
        if state.at < begin:
            before[state.member] = state
        elif state.at < until:
            since.setdefault(state.member, []).append(state)
            if state.at <= cleared:
                during.setdefault(state.member, []).append(state)
    return Signs(before, since, during)


def restarted(signs: Signs, member: str) -> bool | None:
    """Whether its postmaster is another one than before the fault, or gone."""
    before, since = signs.before.get(member), signs.since.get(member, ())
    if before is None or not (before.postmaster or before.started):
        return None
    known = [s for s in since if s.postmaster or s.started]
    other = [
        s
        for s in known
        if (before.postmaster and s.postmaster and s.postmaster != before.postmaster)
        or (before.started and s.started and s.started != before.started)
    ]
    if other:
        return True
    return False if known else None


def crashed(signs: Signs, member: str) -> bool | None:
    """Whether it was restarted, and not in an orderly way: recovery after a crash resets its statistics."""
    again = restarted(signs, member)
    before = signs.before.get(member)
    if not again or before is None:
        return again
    later = [s.stats_reset for s in signs.since.get(member, ()) if s.answers and s.started != before.started]
    orderly = bool(later and before.stats_reset) and all(reset == before.stats_reset for reset in later)
    return not orderly


def _any(signs: Signs, member: str, test: Callable[[MemberState], bool]) -> bool:
    return any(test(state) for state in signs.during.get(member, ()))


def _killed(signs: Signs, member: str) -> tuple[bool | None, str]:
    if restarted(signs, member) and not crashed(signs, member):
        return False, "its PostgreSQL was restarted in an orderly way, not killed"
    return _ended(signs, member)


def _ended(signs: Signs, member: str) -> tuple[bool | None, str]:
    """Stopped, killed or restarted in any way."""
    again = restarted(signs, member)
    if again is False:
        return False, "its postmaster is the same process as before"
    if again is None and _any(signs, member, lambda s: not s.answers):
        return True, "its PostgreSQL did not answer"
    return again, "its postmaster is another process than before"


def _crash_restarted(signs: Signs, member: str) -> tuple[bool | None, str]:
    """By its statistics: the postmaster stays, and so does its start time."""
    before = signs.before.get(member)
    same = [s for s in signs.since.get(member, ()) if s.answers and before and s.started == before.started]
    if before is None or not before.stats_reset:
        return None, "whether its processes are the ones from before is not known"
    if any(s.stats_reset != before.stats_reset for s in same):
        return True, "under the same postmaster its statistics were reset"
    if restarted(signs, member):
        return False, "its postmaster is another process than before"
    return (False if same else None), "its statistics were not reset"


def _container(signs: Signs, member: str) -> tuple[bool | None, str]:
    """Whether its container is another run than before: in the same pod, in another one, or none at all."""
    before = signs.before.get(member)
    since = [state.container for state in signs.since.get(member, ()) if state.container]
    if before is None or not before.container or not since:
        return None, "whether its container is the one from before is not known"
    other = next((one for one in since if one != before.container), None)
    if other is None:
        return False, "its container is the one from before"
    pod, _, count = before.container.rpartition("/")
    if other.startswith(f"{pod}/"):
        return True, f"its container was started again in the same pod (restarts {count} → {other.rpartition('/')[2]})"
    return True, "its pod was gone" if other == "none" else "its pod is another one than before"


def _member_killed(signs: Signs, member: str) -> tuple[bool | None, str]:
    ended, what = _container(signs, member)
    if ended:
        return ended, what
    if signs.tells(member) and not _any(signs, member, lambda s: s.processes == "none"):
        return False, "processes of it went on running"
    return _killed(signs, member)


def _frozen(signs: Signs, member: str) -> tuple[bool | None, str]:
    if signs.tells(member):
        frozen = _any(signs, member, lambda s: s.processes == "frozen")
        return frozen, "every process of it was stopped" if frozen else "its processes were not seen stopped"
    return _silent(signs, member)


def _silent(signs: Signs, member: str) -> tuple[bool | None, str]:
    silent = _any(signs, member, lambda s: not s.answers)
    return (True if silent else False if signs.during.get(member) else None), (
        "its PostgreSQL did not answer" if silent else "its PostgreSQL went on answering"
    )


def _hangs(part: str, signs: Signs, member: str) -> tuple[bool | None, str]:
    """That part of it, and no other, stopped or silent while other processes of it went on."""
    known = [s for s in signs.during.get(member, ()) if s.hangs is not None]
    if not known:  # a new connection needs the postmaster alone
        return _silent(signs, member) if part == "postmaster" else (None, "which of its processes go on is not known")
    if any(s.hangs == (part,) and s.processes == "running" for s in known):
        return True, f"its {part} alone did not go on"
    more = any(part in (s.hangs or ()) for s in known)
    return False, f"more than its {part} stopped" if more else f"its {part} went on"


def _powerless(signs: Signs, member: str) -> tuple[bool | None, str]:
    if signs.tells(member):
        dead = _any(signs, member, lambda s: s.disk == "dead" and s.processes == "none")
        return dead, "its file systems and processes were gone" if dead else "its file systems went on working"
    return _killed(signs, member)


def _cut_off(signs: Signs, member: str, *, clients: bool) -> tuple[bool | None, str]:
    others = {name for name in signs.before if name != member} | ({"clients"} if clients else set())
    if signs.tells(member):
        cut = _any(signs, member, lambda s: others <= set(s.deaf_to))
        return cut, "nothing sent to it arrived" if cut else "packets of others still arrived there"
    if clients and signs.during.get(member):
        silent = _any(signs, member, lambda s: not s.answers)
        return silent, "it did not answer" if silent else "it went on answering"
    return None, "what arrives there is not known"


def _one_way(signs: Signs, member: str) -> tuple[bool | None, str]:
    others = [name for name in signs.before if name != member]
    if not signs.tells(member):
        return None, "what arrives where is not known"
    cut = all(_any(signs, other, lambda s: member in s.deaf_to) for other in others)
    return cut, "nothing it sent arrived" if cut else "what it sent still arrived"


def _stream_cut(signs: Signs, member: str) -> tuple[bool | None, str]:
    """It opens no connection to PostgreSQL of the others, and one of them still does to its own."""
    cut, what = _cut_off(signs, member, clients=False)
    if not cut:
        return cut, what
    heard = any(_any(signs, other, lambda s: member not in s.deaf_to) for other in signs.before if other != member)
    return heard, "it reached PostgreSQL of no other" if heard else "others did not reach it either: more was cut"


def _paused(signs: Signs, member: str) -> tuple[bool | None, str]:
    known = [s.replay_paused for s in signs.during.get(member, ()) if s.replay_paused is not None]
    return (any(known) if known else None), f"its replay was {'' if any(known) else 'not seen '}paused"


def _injected(signs: Signs, member: str, operation: Capability) -> tuple[bool | None, str] | None:
    """What Chaos Mesh's status shows of its pod while the fault was in effect; None where it was not asked."""
    asked = [state.chaos for state in signs.during.get(member, ()) if state.chaos is not None]
    if not asked:
        return None
    if any(operation in chaos for chaos in asked):
        return True, "Chaos Mesh's status showed it as injected into its pod"
    return False, "Chaos Mesh's status did not show it as injected into its pod"


def _busy(signs: Signs, member: str) -> tuple[bool | None, str]:
    known = [state.stressed for state in signs.during.get(member, ()) if state.stressed is not None]
    if not known:
        return None, "what runs next to it is not known"
    return any(known), "processes that only compute ran next to it" if any(known) else "nothing ran next to it"


def _disk(signs: Signs, member: str, kinds: tuple[str, ...]) -> tuple[bool | None, str]:
    if not signs.tells(member):
        return None, "the state of its disk is not known"
    seen = _any(signs, member, lambda s: s.disk in kinds)
    return seen, f"its disk was {kinds[0]}" if seen else f"its disk was not seen {kinds[0]}"


def _failing_disk(signs: Signs, member: str) -> tuple[bool | None, str]:
    seen, what = _disk(signs, member, ("failing", "dead"))
    return (True, "its PostgreSQL stopped") if seen is False and restarted(signs, member) else (seen, what)


def _dcs_lost(signs: Signs) -> tuple[bool | None, str]:
    known = [m for m in signs.before if any(s.dcs for s in signs.during.get(m, ()))]
    if not known:
        return None, "the state of the DCS is not known"
    down = [m for m in known if _any(signs, m, lambda s: s.dcs in ("frozen", "none"))]
    lost = 2 * len(down) > len(known)
    return lost, f"the DCS ran on {len(known) - len(down)} of {len(known)} members"


_BY_CHAOS_MESH = frozenset({
    Capability.PARTITION, Capability.ISOLATE, Capability.PARTITION_ONE_WAY, Capability.LINK_DELAY,
    Capability.SLOW_DISK, Capability.FAILING_DISK, Capability.FULL_DISK,
})  # fmt: skip
"""Faults whose sign is the status of an experiment: nothing inside a pod can tell what its network or volume drops."""


def sign(operation: Capability, member: str, signs: Signs, run: DrillRun) -> Sign:
    """Whether one operation on one member shows."""
    return Sign(operation, member, *_seen(operation, member, signs, run))


def _seen(operation: Capability, member: str, signs: Signs, run: DrillRun) -> tuple[bool | None, str]:
    one_member: dict[Capability, Callable[[Signs, str], tuple[bool | None, str]]] = {
        Capability.KILL: _killed,
        Capability.CRASH_RESTART: _crash_restarted,
        Capability.PARTITION_WAL: _stream_cut,
        Capability.PARTITION_ACKS: _stream_cut,
        Capability.PAUSE_REPLAY: _paused,
        Capability.STOP: _ended,
        Capability.RESTART: _ended,
        Capability.KILL_MEMBER: _member_killed,
        Capability.KILL_CONTAINER: _container,
        Capability.CPU_STRESS: _busy,
        Capability.FREEZE: _frozen,
        Capability.HANG_POSTMASTER: partial(_hangs, "postmaster"),
        Capability.HANG_MANAGER: partial(_hangs, "manager"),
        Capability.HANG_REST: partial(_hangs, "rest"),
        Capability.POWER_CUT: _powerless,
        Capability.PARTITION: lambda s, m: _cut_off(s, m, clients=False),
        Capability.ISOLATE: lambda s, m: _cut_off(s, m, clients=True),
        Capability.PARTITION_ONE_WAY: _one_way,
        Capability.SLOW_DISK: lambda s, m: _disk(s, m, ("slow",)),
        Capability.FAILING_DISK: _failing_disk,
        Capability.FULL_DISK: lambda s, m: _disk(s, m, ("full",)),
    }
    status = _injected(signs, member, operation) if operation in _BY_CHAOS_MESH else None
    if status is not None:
        return status
    if operation in one_member:
        return one_member[operation](signs, member)
    if operation is Capability.DCS_LOSS:
        return _dcs_lost(signs)
    if operation is Capability.SWITCHOVER:
        leads = "leads now" if run.leader_after != run.before.leader else "still leads"
        where = "is reported as the leader, on the old timeline" if run.same_timeline else leads
        return run.taken_over, f"{run.leader_after} {where}"
    return None, "not known"


def fault_signs(fault: Fault, run: DrillRun) -> tuple[Sign, ...]:
    """The sign of every operation of a fault on every member it fell on; of a storm, of every fault carried out."""
    if run.struck:
        return _storm_signs(run)
    signs, of_steps = signs_of(run), list[Sign]()
    # What was prepared shows last just before the fault itself.
    prepared = replace(signs, during={member: (state,) for member, state in signs.before.items()})
    for step in (*fault.prepares, *fault.steps):
        if step.undo:
            continue
        members = ("",) if step.operation is Capability.DCS_LOSS else members_of(step, run.victims, run.before)
        around = prepared if step in fault.prepares else signs
        of_steps += [sign(step.operation, member, around, run) for member in members]
    return tuple(of_steps)


def _storm_signs(run: DrillRun) -> tuple[Sign, ...]:
    of_strikes = []
    for place, one in enumerate(run.carried_out):
        # What the next fault on the same member did is no sign of this one.
        later = (other.at for other in run.carried_out[place + 1 :] if other.member == one.member)
        until = next(later, float("inf"))
        signs = _signs_around(run, one.at, one.cleared_at, until)
        operation = CATALOGUE[one.fault].steps[0].operation
        if operation is Capability.SWITCHOVER:
            follows = any(state.in_recovery for state in signs.since.get(one.member, ())) or _left(run, place)
            of_strikes.append(Sign(operation, one.member, follows, "it follows" if follows else "it went on leading"))
        else:
            of_strikes.append(sign(operation, one.member, signs, run))
    return tuple(of_strikes)


def _left(run: DrillRun, place: int) -> bool:
    """Whether another member led before the fault after that one; the old leader may lead again since."""
    one, *later = run.carried_out[place:]
    until = later[0].at if later else one.cleared_at
    return any(one.at < v.at <= until and v.leader not in (None, one.member) for v in run.views)


_CRASHES = (
    Capability.KILL,
    Capability.KILL_MEMBER,
    Capability.KILL_CONTAINER,
    Capability.FAILING_DISK,
    Capability.FULL_DISK,
)


def _storm_loss(run: DrillRun) -> Loss | None:
    """What a storm may have taken at most: a leader and what a crash, or a cut of power, took of its standbys.

    The successor of one leader may have crashed before, or follow one that did: what a single fault would have left
    is not known, so the least promise counts.
    """
    older, newer = run.before.leader_timeline, run.timeline_after
    another = run.leader_after not in (None, run.before.leader)
    if another or (older is not None and newer is not None and newer > older):
        power = any(one.fault == Capability.POWER_CUT for one in run.perhaps_carried_out)
        return Loss.LEADER_AND_STANDBY_POWER if power else Loss.LEADER_AND_STANDBY_POSTGRES
    on_leader = {one.fault for one in run.perhaps_carried_out if one.led}
    if Capability.POWER_CUT in on_leader:
        return Loss.POWER_CUT
    return Loss.POSTGRES_CRASH if on_leader & {str(crash) for crash in _CRASHES} else None


def loss_in_fact(fault: Fault, victim: Victim, run: DrillRun, *, happened: bool = True) -> Loss | None:
    """What was gone for good: of a leader restarted in place its memory only, of one that never stopped nothing.

    Of a leader that the fault was not meant for too, where another took over, or it crashed and is back.
    Where the fault did not happen as it should (`happened`), a takeover still means that the old leader was gone.
    """
    if run.struck:
        return _storm_loss(run)
    leader = run.before.leader or ""
    if not victim.takes_the_leader or not fault.steps:
        if run.taken_over:
            return Loss.LEADER_GONE
        return Loss.POSTGRES_CRASH if crashed(signs_of(run), leader) else None
    if fault.loss is None:
        return None
    if not happened:
        return Loss.LEADER_GONE if run.taken_over else None
    if run.taken_over:
        # Standbys crashed too: the new leader recovered from what it had on disk.
        with_standby = {
            Loss.POSTGRES_CRASH: Loss.LEADER_AND_STANDBY_POSTGRES,
            Loss.POWER_CUT: Loss.LEADER_AND_STANDBY_POWER,
        }
        return with_standby.get(fault.loss, fault.loss)
    operations = {step.operation for step in fault.steps if not step.undo}
    if Capability.POWER_CUT in operations:
        return Loss.POWER_CUT
    crash = bool(operations & set(_CRASHES))
    again = restarted(signs_of(run), leader)
    return Loss.POSTGRES_CRASH if again or (crash and again is None) else None
