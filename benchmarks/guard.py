"""Recovery with a guard and without one, by drills in turn on labs of its own; what was lost, and its bound.

`python -m benchmarks.guard [PART …] [--drills 10] [--writers 8]`. Parts: alternating (40 drills with, 20 without, half
an hour), levels, quorums, routes (12 each, five minutes), storms (`--storms 200` at `on`, strict, in turn on ANY 1 of
2, ANY 2 of 4 and FIRST 1; a minute and a half each), local. Needs root (power cuts).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.command import chosen, command
from benchmarks.temporary_lab import benchmark_lab
from tests.fixtures.drills import drilled
from walproof.estimating.intervals import upper_bound
from walproof.lab import patroni
from walproof.lab.blueprint import Disk
from walproof.lab.create import LabOrder
from walproof.lab.patroni import wait_until_healthy
from walproof.model.drill import Drill
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.units import duration_s
from walproof.patroni.config import SyncMode
from walproof.proving.campaign import PlannedDrill, planned
from walproof.proving.faults import CATALOGUE
from walproof.proving.options import parse_options
from walproof.targets.choose import choose

FAULTS = ("power-cut", "isolate", "freeze", "kill-member")
MEDIAN_S, WORST_S, WITHOUT_S = 3.0, 6.0, 20.0
"""What the median and the worst outage with a guard may be, and the least without."""
ON = (Level.ON,)
REMOTE = (Level.REMOTE_WRITE, Level.REMOTE_APPLY)
_LAB = LabOrder(port=6200, disk=Disk("image", 8 << 30))


@dataclass(frozen=True, slots=True)
class Part:
    """Drills of one lab: its order, levels, routes, and which of every three have a guard."""

    order: LabOrder
    levels: tuple[Level, ...] = ON
    routes: tuple[str, ...] = ("multi-host",)
    guarded: tuple[bool, ...] = (True,)
    repeat: int = 3
    storms: int = 0
    """So many storms; the cluster is strict, or a leader left alone promises nothing and the storm decides nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do: so many writers, their timeout as `prove --client-timeout` takes it; the seed of storms."""

    writers: int
    timeout: str
    seed: int


def parts(drills: int, storms: int = 200) -> dict[str, tuple[Part, ...]]:
    """Every part by its name."""
    first, any_2_of_4 = replace(_LAB, sync=SyncMode.ON), replace(_LAB, members=5, quorum=(QuorumKind.ANY, 2))
    return {
        "alternating": (Part(_LAB, guarded=(True, False, True), repeat=drills // 2),),
        "levels": (Part(_LAB, REMOTE, repeat=3),),
        "quorums": (Part(any_2_of_4), Part(first)),
        "routes": (Part(_LAB, routes=("haproxy", "pgbouncer")),),
        "storms": tuple(Part(lab, storms=-(-storms // 3)) for lab in (_LAB, any_2_of_4, first) if storms),
        "local": (Part(_LAB, levels=(Level.LOCAL,), guarded=(True, False), repeat=3),),
    }


def plan_of(part: Part, load: Load) -> list[PlannedDrill]:
    """The drills of one lab, numbered, faults in turn."""
    if part.storms:
        asked = {"storm": str(part.storms), "levels": ",".join(part.levels), "seed": str(load.seed), "guard": True}
        return planned(parse_options({**asked, "writers": str(load.writers), "client_timeout": load.timeout}))
    arms = [
        (CATALOGUE[fault], level, route, guarded)
        for _ in range(part.repeat)
        for level in part.levels
        for route in part.routes
        for fault in FAULTS
        for guarded in part.guarded
    ]
    timeout_s = duration_s(load.timeout)
    return [
        PlannedDrill(
            number, fault, fault.victims[0], level, route, load.writers, guarded=guarded, client_timeout_s=timeout_s
        )
        for number, (fault, level, route, guarded) in enumerate(arms, 1)
    ]


def run_part(name: str, part: Part, load: Load, port: int) -> Iterator[Drill]:
    """Every drill of one lab, printed as it ends."""
    with benchmark_lab(f"guard-{name}", replace(part.order, port=port)) as blueprint:
        target = choose(f"lab:{blueprint.name}")
        if part.storms:
            patroni.patch_config(blueprint, {"synchronous_mode_strict": True})
            wait_until_healthy(blueprint, target.clock)
        for planned_drill in plan_of(part, load):
            drill = drilled(target, planned_drill, seed=load.seed)
            print(line(name, drill), flush=True)
            yield drill


def line(part: str, drill: Drill) -> str:
    """One drill in one line, what the guard did with it."""
    rto = "–" if drill.rto_s is None else f"{drill.rto_s:5.1f} s"
    guard = "guarded" if drill.guarded else "alone"
    did = drill.evidence.get("guard", "").replace("; ", "\n      ")
    words = f"{part:12} {drill.number:3} {drill.fault:12} {drill.level:13} {drill.route:10} {guard:8} {rto}"
    lost = f"{words}  lost {drill.findings.lost} of {drill.findings.acknowledged:,}  {drill.verdict}"
    return lost + (f": {drill.why}" if not drill.verdict.decided else "") + (f"\n      {did}" if did else "")


def summary(name: str, drills: Sequence[Drill]) -> None:
    """Outages of each fault with a guard and without, and over all faults against what they may be."""
    print(f"\n{name}: {'fault':12} {'guard':8} drills  median   worst  undecided")
    limits = {True: f"at most {MEDIAN_S:g} and {WORST_S:g} s", False: f"median at least {WITHOUT_S:g} s"}
    for fault in (*dict.fromkeys(d.fault for d in drills), "all"):
        for guarded, limit in limits.items():
            arm = [d for d in drills if d.guarded is guarded and fault in (d.fault, "all")]
            times = [d.rto_s for d in arm if d.rto_s is not None and d.verdict.decided]
            if times:
                undecided = sum(not d.verdict.decided for d in arm)
                print(
                    f"{'':{len(name) + 2}}{fault:12} {'with' if guarded else 'without':8} {len(times):6}  "
                    f"{median(times):5.1f} s {max(times):5.1f} s  {undecided:9}"
                    + (f"  ({limit})" if fault == "all" else "")
                )


def losses(drills: Sequence[Drill]) -> int:
    """What guarded drills at remote levels lost, printed with its bound; how many lost some: all, where none tells."""
    guarded_drills = [d for d in drills if d.guarded and d.level in (Level.ON, *REMOTE)]
    counted = [d for d in guarded_drills if d.verdict.decided]
    losing = [d for d in counted if d.findings.lost]
    acknowledged = sum(d.findings.acknowledged for d in counted)
    print(
        f"\nguarded drills at remote levels: {len(counted)} decided, {len(losing)} lost something"
        f" ({sum(d.findings.lost for d in losing)} of {acknowledged:,} acknowledged commits);"
        f" P(loss in a drill) at most {upper_bound(len(losing), len(counted)):.1%} (95 %)"
    )
    at_local = [d for d in drills if d.level is Level.LOCAL and d.verdict.decided]
    for guarded in (True, False) if at_local else ():
        lost = [d.findings.lost for d in at_local if d.guarded is guarded]
        print(f"at local {'with' if guarded else 'without'} a guard: lost {lost} in {len(lost)} drills")
    return len(losing) if counted else len(guarded_drills)


def main(
    part: tuple[str, ...] = (),
    *,
    drills: int = 10,
    storms: int = 200,
    writers: int = 8,
    timeout: str = "1s",
    port: int = 6200,
    seed: int = 1,
) -> int:
    """Run the parts, print their summaries; exit 1 when a guarded drill at a remote level lost something."""
    known, load = parts(drills, storms), Load(writers, timeout, seed)
    every: list[Drill] = []
    for name in chosen(part, known):
        done = [drill for one in known[name] for drill in run_part(name, one, load, port)]
        summary(name, done)
        every += done
    return int(losses(every) > 0)


if __name__ == "__main__":
    command(main)
