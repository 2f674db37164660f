"""A lab raised for one command and ended with it, also after an error or Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from walproof.lab.clock import RealClock
from walproof.lab.designing import LabOrder, design
from walproof.lab.raising import raised
from walproof.targets.lab import LabTarget


@contextmanager
def own_lab(order: LabOrder, say: Callable[[str], None]) -> Iterator[LabTarget]:
    """The target of a new lab; MachineTrouble when one of that name is up already, which is left alone."""
    with raised(design(order), RealClock(), say) as blueprint:
        yield LabTarget(blueprint)
