"""The shipped guard in the simulation: its clock, its signs of life, its leader lock on the simulated etcd."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from unittest.mock import patch

from tests.guard_simulation.etcd import SimulatedEtcd
from tests.guard_simulation.etcd_gateway import PREFIX, Clients, url_of
from tests.guard_simulation.lock_judge import WatchedLock
from tests.guard_simulation.patroni import Patroni
from tests.guard_simulation.postgres import Postgres
from tests.guard_simulation.world import Process, World
from walproof.errors import TargetError
from walproof.guarding import decide, leader_lock, run, seal_quorum
from walproof.guarding.etcd import EtcdAccess
from walproof.guarding.signs_of_life import Known, why_unfit
from walproof.model.takeover import MemberSigns, Receiver

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Memory = TypeVar("_Memory", bound="DataclassInstance")

EPOCH = 1_700_000_000.0


def _replace(before: _Memory, **changes: Any) -> _Memory:
    """dataclasses.replace, which is a quarter of a run's time, without a copy where nothing changes."""
    if all(getattr(before, name) is value for name, value in changes.items()):
        return before
    return replace(before, **changes)


def quicken() -> None:
    """Let the guard's modules use it; again after they were executed anew."""
    for module in (decide, run):
        vars(module)["replace"] = _replace


quicken()


@dataclass(slots=True)
class Closes:
    """What a clock's `every` returns."""

    process: Process
    failed: bool = False

    def close(self) -> None:
        """Nothing: the simulation ends as a whole."""


@dataclass(eq=False)
class SimulatedClock:
    """The guard's clock: virtual, off by `skew_s`, and coarser than real pauses while nothing is wrong."""

    world: World
    process: Process
    skew_s: float = 0.0
    calm: Callable[[], bool] = lambda: True
    patience: float = 1.0
    waits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = self.world.random(f"clock of {self.process.name}")

    def now(self) -> float:
        """As its machine's clock says."""
        return self.at(self.world.now)

    def at(self, world_s: float) -> float:
        """What it says at a time of the world."""
        return EPOCH + world_s + self.skew_s

    def pause(self, seconds: float) -> None:
        """At least that; up to half a second while nothing is wrong, which is no stall yet (run.py, _STALL_S)."""
        self.world.sleep(0.3 + 0.2 * self._random.random() if self.calm() else seconds + 0.1 * self._random.random())

    def every(self, seconds: float, act: Callable[[], None]) -> Closes:
        """In a thread of its own."""

        def thread() -> None:
            while True:
                act()
                self.pause(seconds)

        self.world.spawn(self.process, thread)
        return Closes(self.process)

    def together(self, acts: Sequence[Callable[[], None]]) -> None:
        """One after another."""
        for act in acts:
            act()


@dataclass(slots=True)
class _Answers(Known):
    """A member's answers: the next one on its way, and what is known."""

    asked: float = -1.0
    arrives: float | None = None
    coming: Receiver | None = None


@dataclass(eq=False)
class SimulatedSigns:
    """What receiver.sql and Patroni's REST would answer. A question is asked at most every 0.1 s, by each turn."""

    clock: SimulatedClock
    members: Mapping[str, Patroni]
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds that answers of a member take."""
    former: ClassVar[bool] = False
    """Whether receiver.sql is the one of before: the received position alone, whatever is still to be replayed."""
    odd: Mapping[str, Any] = field(default_factory=dict)
    """See Schedule."""

    def __post_init__(self) -> None:
        self._answers = {n: _Answers(listed=self.odd.get(f"address {n}", f"{n}:5432")) for n in self.members}
        self._random = self.clock.world.random(f"signs of {self.clock.process.name}")

    def close(self) -> None:
        """Nothing to stop."""

    def failed(self) -> bool:
        """No thread of it ends."""
        return False

    def signs(self) -> Mapping[str, MemberSigns]:
        """What is known now."""
        now, found = self.clock.now(), {}
        for name, member in self.members.items():
            if f"members/{name}" not in member.etcd.keys:
                continue
            answers = self._answers[name]
            self._arrive(answers, now)
            if answers.arrives is None and now - answers.asked >= 0.1:
                self._ask(name, member, answers, now)
            found[name] = answers.signs()
        return found

    def heard(self, name: str) -> float:
        """When this guard last heard that member itself, by its own clock."""
        answers = self._answers[name]
        return max(answers.rest_at or 0.0, answers.sql_at or 0.0, answers.refused_at or 0.0)

    def asked(self, name: str) -> float | None:
        """When it last answered SQL."""
        return self._answers[name].sql_at

    def _arrive(self, answers: _Answers, now: float) -> None:
        if answers.arrives is not None and answers.arrives <= now:
            answers.arrives, answers.sql_at = None, now
            receiver = answers.coming
            answers.receivers = (*answers.receivers[-1:], receiver) if receiver is not None else ()

    def _ask(self, name: str, member: Patroni, answers: _Answers, now: float) -> None:
        answers.asked = now
        world, postgres = self.clock.world, member.postgres
        if not world.reaches(self.clock.process.host, member.process.host):
            return
        if not member.process.frozen and not member.process.dead:
            answers.rest_at = now
            if answers.fit[0] is None or now - answers.fit[0] >= 0.4:
                answers.fit = (now - 0.005, why_unfit(member.rest()))
        if postgres.process.frozen or postgres.process.dead or postgres.role == "stopped":
            return
        if postgres.role in ("starting", "stopping"):
            answers.refused_at = now
            return
        answers.arrives = now + self.slow.get(name, 0.0) * self._random.random()
        answers.coming = Receiver(now - 0.005, **self._row(postgres)) if postgres.role == "standby" else None
        self._arrive(answers, now)

    def _row(self, postgres: Postgres) -> dict[str, Any]:
        """What receiver.sql answers on a standby, by the names of its columns."""
        lacks = self.odd.get(f"lacks {postgres.name}", "")
        streams, rights = postgres.receiver == "streaming", not lacks
        return {
            "lacks": lacks,
            "running": bool(postgres.receiver) and rights,
            "waits": (postgres.waits or self.former) and rights,
            "connects": bool(postgres.conninfo) and rights,
            "hinders": postgres.hinders,
            "named": self.odd.get(f"named {postgres.name}", postgres.name) if postgres.conninfo else "",
            "asks_after_s": postgres.receiver_timeout_s / 2,
            "streamed": postgres.received is not None,
            "position": postgres.received or 0 if self.former else postgres.position,
            "silent_s": self.clock.world.now - postgres.heard if streams and rights else None,
        }


@dataclass(eq=False)
class GuardHost:
    """A guard's machine: the process, its clients of etcd, and the guard once it could start."""

    world: World
    etcd: SimulatedEtcd
    members: Mapping[str, Patroni]
    process: Process
    policy: decide.Policy
    skew_s: float = 0.0
    odd: Mapping[str, Any] = field(default_factory=dict)
    guard: run.Guard | None = None
    wrong: Callable[[str, str], None] = lambda _kind, _text: None
    logged: Callable[[str, str], None] = lambda _by, _line: None
    started: float = 0.0
    starts: int = 0
    lock: WatchedLock | None = None

    def __post_init__(self) -> None:
        self.clients = Clients(self.etcd, self.process)
        self.clock = SimulatedClock(self.world, self.process, self.skew_s, self._calm)
        self.signs = SimulatedSigns(self.clock, self.members, odd=self.odd)

    @property
    def reading_s(self) -> float:
        """How old the reading of the lock is that it decides by."""
        seen = self.guard._seen if self.guard is not None else None
        return self.clock.now() - seen.at if seen is not None else 0.0

    def start(self) -> None:
        """Start the process, anew too."""
        self.guard, self.started, self.starts = None, self.world.now, self.starts + 1
        self.world.spawn(self.process, self._run)

    def _calm(self) -> bool:
        guard = self.guard
        return guard is None or guard.memory.state in (decide.State.NOT_READY, decide.State.WATCHING)

    def _run(self) -> None:
        access = EtcdAccess(tuple(url_of(h) for h in self.etcd.hosts))
        with patch.object(leader_lock, "Etcd3", self.clients):
            shipped = leader_lock.EtcdLeaderLock(access, PREFIX, self.clock.now)
        if self.lock is not None:
            self.lock.leave()
        self.lock = lock = WatchedLock(
            shipped, self.etcd, self.process.name, self.clock.at, lambda: self.clients.unsure, self.wrong
        )
        while True:
            try:
                if seal_quorum.why_never(lock.read()) is None:
                    break
            except TargetError:
                pass
            self.world.sleep(0.5)
        self.guard = guard = run.Guard(lock, self.signs, self.clock, self.policy, self._log)
        # It has run for longer than a ttl, and knows the configuration.
        guard.memory = replace(guard.memory, config=(shipped.read().config_version, float("-inf")))
        while True:
            guard.turn()

    def _log(self, line: str) -> None:
        self.world.tell(self.process.name, line)
        self.logged(self.process.name, line)
        self.world.point(f"{self.process.name} says {line.split(':', maxsplit=1)[0].split(' ', maxsplit=1)[0]}")
