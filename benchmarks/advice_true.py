"""Is advice true? Prices, advises and applies on a lab at 0 and 10 ms, then measures what was applied in ten rounds.

`python -m benchmarks.advice_true [--rounds 10] [--blocks 6] [--seconds 2] [--rtt 0,10]`: exit 1 when throughput and
p95 are both inside the promised intervals in fewer than 8 of 10 rounds. A round is three samples the advice never saw.
"""

import random
import tempfile
from pathlib import Path
from statistics import fmean

from benchmarks.command import command, judged
from benchmarks.temporary_lab import benchmark_target
from walproof.advising.advise import advise, choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.recipes import config_change
from walproof.model.advice import Choice, Requirements
from walproof.model.estimate import pooled, quantile_ms
from walproof.model.event import Described, Event, SampleDone
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, Scenario, Workload
from walproof.records.journal import Journal
from walproof.targets.configure import applied
from walproof.targets.lab.target import LabTarget

WANTED = 0.8
LEVELS = (Level.LOCAL, Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY)
CLIENTS = 8
SAMPLES = 3


def priced(target: LabTarget, scenario: Scenario, blocks: int, seconds: float) -> list[Event]:
    """The events of a small price run: every level in every block, in random order."""
    chance = random.Random(1)
    events: list[Event] = [Described(target.clock.now(), target.describe())]
    arms = [Arm(level, CLIENTS, Workload()) for level in LEVELS]
    for block in range(1, blocks + 1):
        for place, arm in enumerate(chance.sample(arms, len(arms))):
            result = target.pricing.run_sample(Sample(block, place, arm, scenario), seconds, block)
            events.append(SampleDone(target.clock.now(), result))
    return events


def rounds(target: LabTarget, choice: Choice, scenario: Scenario, count: int, seconds: float) -> int:
    """In how many rounds both numbers fell into what was promised."""
    arm = Arm(choice.level, choice.clients, Workload())
    inside = 0
    for number in range(count):
        done = [
            target.pricing.run_sample(Sample(1, 0, arm, scenario), seconds, 100 + 10 * number + i)
            for i in range(SAMPLES)
        ]
        tps = fmean(d.tps for d in done)
        p95 = quantile_ms(pooled(d.histogram for d in done), 0.95)
        held = choice.tps.covers(tps) and choice.p95_ms.covers(p95)
        inside += held
        print(f"  round {number + 1}: {tps:.0f} tps, p95 {p95:.1f} ms {'inside' if held else 'OUTSIDE'}", flush=True)
    return inside


def at(target: LabTarget, rtt_ms: float, count: int, blocks: int, seconds: float) -> int:
    """One round trip: price, advise, apply, measure, undo; the exit code."""
    scenario = Scenario(rtt_ms=rtt_ms)
    target.pricing.enter(scenario)
    try:
        events = priced(target, scenario, blocks, seconds)
        evidence = evidence_of([("priced", events)])
        choice = advise(evidence, Requirements(rpo_s=0.0), choose_environment(evidence, None, None)).choices[0]
        print(
            f"rtt {rtt_ms:g} ms: {choice.text} promises {choice.tps.low:.0f} to {choice.tps.high:.0f} tps, "
            f"p95 {choice.p95_ms.low:.1f} to {choice.p95_ms.high:.1f} ms"
        )
        configuration = target.configuration
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder) / "journal.jsonl")
            applied(configuration, configuration.plan(config_change(choice, evidence.cluster)), journal)
            inside = rounds(target, choice, scenario, count, seconds)
            configuration.undo(journal)
    finally:
        target.pricing.leave()
    what, limit = f"share of rounds inside at {rtt_ms:g} ms", f"at least {WANTED:g} of {count}"
    return judged(what, inside / count, limit, inside >= WANTED * count)


def main(*, rounds: int = 10, blocks: int = 6, seconds: float = 2.0, rtt: str = "0,10") -> int:
    """Every round trip in turn."""
    with benchmark_target("advice", port=6130) as target:
        target.pricing.prepare(Workload())
        return max(at(target, float(one), rounds, blocks, seconds) for one in rtt.split(","))


if __name__ == "__main__":
    command(main)
