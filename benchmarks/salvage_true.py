"""`python -m benchmarks.salvage_true [--rounds 5] [--port 5870]`: what `walproof salvage` finds, judged by the ledger.

The lab's pg_rewind is the program that `salvage --keep` prints: it copies the old leader's data directory first.
After each drill every copy is salvaged against the leader. Every row that was acknowledged and is gone must be found,
unless it was committed at `off` and the copies' WAL ended before it when the server crashed (none had written it); what
else is found must be gone too, and of an attempt that nobody heard the end of. Then the SQL is applied to the leader in
one transaction, and every row that was found must be there; so must what `benchmarks.salvage_mixed` did meanwhile, as
an unbroken server holds it. Needs root. A round has seven drills, one of them two failovers one after another."""

from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import salvage_mixed
from benchmarks.command import command, judged
from benchmarks.temporary_lab import benchmark_lab
from walproof.lab.blueprint import Disk
from walproof.lab.create import LabOrder
from walproof.model.drill import Victim
from walproof.model.guarantee import Level
from walproof.model.salvage import SalvageJudged
from walproof.model.waiting import Wait, wait_for
from walproof.proving.campaign import PlannedDrill, Strike, drawn
from walproof.proving.faults import CATALOGUE, IN_STORMS, STORM
from walproof.proving.history import decode, history_name
from walproof.proving.run import Shell, one_drill
from walproof.proving.salvaged import salvage_judged
from walproof.salvaging.drill import rewind_script, salvaged
from walproof.salvaging.report import Tree
from walproof.targets.lab.target import LabOldDisks, LabTarget

ROUND = (
    ("kill", Level.OFF), ("partition", Level.LOCAL), ("partition", Level.REMOTE_WRITE), ("isolate", Level.LOCAL),
    ("power-cut", Level.OFF), ("storm", Level.LOCAL), ("two failovers", Level.LOCAL),
)  # fmt: skip
_LASTS_S = 60.0
TWO_FAILOVERS = (
    Strike("partition", Victim.LEADER, 1.0, False, _LASTS_S),
    Strike("partition", Victim.LEADER, 15.0, True, _LASTS_S),
)
"""The successor writes for a while, then it is cut off too: two members hold what the third never had."""

Told = tuple[str, SalvageJudged | None, int]
"""Of a drill: what is said, what was judged, and how many rows were found and not there once the SQL was applied, and
chains of transactions that are not as an unbroken server would hold them."""


def apply(target: LabTarget, tree: Tree) -> bool:
    """The files of each database in one transaction, on the leader; True after having committed what is prepared there
    instead, as the report says: then it is to be read again."""
    if salvage_mixed.finish(target, tree):
        return True
    for one in tree["databases"]:
        with salvage_mixed.on_the_leader(target, one["database"]) as connection:
            for path in sorted(Path(one["files"]).glob("*.sql")) if one["files"] else ():
                # This lab's only writer is its superuser, whom the first statement of each file refuses.
                connection.execute(path.read_bytes().partition(b"END $walproof$;\n")[2])
    return False


def drilled(disks: LabOldDisks, target: LabTarget, number: int, kind: tuple[str, Level]) -> Told:
    """One drill; None where the ledger itself could not be read."""
    (name, level), kept = kind, dict[str, bytes]()

    def keep(file: str, content: str | bytes) -> None:
        if isinstance(content, bytes):
            kept[file] = content

    able = [one for one in IN_STORMS if one in ("kill", "isolate", "partition", "freeze", "switchover", "kill-member")]
    storms = {"storm": drawn(np.random.default_rng(number), able, 3), "two failovers": TWO_FAILOVERS}
    storm = storms.get(name, ())
    fault = STORM if storm else CATALOGUE[name]
    planned = PlannedDrill(number, fault, fault.victims[0], level, writers=8, storm=storm)
    chains = salvage_mixed.Chains(target, str(level))
    with chains.running():
        drill = one_drill(Shell(target, lambda _: None, keep, number), planned)
    wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, target.clock)
    before = len(chains.differing(target, may_be_missing=False))
    found = salvaged(disks, number, lambda tree: apply(target, tree))
    salvage_mixed.give_up(target)
    said = f"drill {number}, {name} at {level}: {drill.verdict}"
    if history_name(number) not in kept:
        return f"{said}, no ledger: {drill.why}", None, 0
    done = salvage_judged(target.clock.now(), decode(kept[history_name(number)]), found)
    with salvage_mixed.on_the_leader(target) as connection:
        query = "SELECT writer, number FROM walproof.walproof_ledger WHERE drill = %s"
        absent = len(found.rows.difference(connection.execute(query, (number,)).fetchall()))
    wrong = chains.differing(target, may_be_missing=level is Level.OFF)
    told = f"{len(chains.acknowledged)} chains, {before} broken before the SQL, {len(wrong)} after it"
    more = "".join(f"\n  {chain}: {what}" for chain, what in list(wrong.items())[:3])
    return f"{said}; {done.text}; {absent} absent after the SQL; {told}{more}", done, absent + len(wrong)


def main(*, rounds: int = 5, port: int = 5870) -> int:
    """Rounds of drills on one lab of its own; exit code 0 where salvage and the ledger agree in each of at least 30."""
    done: list[SalvageJudged] = []
    absent = 0
    # Room for a member's data directory and its copies; 1 GB of WAL is kept in each. The image is a sparse file.
    disk = Disk("image", size_bytes=6 << 30)
    order = LabOrder(port=port, disk=disk, parameters={"max_prepared_transactions": "20"})
    with benchmark_lab("salvage-true", order) as blueprint:
        target = LabTarget(blueprint)
        wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, target.clock)
        salvage_mixed.make(target)
        disks = LabOldDisks(blueprint.postgres_bin, blueprint, target.clock, partial(target.endpoint, "direct"))
        with disks.kept(rewind_script(disks.programs)):
            for number, kind in enumerate(ROUND * rounds, 1):
                text, one, not_there = drilled(disks, target, number, kind)
                print(text, flush=True)
                absent += not_there
                done += [one] if one else []
    wrong = sum(one.not_found + one.not_lost for one in done) + absent
    code = judged("drills with a ledger", len(done), "at least 30", len(done) >= 30)
    code |= judged(
        "rows that the ledger calls lost", sum(one.lost for one in done), "above 0", any(d.lost for d in done)
    )
    code |= judged("of them found", sum(one.found for one in done), "above 0", any(d.found for d in done))
    print(f"of them in no server's WAL: {sum(one.unwritten for one in done)}")
    return code | judged("rows that differ from the ledger, and chains not whole", wrong, "0", wrong == 0)


if __name__ == "__main__":
    command(main)
