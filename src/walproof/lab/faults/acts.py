"""What injects each fault of one member of a lab, and what undoes it."""

from collections.abc import Callable, Mapping
from functools import partial

from walproof.lab import network_links
from walproof.lab.faults import catalogue, crashes, disks, hangs, replication
from walproof.model.drill import Capability

Act = Callable[..., object]
"""Of a lab, and of what the port names: a member (and a delay in seconds), two members, or nothing more."""


ON_A_MEMBER: Mapping[Capability, tuple[Act, Act]] = {
    Capability.KILL: (crashes.kill, catalogue.recover_member),
    Capability.CRASH_RESTART: (crashes.crash_restart, lambda _blueprint, _member: None),
    Capability.PARTITION_WAL: (partial(replication.cut, fault=replication.WAL), replication.restore_stream),
    Capability.PARTITION_ACKS: (partial(replication.cut, fault=replication.ACKS), replication.restore_stream),
    Capability.PAUSE_REPLAY: (replication.pause_replay, replication.resume_replay),
    Capability.STOP: (crashes.stop, catalogue.recover_member),
    Capability.KILL_MEMBER: (crashes.kill_member, catalogue.recover_member),
    Capability.FREEZE: (crashes.freeze, catalogue.recover_member),
    Capability.HANG_POSTMASTER: (hangs.hang_postmaster, catalogue.recover_member),
    Capability.HANG_MANAGER: (hangs.hang_manager, catalogue.recover_member),
    Capability.HANG_REST: (hangs.hang_rest, catalogue.recover_member),
    Capability.POWER_CUT: (crashes.cut_power, catalogue.recover_member),
    Capability.PARTITION: (network_links.partition, network_links.recover),
    Capability.ISOLATE: (network_links.isolate, network_links.recover),
    Capability.FAILING_DISK: (partial(disks.inject, condition=disks.FAILING), disks.clear),
    Capability.FULL_DISK: (partial(disks.inject, condition=disks.FULL), disks.clear),
}
"""Faults of one member: what injects each, and what undoes it."""
