"""A record as the one object of `--json`, with the schemas of `price --json` and `prove --json`. Shapes values only."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from walproof.model.event import ClaimJudged, Described, DrillDone, Event, FigureCompared, SampleDone, SearchStep
from walproof.pricing.as_json import table_as_json
from walproof.pricing.estimates import price_table
from walproof.pricing.latency_breakdown import breakdown_as_json, breakdowns
from walproof.pricing.soak import soak_as_json, stretches
from walproof.proving.as_json import bounds_as_json, drill_as_json, finite
from walproof.proving.bounds import worst_bounds
from walproof.reporting.conclusion import conclusion
from walproof.reporting.outline import Outline, Table


def price_json(events: Sequence[Event], record: str | None) -> dict[str, Any]:
    """The object of `price --json` from events alone."""
    prices = table_as_json(price_table(events), record)
    soaked = stretches(events)
    return {
        **prices,
        "conclusion": conclusion(events),
        "breakdown": [breakdown_as_json(a) for a in breakdowns(events)],
        **({"soak": soak_as_json(soaked)} if soaked else {}),
    }


def prove_json(events: Sequence[Event], record: str | None) -> dict[str, Any]:
    """The object of `prove --json` from events alone."""
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    return {
        "record": record,
        "drills": [drill_as_json(d) for d in drills],
        "loss_bound": worst_bounds(drills),
        "bounds": bounds_as_json(drills),
        "conclusion": conclusion(events),
    }


def record_json(events: Sequence[Event], record: str, notices: Sequence[str]) -> dict[str, Any]:
    """Everything `report --json` prints: price, drills, claims, searches, environment, notices."""
    found: dict[str, Any] = {"record": record, "notices": list(notices), "conclusion": conclusion(events)}
    if any(isinstance(e, SampleDone) for e in events):
        found |= price_json(events, record)
    if any(isinstance(e, DrillDone) for e in events):
        found |= prove_json(events, record)
    steps = [e for e in events if isinstance(e, SearchStep)]
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    figures = [e for e in events if isinstance(e, FigureCompared)]
    described = next((e.description for e in reversed(events) if isinstance(e, Described)), None)
    found |= {"searches": [finite(asdict(s)) for s in steps]} if steps else {}
    found |= {"claims": [finite(asdict(c)) for c in claims]} if claims else {}
    found |= {"figures": [finite(asdict(f)) for f in figures]} if figures else {}
    found |= {"environment": asdict(described)} if described else {}
    return found


def outline_json(outline: Outline) -> dict[str, Any]:
    """A comparison: its conclusion and its tables as lists of objects, text as on the page."""
    tables = {
        block.key: [{c.name: cell.text for c, cell in zip(block.columns, cells, strict=True)} for cells in block.rows]
        for section in outline.sections
        for block in section.blocks
        if isinstance(block, Table)
    }
    return {"conclusion": " ".join(outline.sentences), **tables}
