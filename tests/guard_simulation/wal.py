"""WAL of the simulation: timelines as branches, a leader's streams, the names that commits wait for."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Branch:
    """A timeline: where it left its parent, and the last commit acknowledged on it."""

    number: int
    parent: "Branch | None" = None
    fork: int = 0
    acknowledged: int = 0
    sealed: bool = False
    """A guard took the key from the one that led on it."""
    asked_for: bool = False
    """An operator asked for this successor while nobody led: Patroni compares no positions then."""
    unsure: bool = False
    """/sync, as Patroni had written it, was wrong when the key was taken: no guard can know."""

    def chain(self) -> Iterator[tuple["Branch", int]]:
        """This branch and those it comes from, each with the last position that belongs to it."""
        branch, end = self, 1 << 60
        while True:
            yield branch, end
            if branch.parent is None:
                return
            branch, end = branch.parent, min(end, branch.fork)

    def has(self, other: "Branch", position: int) -> bool:
        """Whether that position of another branch is on the way to this one."""
        return any(branch is other and position <= end for branch, end in self.chain())


@dataclass(slots=True)
class Sender:
    """The leader's end of a stream: what that standby has flushed, as far as its replies say."""

    flushed: int
    began: float
    busy: bool = False


@dataclass(slots=True)
class Names:
    """synchronous_standby_names: how many of which, any of them or the first. star: of all."""

    number: int = 0
    names: tuple[str, ...] = ()
    any_of: bool = True
    star: bool = False

    def __str__(self) -> str:
        if self.star:
            return f"{self.number} of *"
        kind = "ANY" if self.any_of else "FIRST"
        return f"{kind} {self.number} ({', '.join(self.names)})" if self.number else "none"
