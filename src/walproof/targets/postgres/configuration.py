"""Configuration of servers without a manager: ALTER SYSTEM on every member, standby names only where they are met."""

from collections.abc import Callable, Mapping

from walproof.errors import TargetError, UsageError
from walproof.model.configuration import ConfigChange, ConfigPlan
from walproof.model.guarantee import Quorum, read_standby_names
from walproof.model.ports import Clock, Notebook
from walproof.model.topology import ClusterView, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.alter_system import AutoConf

NAMES = "synchronous_standby_names"


class PostgresConfiguration:
    """Plans, applies and undoes changes on the members that `members` names."""

    def __init__(
        self,
        target: str,
        clock: Clock,
        members: Callable[[], Mapping[str, Endpoint]],
        observe: Callable[[], ClusterView],
    ) -> None:
        self._target, self._clock, self._members, self._observe = target, clock, members, observe

    def _auto(self) -> AutoConf:
        return AutoConf(self._target, self._clock, self._members())

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What ALTER SYSTEM would change on each member; UsageError where the names would hang every commit."""
        wanted = self._parameters(change)
        quorum = read_standby_names(wanted.get(NAMES) or "")
        if quorum is not None:
            self._refuse_hanging(quorum)
        auto = self._auto()
        return ConfigPlan(change, auto.differences(wanted), auto.version())

    def _parameters(self, change: ConfigChange) -> dict[str, str | None]:
        """Synchronous replication as standby names: who streams now, and the leader, so that they hold after it failed.

        A leader's own name harms nobody: it never streams from itself.
        """
        wanted = dict(change.parameters)
        sync = change.replication
        if sync is None:
            return wanted
        if sync.strict is False:
            raise UsageError("without a manager every commit waits for its standbys", "leave --mode degrading out")
        view = self._observe()
        named = tuple(
            m.name for m in view.members if (m.state == "streaming" or m.name == view.leader) and ":" not in m.name
        )
        if sync.method is None or sync.number == 0:
            return {**wanted, NAMES: ""}
        quorum = Quorum(sync.method, sync.number, named)
        # A standby names itself (application_name): a name with a quote, a comma or "*" would let others count too.
        if read_standby_names(quorum.text) != quorum or "*" in named:
            raise UsageError(
                f"one of these names cannot stand in {NAMES}: {', '.join(map(repr, named))}",
                "set cluster_name there, or application_name in its primary_conninfo",
            )
        return {**wanted, NAMES: quorum.text}

    def _refuse_hanging(self, quorum: Quorum) -> None:
        streaming = {m.name for m in self._observe().members if m.state == "streaming"}
        able = streaming if "*" in quorum.names else streaming & set(quorum.names)
        if len(able) < quorum.k:
            raise UsageError(
                f"{quorum.text} would hang every commit: {len(able)} of its standbys stream now",
                f"streaming: {', '.join(sorted(streaming)) or 'nobody'}",
            )

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """ALTER SYSTEM on every member, each journaled before, reload; TargetError when somebody changed it since."""
        auto = self._auto()
        if auto.version() != plan.version:
            raise TargetError(
                f"postgresql.auto.conf of {self._target} was changed by somebody else meanwhile", "do it once more"
            )
        auto.set(self._parameters(plan.change), journal)

    def wait(self, plan: ConfigPlan) -> None:
        """Wait until as many standbys count as the names ask; parameters were awaited while they were set."""
        wanted = self._parameters(plan.change)
        if NAMES not in wanted:
            return
        quorum = read_standby_names(wanted[NAMES] or "")

        def counts() -> bool:
            synchronous = len(self._observe().synchronous)
            return synchronous == 0 if quorum is None else synchronous >= quorum.k

        wait_for(Wait.QUORUM_NAMED, counts, self._clock, pace_s=0.2)

    def undo(self, journal: Notebook) -> list[str]:
        """Revert every pending change of this target, newest first; sentences about what others have changed since."""
        pending = [c for c in journal.pending(self._target) if c.what != "database"]
        return self._auto().undo(pending, journal.undone) if pending else []
