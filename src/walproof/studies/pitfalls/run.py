"""Starts the lab that pitfalls need, reproduces them one after another, tells each, ends the lab. Decides nothing."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from walproof.errors import Error, MachineError
from walproof.lab import home
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.create import temporary_lab
from walproof.lab.design import LabOrder, design
from walproof.machine.clock import RealClock
from walproof.model.event import ClaimJudged, Emit, Ended
from walproof.studies.pitfalls.catalogue import Pitfall
from walproof.studies.pitfalls.scene import Found, Scene

Say = Callable[[str], None]
FIRST_PORT = 8600
STOCK_TIMEOUTS = {
    "wal_sender_timeout": "60s",
    "wal_receiver_timeout": "60s",
    "tcp_user_timeout": "0",
    "tcp_keepalives_idle": "7200",
}
"""As PostgreSQL ships them: the lab's own quick timeouts are there to soften some of these pitfalls."""


@dataclass(frozen=True, slots=True)
class Told:
    """One pitfall as it went; `found` is None when the lab could not play it, `why` says so."""

    pitfall: Pitfall
    found: Found | None
    seconds: float
    why: str = ""

    @property
    def verdict(self) -> str:
        """reproduced, not reproduced, or undecided."""
        if self.found is None:
            return "undecided"
        return "reproduced" if self.found.reproduced else "not reproduced"


@contextmanager
def stage(say: Say, *, disk: str = "image", name: str = "", port: int = FIRST_PORT) -> Iterator[Blueprint]:
    """A lab for pitfalls, ended with the block, also after an error or Ctrl-C."""
    order = LabOrder(
        name=name or f"{home.lab_name()}-pitfalls", port=port, disk=Disk(kind=disk), parameters=dict(STOCK_TIMEOUTS)
    )
    with temporary_lab(design(order), RealClock(), say) as blueprint:
        yield blueprint


def play(blueprint: Blueprint, pitfall: Pitfall) -> Told:
    """Reproduce one pitfall on a lab that is up, and leave the lab whole (unless the pitfall ruins it)."""
    scene = Scene(blueprint)
    began = time.monotonic()
    found: Found | None = None
    why = ""
    try:
        scene.begin()
        found = pitfall.reproduce(scene)
    except (Error, psycopg.Error) as error:
        why = error.message if isinstance(error, Error) else str(error).strip()
    except KeyboardInterrupt:
        # The lab is about to be ended: nothing to heal.
        scene.end(heal=False)
        raise
    try:
        scene.end(heal=not pitfall.ruins)
    except Error as unhealed:
        why = why or f"the lab did not heal afterwards: {unhealed.message}"
    return Told(pitfall, found, time.monotonic() - began, why)


def play_all(wanted: Sequence[Pitfall], say: Say) -> Generator[Told, None, None]:
    """Every pitfall as it ends, on one lab as long as it heals; a new lab when it does not."""
    left = list(wanted)
    disk = "image"
    while left:
        try:
            with stage(say, disk=disk) as blueprint:
                while left:
                    pitfall = left.pop(0)
                    say(f"{pitfall.number}: {pitfall.title}")
                    told = play(blueprint, pitfall)
                    say(f"  {told.verdict} in {told.seconds:.1f} s: {_words(told)}")
                    yield told
                    if told.why or pitfall.ruins:
                        break
        except MachineError:
            if disk == "plain" or len(left) < len(wanted):
                raise
            say("no disk images here: without them no power can be cut")
            disk = "plain"


def _words(told: Told) -> str:
    return told.found.evidence if told.found is not None else told.why


def as_dict(told: Told) -> dict[str, Any]:
    """For --json."""
    return {
        "pitfall": told.pitfall.number,
        "title": told.pitfall.title,
        "verdict": told.verdict,
        "evidence": _words(told),
        "seconds": round(told.seconds, 1),
    }


def reproduce(wanted: Sequence[Pitfall], emit: Emit, say: Say) -> tuple[list[Told], bool]:
    """Play them into a record, each as it ends; (what came of them, whether Ctrl-C ended it)."""
    told: list[Told] = []
    try:
        with closing(play_all(wanted, say)) as played:
            for one in played:
                told.append(one)
                name, took = f"{one.pitfall.number}: {one.pitfall.title}", f"in {one.seconds:.1f} s"
                emit(ClaimJudged(time.time(), "pitfalls", name, "it happens", _words(one), one.verdict, took))
    except KeyboardInterrupt:
        emit(Ended(time.time(), "interrupted"))
        return told, True
    return told, False


def shown(told: Sequence[Told], asked: int) -> str:
    """Their table as text, a conclusion first."""
    reproduced = sum(one.verdict == "reproduced" for one in told)
    missing = f"; {asked - len(told)} were not played" if len(told) < asked else ""
    lines = [f"{reproduced} of {len(told)} pitfalls reproduced{missing}."]
    for one in told:
        lines += [f"{one.pitfall.number:4} {one.verdict:15} {one.pitfall.title}", f"     {_words(one)}"]
    return "\n".join(lines)


def exit_code(told: Sequence[Told]) -> int:
    """0 when all reproduced, 1 when one did not, 4 when nothing can be said of one."""
    if any(one.verdict == "not reproduced" for one in told):
        return 1
    return 4 if any(one.verdict == "undecided" for one in told) else 0
