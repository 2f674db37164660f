"""The shortest schedule that finds each mutant of by_hand.py. Written by renew_shortest.py."""

from tests.guard_simulation.patroni_keys import Times
from tests.guard_simulation.schedule import Fault, Schedule

__all__ = ["SHORTEST", "Times"]

SHORTEST = {
    "G1: a standby that has crashed is believed by its received position": Schedule(
        seed=1867,
        faults=(
            Fault(kind="freeze", who="n1", at=2.4),
            Fault(kind="freeze", who="n2", at=1.9, lasts=4.0),
            Fault(kind="kill", who="n3", at=2.6, lasts=0.5),
        ),
    ),
}
