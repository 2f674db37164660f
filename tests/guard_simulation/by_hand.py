"""Mutants by hand: what once was wrong, restored, and each condition of docs/guard-proof.md's table taken away.

Each is a change of the shipped source's text, and the kind of violation that must find it; shortest.json keeps the
shortest schedule in which it does. python -m tests.guard_simulation.by_hand [WORDS]: find anew those whose names hold
the words, or those that have none.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from tests.guard_simulation.guard import SimulatedSigns
from tests.guard_simulation.mutator import FILES, in_place, seeds
from tests.guard_simulation.schedule import Schedule, draw
from tests.guard_simulation.shortest import SHORTEST, keep, shrink
from tests.guard_simulation.simulate import judge


@dataclass(frozen=True, slots=True)
class ByHand:
    """file: which source; before, after: its text; finds: what the simulation may call it. more: further changes."""

    file: str
    before: str
    after: str
    finds: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()
    former_query: bool = False
    """The query of receiver.sql is the former one."""

    def tree(self) -> ast.Module:
        """The changed source; AssertionError where that text is not in it, so that a stale mutant is noticed."""
        source = inspect.getsource(FILES[self.file])
        for before, after in ((self.before, self.after), *self.more):
            assert not before or source.count(before) == 1, f"{self.file} holds {source.count(before)} times: {before}"
            source = source.replace(before, after) if before else source
        return ast.parse(source)


ONCE_WRONG = {
    "G1: a standby that has crashed is believed by its received position": ByHand(
        "seal_quorum.py", "", "", ("loss",), former_query=True
    ),
    "G3: the old leader's lease is ended by a guard that may have been frozen": ByHand(
        "leader_lock.py",
        "        if not self._etcd.renew(sealed.holder_lease):",
        '        self._etcd.call("/lease/revoke", {"ID": str(self._old)})\n'
        "        if not self._etcd.renew(sealed.holder_lease):",
        ("revoked",),
        (("        entries = self._etcd.prefix(self._prefix)\n        leader",
          "        entries = self._etcd.prefix(self._prefix)\n        self._old = seen.holder_lease\n        leader"),),
    ),
    "G4: tags of voters are not asked": ByHand(
        "leader_lock.py",
        "return replicatefrom(tags) or nofailover(tags) or nosync(tags) or nostream(tags)",
        'return ""',
        ("loss", "unsealed"),
    ),
    "G5: the guard takes up a seal that it has left to Patroni": ByHand(
        "seal_quorum.py", "    if lock.config_version != seal.config_version:", "    if False:", ("paused", "void")
    ),
    "G6: whether its Patroni can lead is not asked": ByHand(
        "seal_quorum.py", "    return (known.unfit or None) if _patroni", "    return None if _patroni", ("released",)
    ),
    "a lease that lasts for ever while etcd elects is a sign of life in the far future": ByHand(
        "leader_lock.py", "        if age is not None and age < -_FOREVER_S:", "        if False:", ("late",),
        (("        return max(0.0, age), asked", "        return age, asked"),),
    ),
    "L3: no second witness is asked": ByHand(
        "decide.py", "    if silent and seen_by:", "    if silent:", ("needless",)
    ),
    "L6: each try of a seal takes new leases": ByHand(
        "leader_lock.py", "        if spare and", "        if False and spare and", ("leases",)
    ),
}  # fmt: skip
CONDITIONS = {
    "the startup process waits at the end of all WAL it has": ByHand(
        "seal_quorum.py", "and r.waits and", "and", ("loss", "unsealed")
    ),
    "quorum + 1 voters pass": ByHand("seal_quorum.py", "lock.quorum + 1\n", "lock.quorum\n", ("unsealed", "loss")),
    "primary_conninfo is empty": ByHand(
        "seal_quorum.py", "not (r.running or r.connects or r.lacks)", "not (r.running or r.lacks)", ("unsealed", "loss")
    ),
    "there is no walreceiver, asked twice": ByHand(
        "seal_quorum.py", "not (r.running or r.connects or r.lacks) and r.waits", "not (r.connects or r.lacks)",
        ("unsealed", "loss"),
    ),
    "the most WAL": ByHand("seal_quorum.py", "if at == most)", ")", ("loss",)),
    "/sync compared": ByHand("leader_lock.py", '        "sync": seen.sync_version,\n', "", ("loss", "unsealed")),
    "/config compared": ByHand("leader_lock.py", '        "config": seen.config_version,\n', "", ("void", "paused")),
    "/failover compared": ByHand("leader_lock.py", '        "failover": seen.failover_version,\n', "",
                                 ("void", "switchover")),
    "/sync written again": ByHand("leader_lock.py", "        put(f\"{prefix}sync\", entries[\"sync\"].value),\n", "",
                                  ("seal",)),
    "the old leader's address is removed": ByHand("leader_lock.py", '        delete(f"{prefix}members/{old}"),\n', "",
                                                  ("seal",)),
    "lease of the ttl and more, intent compared": ByHand(
        "leader_lock.py", '        compare.append(compare_version(f"{prefix}{INTENT}", taking.intent))\n', "", ("seal",)
    ),
    "hand-over compares this seal": ByHand(
        "leader_lock.py", "        *_unchanged(prefix, sealed),\n", "", ("wrong holder", "void", "paused"),
    ),
    "hand-over with all the time of the lease": ByHand(
        "leader_lock.py", "        if not self._etcd.renew(sealed.holder_lease):", "        if False:", ("loss",)
    ),
    "versions of /failover kept": ByHand(
        "seal_quorum.py", "    if lock.failover_version != seal.failover_version:", "    if False:",
        ("void", "switchover"),
    ),
    "a limit on takeovers kept in etcd": ByHand(
        "decide.py", "    limit_s = max(sight.lock.limit_s, policy.at_most_every_s)\n", "    limit_s = 0.0\n",
        ("often",),
    ),
    "it was set before the seal": ByHand(
        "decide.py", "tuple(v for v in sight.lock.seal.connected if v in sight.lock.counted)", "sight.lock.counted",
        ("loss", "unsealed"),
    ),
    "it streamed from this leader": ByHand(
        "seal_quorum.py", "{v for v in followed if v in lock.counted and 0 <", "{v for v in lock.counted if 0 <",
        ("stranger",),
    ),
    "leader key written before /sync": ByHand(
        "leader_lock.py", "        put(f\"{prefix}sync\", entries[\"sync\"].value),\n", "", ("writes",),
        (("    success = [\n", "    success = [\n        put(f\"{prefix}sync\", entries[\"sync\"].value),\n"),),
    ),
}  # fmt: skip
ALL = {**ONCE_WRONG, **CONDITIONS}


@contextmanager
def put_in(mutant: ByHand) -> Iterator[None]:
    """Run that change of the shipped code."""
    with in_place(mutant.file, mutant.tree()), patch.object(SimulatedSigns, "former", mutant.former_query):
        yield


def _shortest(mutant: ByHand, number: int) -> Schedule | None:
    """One of so many schedules that finds it, without what is not needed for that; None where none does."""
    with put_in(mutant):
        for schedule in map(draw, seeds(number)):
            kinds = [v.kind for v in judge(schedule).wrong if v.kind in mutant.finds]
            if kinds:
                found = shrink(schedule, kinds[0]).schedule
                faults = tuple(replace(f, at=round(f.at, 1), lasts=round(f.lasts, 1)) for f in found.faults)
                short = replace(found, faults=faults)
                found = short if any(v.kind in mutant.finds for v in judge(short).wrong) else found
                break
        else:
            return None
    return None if judge(found).wrong else found


def main() -> None:
    """Find schedules, and keep each at once."""
    words = " ".join(sys.argv[1:])
    for name, mutant in ALL.items():
        if words in name and (words or name not in SHORTEST):
            schedule = _shortest(mutant, 4000)
            print(f"{'found' if schedule else 'NOT FOUND'}: {name}", flush=True)
            if schedule is not None:
                SHORTEST[name] = schedule
                keep({name: SHORTEST[name] for name in ALL if name in SHORTEST})


if __name__ == "__main__":
    main()
