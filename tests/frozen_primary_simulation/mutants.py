"""Conditions of the proof taken away, one at a time, each with a schedule in which that goes wrong.

Where several conditions guard the same thing (a pod's end: its object, its Lease's silence), a mutant takes all away;
what only the decisions' own tests can tell apart is in tests/unit/test_kubernetes_freeze.py.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.frozen_primary_simulation.schedule import Fault, Schedule
from tests.frozen_primary_simulation.world import judge
from walproof.guarding import kubernetes_freeze, kubernetes_sight


@dataclass(frozen=True, slots=True)
class Mutant:
    """Changes by their text, what the judge says of it, and the schedule that shows it."""

    finds: str
    schedule: Schedule
    changes: tuple[tuple[str, str], ...]


def by_hand(*faults: tuple[str, float, float] | tuple[str, float, float, str], **given: Any) -> Schedule:
    """Frozen at 12 s for good unless told otherwise; faults: name, from when, how long, on which standby."""
    come = tuple(Fault(f[0], f[1], f[2], f[3] if len(f) == 4 else "pg-3", given.get("step", 0)) for f in faults)
    freeze, length_s = given.get("freeze", "freeze"), given.get("length_s", 300.0)
    return Schedule(given.get("seed", 1), freeze, given.get("freeze_s", 12.0), length_s, False, come)


PLAIN, LIVING, LIVES = by_hand(), "living primary", "which lives"
_LAGS = ("lag", 0.0, 99.0)
_FORCED = by_hand(("late dying", 0.0, 15.0), ("delete by force", 17.4, 1.0))
MUTANTS = {
    "deletes without a second look": Mutant(LIVING, by_hand(("guard frozen at a step", 0.0, 1.5), length_s=2.4), (
        ("if not _frozen(heard, sight, policy):", "if False:"), ("> _VALID_S or sight.stalled", "> 9.0"),
    )),
    "suspects by one way": Mutant(
        LIVING, by_hand(("peers cut", 12.0, 15.0), ("service away", 12.0, 15.0), freeze="none"),
        (("ways = all(", "ways = any("),),
    ),
    "does not ask the standbys": Mutant(
        LIVING, by_hand(("SQL hiccup", 12.0, 15.0), freeze="none"),
        (("return ways and streams and", "return ways and"),)
    ),
    "does not ask the manager": Mutant(
        LIVING, by_hand(("network hiccup", 12.0, 5.0), freeze="none"),
        (("answered_s < allowed_s and renewed_s", "renewed_s"),)
    ),
    "suspects at once": Mutant(
        LIVING, by_hand(freeze="brief freeze", length_s=1.9),
        (("suspect_after_s: float = 1.5", "suspect_after_s: float = 0.2"),)
    ),
    "acts late": Mutant(
        LIVING, by_hand(("guard frozen at a step", 0.0, 15.0), step=1, length_s=4.0),
        (("_VALID_S = 2.0", "_VALID_S = 60.0"),)
    ),
    "deletes at preferred": Mutant(
        "preferred", by_hand(("preferred", 0.0, 1.0)), (('cluster.durability != "required" or ', ""),)
    ),
    "deletes with ALTER SYSTEM in effect": Mutant(
        "ALTER SYSTEM", by_hand(("ALTER SYSTEM", 0.2, 1.0)), (("if cluster.in_effect != cluster.number:", "if False:"),)
    ),
    "needs one standby less": Mutant(
        "lost", by_hand(_LAGS, ("standby paused", 11.9, 99.0, "pg-2")),
        (("len(names) + self.cluster.number > len(self.cluster.standbys)", "len(names) > 0"),),
    ),
    "counts standbys that the operator cannot choose": Mutant(
        "lost", by_hand(_LAGS, ("standby unready", 12.5, 99.0, "pg-2")), (("in followed and one.ready", "in followed"),)
    ),
    "deletes when fenced": Mutant(
        "fence", by_hand(("fence", 5.0, 99.0), ("two of two", 0.0, 1.0)), (("if cluster.fenced:", "if False:"),)
    ),
    "deletes when hibernated": Mutant(
        "hibernate", by_hand(("hibernate", 0.2, 1.0)), (("if cluster.hibernated:", "if False:"),)
    ),
    "deletes while restoring": Mutant(
        "restore", by_hand(("restore", 0.2, 1.0)), (("if cluster.restoring:", "if False:"),)
    ),
    "deletes when paused": Mutant(
        "pause", by_hand(("pause", 0.2, 1.0)), (('if cluster.paused else ""', 'if False else ""'),)
    ),
    "deletes on a lost node": Mutant(
        "lose node", by_hand(("lose node", 0.2, 1.0)), (("if not sight.pod.node_ready:", "if False:"),) * 2
    ),
    "deletes whatever the phase": Mutant(
        "at work", by_hand(("roll", 11.0, 1.0), ("two of two", 0.0, 1.0), freeze_s=13.0),
        (("if cluster.phase != HEALTHY:", "if False:"),)
    ),
    "takes over twice": Mutant(
        "second takeover", by_hand(("freeze again", 36.0, 9.0)),
        (("if taken_at and now - taken_at < REST_S:", "if False:"),)
    ),
    "an object gone is proof enough": Mutant(LIVES, _FORCED, (("if not silent or not named", "if not named"),)),
    "a short silence is proof enough": Mutant(LIVES, _FORCED, ((">= lease.retry_s + _MARGIN_S", ">= _MARGIN_S"),)),
    "does not wait for the end at all": Mutant(LIVES, by_hand(("late dying", 0.0, 15.0)), (
        ("    if sight.pod.uid:\n        return _late(memory, sight)\n", ""),
        ("    if sight.pod.uid:\n        return f", "    if False:\n        return f"),
        ("if not silent or not named", "if not named"),
    )),
    "waits for the end for ever": Mutant(
        "in time", by_hand(("late dying", 0.0, 25.0)), (("_CONFIRMED_S = 20.0", "_CONFIRMED_S = 2000.0"),)
    ),
    "does not notice renewals": Mutant(
        "no takeover", PLAIN,
        (("if (lease.holder, lease.renewed) != memory.renewed:", "if lease.holder != memory.renewed[0]:"),)
    ),
    "does not learn who follows": Mutant("no takeover", PLAIN, (("memory.followed | follow", "memory.followed"),)),
    "takes what it did for another's": Mutant(
        "no takeover", PLAIN, (("taken_by == policy.name", "taken_by != policy.name"),)
    ),
}  # fmt: skip


def mutated(mutant: Mutant) -> tuple[ModuleType, ModuleType]:
    """Both modules, executed anew with the changes; ValueError when the text of one is in neither."""
    texts = {file: Path(str(file.__file__)).read_text("utf-8") for file in (kubernetes_sight, kubernetes_freeze)}
    for before, after in dict(mutant.changes).items():
        if not any(before in text for text in texts.values()):
            raise ValueError(f"{before!r} stands in neither file")
        texts = {file: text.replace(before, after) for file, text in texts.items()}
    seen, decide = (_again(file, text) for file, text in texts.items())
    for name in ("why_left_alone", "why_not"):
        setattr(decide, name, getattr(seen, name))
    return decide, seen


def _again(file: ModuleType, text: str) -> ModuleType:
    module = ModuleType(f"mutated_{file.__name__.rpartition('.')[2]}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(text, str(file.__file__), "exec"), module.__dict__)
    return module


def wrong(schedule: Schedule, *modules: ModuleType) -> list[str]:
    """What the judge says, and that nothing was taken over although nothing hindered it."""
    world = judge(schedule, *modules)
    return world.wrong + (["no takeover"] if schedule == PLAIN and not world.emptied else [])
