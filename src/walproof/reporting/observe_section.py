"""What `walproof observe` saw, as sentences, tables, a picture and JSON. The numbers are estimating's."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from walproof.estimating.observed_prices import Payer, Predicted, payers, predictions
from walproof.estimating.observed_waits import OWN, UNSEEN_MS, Cause, Observation, held_up_by, observation, waited
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

TONES = dict(zip(Cause, ("local", "remote_write", "on", "remote_apply", "other"), strict=True))


def seen_of(events: Sequence[Event]) -> list[WaitsSeen]:
    """What was observed; [] in a record of another verb."""
    return [e for e in events if isinstance(e, WaitsSeen)]


def observe_sentences(seen: Sequence[WaitsSeen]) -> tuple[str, ...]:
    """What a commit waits for, what others wait behind it, and what it hangs on where none ends."""
    made = observation(seen)
    if not math.isfinite(made.commit_wait_ms.value):
        return (_hanging(seen, made),)
    if made.commits_per_s.value == 0:
        return (f"No commit that wrote ended on {made.leader} in {made.seconds:.0f} s, and no session waited for one.",)
    first = f"A commit on {made.leader} waits {interval(made.commit_wait_ms)} ms"
    locks = made.causes_ms[Cause.LOCKS]
    behind = f"Sessions wait {interval(locks)} ms more per commit for row locks of sessions that commit."
    return (f"{first}: {made.parts}." if made.parts else f"{first}.", *([behind] if locks.value >= UNSEEN_MS else []))


def _hanging(seen: Sequence[WaitsSeen], made: Observation) -> str:
    waiting = fmean(sum(g.standby + g.flush for g in s.groups) / s.polls for s in seen)
    first = f"No commit that wrote ended in {made.seconds:.0f} s, and {waiting:.1f} sessions wait"
    held = held_up_by(seen[-1], made.level)
    if held is None:
        return f"{first}: no standby of the quorum ({seen[-1].standby_names or 'none named'}) streams."
    standby, cause = held
    behind = in_bytes(standby.behind[OWN.index(cause) - 1])
    return f"{first}: {standby.name}, nearest to confirming, is {behind} behind ({cause})."


def observe_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """The sections of an observation; () without one."""
    seen = seen_of(events)
    if not seen:
        return ()
    made = observation(seen)
    figure = Figure(
        "observed-series",
        "Over time",
        "Sessions waiting, stacked by cause; commits a second; age of the oldest statement that waits for a standby. "
        "Shaded: a checkpoint ended. Red: fewer standbys stream than before.",
        (_chart(seen),),
        tuple(TONES.items()),
        _times_table(seen),
        made.caveats,
    )
    intro = (
        f"{count(made.polls)} polls in {made.seconds:.0f} s; {interval(made.commits_per_s)} commits a second that "
        "wrote. Sessions waiting on average ÷ commits a second = seconds waited per commit."
    )
    sections = [Section("observed", "What commits wait for", intro, (_causes_table(made), figure))]
    if paying := payers(seen):
        texts = tuple(f"{p.text}." for p in paying[:1] if len(paying) > 1 and p.commits_share < 0.995)
        blocks = (_payers_table(paying), *((Prose(texts),) if texts else ()))
        sections.append(Section("payers", "Who pays", "", blocks))
    if predicted := predictions(seen):
        sections.append(Section("other-levels", "What else would cost", "", (_predictions_table(predicted),)))
    return tuple(sections)


def _causes_table(made: Observation) -> Table:
    whole = sum(made.causes_ms[c].value for c in OWN)
    shares = {c: percent(made.causes_ms[c].value / whole) if 0 < whole < math.inf else "" for c in OWN}
    rows = [row(Cell(str(c), TONES[c]), interval(made.causes_ms[c]), shares[c]) for c in made.longest_first]
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
            *map(number, (p.standby_ms, p.flush_ms, p.others_behind_ms)),
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
