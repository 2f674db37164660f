"""The shortest schedule that finds each mutant of by_hand.py. Written by renew_shortest.py."""

from tests.guard_simulation.patroni_keys import Times
from tests.guard_simulation.schedule import Fault, Schedule

__all__ = ["SHORTEST", "Times"]

SHORTEST = {
    'G1: a standby that has crashed is believed by its received position': Schedule(seed=1867, faults=(Fault(kind='freeze', who='n1', at=2.4), Fault(kind='freeze', who='n2', at=1.9, lasts=4.0), Fault(kind='kill', who='n3', at=2.6, lasts=0.5))),
    "G3: the old leader's lease is ended by a guard that may have been frozen": Schedule(seed=241, any_of=False, guards=2, faults=(Fault(kind='isolate', who='n1', at=2.1, lasts=1.5), Fault(kind='freeze guard', who='walproof-guard-1', at=0.0, after='walproof-guard-1 /lease/revoke asked', lasts=22.0))),
}
