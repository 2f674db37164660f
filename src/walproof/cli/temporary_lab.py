"""A lab raised for one command and ended with it, also after an error or Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from walproof.lab.create import temporary_lab
from walproof.lab.design import LabOrder, design
from walproof.machine.clock import RealClock
from walproof.targets.lab.target import LabTarget


@contextmanager
def own_lab(order: LabOrder, say: Callable[[str], None]) -> Iterator[LabTarget]:
    """The target of a new lab; MachineError when one of that name is up already, which is left alone."""
    with temporary_lab(design(order), RealClock(), say) as blueprint:
        yield LabTarget(blueprint)
