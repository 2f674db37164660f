"""Pitfall K3: ALTER SYSTEM overrides what the operator writes. The setting is journaled before, and reset."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from walproof.errors import TargetError
from walproof.model.pitfall import Finding
from walproof.model.ports import Notebook
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg.api import ApiError
from walproof.targets.cnpg.faults import Instances

ALTERED = "cnpg alter system"
"""What the journal calls it; its name is the member's."""
_NAMES = "SHOW synchronous_standby_names"
_SET = "ALTER SYSTEM SET synchronous_standby_names = ''"
_RESET = "ALTER SYSTEM RESET synchronous_standby_names"
_RELOAD = "SELECT pg_reload_conf()"
_ALREADY = (
    "SELECT count(*) FROM pg_file_settings"
    " WHERE name = 'synchronous_standby_names' AND sourcefile LIKE '%postgresql.auto.conf'"
)


@dataclass(frozen=True, slots=True)
class AlterSystem:
    """Of one Cluster's members."""

    instances: Instances

    def overrides(self, primary: str, watched_s: float) -> Finding:
        """K3: names emptied by ALTER SYSTEM stay so for `watched_s`: commits at remote levels are local meanwhile."""
        run, ask = self.instances, partial(self.instances.ask, primary)
        before = ask(_NAMES)
        if not before:
            raise TargetError("no standby is named: there is nothing to override", "see walproof doctor")
        if ask(_ALREADY) not in ("", "0"):
            raise TargetError(
                "ALTER SYSTEM sets synchronous_standby_names already", f"in {primary}, as superuser: {_RESET}"
            )
        with ExitStack() as stack:
            stack.callback(self.reset, primary)
            self._noted(primary)
            try:
                ask(_SET)
            except TargetError as refused:
                return Finding(False, f"ALTER SYSTEM is not allowed (enableAlterSystem): {refused.message}")
            ask(_RELOAD)
            wait_for(Wait.SETTING_IN_EFFECT, lambda: not ask(_NAMES), run.clock)
            began = run.clock.now()
            while not (names := ask(_NAMES)) and run.clock.now() - began < watched_s:
                run.clock.pause(0.2)
            lasted = run.clock.now() - began
        if names:
            return Finding(False, f"{before} was emptied by ALTER SYSTEM; {names} was in effect {lasted:.1f} s later")
        return Finding(
            True,
            f"{before} was emptied by ALTER SYSTEM and not corrected in {lasted:.0f} s: "
            f"commits at on waited for {primary} alone, while the Cluster's spec went on promising a standby",
        )

    def _noted(self, member: str) -> None:
        journal = self.instances.journal()
        if journal is not None:
            journal.note(self.instances.clock.now(), self.instances.target, ALTERED, member, before=None, after=_SET)

    def reset(self, member: str) -> None:
        """As the operator wrote it; nothing to do where ALTER SYSTEM was refused."""
        run = self.instances
        if run.ask(member, _ALREADY) not in ("", "0"):
            run.ask(member, _RESET)
            run.ask(member, _RELOAD)
        journal = run.journal()
        for change in journal.pending(run.target) if journal is not None else ():
            if journal is not None and (change.what, change.name) == (ALTERED, member):
                journal.undone(change)

    def undo_left(self, journal: Notebook) -> None:
        """What a killed run left in its journal; a member that has no pod any more has no such file of its own."""
        for change in journal.pending(self.instances.target):
            if change.what == ALTERED:
                try:
                    self.reset(change.name)
                except ApiError as wrong:
                    if wrong.code != 404:
                        raise
                journal.undone(change)
