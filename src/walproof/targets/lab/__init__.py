"""The lab as a target."""

from walproof.model.ports import Target
from walproof.targets import TargetType


def _open(address: str) -> Target:
    from walproof.targets.lab.target import open_lab

    return open_lab(address.partition(":")[2] or None)


TYPE = TargetType("lab", lambda address: address.split(":")[0] == "lab", _open, external=False)
