"""A price command from check to result: the grid and its predictions, or a search; the result as text and JSON."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from walproof.errors import TargetError, UsageError
from walproof.estimating.intervals import StoppedBy
from walproof.model.ports import Target
from walproof.model.sample import Scenario, Workload
from walproof.model.topology import route_of
from walproof.model.units import counted
from walproof.pricing.break_even import break_even_under
from walproof.pricing.estimates import UNKNOWN, PriceTable, price_table
from walproof.pricing.latency_breakdown import Breakdown, breakdown_as_json, breakdowns
from walproof.pricing.options import PriceOptions
from walproof.pricing.prediction import emit_predictions, hold_out, points_of, predictions
from walproof.pricing.results_and_gate import conclusion, table_as_json
from walproof.pricing.run import SearchRun, run_price
from walproof.pricing.sampling import Bench, OnProgress, Question, pricing_of
from walproof.pricing.soak import run_soak, soak_as_json, stretches
from walproof.pricing.tuning import tuned_under

INTERRUPTED = "The search was interrupted: its steps so far are in the record, and --resume goes on with it."


@dataclass(frozen=True, slots=True)
class PriceResult:
    """The table, breakdowns, and what searches and predictions found: JSON-ready parts by name, and conclusions."""

    table: PriceTable
    stopped_by: StoppedBy
    breakdowns: tuple[Breakdown, ...] = ()
    parts: dict[str, Any] = field(default_factory=dict)
    conclusions: tuple[str, ...] = ()
    restarts: str = ""
    """What restarts of the target's servers for scenarios took."""


def check_target(target: Target, options: PriceOptions, allowed: Collection[str]) -> None:
    """Refuse what cannot be priced: no such capability, a quorum too large, a guarantee not in effect, others' pool."""
    pricing, view = pricing_of(target), target.observe()
    question = options.question(len(view.standbys))
    for arm in question.arms:
        route_of(target.routes(), arm.route)
        if arm.pool is not None and target.capabilities().pool is None:
            raise UsageError(
                f"the pooler before {target.name} is not walproof's own, and the size of its pool is left alone",
                "leave --pool out: it is priced as it is, and the record says its size; or price the lab",
            )
    for scenario in question.scenarios:
        pricing.check(scenario)
    remote = sorted({a.level for a in question.arms if a.level.remote}, key=lambda one: one.strength)
    bare = not view.standby_names.strip() and any(s.quorum is None for s in question.scenarios)
    if remote and bare and "not-in-effect" not in allowed:
        raise TargetError(
            f"synchronous_standby_names is empty on {target.name}, so {', '.join(remote)} would silently mean local",
            "add --quorum any1 to bring one into effect, ask only --levels off,local, or --allow not-in-effect",
        )


def consents_needed(options: PriceOptions) -> tuple[str, ...]:
    """The names that --allow must give for this run on an external cluster."""
    question, nothing = options.question(), Scenario()
    existing = any(arm.workload.existing for arm in question.arms)
    return (
        "load",
        *(["config"] if options.tune or any(s.settings != nothing for s in question.scenarios) else []),
        *(["scale"] if any(s.size != nothing for s in question.scenarios) else []),
        *(["existing-tables"] if existing else []),
    )


def dry_run_lines(options: PriceOptions, question: Question, target: str) -> list[str]:
    search = "tune" if options.tune else "break-even" if options.break_even else "soak" if options.soak else ""
    within = [f"a {search} in place of the grid, within {question.budget_s:.0f} s"] if search else []
    first, *others = question_lines(question)
    return [*within, f"on {target}: {first}", *others]


def question_lines(question: Question) -> list[str]:
    """The arms and scenarios of a grid, when it ends, and what becomes of tables and parameters."""
    arms, scenarios = len(question.arms), len(question.scenarios)
    return [
        f"{counted(arms, 'arm')} under {counted(scenarios, 'scenario')}, against {question.baseline}",
        *(f"  scenario: {scenario.text}" for scenario in question.scenarios),
        *(
            f"  arm: {a.level}{' (mix)' if a.mix else ''}, {counted(a.clients, 'client')}, {a.workload.text}, {a.route}"
            + (f", {a.workload.manner}" if a.workload.manner else "")
            for a in question.arms
        ),
        f"samples of {question.sample_s:g} s, {arms * question.sample_s:.0f} s a block; {_until(question)}; "
        f"seed {question.seed}",
        f"{_tables(question.arms[0].workload)} and reverts every parameter it changes",
    ]


def question_as_json(question: Question) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "baseline": question.baseline,
        "scenarios": [scenario.text for scenario in question.scenarios],
        "arms": [
            {
                "level": a.level,
                "clients": a.clients,
                "workload": a.workload.text,
                "manner": a.workload.manner,
                "route": a.route,
            }
            for a in question.arms
        ],
        "sample_s": question.sample_s,
        "cycles": question.cycles,
        "precision": question.precision,
        "budget_s": question.budget_s,
        "seed": question.seed,
    }


def _tables(workload: Workload) -> str:
    """What becomes of tables, in words."""
    if workload.existing:
        return "uses the tables there are in the target's own database, whose data it changes,"
    return f"runs {workload.init} once" if workload.init else f"loads pgbench's own tables at scale {workload.scale}"


def _until(question: Question) -> str:
    """When the grid ends, in words."""
    if question.cycles:
        return f"for {counted(question.cycles, 'whole checkpoint cycle')}, after the load until one begins"
    precision = f"to ± {question.precision:.1%} or" if question.precision >= 0.001 else "for"
    return f"{precision} {question.budget_s:.0f} s"


def restarts_forecast(target: Target, scenarios: Sequence[Scenario]) -> str:
    """What restarting the target's servers for these scenarios costs, "" for none; NotObtained: they do not fit."""
    rolls = target.capabilities().rolls
    return rolls.forecast(scenarios) if rolls else ""


def run_command(bench: Bench, options: PriceOptions, on_progress: OnProgress) -> PriceResult:
    """Run all that these options ask on the bench; a search takes the whole budget in place of the grid, a soak too."""
    return replace(_run(bench, options, on_progress), restarts=bench.restarts)


def _run(bench: Bench, options: PriceOptions, on_progress: OnProgress) -> PriceResult:
    question = options.question(len(bench.target.observe().standbys))
    if options.tune or options.break_even:
        return _run_search(bench, question, options, on_progress)
    stopped = (run_soak if options.soak else run_price)(bench, question, on_progress)
    table = replace(price_table(bench.events), stopped_by=str(stopped))
    if options.soak:
        return PriceResult(table, stopped, parts={"soak": soak_as_json(stretches(bench.events))})
    parts: dict[str, Any] = {}
    predicted: list[str] = []
    missed: list[str] = []
    if options.predict or options.hold_out:
        points = points_of(table, bench.events)
        if options.predict:
            parts["prediction"], predicted = predictions(points, options.predict)
        if options.hold_out:
            parts["hold_out"], missed = hold_out(points)
    emit_predictions(bench, parts)
    return PriceResult(table, stopped, breakdowns(bench.events), parts, (*predicted, *missed))


def _run_search(bench: Bench, question: Question, options: PriceOptions, on_progress: OnProgress) -> PriceResult:
    """Run the search that was asked, every scenario with its share of the budget; the target is left as it was."""
    shown: list[dict[str, Any]] = []
    conclusions: list[str] = []
    limit = bench.target.capabilities().limits.clients
    most = min(filter(None, (options.max_clients, limit)), default=None)
    each = replace(question, budget_s=question.budget_s / len(question.scenarios))
    try:
        bench.prepare(question.arms)
        bench.observe()
        started = bench.now()
        for scenario in question.scenarios:
            if not bench.enter(scenario):
                conclusions.append(bench.left_out[scenario].text)
                continue
            search = SearchRun(bench, each, on_progress)
            if options.tune:
                tuned = tuned_under(search, scenario, options.tune.level, options.tune.limit_ms, most)
                answers, sentences = [tuned[0]], [tuned[1]]
            else:
                answers, sentences = break_even_under(search, scenario, question.arms[0], most)
            shown += answers
            conclusions += sentences
        stopped = StoppedBy.BUDGET if bench.now() - started >= question.budget_s else StoppedBy.DONE
    except KeyboardInterrupt:
        bench.note("interrupted; the steps of the search so far are kept")
        return PriceResult(price_table(bench.events), StoppedBy.INTERRUPTED, conclusions=(INTERRUPTED,))
    finally:
        bench.leave()
    for number, sentence in enumerate(conclusions, 1):
        bench.step("tuning" if options.tune else "break-even", {"answer": number}, UNKNOWN, sentence)
    part = {"tuning" if options.tune else "break_even": shown}
    return PriceResult(price_table(bench.events), stopped, (), part, tuple(conclusions))


def result_lines(result: PriceResult) -> list[str]:
    """Sentences of the result, the conclusion first."""
    table = result.table
    if table.not_in_effect:
        return [conclusion(table)]
    first = [conclusion(table)] if table.arms or not result.conclusions else []
    left_out = [one.text for one in table.left_out if table.arms]
    restarts = [result.restarts] if result.restarts else []
    bottlenecks = (a.bottleneck for a in result.breakdowns)
    return [*first, *result.conclusions, *left_out, *_retried(table), *bottlenecks, *restarts]


def _retried(table: PriceTable) -> list[str]:
    """How many transactions each arm that may try again had to, and how many failed in the end."""
    return [
        f"{one.arm.level} with {counted(one.arm.clients, 'client')}, {one.scenario.text}: "
        f"{one.transactions:,} transactions committed, {one.retries:,} tries again, {one.failed:,} failed."
        for one in table.arms
        if one.arm.workload.max_tries > 1
    ]


def result_as_json(result: PriceResult, record: str | None) -> dict[str, Any]:
    """The object of `--json`: the table's keys, then breakdown and what else was asked."""
    return {
        **table_as_json(result.table, record),
        "stopped_by": str(result.stopped_by),
        "conclusion": result_lines(result)[0],
        "breakdown": [breakdown_as_json(a) for a in result.breakdowns],
        **({"restarts": result.restarts} if result.restarts else {}),
        **result.parts,
    }
