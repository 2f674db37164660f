"""A leader that is silent while its lease runs: what is known, when Patroni acts by itself, the one command to type.

Pure. It names no command that bets on the silence. Patroni 4.1.5: while the leader key exists only its holder obeys
`patronictl failover` (process_healthy_cluster, ha.py); one that cannot be reached has patronictl write /failover
itself (_do_failover_or_switchover, ctl.py), and once the key has ended the candidate named there takes it without
asking any other member for its WAL (manual_failover_process_no_leader)."""

from dataclasses import dataclass, replace
from datetime import datetime

from walproof.machine.quoting import pasted
from walproof.machine.untrusted import one_line
from walproof.model.advice import Timeouts
from walproof.model.leader_lease import LeaseSeen
from walproof.model.topology import ClusterView, Role

TOLD_AFTER_S = 2.0
"""A leader that hands over answers nothing for a second, as while its PostgreSQL crashes: that is no silence yet."""
_LONGEST_NAME = 100
NOT_FAILOVER = (
    "not patronictl failover: no member obeys it while the lease runs, and then its candidate leads "
    "without asking the others for their WAL"
)


@dataclass(frozen=True, slots=True)
class SilentLeader:
    """The newest look, since when the leader has been silent (seconds since the epoch), and whether its SQL answers."""

    seen: LeaseSeen
    since: float
    sql_answers: bool = False

    @property
    def member(self) -> str:
        return one_line(self.seen.leader, _LONGEST_NAME)

    @property
    def silent_s(self) -> float:
        return max(0.0, self.seen.at - self.since)

    @property
    def by(self) -> str:
        """By what it is silent."""
        return "REST" if self.sql_answers else "REST and SQL"

    @property
    def lease_left_s(self) -> float | None:
        """How long its lease can run at most if it renewed it just before it fell silent, s; None: not known."""
        return None if self.seen.ttl_s is None else max(0.0, self.since + self.seen.ttl_s - self.seen.at)

    @property
    def acts_by(self) -> float | None:
        """When Patroni elects by itself at the latest, seconds since the epoch; None: not known, or never."""
        if self.seen.ttl_s is None or self.seen.paused:
            return None
        times = Timeouts(ttl=int(self.seen.ttl_s), loop_wait=int(self.seen.loop_wait_s))
        return self.since + times.leader_failure_s

    @property
    def command(self) -> str:
        """The one command to type: it shows every two seconds who holds the key, as the DCS has it."""
        return pasted("patronictl list -W -- {scope:shell}", scope=one_line(self.seen.scope, _LONGEST_NAME))

    @property
    def text(self) -> str:
        """What is known, in clauses."""
        synchronous = ", ".join(map(one_line, self.seen.synchronous)) or "none"
        clauses = [
            f"leader {self.member} silent, lease running: no answer by {self.by} since {_clock(self.since)} "
            f"({self.silent_s:.0f} s)",
            f"synchronous standbys in /sync: {synchronous}",
            *([f"its PostgreSQL answers, and may take writes until {self.member} demotes it"] * self.sql_answers),
            self._end,
        ]
        return "; ".join(clauses)

    @property
    def _end(self) -> str:
        if self.seen.paused:
            return f"Patroni is paused and elects nobody: resume it only once PostgreSQL of {self.member} is down"
        if self.acts_by is None:
            return "when its lease ends is not known: no member tells a ttl"
        if self.seen.at > self.acts_by:
            return (
                f"Patroni did not elect by {_clock(self.acts_by)}: the lease was renewed, by {self.member}'s Patroni, "
                "which then lives, or by a new leader of etcd, once"
            )
        return (
            f"its lease runs for at most {self.lease_left_s:.0f} s more, and Patroni elects by itself "
            f"by {_clock(self.acts_by)}"
        )


def silent_leader(before: SilentLeader | None, seen: LeaseSeen | None) -> SilentLeader | None:
    """After one more look; None where the leader answers or the key is free. A look without an answer changes nothing.

    >>> first = silent_leader(None, LeaseSeen(10.0, 11.0, "main", "n1", answers=False))
    >>> silent_leader(first, LeaseSeen(12.0, 13.0, "main", "n1", answers=False)).silent_s
    3.0
    """
    if seen is None:
        return before
    if not seen.leader or seen.answers:
        return None
    same = before is not None and before.seen.leader == seen.leader
    return SilentLeader(seen, before.since if before is not None and same else seen.asked_at)


def told(silent: SilentLeader | None) -> SilentLeader | None:
    """It, once it has been silent for long enough to be told."""
    return silent if silent is not None and silent.silent_s >= TOLD_AFTER_S else None


def beside_sql(silent: SilentLeader | None, view: ClusterView) -> SilentLeader | None:
    """The same with whether its PostgreSQL answers, by the newest snapshot."""
    if silent is None:
        return None
    member = view.member(silent.seen.leader)
    return replace(silent, sql_answers=member is not None and member.role is not Role.UNKNOWN)


def _clock(at: float) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "–"  # a ttl may be a stranger's
