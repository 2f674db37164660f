"""What the model must catch: protocols with one condition taken away, each with a cluster that shows the loss."""

from dataclasses import dataclass

from tests.guard_model.cluster import Size
from tests.guard_model.protocol import Compare, Look, Protocol, Sealed

ANY_1_OF_2 = Size(2, 1, changes=0)
ANY_2_OF_3 = Size(3, 2, changes=0, guards=1, seals=1)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One condition missing. says: a step that its shortest loss must contain, so that it is lost for this reason."""

    protocol: Protocol
    says: str
    size: Size = ANY_1_OF_2


MUTANTS = {
    "no check before the release": Mutant(Protocol(sealed=Sealed.NONE), "releases"),
    "n - k standbys sealed": Mutant(Protocol(sealed=Sealed.QUORUM), "releases"),
    "n - k standbys sealed, ANY 2 of 3": Mutant(Protocol(sealed=Sealed.QUORUM), "releases", ANY_2_OF_3),
    "n - k + 1 standbys sealed, ANY 2 of 3": Mutant(Protocol(sealed=Sealed.QUORUM_PLUS_ONE), "releases", ANY_2_OF_3),
    "walreceivers looked at, not kept from reconnecting": Mutant(Protocol(look=Look.WALRECEIVER), "finds b sealed"),
    "walreceivers and primary_conninfo looked at once": Mutant(Protocol(look=Look.ONCE), "finds b sealed"),
    "primary_conninfo empty since before the seal": Mutant(Protocol(look=Look.GONE), "sets primary_conninfo to a"),
    "standbys keep the old leader's address": Mutant(
        Protocol(hides_leader=False, look=Look.WALRECEIVER), "finds b sealed"
    ),
    "release compares nothing": Mutant(Protocol(compare=Compare.NOTHING), "releases the key held by a"),
    "release compares the guards' common name": Mutant(
        Protocol(compare=Compare.NAME), "guard 1 releases the key held by guard 2"
    ),
    "the seal's lease is shorter than the ttl": Mutant(Protocol(lease_of_ttl=False), "the short lease of guard 1"),
    "/sync not written again, ANY 2 of 2": Mutant(
        Protocol(rewrites_sync=False), "a acknowledges commit 1 to its client (held by nobody", Size(2, 2)
    ),
    "/sync not written again, FIRST 1": Mutant(
        Protocol(rewrites_sync=False), "a writes /sync", Size(2, 1, any_of=False)
    ),
    "/sync not compared": Mutant(
        Protocol(compares_sync=False), "compares nothing else", Size(2, 2, guards=1, seals=1)
    ),
    "/failover not compared": Mutant(
        Protocol(compares_failover=False), "somebody writes /failover", Size(2, 1, changes=0, operator=True)
    ),
    "sealed before the leader had a ttl": Mutant(
        Protocol(grace=False), "b takes the leader key", Size(2, 1, any_of=False)
    ),
    "failsafe_mode on": Mutant(Protocol(), "sends POST /failsafe", Size(2, 1, changes=0, failsafe=True)),
}  # fmt: skip
