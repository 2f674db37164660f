"""Attacks on the guard itself, each under a drill's ledger: it is killed or frozen at every step, there are two, its
network is cut, it is made to believe that a healthy leader disappeared. Nothing acknowledged at `on` may be lost.

`python -m benchmarks.guard_attacks [ATTACK …] [--repeat 2]`: about forty seconds an attack. Needs root.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.command import chosen, command
from benchmarks.guard import losses
from benchmarks.temporary_lab import benchmark_lab
from tests.fixtures.drills import shell
from walproof.guarding.decide import Policy
from walproof.guarding.run import open_guard
from walproof.lab import home
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.create import LabOrder
from walproof.machine.clock import RealClock
from walproof.model.drill import Drill
from walproof.model.event import DrillStarted, Event
from walproof.model.guarantee import Level
from walproof.model.takeover import LeaderLock, LockState, MemberSigns, Seal, Signs, SignsOfLife
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.run import one_drill
from walproof.targets.choose import choose

STEPS = ("before-seal", "after-seal", "before-hand-over", "after-hand-over")
FREEZE_S = 8.0


@dataclass(frozen=True, slots=True)
class Attack:
    """A fault (none: wrong suspicion), what is done to the first guard at which step, and how many guards there are."""

    fault: str = "isolate"
    done: str = ""
    step: str = ""
    guards: int = 1
    blind: bool = False
    cut: bool = False


ATTACKS: dict[str, Attack] = {
    **{f"killed-{step}": Attack(done="kill", step=step) for step in STEPS},
    **{f"killed-{step}-of-two": Attack(done="kill", step=step, guards=2) for step in STEPS},
    **{f"frozen-{step}": Attack(done="freeze", step=step) for step in STEPS},
    **{f"frozen-{step}-of-two": Attack("freeze", done="freeze", step=step, guards=2) for step in STEPS},
    "two-guards": Attack("power-cut", guards=2),
    "wrong-suspicion": Attack("none", blind=True),
    "wrong-suspicion-of-two": Attack("none", blind=True, guards=2),
    "wrong-suspicion-killed": Attack("none", blind=True, done="kill", step="after-seal"),
    "wrong-suspicion-frozen": Attack("none", blind=True, done="freeze", step="before-hand-over"),
    "own-network-cut": Attack("none", cut=True),
}


def strike(what: str) -> None:
    """Kill this process, or stop it; the parent lets a stopped one go on."""
    os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)


@dataclass(slots=True)
class StruckLock:
    """A lock whose guard is struck at one step."""

    lock: LeaderLock
    done: str
    step: str

    def read(self) -> LockState:
        """As it is."""
        return self.lock.read()

    def _at(self, step: str) -> None:
        if step == self.step and self.done:
            self.step = ""
            strike(self.done)

    def seal(self, seen: LockState, name: str, seal: Seal) -> bool:
        """Struck before it, or between etcd's answer and the guard's knowing it."""
        self._at("before-seal")
        found = self.lock.seal(seen, name, seal)
        self._at("after-seal")
        return found

    def hand_over(self, sealed: LockState, to: str) -> bool:
        """Struck before it, or between etcd's answer and the guard's knowing it."""
        self._at("before-hand-over")
        found = self.lock.hand_over(sealed, to)
        self._at("after-hand-over")
        return found

    def part(self, seen: LockState) -> str:
        """As it is."""
        return self.lock.part(seen)


@dataclass(slots=True)
class BlindSigns:
    """Signs of life without the leader's, once a file says so: a guard that is wrong."""

    life: SignsOfLife
    blinded: Path

    def signs(self) -> Signs:
        """What is known, less what the leader and its standbys say of it."""
        found: Mapping[str, MemberSigns] = self.life.signs()
        if not self.blinded.exists():
            return found
        return {
            name: replace(s, receivers=tuple(replace(r, silent_s=None) for r in s.receivers))
            if s.receivers
            else MemberSigns()
            for name, s in found.items()
        }

    def failed(self) -> bool:
        """As it is."""
        return self.life.failed()

    def close(self) -> None:
        """As it is."""
        self.life.close()


@dataclass(slots=True)
class BlindLock:
    """A lock that tells nothing of the holder's lease; with its first takeover the guard's sight is back."""

    lock: LeaderLock
    blinded: Path

    def read(self) -> LockState:
        """Without the age of the lease while it is blind."""
        found = self.lock.read()
        return replace(found, lease_age_s=None) if self.blinded.exists() else found

    def seal(self, seen: LockState, name: str, seal: Seal) -> bool:
        """As it is."""
        return self.lock.seal(seen, name, seal)

    def hand_over(self, sealed: LockState, to: str) -> bool:
        """Unchanged, and then no longer blind: a guard wrong for ever would take over as often as it may."""
        found = self.lock.hand_over(sealed, to)
        self.blinded.unlink(missing_ok=True)
        return found

    def part(self, seen: LockState) -> str:
        """As it is."""
        return self.lock.part(seen)


def guard_process(address: str, name: str, folder: str, number: int) -> None:
    """A guard under that attack in this process, until it is killed; writes a line for all it does."""
    target, attack, blinded = choose(address), ATTACKS[name], Path(folder) / "blind"
    takeover = target.capabilities().takeover
    assert takeover is not None
    assert not callable(takeover)
    guard = open_guard(takeover, target.clock, Policy(f"walproof-guard-{number}-{os.getpid()}"), _say)
    if attack.blind:
        guard.life, guard.lock = BlindSigns(guard.life, blinded), BlindLock(guard.lock, blinded)
    if number == 1:
        guard.lock = StruckLock(guard.lock, attack.done, attack.step)
    while True:
        guard.turn()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def guards(blueprint: Blueprint, name: str, folder: Path) -> Iterator[list[Path]]:
    """So many guards as processes of their own; those that stop themselves go on after a while. Their logs."""
    logs, started, attack = [], [], ATTACKS[name]
    for number in range(1, attack.guards + 1):
        logs.append(folder / f"guard-{number}.log")
        asked = (f"lab:{blueprint.name}", name, str(folder), number)
        code = f"from benchmarks.guard_attacks import guard_process; guard_process(*{asked!r})"
        inside = ["ip", "netns", "exec", guard_namespace(blueprint)] if attack.cut else []
        with logs[-1].open("wb") as log:
            started.append(subprocess.Popen([*inside, sys.executable, "-c", code], stdout=log, stderr=log))

    def thaw() -> None:
        for process in started:
            _thaw(process)

    thawing = RealClock().every(0.2, thaw)
    try:
        yield logs
    finally:
        thawing.close()
        for process in started:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


_STOPPED: dict[int, float] = {}


def _thaw(process: "subprocess.Popen[bytes]") -> None:
    """Let a guard that stopped itself go on after a while."""
    with suppress(OSError, IndexError):
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            since = _STOPPED.setdefault(process.pid, time.monotonic())
            if time.monotonic() - since > FREEZE_S:
                process.send_signal(signal.SIGCONT)


def guard_namespace(blueprint: Blueprint) -> str:
    """Of a guard with a network of its own."""
    return f"wp{blueprint.number}-guard"


def guard_address(blueprint: Blueprint) -> str:
    """Of that guard on the lab's network."""
    return f"10.77.{blueprint.number}.200"


@contextmanager
def own_network(blueprint: Blueprint) -> Iterator[str]:
    """A namespace on the lab's bridge for a guard; the name of the link that cuts it when it is set down."""
    name, link = guard_namespace(blueprint), f"wp{blueprint.number}guard"
    address = f"{guard_address(blueprint)}/24"
    for words in (
        f"netns add {name}",
        f"link add {link} type veth peer name eth0 netns {name}",
        f"link set {link} master {blueprint.bridge} up",
        f"-n {name} addr add {address} dev eth0",
        f"-n {name} link set eth0 up",
        f"-n {name} link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    try:
        yield link
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def _watching(logs: list[Path]) -> None:
    end = time.monotonic() + 60
    while not all("watching" in log.read_text() for log in logs):
        if time.monotonic() > end:
            raise SystemExit("a guard does not watch: " + "; ".join(log.read_text()[-300:] for log in logs))
        time.sleep(0.1)


def attacked(blueprint: Blueprint, name: str, folder: Path, number: int) -> Drill:
    """One drill of one attack."""
    attack = ATTACKS[name]
    target = choose(f"lab:{blueprint.name}")
    blind = folder / "blind"
    blind.unlink(missing_ok=True)
    fault = CATALOGUE[attack.fault]
    plan = PlannedDrill(number, fault, fault.victims[0], Level.ON, writers=8, client_timeout_s=1.0)
    with own_network(blueprint) if attack.cut else nullcontext("") as link, guards(blueprint, name, folder) as logs:
        _watching(logs)

        def emit(event: Event) -> None:
            if isinstance(event, DrillStarted) and attack.blind:
                blind.touch()
            if isinstance(event, DrillStarted) and attack.cut:
                subprocess.run(["ip", "link", "set", link, "down"], check=True)

        drill = one_drill(shell(target, emit), plan)
        lines = [f"      {log.stem}: {line}" for log in logs for line in log.read_text().splitlines()]
    rto = "–" if drill.rto_s is None else f"{drill.rto_s:.1f} s"
    print(
        f"{name:28} {rto:>7}  lost {drill.findings.lost} of {drill.findings.acknowledged:,}  {drill.verdict}"
        f"  {drill.leader_before} → {drill.leader_after}" + ("" if drill.verdict.decided else f": {drill.why}")
    )
    print("\n".join(lines), flush=True)
    return replace(drill, guarded=True)


def main(attack: tuple[str, ...] = (), *, repeat: int = 2, port: int = 6600) -> int:
    """Run the attacks; exit 1 when anything acknowledged was lost."""
    drills: list[Drill] = []
    names = chosen(attack, ATTACKS)
    with benchmark_lab("guard-attacks", LabOrder(port=port, disk=Disk("image", 8 << 30))) as blueprint:
        folder = home.lab_home(blueprint.name) / "attacks"
        folder.mkdir()
        for name in names * repeat:
            drills.append(attacked(blueprint, name, folder, len(drills) + 1))
    return int(losses(drills) > 0)


if __name__ == "__main__":
    command(main)
