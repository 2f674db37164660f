"""Faults of an external cluster: each is a command of the target file with the command that undoes it; nothing else."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from walproof.errors import ODD, Error, TargetError, WaitTimeout, all_undone, as_error
from walproof.machine.clock import RealClock
from walproof.machine.pid_files import ended
from walproof.model.drill import Capability
from walproof.model.guarantee import SERVER, same_server
from walproof.model.ports import Clock, MemberFault, Notebook, Reverting
from walproof.model.topology import ClusterView, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.configure import NoJournal, noted
from walproof.targets.external.commands import CutOff, filled, places_in, places_of, run
from walproof.targets.sql.known_servers import MAY_LOOK, UNTOLD

BY_COMMAND = "fault by command"
"""What kind of change a journal calls it."""
UNDOES: dict[Capability, str] = {
    Capability.KILL: "recover",
    Capability.STOP: "recover",
    Capability.KILL_MEMBER: "recover",
    Capability.FREEZE: "thaw",
    **dict.fromkeys((Capability.HANG_POSTMASTER, Capability.HANG_MANAGER, Capability.HANG_REST), "resume"),
    Capability.POWER_CUT: "recover",
    Capability.PARTITION: "recover",
    Capability.ISOLATE: "recover",
}
"""Which command undoes a fault; those of NEEDS_UNDO are not possible without it, for nothing else undoes them."""
NEEDS_UNDO = frozenset(UNDOES) - {Capability.KILL, Capability.STOP, Capability.KILL_MEMBER}


def _nothing_to_undo(_member: str) -> None:
    """What makes it good happens by itself."""


@dataclass(frozen=True, slots=True)
class FaultOfMember:
    """One fault of one member; `inject` returns when it is asked for: a command run, a signal sent, a pod deleted."""

    inject: Callable[[str], None]
    undo: Callable[[str], None] = _nothing_to_undo


def undo_noted(
    journal: Notebook, target: str, what: str, undo: Callable[[str, str, Any], object], reverting: Reverting
) -> list[tuple[str, str, str]]:
    """Undo every fault that a killed run left in its journal, by its name, its member and its change.

    Gives those that stay: fault, member and why.
    """
    stay = []
    for change in noted(journal, target, what):
        fault, _, member = change.name.partition(" ")
        try:
            undo(fault, member, change)
        except ODD as wrong:
            stay.append((fault, member, as_error(wrong).message))
            continue
        journal.undone(change)
        reverting.tell("fault", change.name)
    return stay


@dataclass(slots=True)
class UserCommands:
    """The commands of a target file, and the faults done so far that are not undone: (fault, member)."""

    commands: Mapping[str, str]
    member_endpoint: Callable[[str], Endpoint]
    named: frozenset[str] | None = None
    """The only hosts that may be filled in as {host}; None: any."""
    journal: Callable[[], Notebook] = NoJournal
    target: str = ""
    clock: Clock = field(default_factory=RealClock)
    who: Callable[[str, Endpoint], str | None] = lambda _member, _there: None
    """What tells the server that answers there, "" where nothing does; None where its name is the user's word."""
    injected: list[tuple[Capability, str]] = field(default_factory=list)
    _known: dict[str, Endpoint] = field(default_factory=dict)
    _noted: dict[tuple[Capability, str], str] = field(default_factory=dict)
    """Where each was done, and on which server, as the journal says it."""
    _cut_off: set[tuple[Capability, str]] = field(default_factory=set)
    """Those whose command was ended before it had ended."""

    def run(self, name: str, member: str, other: str = "") -> str:
        """Run the command of that name for a member and give its output; TargetError when there is none."""
        return run(self.filled(name, member, other))

    def filled(self, name: str, member: str, other: str = "") -> str:
        """The command of that name for a member; TargetError when there is none, or the member's name is no word."""
        template = self.commands.get(name)
        if template is None:
            raise TargetError(f"the target file has no command for {name}", f'[faults] {name} = "ssh {{host}} …"')
        endpoint = self._endpoint(member)
        wrong = self._unnamed(name, member, endpoint)
        if wrong:
            raise TargetError(*wrong)
        return filled(template, places_of(member, endpoint, other))

    def _unnamed(self, name: str, member: str, endpoint: Endpoint) -> tuple[str, str] | None:
        """Why that command does not go where the cluster says that the member is, and what to do; None where it may."""
        host, port = endpoint.hosts[0]
        if self.named is None or "{host" not in self.commands.get(name, "") or host.lower() in self.named:
            return None
        return (
            f"the cluster says that {member} is at {host}, a host that the target file does not name: no {name} there",
            f'[members] {member} = "{host}:{port}" in the target file names it',
        )

    def refused(self, members: Mapping[str, Endpoint]) -> dict[Capability, str]:
        """The faults that have a command which would go to a host that the target file does not name, and why not."""
        reasons: dict[Capability, str] = {}
        for fault, undo in UNDOES.items():
            for name in (fault.value, undo, "logs") if fault.value in self.commands else ():
                wrong = (self._unnamed(name, member, endpoint) for member, endpoint in members.items())
                for sentence, hint in filter(None, wrong):
                    reasons.setdefault(fault, f"{sentence} ({hint})")
        return reasons

    def _endpoint(self, member: str) -> Endpoint:
        """Where the member is; where it was, when its manager no longer lists it: it has to be undone all the same."""
        try:
            self._known[member] = self.member_endpoint(member)
        except Error:
            if member not in self._known:
                raise
        return self._known[member]

    def _place(self, member: str) -> str:
        host, port = self._endpoint(member).hosts[0]
        return f"{host}:{port}"

    def inject(self, fault: Capability, member: str) -> None:
        """Run the fault's command; noted before, so that recovery undoes it even on an error, `revert` after a kill:
        where it is done, on which server, and by which process here.
        """
        for name in (UNDOES[fault], fault.value):
            if name in self.commands:
                # Refused before anything is done: what could not be undone afterwards is not done either.
                self.filled(name, member)
        told = f"{self._place(member)}{self._server(fault, member)}" if UNDOES[fault] in self.commands else ""

        def begins(process: str) -> None:
            if told:
                named = (self.target, BY_COMMAND, f"{fault} {member}")
                self.journal().note(self.clock.now(), *named, before=told, after=process)
                self._noted[fault, member] = told
            # Not before: where a revert is undoing it just now, the note is refused, and it must not be undone twice.
            self.injected.append((fault, member))
            self._cut_off.discard((fault, member))

        try:
            run(self.filled(fault.value, member), begins)
        except BaseException as wrong:
            if isinstance(wrong, CutOff) or not isinstance(wrong, Error):
                self._cut_off.add((fault, member))
            raise

    def _server(self, fault: Capability, member: str) -> str:
        """What a note says of the member's server, to which its address may belong no more when the fault is undone."""
        made = self.who(member, self._endpoint(member))
        if made is None:
            return ""
        earlier = (told.partition(SERVER)[2] for (_, other), told in self._noted.items() if other == member)
        made = made or next(filter(None, earlier), "")
        if made in ("", UNTOLD):
            raise TargetError(
                f"nothing tells {member} from other servers, to which its address may move: {fault} is not done",
                f"name it under [members]; or as superuser: {MAY_LOOK}",
            )
        for change in noted(self.journal(), self.target, BY_COMMAND, f"{fault} {member}"):
            other = change.before.partition(SERVER)[2]
            if not same_server(other, made):
                raise TargetError(
                    f"{fault} of {member} is not undone yet, on {other}", "undo it there, then walproof revert"
                )
        return f"{SERVER}{made}"

    def _who_answers(self, member: str) -> str | None:
        """Who does, once it tells it: one that starts, or lets nobody in just now, is asked for a while. That it is
        down then tells nothing: it may be another server.
        """
        if (first := self.who(member, self._endpoint(member))) != UNTOLD:
            return first
        told: list[str] = []

        def tells() -> bool:
            told.append(self.who(member, self._endpoint(member)) or UNTOLD)
            return told[-1] != UNTOLD

        with suppress(WaitTimeout):
            wait_for(Wait.NEW_LEADER, tells, self.clock, pace_s=0.5)
        return told[-1] if told else UNTOLD

    def _undo(self, fault: Capability, member: str, told: str) -> None:
        """Run the command that undoes it; TargetError where it would go to another place or server than the fault did.

        A server that tells which it is may answer elsewhere by now; nothing else may.
        """
        was, _, made = told.partition(SERVER)
        now, place = self._who_answers(member) if made else None, self._place(member)
        if now and not same_server(now, made):
            raise TargetError(
                f"{place} is {now} now, and the fault is of {made}: {UNDOES[fault]} is not run",
                "do on that server by hand what the command does, and remove the journal; best name it under [members]",
            )
        addressed = {"host", "port"} & places_in(self.commands.get(UNDOES[fault], ""))
        if told and was != place and addressed and not now:
            raise TargetError(
                f"{member} was at {was} when that was done, and is at {place} now: {UNDOES[fault]} is not run",
                f"let {member} mean {was} until it is undone; or do there by hand what the command does, and remove"
                " the journal",
            )
        self.run(UNDOES[fault], member)

    def undo(self, fault: Capability, member: str) -> None:
        """Run the command that undoes it; TargetError too where the fault may still come: then it stays noted."""
        if UNDOES[fault] in self.commands:
            self._undo(fault, member, self._noted.get((fault, member), ""))
            if (fault, member) in self._cut_off:
                self.injected = [pair for pair in self.injected if pair != (fault, member)]
                raise TargetError(
                    f"the command of {fault} was cut off, and may still act on {member} after {UNDOES[fault]}, which"
                    " was run",
                    "once its host is quiet: walproof revert runs that again",
                )
            for change in noted(self.journal(), self.target, BY_COMMAND, f"{fault} {member}"):
                self.journal().undone(change)
        self.injected = [pair for pair in self.injected if pair != (fault, member)]

    def undo_all(self) -> None:
        """Undo every fault that was injected, the newest first; NotUndone tells those that stay, and why."""
        all_undone([partial(self.undo, fault, member) for fault, member in reversed(self.injected)])

    def revert(self, journal: Notebook, reverting: Reverting) -> list[str]:
        """Undo what a run that was killed left in its journal; a sentence for each fault that stays."""

        def undo(fault: str, member: str, change: Any) -> None:
            host, _, port = change.before.partition(SERVER)[0].rpartition(":")
            # Where it was: its manager may no longer list it.
            self._known.setdefault(member, Endpoint(((host, int(port)),)))
            if (
                change.after and ended(change.after, reverting.ended_on) is False
            ):  # elsewhere: whoever reverts it says so
                raise TargetError(
                    f"its command still runs here, as process {change.after.split()[1]}",
                    "let it end, or end it; once more",
                )
            self._undo(Capability(fault), member, change.before)

        stay = undo_noted(journal, self.target, BY_COMMAND, undo, reverting)
        return [f"{fault} of {member} is not undone: {why}" for fault, member, why in stay]

    def faults(self) -> dict[Capability, MemberFault]:
        """Every fault that has its own command, and the one that undoes it where nothing else does."""
        able = [fault for fault in UNDOES if fault.value in self.commands]
        able = [fault for fault in able if fault not in NEEDS_UNDO or UNDOES[fault] in self.commands]
        return {fault: FaultOfMember(partial(self.inject, fault), partial(self.undo, fault)) for fault in able}

    def reasons(self) -> dict[Capability, str]:
        """Why what has no command, and every other fault, cannot be done."""
        by_command = (*UNDOES, Capability.RESTART, Capability.SWITCHOVER)
        missing = {c: f"the target file has no command for it ([faults] {c} = …)" for c in by_command}
        for fault in (f for f in NEEDS_UNDO if f.value in self.commands):
            missing[fault] = f"the target file has no command that undoes it ([faults] {UNDOES[fault]} = …)"
        if "recover" not in self.commands:
            missing[Capability.RETURN_ORDER] = (
                "the target file has no command that starts a member ([faults] recover = …)"
            )
        others = {
            Capability.DCS_LOSS: "walproof cannot take an external DCS away",
            Capability.PARTITION_ONE_WAY: "walproof cannot cut one direction of an external network",
            Capability.CRASH_RESTART: "walproof kills no single process of an external cluster",
            **{
                c: "walproof cannot cut the replication stream of an external network"
                for c in (Capability.PARTITION_WAL, Capability.PARTITION_ACKS)
            },
            Capability.PAUSE_REPLAY: "walproof pauses no replay of an external cluster",
            **{
                c: "walproof does not touch the disks of an external cluster"
                for c in (Capability.SLOW_DISK, Capability.FAILING_DISK, Capability.FULL_DISK)
            },
            Capability.SHAPE_LINKS: "an external cluster's links are left alone",
            Capability.LIMIT_PROCESSORS: "an external cluster's processors are left alone",
        }
        return {**missing, **others}


@dataclass(frozen=True, slots=True)
class CommandOperations:
    """Logs, restart, switchover and recovery by the user's commands."""

    commands: UserCommands
    leader: Callable[[], str]
    observe: Callable[[], ClusterView]
    clock: Clock

    def logs(self, member: str) -> str:
        """What the command prints, "" without one."""
        return self.commands.run("logs", member) if "logs" in self.commands.commands else ""

    def restart(self, member: str) -> None:
        self.commands.run("restart", member)

    def switch_over(self, to: str | None = None) -> None:
        """Run the command switchover for the leader, {member2} the one to take over."""
        self.commands.run("switchover", self.leader(), to or "")

    def recover(self) -> None:
        """Undo every fault, newest first; WaitTimeout when the cluster does not become healthy."""
        self.commands.undo_all()
        wait_for(Wait.CLUSTER_HEALTHY, lambda: self.observe().healthy, self.clock, pace_s=0.5)
