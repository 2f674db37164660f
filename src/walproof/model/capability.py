"""The names of what a target may be able to do."""

from enum import StrEnum


class Capability(StrEnum):
    """What a target may be able to do beyond being observed; faults by the names they have everywhere."""

    PRICE = "price"
    LEDGER = "ledger"
    KILL = "kill"
    STOP = "stop"
    KILL_MEMBER = "kill-member"
    KILL_CONTAINER = "kill-container"
    FREEZE = "freeze"
    POWER_CUT = "power-cut"
    PARTITION = "partition"
    ISOLATE = "isolate"
    PARTITION_ONE_WAY = "partition-one-way"
    SLOW_DISK = "slow-disk"
    FAILING_DISK = "failing-disk"
    FULL_DISK = "full-disk"
    CPU_STRESS = "cpu-stress"
    LINK_DELAY = "link-delay"
    DCS_LOSS = "dcs-loss"
    RESTART = "restart"
    SWITCHOVER = "switchover"
    SHAPE_LINKS = "shape-links"
    LIMIT_PROCESSORS = "limit-processors"
    LIMIT_MEMORY = "limit-memory"
    CONFIGURE = "configure"
    INSPECT = "inspect"
    TAKEOVER = "takeover"
