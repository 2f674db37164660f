"""What each simulated member shows of a fault, as PostgreSQL and the machine of a real one would."""

from dataclasses import replace

from walproof.model.member_state import LedgerTable, MemberState
from walproof.targets.simulated.cluster import World
from walproof.targets.simulated.lies import lie_of

_GONE = ("dead", "off")
_NO_POSTGRES = ("crashed", "stopped", "restarting", "failing", *_GONE)
_SETTINGS = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on"}


class SimulatedMemberStates:
    """Every member of one simulated cluster, at its own time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._first: tuple[MemberState, ...] = ()

    def states(self) -> tuple[MemberState, ...]:
        """Every member now."""
        self._world.sync()
        now = tuple(self._state(member) for member in self._world.nature.members)
        self._first = self._first or now
        hook = lie_of(self._world.nature.lie).states
        return hook(now, self._first) if hook else now

    def _state(self, member: str) -> MemberState:
        world, state = self._world, self._world.states[member]
        runs = state not in (*_NO_POSTGRES, "starting")
        start, crash = world.starts.get(member, 0), world.crashes.get(member, 0)
        machine = MemberState(
            member,
            world.clock.now(),
            postmaster=f"{member} {start}" if runs else "none",
            processes="none" if state in _GONE else "frozen" if state == "frozen" else "running",
            disk=self._disk(member),
            dcs=self._dcs(member),
            deaf_to=tuple(sorted(world.deaf.get(member, ()))),
        )
        if not runs or state in ("frozen", "recovering") or "clients" in machine.deaf_to:
            return machine
        leads = member == world.leader
        return replace(
            machine,
            answers=True,
            in_recovery=not leads,
            started=f"start {start} of {member}",
            stats_reset=f"reset {crash} of {member}",
            system="7000000000000000001",
            timeline=world.timeline,
            lsn=1000,
            settings={**_SETTINGS, "synchronous_standby_names": world.names if leads else ""},
            checksum_failures=0 if crash else world.nature.damaged,
            senders=tuple(m for m in world.nature.members if m != member and world.streams(m)) if leads else (),
            receives=not leads and world.streams(member),
            replay_paused=None if leads else member in world.paused,
            table=LedgerTable(),
        )

    def _disk(self, member: str) -> str:
        if self._world.states[member] == "off":
            return "dead"
        if member in self._world.disks:
            return self._world.disks[member]
        return "slow" if self._world.slow.get(member) else "sound"

    def _dcs(self, member: str) -> str:
        if self._world.states[member] in _GONE:
            return "none"
        names = self._world.nature.members
        majority = names[: len(names) // 2 + 1]
        stopped = self._world.states[member] == "frozen" or (not self._world.dcs and member in majority)
        return "frozen" if stopped else "running"
