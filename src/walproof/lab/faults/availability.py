"""Which faults are available in this lab on this machine, and why not the others; changes nothing."""

from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import disks, power, streams, volumes
from walproof.links import devices
from walproof.machine import control_groups
from walproof.model.ports import Capability

_DISK = (Capability.SLOW_DISK, Capability.FAILING_DISK, Capability.FULL_DISK)
_STREAM = (Capability.PARTITION_WAL, Capability.PARTITION_ACKS)


def why_not(blueprint: Blueprint, capability: Capability) -> str | None:
    """None where it is available now, else one clause."""
    if capability is Capability.POWER_CUT:
        return power.unavailable(blueprint)
    if capability is Capability.LIMIT_PROCESSORS:
        return control_groups.unavailable()
    if capability is Capability.SHAPE_LINKS:
        return devices.why_no_tun()
    if capability in _DISK:
        return disks.unavailable()
    if capability in _STREAM:
        return streams.unavailable()
    return None


def reasons(blueprint: Blueprint | None) -> dict[Capability, str | None]:
    """The reason against every capability; without a lab, what this machine allows a lab to have."""
    if blueprint is not None:
        return {capability: why_not(blueprint, capability) for capability in Capability}
    return {
        Capability.POWER_CUT: volumes.unavailable(),
        Capability.LIMIT_PROCESSORS: control_groups.unavailable(),
        **dict.fromkeys(_DISK, disks.unavailable()),
        **dict.fromkeys(_STREAM, streams.unavailable()),
    }
