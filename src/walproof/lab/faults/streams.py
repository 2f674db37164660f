"""The replication stream of one standby cut in one direction, at PostgreSQL's port: REST and etcd go on.

By policy routing into a device that loses everything, because packet filters are not in every kernel.
"""

import json
from collections.abc import Iterator
from functools import cache

from walproof.errors import MachineError
from walproof.lab.blueprint import POSTGRES_PORT, Blueprint
from walproof.lab.faults import active
from walproof.links import devices
from walproof.links.namespaces import exists
from walproof.machine.clock import RealClock
from walproof.machine.commands import ip

WAL, ACKS = "partition-wal", "partition-acks"
_TABLE = "90"
"""Routing table of the device; the number of its rules too: they come before those of every other route."""
_PORT = {WAL: "sport", ACKS: "dport"}


@cache
def unavailable() -> str | None:
    """Why this kernel cannot, one clause; None where it can."""
    try:
        ip("rule", "show")
    except MachineError:
        return "this kernel has no policy routing (CONFIG_IP_MULTIPLE_TABLES)"
    return None


def lose_wal(blueprint: Blueprint, member: str) -> None:
    """What PostgreSQL of the others sends to the member is lost: it receives no WAL."""
    _cut(blueprint, member, WAL)


def lose_acks(blueprint: Blueprint, member: str) -> None:
    """What the member sends to PostgreSQL of the others is lost: it acknowledges nothing."""
    _cut(blueprint, member, ACKS)


def clear(blueprint: Blueprint, member: str) -> None:
    """Both directions of the member's stream as they were; nothing where neither was cut."""
    cut = {f.fault for f in active.in_effect(blueprint) if f.member == member and f.fault in _PORT}
    for fault in cut:
        for sender, receiver in _directions(blueprint, member, fault):
            _restore(blueprint, sender, receiver, _PORT[fault])
        active.remove(blueprint, fault, member)


def _directions(blueprint: Blueprint, member: str, fault: str) -> Iterator[tuple[str, str]]:
    """Who sends what is lost, and to which member."""
    for other in blueprint.members:
        if other != member:
            yield (other, member) if fault == WAL else (member, other)


def _cut(blueprint: Blueprint, member: str, fault: str) -> None:
    active.check_possible(blueprint, fault, member)
    with active.added(blueprint, active.ActiveFault(fault, member, RealClock().now())):
        for sender, receiver in _directions(blueprint, member, fault):
            space, to = blueprint.namespace(sender), blueprint.address(receiver)
            devices.lose_by_table(space, blueprint.address(sender), _TABLE)
            words = f"pref {_TABLE} to {to}/32 ipproto tcp {_PORT[fault]} {POSTGRES_PORT} lookup {_TABLE}"
            ip("rule", "add", *words.split(), namespace=space)


def _restore(blueprint: Blueprint, sender: str, receiver: str, port: str) -> None:
    space, to = blueprint.namespace(sender), blueprint.address(receiver)
    if not exists(space):
        return
    rules = json.loads(ip("-j", "rule", "show", "pref", _TABLE, namespace=space) or "[]")
    for rule in rules:
        if rule.get("dst") == to and port in rule:
            words = f"pref {_TABLE} to {to}/32 ipproto tcp {port} {POSTGRES_PORT} lookup {_TABLE}"
            ip("rule", "del", *words.split(), namespace=space)
