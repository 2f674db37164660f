"""A lab raised for one command and ended with it, also after an error or Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from walproof.lab.create import temporary_lab
from walproof.lab.design import LabOrder, design
from walproof.machine.clock import RealClock
from walproof.model.ports import Target
from walproof.targets.choose import choose


@contextmanager
def own_lab(order: LabOrder, say: Callable[[str], None], made_by: str) -> Iterator[Target]:
    """The target of a new lab; MachineError when one of that name is in use, which is left alone."""
    with temporary_lab(design(order), RealClock(), say, made_by) as blueprint:
        yield choose(f"lab:{blueprint.name}")
