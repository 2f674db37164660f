"""The shortest schedule that still goes wrong in the same way, and its story; those of the mutants by hand are kept."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from tests.guard_simulation.schedule import Schedule
from tests.guard_simulation.simulate import Outcome, judge

_FILE = Path(__file__).with_name("shortest.json")
SHORTEST = TypeAdapter(dict[str, Schedule]).validate_json(_FILE.read_bytes())
"""By the name of the mutant of by_hand.py that it finds."""


def keep(schedules: dict[str, Schedule]) -> None:
    """Write them to shortest.json, each on a line of its own."""
    one = TypeAdapter(Schedule)
    lines = (f"{json.dumps(n)}:\n  {one.dump_json(s, exclude_defaults=True).decode()}" for n, s in schedules.items())
    _FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    kept = max((i for i, _ in schedule.due), default=-1)
    for i in range(kept + 1, len(schedule.faults)):
        yield replace(schedule, faults=schedule.faults[:i] + schedule.faults[i + 1 :])
    for name in schedule.tags:
        yield replace(schedule, tags={n: t for n, t in schedule.tags.items() if n != name})
    plain = Schedule(schedule.seed)
    for field in ("guards", "watchdogs", "delays", "failsafe", "strict", "skews", "times", "interval_s"):
        if getattr(schedule, field) != getattr(plain, field):
            yield replace(schedule, **{field: getattr(plain, field)})


def shrink(schedule: Schedule, kind: str) -> Outcome:
    """Leave out what is not needed for a violation of that kind."""
    again = True
    while again:
        again = False
        for smaller in _smaller(schedule):
            if any(v.kind == kind for v in judge(smaller).wrong):
                schedule, again = smaller, True
                break
    return judge(schedule, recorded=True)


def story(outcome: Outcome) -> str:
    """The schedule and what happened, numbered."""
    steps = [f"{i:4} {h.at:7.3f}  {h.who:17} {h.what}" for i, h in enumerate(outcome.story, 1)]
    return "\n".join((str(outcome.schedule), *steps))
