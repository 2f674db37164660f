"""What `walproof observe` saw, as sentences, tables, a picture and JSON. The numbers are estimating's."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from walproof.estimating.intervals import BETWEEN_RUNS, change
from walproof.estimating.observed_prices import Payer, Predicted, payers, predictions
from walproof.estimating.observed_waits import OWN, Cause, Observation, held_up_by, observation, waited
from walproof.model.estimate import Estimate
from walproof.model.event import Event
from walproof.model.observed_waits import WaitsSeen
from walproof.pricing.results_and_gate import number as six_digits
from walproof.reporting.outline import (
    Cell,
    Figure,
    Prose,
    Section,
    SeriesChart,
    SeriesLine,
    SeriesPanel,
    SeriesSlot,
    Table,
    columns,
    row,
)
from walproof.reporting.wording import NOT_KNOWN, count, in_bytes, interval, number, percent, utc_time

TONES = {
    Cause.FLUSH: "local",
    Cause.NETWORK: "remote_write",
    Cause.STANDBY_FLUSH: "on",
    Cause.REPLAY: "remote_apply",
    Cause.LOCKS: "other",
}
_UNSEEN = 0.005
"""Milliseconds below which a part of a commit is not named in the conclusion."""


def seen_of(events: Sequence[Event]) -> list[WaitsSeen]:
    """What was observed; [] in a record of another verb."""
    return [e for e in events if isinstance(e, WaitsSeen)]


def observe_sentences(seen: Sequence[WaitsSeen]) -> tuple[str, ...]:
    """What a commit waits for, what others wait behind it, and what it hangs on where none ends."""
    made = observation(seen)
    if not math.isfinite(made.commit_wait_ms.value):
        return (_hanging(seen),)
    if made.commits_per_s.value == 0:
        return (f"No commit that wrote ended on {made.leader} in {made.seconds:.0f} s, and no session waited for one.",)
    parts = [f"{made.causes_ms[c].value:.2f} ms for {c}" for c in OWN if made.causes_ms[c].value >= _UNSEEN]
    parts.sort(key=lambda part: -float(part.split(" ")[0]))
    first = f"A commit on {made.leader} waits {interval(made.commit_wait_ms)} ms"
    sentences = [f"{first}: {', '.join(parts)}." if parts else f"{first}."]
    if (locks := made.causes_ms[Cause.LOCKS]).value >= _UNSEEN:
        sentences.append(f"Sessions wait {interval(locks)} ms more per commit for row locks of sessions that commit.")
    return tuple(sentences)


def _hanging(seen: Sequence[WaitsSeen]) -> str:
    waiting = fmean(sum(g.standby + g.flush for g in s.groups) / s.polls for s in seen)
    first = f"No commit that wrote ended in {sum(s.seconds for s in seen):.0f} s, and {waiting:.1f} sessions wait"
    held = held_up_by(seen)
    if held is None:
        return f"{first}: no standby of the quorum ({seen[-1].standby_names or 'none named'}) streams."
    standby, cause = held
    stage = (Cause.NETWORK, Cause.STANDBY_FLUSH, Cause.REPLAY).index(cause)
    return f"{first}: {standby.name}, nearest to confirming, is {in_bytes(standby.behind[stage])} behind ({cause})."


def observe_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """The sections of an observation; () without one."""
    seen = seen_of(events)
    if not seen:
        return ()
    made = observation(seen)
    legend = tuple((str(cause), tone) for cause, tone in TONES.items())
    figure = Figure(
        "observed-series",
        "Over time",
        "Sessions waiting, stacked by cause; commits a second; age of the oldest statement that waits for a standby. "
        "Shaded: a checkpoint ended. Red: fewer standbys stream than before.",
        (_chart(seen),),
        legend,
        _times_table(seen),
        made.caveats,
    )
    sections = [Section("observed", "What commits wait for", _intro(made), (_causes_table(made), figure))]
    if paying := payers(seen):
        texts = tuple(f"{p.text}." for p in paying[:1] if len(paying) > 1 and p.commits_share < 0.995)
        blocks = (_payers_table(paying), *((Prose(texts),) if texts else ()))
        sections.append(Section("payers", "Who pays", "", blocks))
    if predicted := predictions(seen):
        sections.append(Section("other-levels", "What else would cost", "", (_predictions_table(predicted),)))
    return tuple(sections)


def waits_compared(names: Sequence[str], seen: Sequence[Sequence[WaitsSeen]]) -> tuple[Section, ...]:
    """Waits of several observations side by side, each compared with the first; () where fewer than two observed."""
    if sum(map(bool, seen)) < 2:
        return ()
    whole = "a commit itself, in all"
    made = [{whole: (of := observation(one)).commit_wait_ms, **of.causes_ms} if one else {} for one in seen]
    rows = []
    for name in (whole, *Cause):
        estimates = [one.get(name) for one in made]
        changes = [_change(estimates[0], one, (1 + len(Cause)) * (len(seen) - 1)) for one in estimates[1:]]
        rows.append(row(str(name), *(NOT_KNOWN if e is None else interval(e) for e in estimates), *changes))
    heads = columns("what is waited for, ms", *(f">{n}" for n in names), *(f"{n}: change" for n in names[1:]))
    intro = (
        "Milliseconds per commit. Intervals of changes hold for all comparisons at once (95 %), "
        f"and between runs of one thing a standard deviation of {percent(BETWEEN_RUNS['latency'])} is assumed."
    )
    table = Table("waits", "waits per commit", heads, tuple(rows))
    return (Section("waits", "What commits wait for, side by side", intro, (table,)),)


def _change(before: Estimate | None, after: Estimate | None, among: int) -> Cell:
    if before is None or after is None:
        return Cell("only in one", "quiet")
    factor = change(before, after, among, BETWEEN_RUNS["latency"])
    if not math.isfinite(factor.value):
        return Cell(NOT_KNOWN, "quiet")
    text = f"{factor.value - 1:+.0%} ({factor.low - 1:+.0%} to {factor.high - 1:+.0%})"
    if factor.covers(1.0):
        return Cell(f"{text}: no real difference", "quiet")
    return Cell(f"{text}: {'longer' if factor.value > 1 else 'shorter'}", "bad" if factor.value > 1 else "good")


def _intro(made: Observation) -> str:
    rate = interval(made.commits_per_s)
    return (
        f"{count(made.polls)} polls in {made.seconds:.0f} s; {rate} commits a second that wrote. "
        "Sessions waiting on average ÷ commits a second = seconds waited per commit."
    )


def _causes_table(made: Observation) -> Table:
    whole = sum(made.causes_ms[c].value for c in OWN)
    rows = [
        row(
            Cell(str(cause), TONES[cause]),
            interval(made.causes_ms[cause]),
            percent(made.causes_ms[cause].value / whole) if cause in OWN and 0 < whole < math.inf else "",
        )
        for cause in sorted(OWN, key=lambda c: -made.causes_ms[c].value)
    ]
    rows.append(row("a commit itself, in all", interval(made.commit_wait_ms), ""))
    rows.append(row(Cell(str(Cause.LOCKS), "other"), interval(made.causes_ms[Cause.LOCKS]), ""))
    rows.append(row("slowest wait seen, at least", number(made.longest_ms), ""))
    heads = columns("what is waited for", ">ms per commit (95 % CI)", ">share")
    return Table("observed", f"what a commit waits for on {made.leader}", heads, tuple(rows))


def _waiting(seen: Sequence[WaitsSeen]) -> tuple[list[list[float]], list[float]]:
    """For each stretch of time: sessions waiting, by the causes of TONES; commits a second."""
    every = waited(seen)
    causes = np.transpose([every.causes[cause] / every.seconds for cause in TONES])
    return causes.tolist(), (every.commits / every.seconds).tolist()


def _times_table(seen: Sequence[WaitsSeen]) -> Table:
    """The picture's numbers."""
    stretches = zip(seen, *_waiting(seen), strict=True)
    rows = [row(utc_time(s.at), *map(number, causes), number(r), number(s.longest_ms)) for s, causes, r in stretches]
    heads = columns("until", *(f">{cause}" for cause in TONES), ">commits a second", ">oldest wait, ms")
    return Table("observed-series", "sessions waiting on average, by cause", heads, tuple(rows), page_only=True)


def _payers_table(paying: Sequence[Payer]) -> Table:
    rows = tuple(
        row(
            *(p.by, p.name or "(none)", percent(p.commits_share), percent(p.waiting_share)),
            *(NOT_KNOWN if ms is None else number(ms) for ms in (p.standby_ms, p.flush_ms, p.others_behind_ms)),
            p.own_level,
        )
        for p in paying
    )
    heads = columns(
        "by", "name", ">commits, about", ">waiting", ">standby ms", ">flush ms", ">others behind it, ms", "own level",
        fold=["name"], drop=["own level"],
    )  # fmt: skip
    return Table("payers", "who pays: shares, and ms per commit of its own", heads, rows)


def _predictions_table(predicted: Sequence[Predicted]) -> Table:
    rows = tuple(
        row(p.what, *((NOT_KNOWN,) * 2 if p.unknown else map(interval, (p.commit_wait_ms, p.throughput))), p.unknown)
        for p in predicted
    )
    heads = columns(
        "this load at", ">commit waits, ms", ">throughput, closed loop, ratio to now", "why not", line=["why not"]
    )
    return Table("predicted", "what other levels, quorums and round trips would cost this load", heads, rows)


def _chart(seen: Sequence[WaitsSeen]) -> SeriesChart:
    start = seen[0].at - seen[0].seconds
    spans = [(one.at - one.seconds - start, one.at - start) for one in seen]
    middles = [(a + b) / 2 for a, b in spans]
    waiting, rates = _waiting(seen)
    stacked = np.cumsum(waiting, axis=1)
    lines = [_line(tone, middles, stacked[:, i].tolist()) for i, tone in enumerate(TONES.values())]
    panels = (
        SeriesPanel("sessions waiting", tuple(reversed(lines))),
        SeriesPanel("commits per second", (_line("local", middles, rates),)),
        SeriesPanel("oldest wait, ms", (_line("on", middles, [one.longest_ms for one in seen]),)),
    )
    texts = [f"{number(r)} commits/s, {number(sum(w))} sessions waiting" for w, r in zip(waiting, rates, strict=True)]
    slots = tuple(SeriesSlot(a, b, f"{a:.0f}–{b:.0f} s: {text}") for (a, b), text in zip(spans, texts, strict=True))
    shaded = tuple(span for span, one in zip(spans, seen, strict=True) if one.checkpoint)
    streaming = [sum(standby.state == "streaming" for standby in one.standbys) for one in seen]
    fewer = tuple(spans[i] for i in range(1, len(seen)) if streaming[i] < streaming[i - 1])
    return SeriesChart("what commits wait for", "seconds since observing began", panels, slots, shaded, fewer)


def _line(tone: str, xs: Sequence[float], ys: Sequence[float]) -> SeriesLine:
    return SeriesLine(tone, "thick", (tuple(zip(xs, ys, strict=True)),))


def observe_json(seen: Sequence[WaitsSeen]) -> dict[str, Any]:
    """The object of `observe --json`, and part of `report --json`."""
    others = {"payers": [asdict(p) for p in payers(seen)], "predictions": [asdict(p) for p in predictions(seen)]}
    whole = json.dumps({"conclusion": " ".join(observe_sentences(seen)), **asdict(observation(seen)), **others})
    rounded: dict[str, Any] = json.loads(whole, parse_float=lambda text: six_digits(float(text)))
    return rounded
