"""Which faults this lab on this machine can have, and why not the others; tries, changes nothing."""

from walproof.lab import cpu_limits
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import disks, power, volumes
from walproof.model.ports import Capability

_DISK = (Capability.SLOW_DISK, Capability.FAILING_DISK, Capability.FULL_DISK)


def why_not(blueprint: Blueprint, capability: Capability) -> str | None:
    """None where the lab can do it now, else one clause."""
    if capability is Capability.POWER_CUT:
        return power.unavailable(blueprint)
    if capability is Capability.LIMIT_PROCESSORS:
        return cpu_limits.unavailable()
    if capability in _DISK:
        return disks.unavailable()
    return None


def reasons(blueprint: Blueprint | None) -> dict[Capability, str | None]:
    """The reason against every capability; without a lab, what this machine allows a lab to have."""
    if blueprint is not None:
        return {capability: why_not(blueprint, capability) for capability in Capability}
    return {
        Capability.POWER_CUT: volumes.unavailable(),
        Capability.LIMIT_PROCESSORS: cpu_limits.unavailable(),
        **dict.fromkeys(_DISK, disks.unavailable()),
    }
