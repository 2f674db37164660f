"""The shortest schedule that finds each mutant of by_hand.py. Written by renew_shortest.py."""

from tests.guard_simulation.patroni_keys import Times
from tests.guard_simulation.schedule import Fault, Schedule

__all__ = ["SHORTEST", "Times"]

SHORTEST = {
    "G1: a standby that has crashed is believed by its received position": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5),
            Fault(kind="cut stream", who="n3", at=1.6, lasts=4.0),
            Fault(kind="crash-restart", who="n2", at=0.0, after="walproof-guard-1 says suspect", lasts=0.0),
        ),
    ),
    "G3: the old leader's lease is ended by a guard that may have been frozen": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5, lasts=6.0),
            Fault(
                kind="freeze guard",
                who="walproof-guard-1",
                at=0.0,
                after="walproof-guard-1 /lease/revoke asked",
                lasts=40.0,
            ),
        ),
    ),
    "G4: tags of voters are not asked": Schedule(
        seed=3,
        tags={"n3": {"replicatefrom": "n1"}},
        faults=(
            Fault(kind="suspect", who="n1", at=2.2, lasts=6.0),
            Fault(kind="freeze patroni", who="n1", at=2.0, lasts=3.5),
            Fault(kind="freeze patroni", who="n1", at=0.0, after="n1 has no key of its own", lasts=4.0),
        ),
    ),
    "G5: the guard takes up a seal that it has left to Patroni": Schedule(
        seed=0,
        faults=(
            Fault(kind="freeze", who="n1", at=2.5, lasts=6.0),
            Fault(kind="pause", who="cluster", at=0.0, after="walproof-guard-1 says sealed", lasts=2.0),
        ),
    ),
    "G6: whether its Patroni can lead is not asked": Schedule(
        seed=0, watchdogs=("n2",), faults=(Fault(kind="kill", who="n1", at=2.5),)
    ),
    "a lease that lasts for ever while etcd elects is a sign of life in the far future": Schedule(
        seed=75,
        due=((0, 8.0),),
        k=2,
        faults=(
            Fault(kind="isolate", who="n1", at=2.0),
            Fault(kind="elect", who="etcd", at=0.0, after="walproof-guard-1 /lease/timetolive asked", what=0.2),
        ),
    ),
    "L3: no second witness is asked": Schedule(
        seed=0,
        untouched=True,
        interval_s=20.0,
        faults=(Fault(kind="cut from", who="walproof-guard-1", at=2.5, lasts=10.0, what="n1"),),
    ),
    "L6: each try of a seal takes new leases": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5, lasts=25.0),
            Fault(
                kind="freeze guard", who="walproof-guard-1", at=0.0, after="walproof-guard-1 /kv/txn asked", lasts=3.5
            ),
        ),
    ),
    "the startup process waits at the end of all WAL it has": Schedule(
        seed=17,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5),
            Fault(kind="cut stream", who="n3", at=1.6, lasts=6.0),
            Fault(kind="crash-restart", who="n2", at=0.0, after="walproof-guard-1 says sealed", lasts=0.0),
            Fault(kind="pause replay", who="n2", at=0.2, after="walproof-guard-1 says sealed", lasts=10.0),
        ),
    ),
    "quorum + 1 voters pass": Schedule(
        seed=0,
        faults=(Fault(kind="isolate", who="n1", at=2.5), Fault(kind="freeze patroni", who="n3", at=2.4, lasts=5.0)),
    ),
    "primary_conninfo is empty": Schedule(
        seed=0, faults=(Fault(kind="kill", who="n1", at=2.5), Fault(kind="freeze patroni", who="n3", at=2.4, lasts=5.0))
    ),
    "there is no walreceiver, asked twice": Schedule(
        seed=0,
        faults=(
            Fault(kind="suspect", who="n1", at=2.5, lasts=4.0),
            Fault(kind="freeze patroni", who="n1", at=2.4, lasts=8.0),
            Fault(kind="pause replay", who="n3", at=0.3, after="walproof-guard-1 says suspect", lasts=20.0),
        ),
    ),
    "the most WAL": Schedule(
        seed=0, faults=(Fault(kind="isolate", who="n1", at=2.5), Fault(kind="cut stream", who="n2", at=1.6, lasts=4.0))
    ),
    "/sync compared": Schedule(
        seed=0,
        faults=(
            Fault(kind="kill", who="n3", at=0.2, lasts=4.0),
            Fault(kind="freeze patroni", who="n1", at=3.9, lasts=3.6),
            Fault(kind="cut from", who="walproof-guard-1", at=4.2, lasts=20.0, what="n1"),
            Fault(kind="cut stream", who="n2", at=5.8, lasts=9.0),
            Fault(
                kind="freeze guard", who="walproof-guard-1", at=0.0, after="walproof-guard-1 /kv/txn asked", lasts=1.2
            ),
        ),
    ),
    "/config compared": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5),
            Fault(
                kind="freeze guard", who="walproof-guard-1", at=0.0, after="walproof-guard-1 /kv/txn asked", lasts=1.0
            ),
            Fault(kind="pause", who="cluster", at=0.3, after="walproof-guard-1 /kv/txn asked", lasts=22.0),
        ),
    ),
    "/failover compared": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5),
            Fault(
                kind="freeze guard", who="walproof-guard-1", at=0.0, after="walproof-guard-1 /kv/txn asked", lasts=1.0
            ),
            Fault(kind="switchover", who="n1", at=0.3, after="walproof-guard-1 /kv/txn asked", lasts=0.0),
        ),
    ),
    "/sync written again": Schedule(seed=0, faults=(Fault(kind="kill", who="n1", at=2.5),)),
    "the old leader's address is removed": Schedule(seed=0, faults=(Fault(kind="kill", who="n1", at=2.5),)),
    "lease of the ttl and more, intent compared": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5, lasts=25.0),
            Fault(
                kind="freeze guard", who="walproof-guard-1", at=0.0, after="walproof-guard-1 /kv/txn asked", lasts=10.0
            ),
        ),
    ),
    "hand-over compares this seal": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5),
            Fault(
                kind="node count", who="cluster", at=0.0, after="walproof-guard-1 hand-over asked", lasts=0.0, what=2
            ),
        ),
    ),
    "hand-over with all the time of the lease": Schedule(
        seed=0,
        failsafe=True,
        guards=2,
        faults=(
            Fault(kind="cut from dcs", who="n1", at=4.0, lasts=60.0),
            Fault(kind="suspect", who="n1", at=4.2, lasts=6.0),
            Fault(kind="cut from", who="walproof-guard-1", at=4.2, lasts=80.0, what="n1"),
            Fault(kind="cut from", who="walproof-guard-2", at=4.2, lasts=80.0, what="n1"),
            Fault(kind="freeze guard", who="walproof-guard-2", at=4.1, lasts=25.2),
            Fault(kind="kill guard", who="walproof-guard-1", at=0.0, after="walproof-guard-1 says sealed"),
            Fault(kind="freeze patroni", who="n2", at=0.01, after="walproof-guard-2 says handed", lasts=0.6),
        ),
    ),
    "versions of /failover kept": Schedule(
        seed=0,
        faults=(
            Fault(kind="isolate", who="n1", at=2.5),
            Fault(kind="switchover", who="n1", at=0.0, after="walproof-guard-1 says sealed", lasts=1.0),
        ),
    ),
    "a limit on takeovers kept in etcd": Schedule(
        seed=0,
        members=4,
        faults=(
            Fault(kind="kill", who="n1", at=2.5),
            Fault(kind="kill", who="leader", at=6.0, after="walproof-guard-1 says handed"),
        ),
    ),
    "it was set before the seal": Schedule(
        seed=0,
        members=4,
        k=2,
        times=Times(ttl=30.0),
        interval_s=0.5,
        faults=(
            Fault(kind="suspect", who="n1", at=2.5, lasts=4.0),
            Fault(kind="freeze patroni", who="n1", at=2.4, lasts=3.6),
            Fault(kind="freeze patroni", who="n4", at=0.0, after="n4 is about to follow n2", lasts=40.0),
            Fault(kind="freeze patroni", who="n2", at=0.03, after="n2 about to write quorum", lasts=40.0),
            Fault(kind="suspect", who="n2", at=15.0, after="walproof-guard-1 says handed", lasts=8.0),
            Fault(kind="freeze patroni", who="n1", at=14.0, after="walproof-guard-1 says handed", lasts=10.0),
        ),
    ),
    "it streamed from this leader": Schedule(
        seed=0,
        members=4,
        k=2,
        faults=(
            Fault(kind="cut stream", who="n4", at=2.0, lasts=40.0),
            Fault(kind="kill", who="n1", at=2.2, lasts=0.3),
            Fault(kind="freeze patroni", who="n1", at=0.0, after="n1 about to write quorum", lasts=30.0),
            Fault(kind="suspect", who="n1", at=7.0, lasts=8.0),
        ),
    ),
    "leader key written before /sync": Schedule(seed=0, faults=(Fault(kind="kill", who="n1", at=2.5),)),
}
