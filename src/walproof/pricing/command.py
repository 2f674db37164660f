"""The whole of a price command: the grid, then break-even, tuning or prediction as asked; its answer in words, JSON."""

import math
from collections.abc import Collection
from typing import Any

from walproof.errors import TargetError
from walproof.estimating.stopping import StoppedBy
from walproof.model.event import Ended, SearchStep
from walproof.model.plan import Scenario
from walproof.model.ports import CanBePriced, Capability, Target
from walproof.pricing.answer import Answer
from walproof.pricing.as_json import table_as_json
from walproof.pricing.bench import Bench, Tell
from walproof.pricing.conclusion import conclusion
from walproof.pricing.estimates import price_table
from walproof.pricing.latency_breakdown import breakdown_as_json, breakdowns
from walproof.pricing.question import Words, question_of
from walproof.pricing.run import conduct
from walproof.pricing.searches import predicted, prediction_steps, searched


def check_target(target: Target, words: Words, allowed: Collection[str]) -> None:
    """Refuse what cannot be priced: no such capability, a quorum too large, a guarantee not in effect."""
    why = target.why_not(Capability.PRICE)
    if why is not None or not isinstance(target, CanBePriced):
        raise TargetError(f"{target.name} cannot be priced: {why or 'it runs no samples'}", "walproof lab up")
    view = target.observe()
    question = question_of(words, len(view.standbys) or None)
    for setting in question.scenarios:
        target.check(setting)
    remote = sorted({a.level for a in question.arms if a.level.remote}, key=lambda one: one.strength)
    bare = not view.standby_names.strip() and any(s.quorum is None for s in question.scenarios)
    if remote and bare and "not-in-effect" not in allowed:
        raise TargetError(
            f"synchronous_standby_names is empty on {target.name}, so {', '.join(remote)} would quietly mean local",
            "add --quorum any1 to bring one into effect, ask only --levels off,local, or --allow not-in-effect",
        )


def consents_needed(words: Words) -> tuple[str, ...]:
    """The words of --allow that this run needs on a cluster of the user's."""
    changes = words.get("tune") or any(setting != Scenario() for setting in question_of(words).scenarios)
    return ("load", "config") if changes else ("load",)


def said_beforehand(words: Words, target: Target) -> list[str]:
    """What the run would do, one line each."""
    question = question_of(words, len(target.observe().standbys) or None)
    arms = len(question.arms)
    search = "tune" if words.get("tune") else "break-even" if words.get("break_even") else ""
    return [
        *([f"a search ({search}) in place of the grid, within {question.budget_s:.0f} s"] if search else []),
        f"on {target.name}: {arms} arms under {len(question.scenarios)} settings, against {question.baseline}",
        *(f"  setting: {setting.text}" for setting in question.scenarios),
        *(
            f"  arm: {a.level}{' (mix)' if a.mix else ''}, {a.clients} clients, {a.workload.text}, {a.route}"
            for a in question.arms
        ),
        f"samples of {question.sample_s:g} s, {arms * question.sample_s:.0f} s a block; to ± {question.precision:.1%} "
        f"or {question.budget_s:.0f} s; seed {question.seed}",
        f"loads pgbench's own tables at scale {question.arms[0].workload.scale} and puts back every setting it changes",
    ]


def pursue(bench: Bench, words: Words, tell: Tell) -> Answer:
    """Run everything these words ask on the bench; a search takes the whole budget in place of the grid."""
    question = question_of(words, len(bench.target.observe().standbys) or None)
    if words.get("tune") or words.get("break_even"):
        answer = searched(bench, question, words, tell)
        final = () if answer.stopped_by is StoppedBy.INTERRUPTED else answer.sentences
        for number, sentence in enumerate(final, 1):
            bench.step(_answered("tuning" if words.get("tune") else "break-even", number, sentence, bench.now()))
        return answer
    stopped = conduct(bench, question, tell)
    table = price_table([*bench.events, Ended(bench.now(), str(stopped))])
    parts, sentences = predicted(table, bench.events, words)
    for step in prediction_steps(parts, bench.now()):
        bench.step(step)
    return Answer(table, stopped, breakdowns(bench.events), parts, sentences)


def _answered(search: str, number: int, sentence: str, at: float) -> SearchStep:
    """What a search came to, for the record: no value of its own, but the last word."""
    return SearchStep(at, search, {"answer": number}, math.nan, math.nan, math.nan, sentence)


def answer_lines(answer: Answer) -> list[str]:
    """Sentences of the answer, the conclusion first."""
    first = [conclusion(answer.table)] if answer.table.arms or not answer.sentences else []
    return [*first, *answer.sentences, *(a.sentence for a in answer.breakdowns)]


def answer_as_json(answer: Answer, record: str | None) -> dict[str, Any]:
    """The object of `--json`: the table's keys, then breakdown and what else was asked."""
    return {
        **table_as_json(answer.table, record),
        "stopped_by": str(answer.stopped_by),
        "conclusion": answer_lines(answer)[0],
        "breakdown": [breakdown_as_json(a) for a in answer.breakdowns],
        **dict(answer.parts),
    }
