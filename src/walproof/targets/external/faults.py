"""Faults of a cluster of yours: each is your command, or the manager's own restart and switchover; nothing else."""

from typing import Protocol

from walproof.errors import TargetError
from walproof.model.ports import Clock
from walproof.model.topology import ClusterView
from walproof.model.waiting import Wait, wait_for
from walproof.targets.external.target_file import TargetFile


class _Broken(Protocol):
    file: TargetFile
    clock: Clock
    harmed: list[tuple[str, str]]

    def command(self, fault: str, member: str, other: str = "") -> None: ...
    def observe(self) -> ClusterView: ...
    def leader(self) -> str: ...


def _hurt(target: _Broken, fault: str, member: str, other: str = "") -> None:
    target.harmed.append((fault, member))
    target.command(fault, member, other)


class BrokenByCommand:
    """CanBreak and CanRevive by the [faults] of a target file."""

    def kill(self: _Broken, member: str) -> None:
        """Your command kill."""
        _hurt(self, "kill", member)

    def stop(self: _Broken, member: str) -> None:
        """Your command stop."""
        _hurt(self, "stop", member)

    def kill_member(self: _Broken, member: str) -> None:
        """Your command kill-member."""
        _hurt(self, "kill-member", member)

    def freeze(self: _Broken, member: str) -> None:
        """Your command freeze."""
        _hurt(self, "freeze", member)

    def thaw(self: _Broken, member: str) -> None:
        """Your command thaw."""
        self.command("thaw", member)

    def cut_power(self: _Broken, member: str) -> None:
        """Your command cut-power."""
        _hurt(self, "cut-power", member)

    def restart(self: _Broken, member: str) -> None:
        """Your command restart."""
        self.command("restart", member)

    def lose_dcs(self: _Broken) -> None:
        """Not possible."""
        raise TargetError("walproof has no way to take your DCS away", "prove that on the lab")

    def cut(self: _Broken, member: str) -> None:
        """Your command cut."""
        _hurt(self, "cut", member)

    def isolate(self: _Broken, member: str) -> None:
        """Your command isolate."""
        _hurt(self, "isolate", member)

    def cut_one_way(self: _Broken, source: str, destination: str) -> None:
        """Not possible."""
        raise TargetError("walproof cannot cut one direction of your network", "prove that on the lab")

    def hurt_disk(self: _Broken, member: str, error: str, slow_s: float = 0.0) -> None:
        """Not possible."""
        raise TargetError("walproof does not hurt your disks", "prove that on the lab")

    def switch_over(self: _Broken, to: str | None = None) -> None:
        """Your command switch-over, run for the leader, {member2} the one to take over."""
        self.command("switch-over", self.leader(), to or "")

    def revive(self: _Broken, member: str) -> None:
        """Your command revive."""
        self.command("revive", member)

    def heal(self: _Broken) -> None:
        """Your commands thaw and heal for every member that was hurt; then wait until everybody streams."""
        while self.harmed:
            fault, member = self.harmed[-1]
            for undo in ("thaw",) if fault == "freeze" else ("heal",):
                if undo in self.file.faults:
                    self.command(undo, member)
            self.harmed.pop()

        def whole() -> bool:
            view = self.observe()
            standbys = [m for m in view.members if m.name != view.leader]
            return view.leader is not None and all(m.state == "streaming" for m in standbys)

        wait_for(Wait.CLUSTER_HEALTHY, whole, self.clock, pace_s=0.5)
