"""What is drawn from a seed: a Cluster, its writers and the faults that come; the same seed is always the same run."""

import random
from dataclasses import dataclass

FREEZES = ("freeze", "freeze", "freeze", "brief freeze", "none", "none")
"""What happens to the primary's PostgreSQL: frozen for good or long; for less than is suspicious; nothing."""
DISTURBANCES = (
    "switchover", "roll", "fence", "hibernate", "pause", "restore", "slow API", "API away", "network hiccup",
    "SQL hiccup", "service away", "peers cut", "manager cut", "primary isolated", "kill", "lose node", "lag",
    "standby paused", "standby unready", "delete by force", "guard frozen", "guard killed", "guard frozen at a step",
    "guard killed at a step", "standby unheard", "answer lost", "thaw", "second guard", "two of two", "lease deleted",
    "ALTER SYSTEM", "operator late", "late dying", "freeze again", "slow replay",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them: from when, for how long, on which standby, at which step of the guard (counted from 0)."""

    name: str
    at_s: float
    lasts_s: float
    standby: str
    step: int


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    freeze: str
    freeze_s: float
    frozen_for_s: float
    idle: bool
    faults: tuple[Fault, ...]

    def of(self, name: str) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.name == name)


def draw(seed: int) -> Schedule:
    """Most faults come near the freeze, so that they meet a step of the guard."""
    of = random.Random(seed)
    freeze_s = of.uniform(11.0, 14.0)
    faults = []
    for _ in range(of.choice((0, 1, 1, 2, 2, 3))):
        name = of.choice(DISTURBANCES)
        near = freeze_s + of.uniform(-4.0, 9.0)
        at_s = of.uniform(0.0, 24.0) if of.random() < 0.3 else near
        lasts_s = of.choice((1.0, 3.0, 5.0, 15.0, 100.0))
        lasts_s = of.uniform(2.5, 5.0) if name == "network hiccup" else lasts_s
        faults.append(Fault(name, max(0.0, at_s), lasts_s, of.choice(("pg-2", "pg-3")), of.randrange(3)))
    freeze = of.choice(FREEZES)
    length_s = of.choice((1.0, 1.2, 2.2) if freeze == "brief freeze" else (3.0, 8.0, 300.0))
    return Schedule(seed, freeze, freeze_s, length_s, of.random() < 0.2, tuple(faults))
