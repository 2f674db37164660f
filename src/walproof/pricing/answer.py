"""What a price command found, before it is printed. A value; decides nothing."""

from dataclasses import dataclass
from typing import Any

from walproof.estimating.stopping import StoppedBy
from walproof.pricing.estimates import PriceTable
from walproof.pricing.latency_breakdown import Breakdown


@dataclass(frozen=True, slots=True)
class Answer:
    """The table, breakdowns, and what searches and predictions found: parts ready for JSON by name, and sentences."""

    table: PriceTable
    stopped_by: StoppedBy
    breakdowns: tuple[Breakdown, ...] = ()
    parts: tuple[tuple[str, Any], ...] = ()
    sentences: tuple[str, ...] = ()
