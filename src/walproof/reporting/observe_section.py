"""What `walproof observe` saw, as sentences, tables, a picture and JSON. The numbers are estimating's."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise, repeat
from statistics import fmean
from typing import Any

import numpy as np

from walproof.estimating.observed_prices import Payer, Predicted, payers, predictions
from walproof.estimating.observed_waits import (
    OWN,
    UNSEEN_MS,
    Cause,
    Observation,
    counting,
    held_up_by,
    observation,
    waited,
)
from walproof.model.event import Event
from walproof.model.observed_waits import WaitsSeen
from walproof.pricing.results_and_gate import number as six_digits
from walproof.reporting.outline import (
    Cell,
    Figure,
    Section,
    SeriesChart,
    SeriesLine,
    SeriesPanel,
    SeriesSlot,
    Table,
    columns,
    filled,
    row,
)
from walproof.reporting.wording import NOT_KNOWN, count, in_bytes, interval, number, percent, utc_time

TONES = dict(zip(Cause, ("local", "remote_write", "on", "remote_apply", "other"), strict=True))


def seen_of(events: Sequence[Event]) -> list[WaitsSeen]:
    """What was observed; [] in a record of another verb."""
    return [e for e in events if isinstance(e, WaitsSeen)]


def observe_sentences(seen: Sequence[WaitsSeen]) -> tuple[str, ...]:
    """What a commit waits for, what others wait behind it, who pays most; what it hangs on where none ends."""
    made = observation(seen)
    if not math.isfinite(made.commit_wait_ms.value):
        return (_hanging(seen, made),)
    if made.commits_per_s.value == 0:
        return (f"No commit that wrote ended on {made.leader} in {made.seconds:.0f} s, and no session waited for one.",)
    first = f"A commit on {made.leader} waits {interval(made.commit_wait_ms)} ms"
    locks = made.causes_ms[Cause.LOCKS]
    behind = f"Sessions wait {interval(locks)} ms more per commit for row locks of sessions that commit."
    paying = [one for one in payers(seen) if one.by == "application"]
    most = paying[:1] if len(paying) > 1 and paying[0].standby_ms > 0 else []
    said = [behind] if locks.value >= UNSEEN_MS else []
    return (f"{first}: {made.parts}." if made.parts else f"{first}.", *said, *(f"{one.text}." for one in most))


def _hanging(seen: Sequence[WaitsSeen], made: Observation) -> str:
    waiting = fmean(sum(g.standby + g.flush for g in s.groups) / s.polls for s in seen)
    what = "waits for standbys" if made.commits_per_s.value else "wrote"
    first = f"No commit that {what} ended in {made.seconds:.0f} s, and {waiting:.1f} sessions wait"
    (k, standbys), held, names = counting(seen[-1]), held_up_by(seen[-1], made.level), seen[-1].standby_names
    if made.longest_first[0] is Cause.FLUSH:
        return f"{first}, most for the local flush: look at the disk of {made.leader}."
    if len(standbys) < k:
        return f"{first}: {len(standbys)} of {k} standbys of the quorum ({names or 'none named'}) stream."
    if held is None:
        return f"{first} for standbys, none of which was behind when last looked at."
    behind = in_bytes(held[0].behind[OWN.index(held[1]) - 1])
    return f"{first}: {held[0].name}, next to confirm, is {behind} behind ({held[1]})."


def observe_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """The sections of an observation; () without one."""
    seen = seen_of(events)
    if not seen:
        return ()
    made = observation(seen)
    intro = (
        f"{count(made.polls)} polls in {made.seconds:.0f} s; {interval(made.commits_per_s)} commits a second that "
        "wrote. Sessions waiting on average ÷ commits a second = seconds waited per commit."
    )
    sections = [Section("observed", "What commits wait for", intro, (_causes_table(made), _figure(seen, made)))]
    if paying := payers(seen):
        sections.append(Section("payers", "Who pays", "", (_payers_table(paying),)))
    if predicted := predictions(seen):
        sections.append(Section("other-levels", "What else would cost", "", (_predictions_table(predicted),)))
    return tuple(sections)


def _causes_table(made: Observation) -> Table:
    whole = sum(made.causes_ms[c].value for c in OWN)
    shares = {c: percent(made.causes_ms[c].value / whole) if 0 < whole < math.inf else "" for c in OWN}
    rows = [row(Cell(str(c), TONES[c]), interval(made.causes_ms[c]), shares[c]) for c in made.longest_first]
    rows.append(row("a commit itself, in all", interval(made.commit_wait_ms), ""))
    rows.append(row(Cell(str(Cause.LOCKS), "other"), interval(made.causes_ms[Cause.LOCKS]), ""))
    rows.append(row("oldest statement seen to wait for a standby, ms", number(made.longest_ms), ""))
    rows.append(row("age of statement that 1 % of commits outlast, ms", interval(made.late_ms), ""))
    heads = columns("what is waited for", ">ms per commit (95 % CI)", ">share")
    return Table("observed", f"what a commit waits for on {made.leader}", heads, tuple(rows))


def _payers_table(paying: Sequence[Payer]) -> Table:
    rows = tuple(
        row(
            *(p.by, p.name or "(none)", *map(percent, (p.commits_share, p.waiting_share, p.wal_share))),
            *map(number, (p.standby_ms, p.flush_ms, p.others_behind_ms)),
            p.own_level,
        )
        for p in paying
    )
    heads = columns(
        "by", "name", ">commits, about", ">waiting", ">WAL", ">standby ms", ">flush ms",
        ">others behind its standby ms", "own level", fold=["name"], drop=["own level"],
    )  # fmt: skip
    title = "who pays: shares, and ms per commit of its own; statements by query_id, WAL from PostgreSQL 18 on"
    return filled(Table("payers", title, heads, rows))


def _predictions_table(predicted: Sequence[Predicted]) -> Table:
    rows = tuple(
        row(p.what, *((NOT_KNOWN,) * 2 if p.unknown else map(interval, (p.commit_wait_ms, p.throughput))), p.unknown)
        for p in predicted
    )
    heads = columns(
        "this load at", ">commit waits, ms", ">throughput, closed loop, ratio to now", "why not", line=["why not"]
    )
    return filled(Table("predicted", "what other levels, quorums and round trips would cost this load", heads, rows))


def _figure(seen: Sequence[WaitsSeen], made: Observation) -> Figure:
    """Over time, as a picture and as its numbers."""
    every, began = waited(seen), seen[0].at - seen[0].seconds
    waiting = np.transpose([every.causes[cause] / every.seconds for cause in TONES])
    rates, oldest_ms = (every.commits / every.seconds).tolist(), [s.longest_ms for s in seen]
    spans = [(s.at - s.seconds - began, s.at - began) for s in seen]
    streaming = [sorted(standby.name for standby in s.standbys if standby.state == "streaming") for s in seen]

    def line(tone: str, values: Sequence[float], weight: str = "thick") -> SeriesLine:
        return SeriesLine(tone, weight, (tuple((sum(at) / 2, one) for at, one in zip(spans, values, strict=True)),))

    stacked = np.cumsum(waiting, axis=1).T.tolist()
    panels = (
        SeriesPanel("sessions waiting", tuple(map(line, TONES.values(), stacked, repeat("area")))[::-1]),
        SeriesPanel("commits per second", (line("local", rates),)),
        SeriesPanel("oldest statement, ms", (line("on", oldest_ms),)),
    )
    texts = [f"{number(r)} commits/s, {number(w)} sessions waiting" for r, w in zip(rates, waiting.sum(1), strict=True)]
    slots = tuple(SeriesSlot(a, b, f"{a:.0f}–{b:.0f} s: {text}") for (a, b), text in zip(spans, texts, strict=True))
    shaded = tuple(span for span, one in zip(spans, seen, strict=True) if one.checkpoint)
    others = tuple(span for span, (before, now) in zip(spans[1:], pairwise(streaming), strict=True) if now != before)
    chart = SeriesChart("what commits wait for", "seconds since observing began", panels, slots, shaded, others)
    columned = zip(seen, waiting.tolist(), rates, oldest_ms, strict=True)
    rows = tuple(row(utc_time(s.at), *map(number, (*causes, *more))) for s, causes, *more in columned)
    heads = columns("until", *(f">{cause}" for cause in TONES), ">commits a second", ">oldest statement, ms")
    table = Table("observed-series", "sessions waiting on average, by cause", heads, rows, page_only=True)
    caption = (
        "Sessions waiting, stacked by cause; commits a second; age of the oldest statement that waits for a standby. "
        "Shaded: a checkpoint began (from PostgreSQL 18 on: ended). Red: standbys came or went."
    )
    return Figure("observed-series", "Over time", caption, (chart,), tuple(TONES.items()), table, made.caveats)


def observe_json(seen: Sequence[WaitsSeen]) -> dict[str, Any]:
    """The object of `observe --json`, and part of `report --json`."""
    others = {"payers": [asdict(p) for p in payers(seen)], "predictions": [asdict(p) for p in predictions(seen)]}
    whole = json.dumps({"conclusion": " ".join(observe_sentences(seen)), **asdict(observation(seen)), **others})
    rounded: dict[str, Any] = json.loads(whole, parse_float=lambda text: six_digits(float(text)))
    return rounded
