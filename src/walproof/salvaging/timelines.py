"""Timelines of a server's history, and which part of the old one's the new one has not. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from walproof.model.units import lsn_text


@dataclass(frozen=True, slots=True)
class Span:
    """WAL of one timeline, from a position up to another; None is its end. Positions in bytes."""

    timeline: int
    start: int
    end: int | None = None


def position(text: str) -> int:
    """A WAL position in bytes; ValueError for what is none."""
    match = re.fullmatch(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no WAL position")
    return int(match[1], 16) << 32 | int(match[2], 16)


def read_history(timeline: int, text: str) -> tuple[Span, ...]:
    """The spans of a timeline's history file, its own last; ValueError for what PostgreSQL would not read either."""
    spans, start, before = list[Span](), 0, 0
    for words in filter(None, (line.partition("#")[0].split() for line in text.splitlines())):
        number = int(words[0]) if words[0].isdecimal() and len(words) > 1 else 0
        if not before < number < timeline or (end := position(words[1])) < start:
            raise ValueError(f"the history of timeline {timeline} is not in order at {words[0][:20]!r}")
        spans.append(Span(number, start, end))
        start, before = end, number
    return (*spans, Span(timeline, start))


def history_text(spans: Sequence[Span]) -> str:
    """The history file of the last one's timeline."""
    return "".join(f"{one.timeline}\t{lsn_text(one.end or 0)}\twalproof\n" for one in spans[:-1])


def since(spans: Sequence[Span], start: int) -> tuple[Span, ...]:
    """What a history has from a position on."""
    return tuple(replace(one, start=max(one.start, start)) for one in spans if one.end is None or one.end > start)


def lost_spans(old: Sequence[Span], new: Sequence[Span]) -> tuple[Span, ...]:
    """WAL that the old history has and the new has not; () when the old history is a part of the new one.

    The fork is where pg_rewind finds it: on the last timeline both have, at the earlier of its two ends
    (findCommonAncestorTimeline in pg_rewind.c). ValueError when they share no timeline.
    """
    pairs = list(zip(old, new, strict=False))
    alike = [(mine.timeline, mine.start) == (theirs.timeline, theirs.start) for mine, theirs in pairs]
    common = (alike.index(False) if False in alike else len(alike)) - 1
    if common < 0:
        raise ValueError("the two histories share no timeline")
    ends = [span.end for span in pairs[common] if span.end is not None]
    if not ends or (pairs[common][1].end is None and common == len(old) - 1):
        return ()
    rest = (Span(old[common].timeline, min(ends), old[common].end), *old[common + 1 :])
    return tuple(span for span in rest if span.end is None or span.end > span.start)


def segment(timeline: int, number: int, size: int) -> str:
    """The file name of a WAL segment, by its number counted from the first."""
    return f"{timeline:08X}{number // ((1 << 32) // size):08X}{number % ((1 << 32) // size):08X}"


def segment_start(name: str, size: int) -> int:
    """The position of a segment's first byte, by its name."""
    return int(name[8:16], 16) << 32 | int(name[16:], 16) * size
