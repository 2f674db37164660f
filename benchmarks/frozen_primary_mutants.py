"""Conditions of the guard's proof taken away, one at a time, each with a schedule in which that goes wrong.

`python -m benchmarks.frozen_primary_mutants [--only WORD]`: does the simulation of a frozen primary find each? Prints
those that it does not find; exit 1 where there is one, or where the decisions as they are do harm. Where several
conditions guard the same thing (a pod's end: its object, its Lease's silence), a mutant takes all away; what only the
decisions' own tests can tell apart is in tests/unit/test_kubernetes_freeze.py.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.command import command
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
    seed, freeze_s, idle = given.get("seed", 1), given.get("freeze_s", 12.0), given.get("idle", False)
    return Schedule(seed, freeze, freeze_s, length_s, idle, come)


_HANDS_ON = tuple((f"return {of}cluster.hands_off or first", "return first") for of in ("", "sight."))
PLAIN, LIVING, LIVES, FEW = by_hand(), "living primary", "which lives", "too few standbys"
_LAGS = ("lag", 0.0, 99.0)
_FORCED = by_hand(("late dying", 0.0, 15.0), ("delete by force", 18.6, 1.0))
_NO_LOOK = ("if reason or not _frozen(memory, sight, policy):", "if reason:")
_AGAIN = "if sight.now - memory.step_at < ASKED_S:"
_ALL = "(len(able) < standbys,"
_DEAF = by_hand(("SQL hiccup", 4.0, 90.0), ("WAL hiccup", 12.0, 6.0), freeze="none")
_LONGER = "without a guard"
_APART = ("(heard_at - min(waits) > _APART_S, ", "(False, ")
_GAP, _AT_ONCE = (
    ("(now - sight.manager.answered_at > _GAP_S, ", "(False, "),
    (_AGAIN, "if sight.now - memory.step_at < 0.2:"),
)
MUTANTS = {
    "deletes without a second look": Mutant(LIVING, by_hand(("guard frozen at a step", 0.0, 1.5), length_s=3.6), (
        _NO_LOOK,
        ("(sight.stalled, ", "(False, "), (_AGAIN, "if False:"), ("sight.now - memory.step_at > limit_s", "False"),
    )),
    "suspects by one way": Mutant(
        LIVING, by_hand(("peers cut", 12.0, 15.0), ("service away", 12.0, 15.0), freeze="none"),
        (("for way in (sight.service, sight.direct)]\n    streams_s", "for way in (sight.service,)]\n    streams_s"),),
    ),
    "does not ask the standbys": Mutant(
        LIVING, by_hand(("SQL hiccup", 12.0, 15.0), freeze="none"),
        (("and streams_s >= max(allowed_s, pings_s) and lives", "and lives"),)
    ),
    "takes a quiet stream for a silent one": Mutant(
        LIVING, by_hand(("SQL hiccup", 12.0, 15.0), freeze="none", idle=True), (
            ("max(allowed_s, pings_s)", "allowed_s"),
            _NO_LOOK,
        )
    ),
    "does not ask the manager": Mutant(
        LIVING, by_hand(("network hiccup", 12.0, 5.0), freeze="none"), (_GAP, _AT_ONCE)
    ),
    "forgets that the manager did not answer": Mutant(
        LIVING, by_hand(("network hiccup", 12.0, 3.6), freeze="none", seed=6),
        (_GAP, _AT_ONCE, ("lives = now", "lives = now - sight.manager.answered_at < _LEAST_S and now")),
    ),
    "takes SQL that waits for long for a freeze": Mutant(LIVING, _DEAF, (_APART,)),
    "suspects at once": Mutant(LIVING, by_hand(freeze="brief freeze", length_s=2.7), (
        ("max(policy.suspect_after_s, _LEAST_S)", "0.2"), ("max(allowed_s, pings_s)", "0.2"),
    )),
    "acts late": Mutant(
        LIVING, by_hand(("guard frozen at a step", 0.0, 15.0), step=1, length_s=5.0),
        (("_VALID_S, _DIED_S, _ELECTED_S = 2.0,", "_VALID_S, _DIED_S, _ELECTED_S = 60.0,"),)
    ),
    "deletes with ALTER SYSTEM in effect": Mutant(
        "ALTER SYSTEM", by_hand(("ALTER SYSTEM", 0.2, 1.0)),
        (("(cluster.in_effect != cluster.number, f", "(False, f"),)
    ),
    "needs one standby less": Mutant(
        FEW, by_hand(_LAGS, ("standby paused", 8.0, 99.0, "pg-2")),
        ((_ALL, "(len(able) < 1,"),),
    ),
    "does not need every standby": Mutant(
        _LONGER, by_hand(("two of two", 0.0, 1.0), ("standby unready", 8.0, 99.0, "pg-2"), length_s=5.0),
        ((_ALL, "(len(able) < max(1, len(cluster.instances) - cluster.number),"),),
    ),
    "counts standbys that the operator cannot choose": Mutant(
        FEW, by_hand(_LAGS, ("standby unready", 8.0, 99.0, "pg-2")), (("in followed and seen.ready", "in followed"),)
    ),
    "deletes when fenced": Mutant(
        "fence", by_hand(("fence", 5.0, 99.0), ("two of two", 0.0, 1.0)), (*_HANDS_ON, (_ALL, "(len(able) < 1,"))
    ),
    "deletes when hibernated": Mutant(
        "hibernate", by_hand(("hibernate", 0.2, 1.0)), _HANDS_ON
    ),
    "deletes while restoring": Mutant(
        "restore", by_hand(("restore", 0.2, 1.0)), _HANDS_ON
    ),
    "deletes when paused": Mutant(
        "pause", by_hand(("pause", 0.2, 1.0)), _HANDS_ON
    ),
    "deletes on a lost node": Mutant(
        "lose node", by_hand(("lose node", 5.0, 1.0)), (("(not (sight.pod and sight.pod_ready), f", "(False, f"),)
    ),
    "deletes whatever the phase": Mutant(
        "at work", by_hand(("roll", 11.0, 1.0), ("two of two", 0.0, 1.0), freeze_s=13.0),
        (("(cluster.phase != HEALTHY,", "(False,"),)
    ),
    "takes over twice": Mutant(
        "second takeover", by_hand(("freeze again", 38.0, 7.0)),
        (("if by and now - memory.claimed_at < rest_s:", "if False:"),)
    ),
    "an object gone is proof enough": Mutant(
        LIVES, _FORCED, (("if not silent or sight.cluster.target", "if sight.cluster.target"),)
    ),
    "a short silence is proof enough": Mutant(
        LIVES, _FORCED, ((">= max(sight.lease.retry_s, memory.gap_s) + _LATE_S", ">= _LATE_S"),)
    ),
    "does not wait for the end at all": Mutant(LIVES, by_hand(("late dying", 0.0, 15.0)), (
        ("    if dying:\n        return memory, None\n", ""),
        ("(sight.pod, f", "(False, f"),
        ("if not silent or sight.cluster.target", "if sight.cluster.target"),
    )),
    "empties for a target that was named by hand": Mutant(
        "nobody elected", by_hand(("lag", 0.0, 99.0, "pg-2"), ("switchover", 17.0, 1.0, "pg-2")),
        (("(not elected, f", "(False, f"),)
    ),
    "does not ask what is to be replayed": Mutant(
        _LONGER, by_hand(("slow replay", 1.0, 99.0), ("slow replay", 1.0, 99.0, "pg-2"), length_s=5.0),
        (("any(one.behind for", "any(False for"),)
    ),
    "takes SQL that waits long after WAL for a freeze": Mutant(
        LIVING, by_hand(("WAL hiccup", 4.0, 90.0), ("SQL hiccup", 20.0, 6.0), freeze="none"),
        (("(min(*waits, sight.asked_at) - heard_at > sight.pings_s + _MARGIN_S, ", "(False, "),)
    ),
    "waits for the end for ever": Mutant(
        "in time", by_hand(("late dying", 0.0, 21.5)),
        (("_DIED_S, _ELECTED_S = 2.0, 20.0,", "_DIED_S, _ELECTED_S = 2.0, 2000.0,"),)
    ),
    "does not notice renewals": Mutant(
        "no takeover", PLAIN, (("if renewed != memory.renewed:", "if renewed[0] != memory.renewed[0]:"),)
    ),
    "does not learn who follows": Mutant("no takeover", PLAIN, (("memory.followed | follow", "memory.followed"),)),
    "takes what it did for another's": Mutant(
        "no takeover", PLAIN, (("sight.cluster.claim[:2] == (policy.name", "sight.cluster.claim[:2] != (policy.name"),)
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


def survives(mutant: Mutant) -> str:
    """Why it counts as not found, "" where it is found."""
    if harm := wrong(mutant.schedule):
        return f"the decisions as they are do harm in its schedule: {harm}"
    said = wrong(mutant.schedule, *mutated(mutant))
    return "" if any(mutant.finds in one for one in said) else f"not found: {said}"


def main(*, only: str = "") -> int:
    """Exit code."""
    chosen = {name: mutant for name, mutant in MUTANTS.items() if only in name}
    left = {name: why for name, mutant in chosen.items() if (why := survives(mutant))}
    print("".join(f"{name}: {why}\n" for name, why in left.items()), end="")
    print(f"{len(chosen) - len(left)} of {len(chosen)} conditions taken away are found")
    return 1 if left or not chosen else 0


if __name__ == "__main__":
    command(main)
