"""The one to three sentences that conclude a record, from the findings of pricing and proving."""

from collections import Counter
from collections.abc import Sequence

from walproof.model.drill import Drill, Verdict
from walproof.model.event import ClaimJudged, DrillDone, Event, SampleDone, ScenarioLeftOut, SearchStep
from walproof.model.guarantee import Level
from walproof.model.units import and_undecided, counted
from walproof.pricing.estimates import PriceTable, price_table
from walproof.pricing.results_and_gate import conclusion as price_sentence
from walproof.proving.campaign_results import back_after
from walproof.proving.loss_bounds import kind_of, worst_bounds
from walproof.reporting.observe_section import observe_sentences, seen_of
from walproof.reporting.wording import fault_name, percent


def sentences(events: Sequence[Event], table: PriceTable | None = None) -> tuple[str, ...]:
    """What it costs, what was lost, how long it took: one to three sentences. `table` saves computing it again."""
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    summary: list[str] = []
    if any(isinstance(e, SampleDone | ScenarioLeftOut) for e in events):
        priced = table or price_table(events)
        searched = () if priced.arms or priced.not_in_effect else search_sentences(events)
        summary += searched or (price_sentence(priced),)
    if drills:
        summary.append(loss_sentence(drills))
        if took := back_after(drills):
            summary.append(f"Writes were back after {took}.")
    if seen := seen_of(events):
        summary += observe_sentences(seen)
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    if claims:
        summary = [claims_sentence(claims), *summary[:2]]
    return tuple(summary) or ("Nothing was measured and no fault was injected.",)


def conclusion(events: Sequence[Event]) -> str:
    return " ".join(sentences(events))


def search_sentences(events: Sequence[Event]) -> tuple[str, ...]:
    """Results of searches, at most three; how many steps an unfinished search took; none without a search."""
    steps = [e for e in events if isinstance(e, SearchStep)]
    answers = {(s.search, s.tried["answer"]): s.conclusion for s in steps if "answer" in s.tried}
    if answers or not steps:
        return tuple(answers.values())[:3]
    names = " and ".join(dict.fromkeys(s.search for s in steps))
    return (f"A search ({names}) took {counted(len(steps), 'step')} and came to no end.",)


def loss_sentence(drills: Sequence[Drill]) -> str:
    """Which levels lost acknowledged commits, which held, and the upper bound of their loss probability.

    Where faults, victims or what was gone differ, the bound is that of the kind that is least sure.
    """
    skipped = sum(d.verdict is Verdict.SKIPPED for d in drills)
    if skipped == len(drills):
        return "Every drill was skipped." if drills[1:] else "The drill was skipped."
    undecided = sum(d.verdict is Verdict.UNDECIDED for d in drills)
    if undecided + skipped == len(drills):
        none = f"None of the {undecided} drills could be decided" if undecided > 1 else "The drill could not be decided"
        return f"{none}{_skipped(skipped)}."
    parts = [text for level in Level if (text := _of_level(level, drills))]
    sentence = "; ".join(parts) + _skipped(skipped)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _skipped(count: int) -> str:
    return f"; {count} {'was' if count == 1 else 'were'} skipped" if count else ""


def _of_level(level: Level, drills: Sequence[Drill]) -> str:
    """What a level lost, under which faults, or how sure it is that it loses nothing; "" where it was not tried."""
    of_level = [d for d in drills if d.level is level and d.verdict.decided]
    undecided = sum(d.level is level and d.verdict is Verdict.UNDECIDED for d in drills)
    left = and_undecided(undecided)
    losing = [d for d in of_level if d.findings.lost]
    if losing:
        commits = counted(sum(d.findings.lost for d in losing), "acknowledged commit")
        faults = {fault_name(d) for d in of_level}
        under = f" under {', '.join(sorted({fault_name(d) for d in losing}))}" if len(faults) > 1 else ""
        share = f"{len(losing)} of {counted(len(of_level), 'drill')}"
        return f"{level} lost {commits} in {share}{left}{under}{_guaranteed(losing)}"
    if any(d.verdict is Verdict.BROKEN for d in of_level):
        return f"{level} was broken without losing a commit{left}"
    if not of_level:
        return f"{level} could not be decided in {counted(undecided, 'drill')}" if undecided else ""
    kinds = len({kind_of(d) for d in of_level})
    least_sure = f" of the least sure of {kinds} kinds" if kinds > 1 else ""
    upper = f"P(loss), 95 % upper bound{least_sure}: {percent(worst_bounds(of_level)[level])}{left}"
    return f"{level} lost none in {counted(len(of_level), 'drill')} ({upper})"


def _guaranteed(losing: Sequence[Drill]) -> str:
    """Whether the level guarantees what was lost, by the verdicts."""
    if all(d.verdict is Verdict.EXPECTED_LOSS for d in losing):
        return " (expected loss: it does not guarantee them)"
    return ", violating its guarantee" if any(d.promised for d in losing if d.verdict is Verdict.BROKEN) else ""


def claims_sentence(claims: Sequence[ClaimJudged]) -> str:
    """How many of the papers' claims were reproduced here."""
    verdicts = Counter(c.verdict for c in claims)
    if len(claims) == 1:
        return f"The one published claim was {'left undecided' if verdicts['undecided'] else claims[0].verdict} here."
    verb = "was" if verdicts["reproduced"] == 1 else "were"
    parts = [f"Of {len(claims)} published claims, {verdicts['reproduced']} {verb} reproduced here"]
    parts += [f"{verdicts['not reproduced']} not"] if verdicts["not reproduced"] else []
    parts += [f"{verdicts['undecided']} left undecided"] if verdicts["undecided"] else []
    return ", ".join(parts) + "."


def claims_tally(claims: Sequence[ClaimJudged]) -> str:
    """How many claims have which verdict: "3 reproduced, 1 undecided"."""
    verdicts = Counter(c.verdict for c in claims)
    return ", ".join(f"{verdicts[v]} {v}" for v in ("reproduced", "not reproduced", "undecided") if verdicts[v])
