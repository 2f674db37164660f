"""The judge works on values: whatever it is given and whatever it finds cannot be changed afterwards."""

import inspect
from dataclasses import is_dataclass
from importlib import import_module

from tests.fixtures.tiers import each

MODULES = "campaign fault_happened gate history judge level_in_effect loss_bounds lost_commits outage verdict"


@each(MODULES.split())
def test_every_dataclass_of_the_judge_is_frozen_and_slotted(name: str) -> None:
    module = import_module(f"walproof.proving.{name}")
    own = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    values = [kind for kind in own if is_dataclass(kind)]
    assert values
    for kind in values:
        assert kind.__hash__ is not None, f"{kind} can be changed"  # what is not frozen has no hash
        assert "__slots__" in vars(kind), kind
