"""`price --soak 30min`: one level, or two alternately, for the whole time; every second is kept, stalls included.

Time is cut into stretches, each its own pgbench. Ctrl-C keeps all that was measured, of the last one too.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from walproof.errors import TargetError
from walproof.estimating.intervals import StoppedBy
from walproof.model.event import Event, SampleDone
from walproof.model.sample import Arm, Sample, Scenario, Series
from walproof.model.units import counted
from walproof.pricing.sampling import WARM_BLOCK, Bench, OnProgress, Question, RunProgress, block

_WARM_S = 2.0
_AFTER_FAILURE_S = 5.0
"""A failed stretch is not tried again at once: a failover takes this long or longer."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch as measured: its arm and scenario, and its seconds."""

    arm: Arm
    scenario: Scenario
    series: Series


def run_soak(bench: Bench, question: Question, on_progress: OnProgress) -> StoppedBy:
    """Soak for the budget, the seconds of a resumed run included; the target is left as it was, in every case."""
    (scenario,) = question.scenarios
    sample_s, seconds = question.sample_s, question.budget_s
    spent_s, number = _earlier(bench.events)
    try:
        bench.prepare(question.arms)
        bench.observe()
        if not bench.enter(scenario):
            raise TargetError(bench.left_out[scenario].reason, "leave that scenario out")
        first = replace(question.arms[0], level=question.baseline, mix=(), label="warm")
        bench.measure(Sample(WARM_BLOCK, 0, first, scenario), _WARM_S)
        began = bench.now() - spent_s
        while True:
            number += 1
            for planned in block(number, scenario, question.arms, question.seed):
                left = seconds - (bench.now() - began)
                if left < sample_s / 2:
                    bench.observe()
                    return StoppedBy.DONE
                doing = f"soak: {planned.arm.level}, {counted(planned.arm.clients, 'client')}"
                on_progress(RunProgress(seconds - left, seconds, number, doing))
                if bench.measure(replace(planned, series=True), min(sample_s, left)) is None:
                    bench.target.clock.pause(_AFTER_FAILURE_S)
    except KeyboardInterrupt:
        bench.note("interrupted; what was measured so far is kept, --resume goes on")
        return StoppedBy.INTERRUPTED
    finally:
        bench.leave()


def _earlier(events: Sequence[Event]) -> tuple[float, int]:
    """Seconds soaked and the last block of a resumed run."""
    done = [e.result for e in events if isinstance(e, SampleDone) and e.result.sample.series]
    return sum(r.seconds for r in done), max((r.sample.block for r in done), default=WARM_BLOCK)


def stretches(events: Sequence[Event]) -> tuple[Stretch, ...]:
    """The stretches of a record with their seconds, in the order measured; none when it is no soak."""
    done = [e.result for e in events if isinstance(e, SampleDone)]
    return tuple(Stretch(r.sample.arm, r.sample.scenario, r.series) for r in done if r.series.transactions)


def soak_as_json(soak: Sequence[Stretch]) -> list[dict[str, Any]]:
    """One object a stretch: level, clients, when it began (epoch s), and lists of one value a second."""
    return [
        {
            "level": str(one.arm.level),
            "clients": one.arm.clients,
            "mix": {str(level): weight for level, weight in one.arm.mix},
            **asdict(one.series),
        }
        for one in soak
    ]
