"""What the cluster was meant to promise: the quorum in effect, held against the one declared. Pure."""

from dataclasses import dataclass

from walproof.model.guarantee import read_standby_names
from walproof.model.topology import ClusterView


@dataclass(frozen=True, slots=True)
class Promise:
    """Standbys a commit waits for, those it was declared to wait for, and how many may still go before it waits."""

    in_effect: int
    declared: int
    left: int

    @property
    def words(self) -> str:
        """One clause for people."""
        if self.in_effect == 0:
            return (
                "remote levels are local: no standby is named" if self.declared else "no standby is declared or named"
            )
        if self.left < 0:
            return f"commits wait: {self.in_effect} needed, {-self.left} missing"
        reduced = f", declared {self.declared}" if self.in_effect < self.declared else ""
        standbys = f"{self.in_effect} standby{'s' if self.in_effect > 1 else ''}"
        return f"{standbys} before each remote commit{reduced}, {self.left} to spare"


def promise(view: ClusterView, declared: int) -> Promise:
    """What the names in effect promise now; `declared` is the quorum it should be."""
    quorum = read_standby_names(view.standby_names)
    if quorum is None:
        return Promise(0, declared, 0)
    streaming = {m.name for m in view.standbys if m.state == "streaming"}
    candidates = streaming if "*" in quorum.names else streaming & set(quorum.names)
    return Promise(quorum.k, max(declared, 0), len(candidates) - quorum.k)
