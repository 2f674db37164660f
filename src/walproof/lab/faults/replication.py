"""Faults of one standby's replication: its stream cut in one direction, its replay paused. With their undo.

REST and etcd go on: the cut is at PostgreSQL's port, by policy routing; replay is paused again and again by a session,
because Patroni resumes it in every cycle."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial

import psutil
import psycopg

from walproof.errors import Error, MachineError, TargetError, UsageError
from walproof.lab import members
from walproof.lab.blueprint import POSTGRES_PORT, Blueprint
from walproof.lab.faults import active
from walproof.links import devices
from walproof.links.devices import exists, inside
from walproof.machine.answering import BoundedLogin, answering
from walproof.machine.clock import RealClock
from walproof.machine.programs import ip
from walproof.model.waiting import Wait, wait_for

PAUSED = "pause-replay"
_SESSION = "walproof pause-replay"
_AGAIN_AND_AGAIN = b"DO $$BEGIN LOOP PERFORM pg_wal_replay_pause(); PERFORM pg_sleep(0.002); END LOOP; END$$"
_STATE = "SELECT pg_get_wal_replay_pause_state() WHERE pg_is_in_recovery()"
_END = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s"
_RESUME = "SELECT pg_wal_replay_resume() WHERE pg_is_in_recovery()"


def pause_replay(blueprint: Blueprint, member: str) -> None:
    """No WAL is replayed from now on; UsageError where the member leads, TargetError where it does not answer."""
    active.check_possible(blueprint, PAUSED, member)
    try:
        with _connected(blueprint, member) as connection, answering(connection, 60.0):
            if connection.execute(_STATE).fetchone() is None:
                raise UsageError(f"{member} leads: it replays nothing", "walproof lab status")
            with active.added(blueprint, PAUSED, member):
                session = _connected(blueprint, member, _SESSION)
                session.pgconn.send_query(_AGAIN_AND_AGAIN)
                session.pgconn.flush()
                try:
                    paused = partial(connection.execute, _STATE)
                    wait_for(Wait.PROGRAM_READY, lambda: paused().fetchone() == ("paused",), RealClock())
                except Error:
                    _resume(connection)
                    raise
                session.close()
    except psycopg.Error as error:
        active.remove(blueprint, PAUSED, member)
        raise TargetError(f"replay of {member} cannot be paused: {error}", "walproof lab status") from None


def resume_replay(blueprint: Blueprint, member: str) -> None:
    """Replay goes on; a postmaster that was started since, or a leader, is not paused any more. WaitTimeout.

    A frozen member cannot be asked: TargetError, and its pause stays listed until it is thawed and recovered.
    """
    listed = [f for f in active.in_effect(blueprint) if f.member == member]
    paused = [f for f in listed if f.fault == PAUSED]
    if not paused:
        return
    if any(f.fault == active.FREEZE for f in listed):
        raise TargetError(f"{member} is frozen: its replay cannot be resumed", active.CLEAR)

    def resumed() -> bool:
        if _postmaster_since(blueprint, member) > (paused[0].since or 0.0):
            return True
        with suppress(psycopg.Error), _connected(blueprint, member) as connection, answering(connection):
            _resume(connection)
            return True
        return False

    wait_for(Wait.PROGRAM_READY, resumed, RealClock())
    active.remove(blueprint, PAUSED, member)


def _resume(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    connection.execute(_END, [_SESSION])
    connection.execute(_RESUME)


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
    with inside(blueprint.namespace(member)):  # even when its links are cut
        return BoundedLogin.connect(words, autocommit=True)


WAL, ACKS = "partition-wal", "partition-acks"
_TABLE = "90"
"""Routing table of the device; the number of its rules too: they come before those of every other route."""
_PORT = {WAL: "sport", ACKS: "dport"}


@cache
def stream_cuts_unavailable() -> str | None:
    """Why this kernel cannot, one clause; None where it can."""
    try:
        ip("rule", "show")
    except MachineError:
        return "this kernel has no policy routing (CONFIG_IP_MULTIPLE_TABLES)"
    return None


def restore_stream(blueprint: Blueprint, member: str) -> None:
    """Both directions of the member's stream as they were, by what the kernel has; nothing where neither was cut."""
    listed = {f.fault for f in active.in_effect(blueprint) if f.member == member}
    for fault in _PORT if stream_cuts_unavailable() is None else listed & _PORT.keys():
        for sender, receiver in _directions(blueprint, member, fault):
            _restore(blueprint, sender, receiver, fault)
        active.remove(blueprint, fault, member)


def _directions(blueprint: Blueprint, member: str, fault: str) -> Iterator[tuple[str, str]]:
    """Who sends what is lost, and to which member."""
    for other in blueprint.members:
        if other != member:
            yield (other, member) if fault == WAL else (member, other)


def cut(blueprint: Blueprint, member: str, fault: str) -> None:
    """One direction of the member's stream is lost: the WAL of the others, or what it acknowledges to them."""
    active.check_possible(blueprint, fault, member)
    with active.added(blueprint, fault, member):
        for sender, receiver in _directions(blueprint, member, fault):
            devices.lose_by_table(blueprint.namespace(sender), blueprint.address(sender), _TABLE)
            _rule(blueprint, "add", sender, receiver, fault)


def _restore(blueprint: Blueprint, sender: str, receiver: str, fault: str) -> None:
    space = blueprint.namespace(sender)
    if not exists(space):
        return
    for rule in json.loads(ip("-j", "rule", "show", "pref", _TABLE, namespace=space) or "[]"):
        if rule.get("dst") == blueprint.address(receiver) and _PORT[fault] in rule:
            _rule(blueprint, "del", sender, receiver, fault)


def _rule(blueprint: Blueprint, verb: str, sender: str, receiver: str, fault: str) -> None:
    what = f"pref {_TABLE} to {blueprint.address(receiver)}/32 ipproto tcp {_PORT[fault]} {POSTGRES_PORT}"
    ip("rule", verb, *what.split(), "lookup", _TABLE, namespace=blueprint.namespace(sender))
