"""Synchronous replication now: standbys a commit waits for, declared against in effect. Pure."""

from dataclasses import dataclass

from walproof.model.guarantee import read_standby_names
from walproof.model.topology import ClusterView


@dataclass(frozen=True, slots=True)
class SyncStatus:
    """Standbys a commit waits for, standbys it should wait for, and how many may fail before commits block."""

    in_effect: int = 0
    declared: int = 0
    spare: int = 0

    @property
    def active(self) -> bool:
        """Whether commits at remote_write and above wait for a standby."""
        return self.in_effect > 0

    @property
    def text(self) -> str:
        """One clause for people."""
        if not self.active:
            missing = f", {self.declared} declared" if self.declared else ""
            return f"synchronous replication inactive: no standby is named{missing}"
        standbys = f"{self.in_effect} standby{'s' if self.in_effect > 1 else ''}"
        if self.spare < 0:
            return f"synchronous commits are blocked: {standbys} needed, {-self.spare} missing"
        reduced = f" ({self.declared} declared)" if self.in_effect < self.declared else ""
        return f"synchronous commits wait for {standbys}{reduced}; spare synchronous standbys: {self.spare}"


def sync_status(view: ClusterView, declared: int) -> SyncStatus:
    """What synchronous_standby_names on the leader asks for; `declared` is the number it should be."""
    quorum = read_standby_names(view.standby_names)
    if quorum is None:
        return SyncStatus(0, declared, 0)
    streaming = {m.name for m in view.standbys if m.state == "streaming"}
    candidates = streaming if "*" in quorum.names else streaming & set(quorum.names)
    return SyncStatus(quorum.k, declared, len(candidates) - quorum.k)
