"""What can be priced and proved, one folder a target; and what each folder states of itself (`TYPE`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from walproof.model.ports import Target


class Rights(Protocol):
    """What a target must be allowed to do, for each of its uses."""

    def role(self, uses: Sequence[str]) -> str:
        """The least that these uses need, as text to paste."""

    def missing(self, uses: Sequence[str]) -> Sequence[str]:
        """What this user may not do, a verb and a kind of object each; an Error when that cannot be asked."""

    def role_of_missing(self, uses: Sequence[str]) -> str:
        """As `role`, of what is missing alone."""


@dataclass(frozen=True, slots=True)
class TargetType:
    """A kind of target: whether an address (the text of --target) means it, and how it is opened."""

    name: str
    accepts: Callable[[str], bool]
    open: Callable[[str], Target]
    """TargetError when it does not answer, UsageError when the address is not valid."""
    external: bool = True
    unasked: Callable[[str], Target] | None = None
    """As `open`, of a cluster that need not answer; None where nothing of one that does not answer can be undone."""
    rights: Callable[[str | None], Rights] | None = None
    """The rights it needs, of the cluster of an address (None: of any); None where no manager asks for any."""
