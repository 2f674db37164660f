"""Recovery with a guard and without one, by drills in turn on labs of its own; what was lost, and its bound.

`python -m benchmarks.guard [PART …] [--drills 10] [--writers 8]`. Parts: alternating (40 drills with, 20 without, half
an hour), levels, quorums, routes (12 each, five minutes), storms (`--storms 200` at `on`, strict, in turn on ANY 1 of
2, ANY 2 of 4 and FIRST 1; a minute and a half each), local. Needs root (power cuts).
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.temporary_lab import benchmark_lab
from walproof.estimating.intervals import upper_bound
from walproof.lab import patroni
from walproof.lab.blueprint import Disk
from walproof.lab.create import LabOrder
from walproof.lab.patroni import wait_until_healthy
from walproof.model.drill import Drill
from walproof.model.guarantee import Level
from walproof.model.units import duration_s
from walproof.patroni.config import SyncMode
from walproof.proving.campaign import PlannedDrill, planned
from walproof.proving.faults import CATALOGUE
from walproof.proving.options import parse_options
from walproof.proving.run import Shell, run_drills
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


def parts(drills: int, storms: int = 200) -> dict[str, tuple[Part, ...]]:
    """Every part by its name."""
    first, any_2_of_4 = replace(_LAB, sync=SyncMode.ON, quorum=1), replace(_LAB, members=5, quorum=2)
    return {
        "alternating": (Part(_LAB, guarded=(True, False, True), repeat=drills // 2),),
        "levels": (Part(_LAB, REMOTE, repeat=3),),
        "quorums": (Part(any_2_of_4), Part(first)),
        "routes": (Part(_LAB, routes=("haproxy", "pgbouncer")),),
        "storms": tuple(Part(lab, storms=-(-storms // 3)) for lab in (_LAB, any_2_of_4, first) if storms),
        "local": (Part(_LAB, levels=(Level.LOCAL,), guarded=(True, False), repeat=3),),
    }


def plan_of(part: Part, options: argparse.Namespace) -> list[PlannedDrill]:
    """The drills of one lab, numbered, faults in turn."""
    if part.storms:
        asked = {"storm": str(part.storms), "levels": ",".join(part.levels), "seed": str(options.seed), "guard": True}
        return planned(parse_options({**asked, "writers": str(options.writers), "client_timeout": options.timeout}))
    arms = [
        (CATALOGUE[fault], level, route, guarded)
        for _ in range(part.repeat)
        for level in part.levels
        for route in part.routes
        for fault in FAULTS
        for guarded in part.guarded
    ]
    timeout_s = duration_s(options.timeout)
    return [
        PlannedDrill(
            number, fault, fault.victims[0], level, route, options.writers, guarded=guarded, client_timeout_s=timeout_s
        )
        for number, (fault, level, route, guarded) in enumerate(arms, 1)
    ]


def run_part(name: str, part: Part, options: argparse.Namespace) -> Iterable[Drill]:
    """Every drill of one lab, printed as it ends."""
    with benchmark_lab(f"guard-{name}", replace(part.order, port=options.port)) as blueprint:
        target = choose(f"lab:{blueprint.name}")
        if part.storms:
            patroni.patch_config(blueprint, {"synchronous_mode_strict": True})
            wait_until_healthy(blueprint, target.clock)
        shell = Shell(target, lambda _event: None, lambda _name, _content: None, options.seed)
        for drill in plan_of(part, options):
            (found,) = run_drills(shell, [drill], enough=lambda _: False)
            print(line(name, found), flush=True)
            yield found


def line(part: str, drill: Drill) -> str:
    """One drill in one line, what the guard did with it."""
    rto = "–" if drill.rto_s is None else f"{drill.rto_s:5.1f} s"
    guard = "guarded" if drill.guarded else "alone"
    did = drill.evidence.get("guard", "").replace("; ", "\n      ")
    words = f"{part:12} {drill.number:3} {drill.fault:12} {drill.level:13} {drill.route:10} {guard:8} {rto}"
    lost = f"{words}  lost {drill.findings.lost} of {drill.findings.acknowledged:,}  {drill.verdict}"
    return lost + (f": {drill.why}" if not drill.verdict.decided else "") + (f"\n      {did}" if did else "")


def summary(name: str, drills: Sequence[Drill]) -> None:
    """Outages of each fault with a guard and without; losses and their bound."""
    print(f"\n{name}: {'fault':12} {'guard':8} drills  median   worst  undecided")
    for fault in dict.fromkeys(d.fault for d in drills):
        for guarded in (True, False):
            chosen = [d for d in drills if d.fault == fault and d.guarded is guarded]
            times = [d.rto_s for d in chosen if d.rto_s is not None and d.verdict.decided]
            if times:
                left = sum(not d.verdict.decided for d in chosen)
                arm = "with" if guarded else "without"
                print(
                    f"{'':{len(name) + 2}}{fault:12} {arm:8} {len(times):6}  {median(times):5.1f} s {max(times):5.1f} s"
                    f"  {left:9}"
                )
    guarded_times = [d.rto_s for d in drills if d.guarded and d.rto_s is not None and d.verdict.decided]
    alone = [d.rto_s for d in drills if not d.guarded and d.rto_s is not None and d.verdict.decided]
    if guarded_times:
        print(
            f"with a guard: median {median(guarded_times):.1f} s (at most {MEDIAN_S}), worst {max(guarded_times):.1f} s"
            f" (at most {WORST_S}), {len(guarded_times)} drills"
        )
    if alone:
        print(f"without: median {median(alone):.1f} s (at least {WITHOUT_S}), {len(alone)} drills")


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
        chosen = [d for d in at_local if d.guarded is guarded]
        lost = [d.findings.lost for d in chosen]
        print(f"at local {'with' if guarded else 'without'} a guard: lost {lost} in {len(chosen)} drills")
    return len(losing) if counted else len(guarded_drills)


def main() -> int:
    """Run the parts, print their summaries; exit 1 when a guarded drill at a remote level lost something."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = parts(10)
    parser.add_argument("part", nargs="*", choices=[*known, []], default=[])
    parser.add_argument("--drills", type=int, default=10)
    parser.add_argument("--storms", type=int, default=200)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--timeout", default="1s", help="of clients, as `prove --client-timeout`")
    parser.add_argument("--port", type=int, default=6200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    every: list[Drill] = []
    for name in options.part or known:
        drills = [d for part in parts(options.drills, options.storms)[name] for d in run_part(name, part, options)]
        summary(name, drills)
        every += drills
    return int(losses(every) > 0)


if __name__ == "__main__":
    sys.exit(main())
