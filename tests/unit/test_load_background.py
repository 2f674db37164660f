"""A workload beside a drill: started again when clients are gone or hang, ended with walproof, told from its logs."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fixtures.priced_fake import Ticking
from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.load.background import BackgroundLoad
from walproof.load.local_runner import LocalWorkspace
from walproof.load.pgbench import RunningLoad
from walproof.machine.clock import RealClock
from walproof.machine.programs import lookup
from walproof.model.guarantee import Level
from walproof.model.load import Workspace
from walproof.model.sample import Arm
from walproof.model.waiting import Wait, wait_for

OLD, NEW = ("n1", 1), ("n2", 2)
GONE = "its clients are gone (pgbench: server closed)"
HUNG = "its clients are gone (no answer of the leader before)"
BACK = "its clients are connected again"


@dataclass
class FakeLoad:
    """One pgbench: how many clients it has, whether it ended."""

    sockets: int = 2
    ended: bool = False
    stopped: bool = False

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """At once."""

    def connected(self) -> int:
        return 0 if self.ended else self.sockets

    def end(self, grace_s: float, unblock: object) -> None:
        self.ended = self.stopped = True

    def error(self) -> TargetError:
        return TargetError("pgbench: server closed", "")


@dataclass
class Beside:
    """A workload of two clients on virtual time, and every pgbench that was started for it."""

    next_ones: Sequence[FakeLoad | TargetError] = ()
    clock: Ticking = field(default_factory=Ticking)
    made: list[FakeLoad] = field(default_factory=list)
    places: Sequence[Workspace] = ()

    def opened(self) -> BackgroundLoad:
        return BackgroundLoad(cast(Any, self.start), self.places, Arm(Level.ON, 2), self.clock)

    def start(self, number: int) -> RunningLoad:
        one = self.next_ones[number] if number < len(self.next_ones) else FakeLoad()
        if isinstance(one, TargetError):
            raise one
        self.made.append(one)
        return cast(RunningLoad, one)

    def told(self, load: BackgroundLoad, leader: object, seconds: float) -> list[str]:
        """What it says, asked four times a second."""
        sentences = []
        for _ in range(int(seconds * 4)):
            sentences.append(load.keep_up(leader, 3.0))
            self.clock.pause(0.25)
        return [one for one in sentences if one]


# rows: every client ended, one client ended, silent, and another leads
@each([
    (lambda one: setattr(one, "ended", True), [GONE, BACK]),
    (lambda one: setattr(one, "sockets", 1), [GONE, BACK]),
    (lambda one: None, [HUNG, BACK]),
])  # fmt: skip
def test_clients_that_are_gone_or_hang_are_started_again_and_it_is_told_once(lost: Any, says: list[str]) -> None:
    beside = Beside([FakeLoad(), FakeLoad(ended=True), TargetError("no leader", ""), FakeLoad(ended=True), FakeLoad()])
    load = beside.opened()
    assert beside.told(load, OLD, 5) == []
    lost(beside.made[0])
    assert beside.told(load, NEW, 12) == says
    assert beside.made[0].stopped and len(beside.made) == 4
    assert beside.told(load, NEW, 60) == []


def test_clients_of_a_leader_that_only_pauses_or_is_not_seen_are_left_alone() -> None:
    beside = Beside()
    load = beside.opened()
    assert beside.told(load, OLD, 5) + beside.told(load, None, 60) + beside.told(load, OLD, 5) == []
    assert len(beside.made) == 1


def test_clients_that_found_the_new_leader_before_it_was_seen_are_not_started_again() -> None:
    beside = Beside()
    load = beside.opened()
    beside.told(load, OLD, 1)
    beside.made[0].ended = True
    assert beside.told(load, OLD, 1) == [GONE]
    assert beside.told(load, NEW, 10) == [BACK]
    assert len(beside.made) == 2


def test_a_script_that_the_server_refuses_ends_it_before_the_drill() -> None:
    beside = Beside([FakeLoad(ended=True)])
    with pytest.raises(TargetError, match="server closed"):
        beside.opened()


def test_once_ended_nothing_is_started_any_more() -> None:
    beside = Beside()
    load = beside.opened()
    load.close()
    assert beside.told(load, NEW, 10) == [] and len(beside.made) == 1 and beside.made[0].stopped


def lines(client: int, since: float, until: float, every_s: float = 0.02) -> str:
    """A log of transactions of 10 ms."""
    ends = [since + every_s * k for k in range(int((until - since) / every_s))]
    return "".join(f"{client} {k} 10000 0 {int(e)} {round(1e6 * (e % 1))}\n" for k, e in enumerate(ends, 1))


def test_its_throughput_and_outage_are_those_of_the_logs_of_every_start() -> None:
    place = LocalWorkspace()
    beside = Beside(places=[place])
    load = beside.opened()
    began = beside.clock.at
    place.put("log.1", lines(0, began, began + 10))
    place.put("log.2", lines(0, began + 17, began + 27) + "0 501 100")
    beside.clock.at = began + 27
    seen = load.seen(began + 9)
    assert seen.before_tps == pytest.approx(50, rel=0.1)
    assert seen.outage_s == pytest.approx(7.0, abs=0.1)
    assert seen.after_tps == pytest.approx(50, rel=0.1)
    load.close()
    assert not Path(place.directory).exists()


def test_an_outage_without_an_end_is_one_to_the_end() -> None:
    place = LocalWorkspace()
    beside = Beside(places=[place])
    load = beside.opened()
    began = beside.clock.at
    place.put("log.1", lines(0, began, began + 5))
    beside.clock.at = began + 20
    seen = load.seen(began + 5)
    assert seen.outage_s == pytest.approx(15.0, abs=0.1) and seen.after_tps == 0.0
    load.close()


@pytest.mark.skipif(lookup("setpriv") is None, reason="without setpriv it ends after its -T")
def test_what_was_started_ends_with_walproof_by_kill_9_too() -> None:
    text = (
        "import sys, time\nfrom walproof.load.local_runner import LocalRunner\n"
        "(place,) = LocalRunner().open()\nprint(place.start(['sleep', '600'], 'log').pids[0], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as walproof:
        assert walproof.stdout is not None
        load = int(walproof.stdout.readline())
        # Before that it is still setpriv, which has not asked for the signal yet.
        started = partial(Path(f"/proc/{load}/cmdline").read_bytes)
        wait_for(Wait.PROGRAM_READY, lambda: started().startswith(b"sleep"), RealClock())
        walproof.send_signal(signal.SIGKILL)
    wait_for(Wait.PROGRAM_READY, lambda: not running(load), RealClock())


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
