"""Break-even, tuning and prediction as a price command asks for them: run, put in sentences and in JSON-ready parts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from walproof.errors import TargetError
from walproof.estimating.stopping import StoppedBy
from walproof.model.estimate import Estimate
from walproof.model.event import Event, SearchStep
from walproof.model.guarantee import QuorumKind, level, read_standby_names
from walproof.model.plan import Scenario
from walproof.model.topology import Route
from walproof.model.units import duration_s
from walproof.pricing import breakeven, prediction, tuning
from walproof.pricing.answer import Answer
from walproof.pricing.as_json import interval, number
from walproof.pricing.bench import Bench, Tell
from walproof.pricing.breakeven import MOST_CLIENTS, Found
from walproof.pricing.design import Question
from walproof.pricing.estimates import PriceTable, price_table
from walproof.pricing.latency_breakdown import round_trip_ms
from walproof.pricing.prediction import Point
from walproof.pricing.question import Words, predictions_of, whole
from walproof.pricing.seek import Search, find_break_even, find_tuned

RAN_OUT = "{}: the budget ran out before the search ended; its steps are in the record, a larger --budget finishes it."
INTERRUPTED = "The search was interrupted: its steps so far are in the record, and --resume goes on with it."
Parts = tuple[tuple[tuple[str, Any], ...], tuple[str, ...]]


def searched(bench: Bench, question: Question, words: Words, tell: Tell) -> Answer:
    """Run the search that was asked; the target is left as it was, whatever happens."""
    parts: Parts = ((), ())
    stopped = StoppedBy.DONE
    try:
        bench.prepare(question.arms)
        bench.look()
        begun = bench.now()
        parts = _tuned(bench, question, words, tell) if words.get("tune") else _edges(bench, question, words, tell)
        if bench.now() - begun >= question.budget_s:
            stopped = StoppedBy.BUDGET
    except KeyboardInterrupt:
        bench.note("interrupted; the steps of the search so far are kept")
        stopped, parts = StoppedBy.INTERRUPTED, ((), (INTERRUPTED,))
    finally:
        bench.leave()
    return Answer(price_table(bench.events), stopped, (), *parts)


def _edges(bench: Bench, question: Question, words: Words, tell: Tell) -> Parts:
    most = MOST_CLIENTS if words.get("max_clients") is None else whole(words["max_clients"], "cap on clients")
    each = replace(question, budget_s=question.budget_s / len(question.scenarios))
    shown: list[dict[str, Any]] = []
    sentences: list[str] = []
    for setting in question.scenarios:
        edges, top = find_break_even(Search(bench, each, tell), setting, question.arms[0], most)
        where = f"{setting.text}: " if len(question.scenarios) > 1 else ""
        for one, found in edges.items():
            shown.append({"setting": setting.text, "level": str(one), "peak_clients": top, **_edge(found)})
            said = breakeven.sentence(found, question.baseline) if found else RAN_OUT.format(one)
            sentences.append(where + said)
    return (("break_even", shown),), tuple(sentences)


def _edge(found: Found | None) -> dict[str, Any]:
    """What is known of one level's break-even; "decided" is false when the budget ran out first."""
    if found is None:
        return {"decided": False, "clients": None, "below": None, "ratio": None, "best_clients": None}
    return {
        "decided": True,
        "clients": found.clients,
        "below": found.below,
        "ratio": interval(found.ratio),
        "best_clients": found.best_clients,
    }


def _tuned(bench: Bench, question: Question, words: Words, tell: Tell) -> Parts:
    limit_ms = 1000 * duration_s(str(words["limit"]))
    most = tuning.MOST_CLIENTS if words.get("max_clients") is None else whole(words["max_clients"], "cap on clients")
    shown, sentences = [], []
    for setting in question.scenarios:
        each = replace(question, budget_s=question.budget_s / len(question.scenarios))
        space = tuning.Space(
            base=replace(question.arms[0], label=""),
            level=level(str(words.get("level") or "on")),
            baseline=question.baseline,
            most_clients=most,
            quorum_open=_quorum_open(bench),
            pooled=_has_pool(bench),
            outer=setting,
        )
        tuned, ratio, pairs, score = find_tuned(Search(bench, each, tell), space, limit_ms)
        within = score.p95_ms <= limit_ms
        shown.append(
            {
                "setting": setting.text,
                "level": str(space.level),
                "limit_ms": limit_ms,
                "tuned": _contestant(tuned.best),
                "tuned_baseline": _contestant(tuned.best_local),
                "tps": number(score.tps),
                "p95_ms": number(score.p95_ms),
                "within_limit": within,
                "ratio": interval(ratio),
                "pairs": pairs,
            }
        )
        sentences.append(_tuned_sentence(tuned, ratio, score, limit_ms))
    return (("tuning", shown),), tuple(sentences)


def _quorum_open(bench: Bench) -> bool:
    """Whether waiting for any one of several standbys would be something else than what is in effect."""
    view = bench.target.observe()
    now = read_standby_names(view.standby_names)
    return len(view.standbys) >= 2 and (now is None or (now.kind, now.k) != (QuorumKind.ANY, 1))


def _has_pool(bench: Bench) -> bool:
    try:
        bench.target.endpoint(Route.PGBOUNCER)
    except TargetError:
        return False
    return True


def _contestant(one: tuning.Contestant) -> dict[str, Any]:
    return {
        "level": str(one.arm.level),
        "clients": one.arm.clients,
        "route": str(one.arm.route),
        "pool": one.arm.pool,
        "setting": one.setting.text,
        "parameters": dict(one.setting.parameters),
    }


def _tuned_sentence(tuned: tuning.Tuned, ratio: Estimate, score: tuning.Score, limit_ms: float) -> str:
    held = "within" if score.p95_ms <= limit_ms else "over"
    return (
        f"Tuned {tuned.best.arm.level} reaches {ratio.value:.1%} of tuned {tuned.best_local.arm.level} "
        f"(95 % interval {ratio.low:.3f}–{ratio.high:.3f}): {score.tps:.0f} tps, p95 {score.p95_ms:.2f} ms, {held} the "
        f"limit of {limit_ms:g} ms, with {tuning.words(tuned.best)}; against {tuning.words(tuned.best_local)}."
    )


def points_of(table: PriceTable, events: Sequence[Event]) -> dict[Scenario, list[Point]]:
    """Closed-loop points by setting without its round trip; the round trip is the measured one where there is one."""
    points: dict[Scenario, list[Point]] = {}
    for price in table.arms:
        if price.arm.rate is None and not price.arm.mix and not price.arm.label and price.tps.value > 0:
            measured = round_trip_ms(events, price.setting)
            rtt_ms = price.setting.rtt_ms or 0.0 if measured is None else measured
            outer = replace(price.setting, rtt_ms=None)
            points.setdefault(outer, []).append(Point(price.arm.level, price.arm.clients, rtt_ms, price.tps.value))
    return points


def predicted(table: PriceTable, events: Sequence[Event], words: Words) -> Parts:
    """Predictions and the error on held-out points, as asked; nothing when neither is."""
    wanted = predictions_of(words.get("predict"))
    if not wanted and not words.get("hold_out"):
        return (), ()
    parts: list[tuple[str, Any]] = []
    sentences: list[str] = []
    by_outer = points_of(table, events)
    if wanted:
        parts.append(("prediction", _predictions(by_outer, wanted)))
        sentences += [_predicted_sentence(one) for one in parts[-1][1]]
    if words.get("hold_out"):
        misses = [miss for points in by_outer.values() for miss in prediction.held_out(points)]
        error = prediction.median_error(misses)
        inside = sum(m.predicted.covers(m.point.tps) for m in misses)
        parts.append(("hold_out", {"median_error": number(error), "misses": [_miss(m) for m in misses]}))
        if not math.isnan(error):
            sentences.append(
                f"On {len(misses)} points it was not shown, the prediction is off by {error:.1%} in the median; "
                f"{inside} lie within their interval."
            )
    return tuple(parts), tuple(sentences)


def _predictions(
    by_outer: dict[Scenario, list[Point]], wanted: Sequence[tuple[int, float | None]]
) -> list[dict[str, Any]]:
    shown = []
    for outer, points in by_outer.items():
        for one in dict.fromkeys(p.level for p in points):
            mine = [p for p in points if p.level is one]
            if len(mine) < prediction.FEWEST_POINTS:
                continue
            model = prediction.fit(mine)
            for clients, rtt_ms in wanted:
                trip = min(p.rtt_ms for p in mine) if rtt_ms is None else rtt_ms
                tps = interval(prediction.predict(model, clients, trip))
                where = {"setting": outer.text, "level": str(one), "clients": clients, "rtt_ms": trip}
                shown.append({**where, "tps": tps})
    return shown


def _predicted_sentence(one: dict[str, Any]) -> str:
    tps = one["tps"]
    where = f"{one['level']} with {one['clients']} clients at a round trip of {one['rtt_ms']:.3g} ms"
    return f"Predicted: {where}: {tps['value']:.0f} tps, 95 % interval {tps['low']:.0f}–{tps['high']:.0f}."


def _miss(miss: prediction.Miss) -> dict[str, Any]:
    return {
        "level": str(miss.point.level),
        "clients": miss.point.clients,
        "rtt_ms": number(miss.point.rtt_ms),
        "measured_tps": number(miss.point.tps),
        "predicted_tps": interval(miss.predicted),
        "error": number(miss.error),
    }


def prediction_steps(parts: Sequence[tuple[str, Any]], at: float) -> list[SearchStep]:
    """Predictions and held-out points as events, so that a report need not fit again what took seconds."""
    found = dict(parts)
    held_out = found.get("hold_out", {}).get("misses", [])
    made = [("hold-out", miss, miss["predicted_tps"], f"off by {miss['error'] or 0:.1%}") for miss in held_out]
    made += [("prediction", one, one["tps"], "predicted, not measured") for one in found.get("prediction", [])]
    steps = []
    for search, one, tps, said in made:
        low, value, high = (math.nan if tps[k] is None else float(tps[k]) for k in ("low", "value", "high"))
        tried = {k: one[k] for k in ("setting", "level", "clients", "rtt_ms", "measured_tps") if k in one}
        steps.append(SearchStep(at, search, tried, value, low, high, said))
    return steps
