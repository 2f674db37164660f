"""Replay of one standby paused: it goes on receiving and acknowledging WAL, and shows none of it.

Patroni resumes a paused replay in every cycle (`handle_parameter_change`), so a session on the standby pauses it again
and again. Its client leaves at once; the session ends with PostgreSQL's processes, with a promotion, or by `resume`.
"""

from contextlib import suppress

import psutil
import psycopg

from walproof.errors import TargetError, UsageError
from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active
from walproof.links.namespaces import inside
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for

PAUSED = "pause-replay"
_SESSION = "walproof pause-replay"
_AGAIN_AND_AGAIN = b"DO $$BEGIN LOOP PERFORM pg_wal_replay_pause(); PERFORM pg_sleep(0.002); END LOOP; END$$"
_STATE = "SELECT pg_get_wal_replay_pause_state() WHERE pg_is_in_recovery()"
_END = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
_RESUME = "SELECT pg_wal_replay_resume() WHERE pg_is_in_recovery()"


def pause(blueprint: Blueprint, member: str) -> None:
    """No WAL is replayed from now on; UsageError where the member leads, TargetError where it does not answer."""
    active.check_possible(blueprint, PAUSED, member)
    try:
        with _connected(blueprint, member) as connection:
            if connection.execute(_STATE).fetchone() is None:
                raise UsageError(f"{member} leads: it replays nothing", "walproof lab status")
            with active.added(blueprint, active.ActiveFault(PAUSED, member, RealClock().now())):
                session = _connected(blueprint, member, _SESSION)
                session.pgconn.send_query(_AGAIN_AND_AGAIN)
                session.pgconn.flush()
                wait_for(Wait.PROGRAM_READY, lambda: connection.execute(_STATE).fetchone() == ("paused",), RealClock())
                session.close()
    except psycopg.Error as error:
        active.remove(blueprint, PAUSED, member)
        raise TargetError(f"replay of {member} cannot be paused: {error}", "walproof lab status") from None


def resume(blueprint: Blueprint, member: str) -> None:
    """Replay goes on; a postmaster that was started since, or a leader, is not paused any more. WaitTimeout.

    A frozen member cannot be asked: its pause stays listed until it is thawed and recovered.
    """
    listed = [f for f in active.in_effect(blueprint) if f.member == member]
    paused = [f for f in listed if f.fault == PAUSED]
    if not paused or any(f.fault == active.FREEZE for f in listed):
        return

    def resumed() -> bool:
        if _postmaster_since(blueprint, member) > (paused[0].since or 0.0):
            return True
        with suppress(psycopg.Error), _connected(blueprint, member) as connection:
            connection.execute(_END, [_SESSION])
            connection.execute(_RESUME)
            return True
        return False

    wait_for(Wait.PROGRAM_READY, resumed, RealClock())
    active.remove(blueprint, PAUSED, member)


def _postmaster_since(blueprint: Blueprint, member: str) -> float:
    """When it was started (seconds since the epoch); without one a later one will not be paused either."""
    pid = members.postmaster(blueprint, member)
    with suppress(psutil.Error):
        return float("inf") if pid is None else psutil.Process(pid).create_time()
    return float("inf")


def _connected(blueprint: Blueprint, member: str, name: str = "walproof") -> "psycopg.Connection[tuple[object, ...]]":
    words = blueprint.member_endpoint(member).conninfo(
        connect_timeout="2", target_session_attrs="any", application_name=name
    )
    with inside(blueprint.namespace(member)):  # whatever its links are
        return psycopg.connect(words, autocommit=True)
