"""Faults that hang one part of a member while the rest goes on: its postmaster, its Patroni, its REST API. With undo.

Patroni's REST runs in threads of Patroni, which no signal stops alone: answers from its port are lost instead, by
policy routing. Its clients wait as for a REST that hangs; its HA loop and the DCS see nothing of it."""

import os
import signal
from collections.abc import Callable
from functools import partial

from walproof.errors import UsageError
from walproof.lab import members
from walproof.lab.blueprint import REST_PORT, Blueprint
from walproof.lab.faults import active
from walproof.lab.faults.replication import stream_cuts_unavailable
from walproof.links.devices import exists, lose_by_table
from walproof.machine.programs import ip
from walproof.model.drill import Capability

POSTMASTER, MANAGER, REST = Capability.HANG_POSTMASTER, Capability.HANG_MANAGER, Capability.HANG_REST
_TABLE = "91"
"""Routing table of the device that loses packets, and the number of the rule that leads there."""


def hang_postmaster(blueprint: Blueprint, member: str) -> None:
    """SIGSTOP to the postmaster alone: sessions go on, new connections are not answered."""
    _stop(blueprint, member, POSTMASTER, partial(members.postmaster, blueprint, member))


def hang_manager(blueprint: Blueprint, member: str) -> None:
    """SIGSTOP to Patroni alone: PostgreSQL goes on, and nobody renews its leader lock."""
    _stop(blueprint, member, MANAGER, partial(members.program_pid, blueprint, member, "patroni"))


def hang_rest(blueprint: Blueprint, member: str) -> None:
    """Every answer from the port of Patroni's REST is lost on its way out of the member."""
    active.check_possible(blueprint, REST, member)
    space = blueprint.namespace(member)
    with active.added(blueprint, REST, member):
        lose_by_table(space, blueprint.address(member), _TABLE)
        _rule(space, "add")


def answer(blueprint: Blueprint, member: str) -> None:
    """REST answers again; nothing where it did. A process that was stopped goes on with all of its member."""
    space = blueprint.namespace(member)
    listed = any((f.fault, f.member) == (REST, member) for f in active.in_effect(blueprint))
    able = listed or stream_cuts_unavailable() is None
    if able and exists(space) and "sport" in ip("rule", "show", "pref", _TABLE, namespace=space):
        _rule(space, "del")
    for fault in (POSTMASTER, MANAGER, REST):
        active.remove(blueprint, fault, member)


def _rule(space: str, verb: str) -> None:
    ip("rule", verb, "pref", _TABLE, *f"ipproto tcp sport {REST_PORT} lookup {_TABLE}".split(), namespace=space)


def _stop(blueprint: Blueprint, member: str, fault: Capability, find: Callable[[], int | None]) -> None:
    active.check_possible(blueprint, fault, member)
    pid = find()
    if pid is None:
        raise UsageError(f"what {fault} stops does not run on {member}", "walproof lab status")
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        raise UsageError(f"what {fault} stops has just ended on {member}", "walproof lab status") from None
    try:
        # The descriptor holds the process, not its number: found again under it, no other can have taken it.
        if find() != pid:
            raise UsageError(f"what {fault} stops has just ended on {member}", "walproof lab status")
        with active.added(blueprint, fault, member):
            signal.pidfd_send_signal(process, signal.SIGSTOP)
    finally:
        os.close(process)
