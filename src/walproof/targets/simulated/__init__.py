"""A simulated cluster on a virtual clock as a target."""

from walproof.model.ports import Target
from walproof.targets import TargetType


def _open(address: str) -> Target:
    from walproof.targets.simulated.target import simulated

    return simulated(address)


TYPE = TargetType("simulated", lambda address: address.split("?")[0] == "sim", _open, external=False)
