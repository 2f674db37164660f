"""When to stop measuring: by precision, or by budget. Compares widths; knows numbers only."""

from enum import StrEnum

from walproof.estimating.intervals import FEWEST_BLOCKS
from walproof.model.estimate import Estimate


class StoppedBy(StrEnum):
    """Why a run ended."""

    PRECISION = "precision"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    DONE = "done"
    CYCLES = "whole checkpoint cycles"


def narrow(ratio: Estimate, blocks: int, precision: float, fewest: int = FEWEST_BLOCKS) -> bool:
    """Whether a ratio's interval is within ± precision of its value (a share), on enough blocks to trust its width.

    >>> narrow(Estimate(0.8, 0.79, 0.81), 30, 0.03), narrow(Estimate(0.8, 0.79, 0.81), 3, 0.03)
    (True, False)
    """
    return blocks >= fewest and ratio.half_width <= precision * ratio.value
