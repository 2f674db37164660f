"""What the model must catch: protocols with one condition taken away, each with a cluster that shows the loss."""

from dataclasses import dataclass, replace

from tests.guard_model.cluster import Size
from tests.guard_model.protocol import CAREFUL, HAND_OVER, RELEASE, Compare, Evidence, Protocol, Sealed

ANY_1_OF_2 = Size(2, 1, changes=0)
ANY_2_OF_3 = Size(3, 2, changes=0, guards=1, seals=1)
RELEASES_EARLY = replace(ANY_1_OF_2, releases_early=True)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One condition missing. says: a step that its shortest loss must contain, so that it is lost for this reason."""

    protocol: Protocol
    says: str
    size: Size = ANY_1_OF_2


_CHECK = {
    "no check": Mutant(Protocol(sealed=Sealed.NONE), "hands the key"),
    "n - k standbys sealed": Mutant(Protocol(sealed=Sealed.QUORUM), "hands the key"),
    "n - k standbys sealed, ANY 2 of 3": Mutant(Protocol(sealed=Sealed.QUORUM), "hands the key", ANY_2_OF_3),
    "walreceivers asked, not kept from reconnecting": Mutant(Protocol(evidence=Evidence.WALRECEIVER), "finds"),
    "walreceivers and primary_conninfo asked once": Mutant(Protocol(evidence=Evidence.ONCE), "finds"),
    "primary_conninfo empty since before the seal": Mutant(
        Protocol(evidence=Evidence.GONE), "sets primary_conninfo to a"
    ),
    "standbys keep the old leader's address": Mutant(
        Protocol(hides_leader=False, evidence=Evidence.WALRECEIVER), "finds"
    ),
    "a resumed seal, every voter taken for one that followed": Mutant(
        Protocol(resumer_knows=False), "guard 2 seals: takes guard 1's key"
    ),
    "the successor is not the one with the most WAL": Mutant(Protocol(most_wal=False), "hands the key"),
}
_KEYS = {
    "hand-over compares nothing": Mutant(Protocol(compare=Compare.NOTHING), "hands the key held by"),
    "hand-over compares the guards' common name": Mutant(
        Protocol(compare=Compare.NAME, resumes=False), "guard 1 hands the key held by guard 2"
    ),
    "the seal's lease is shorter than the ttl": Mutant(Protocol(lease_of_ttl=False), "the short lease of guard 1"),
    "/sync not written again, ANY 2 of 2": Mutant(Protocol(rewrites_sync=False), "(held by nobody", Size(2, 2)),
    "/sync not written again, FIRST 1": Mutant(
        Protocol(rewrites_sync=False), "(held by nobody", Size(2, 1, any_of=False)
    ),
    "/sync written before the leader key": Mutant(
        Protocol(lock_written_first=False), "(held by nobody", Size(2, 2, guards=1, seals=1)
    ),
    "/sync not compared": Mutant(Protocol(compares_sync=False), "compares nothing else", Size(2, 2, guards=1, seals=1)),
    "/failover not compared": Mutant(
        replace(RELEASE, compares_failover=False), "somebody writes /failover", replace(ANY_1_OF_2, operator=True)
    ),
}
_RELEASED_EARLY = {
    "the successor releases the key early, n - k + 1 sealed, ANY 2 of 3": Mutant(
        HAND_OVER, "releases the key early", replace(ANY_2_OF_3, releases_early=True)
    ),
    "the successor releases the key early, failsafe_mode on": Mutant(
        CAREFUL, "sends POST /failsafe", replace(RELEASES_EARLY, failsafe=True)
    ),
    "the successor releases the key early, an old vote is still in use": Mutant(
        replace(CAREFUL, grace=False), "releases the key early", Size(2, 1, releases_early=True, guards=1, seals=1)
    ),
}
_DELETED = {
    "the key deleted, n - k + 1 sealed, ANY 2 of 3": Mutant(
        replace(RELEASE, sealed=Sealed.QUORUM_PLUS_ONE), "releases", ANY_2_OF_3
    ),
    "the key deleted, failsafe_mode on": Mutant(RELEASE, "sends POST /failsafe", replace(ANY_1_OF_2, failsafe=True)),
    "the key deleted, an old vote is still in use": Mutant(
        replace(RELEASE, grace=False), "releases", Size(2, 1, guards=1, seals=1)
    ),
}
MUTANTS = {**_CHECK, **_KEYS, **_RELEASED_EARLY, **_DELETED}
