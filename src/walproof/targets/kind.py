"""What a folder under targets/ states of itself, so that `choose` finds it."""

from collections.abc import Callable
from dataclasses import dataclass

from walproof.model.ports import Target


@dataclass(frozen=True, slots=True)
class TargetType:
    """A kind of target: whether an address (the text of --target) means it, and how it is opened."""

    name: str
    accepts: Callable[[str], bool]
    open: Callable[[str], Target]
    """TargetError when it does not answer, UsageError when the address is not valid."""
    external: bool = True
