"""The one to three plain sentences that a record comes down to. Words around what pricing and proving found."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from walproof.model.event import ClaimJudged, DrillDone, Event, SampleDone, SearchStep
from walproof.model.guarantee import Level
from walproof.model.verdict import Drill, Verdict
from walproof.pricing.conclusion import conclusion as price_sentence
from walproof.pricing.estimates import PriceTable, price_table
from walproof.proving.verdicts import bounds
from walproof.reporting.wording import percent, seconds, whole


def sentences(events: Sequence[Event], table: PriceTable | None = None) -> tuple[str, ...]:
    """What it costs, what was lost, how long it took: one to three sentences. `table` saves computing it again."""
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    said: list[str] = []
    if any(isinstance(e, SampleDone) for e in events):
        priced = table or price_table(events)
        sought = () if priced.arms else search_sentences(events)
        said += sought or (price_sentence(priced),)
    if drills:
        said.append(loss_sentence(drills))
        outage = outage_sentence(drills)
        if outage:
            said.append(outage)
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    if claims:
        said = [claims_sentence(claims), *said[:2]]
    return tuple(said) or ("Nothing was measured and nothing was broken, so nothing can be said.",)


def conclusion(events: Sequence[Event]) -> str:
    """The conclusion as one text."""
    return " ".join(sentences(events))


def search_sentences(events: Sequence[Event]) -> tuple[str, ...]:
    """What searches came to, at most three; how far they went when they were ended before; none without a search."""
    steps = [e for e in events if isinstance(e, SearchStep)]
    answers = {(s.search, s.tried["answer"]): s.conclusion for s in steps if "answer" in s.tried}
    if answers or not steps:
        return tuple(answers.values())[:3]
    names = " and ".join(dict.fromkeys(s.search for s in steps))
    return (f"A search ({names}) took {len(steps)} steps and came to no end.",)


def loss_sentence(drills: Sequence[Drill]) -> str:
    """Which levels lost acknowledged commits, which held, and how much that proves."""
    decided = [d for d in drills if d.verdict in (Verdict.HELD, Verdict.BROKEN)]
    if not decided:
        return f"None of the {len(drills)} drills could be decided."
    levels = [level for level in Level if any(d.level is level for d in decided)]
    bound = bounds(decided)
    lost, held, wrong = [], [], []
    for level in levels:
        mine = [d for d in decided if d.level is level]
        losing = [d for d in mine if d.findings.lost]
        if losing:
            count = sum(d.findings.lost for d in losing)
            words = "acknowledged commit" if count == 1 else "acknowledged commits"
            aside = _promise(losing)
            lost.append(f"{level} lost {whole(count)} {words} in {len(losing)} of {_drills(len(mine))}{aside}")
        elif any(d.verdict is Verdict.BROKEN for d in mine):
            wrong.append(f"{level} broke in another way")
        else:
            held.append(f"{level} lost none in {_drills(len(mine))} (loss probability under {percent(bound[level])})")
    undecided = len(drills) - len(decided)
    tail = [f"{undecided} more could not be decided"] if undecided else []
    said = "; ".join([*lost, *wrong, *held, *tail])
    return f"{said[:1].upper()}{said[1:]}."


def _promise(losing: Sequence[Drill]) -> str:
    """Whether what was lost had been promised, where that is known."""
    if any(d.promised for d in losing):
        return ", against its promise"
    return ", which it never promised to keep" if all(d.promised is False for d in losing) else ""


def outage_sentence(drills: Sequence[Drill]) -> str:
    """How long writes were away, "" when it was never seen."""
    times = sorted(d.rto_s for d in drills if d.rto_s is not None and d.verdict is not Verdict.SKIPPED)
    if not times:
        return ""
    if len(times) == 1:
        return f"Writes were back after {seconds(times[0])}."
    return f"Writes were back after {seconds(median(times))} (median), {seconds(times[-1])} at worst."


def claims_sentence(claims: Sequence[ClaimJudged]) -> str:
    """How many of the papers' claims were reproduced here."""
    count = Counter(c.verdict for c in claims)
    if len(claims) == 1:
        return f"The one published claim was {'left undecided' if count['undecided'] else claims[0].verdict} here."
    verb = "was" if count["reproduced"] == 1 else "were"
    words = [f"Of {len(claims)} published claims, {count['reproduced']} {verb} reproduced here"]
    words += [f"{count['not reproduced']} not"] if count["not reproduced"] else []
    words += [f"{count['undecided']} left undecided"] if count["undecided"] else []
    return ", ".join(words) + "."


def claims_tally(claims: Sequence[ClaimJudged]) -> str:
    """How many claims ended how: "3 reproduced, 1 undecided"."""
    count = Counter(c.verdict for c in claims)
    return ", ".join(f"{count[v]} {v}" for v in ("reproduced", "not reproduced", "undecided") if count[v])


def _drills(count: int) -> str:
    return "1 drill" if count == 1 else f"{count} drills"
