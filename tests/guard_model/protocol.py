"""The guard's protocol as switches: each one off is a mutant that the model must catch."""

from dataclasses import dataclass
from enum import StrEnum


class Sealed(StrEnum):
    """How many voters of /sync must be found sealed before the release."""

    EVERY_VOTER = "every voter; one where a quorum of 0 needs no other's vote"
    WHERE_NEEDED = "every voter; nobody where a quorum of 0 needs no other's vote"
    QUORUM_PLUS_ONE = "quorum + 1 voters (n - k + 1)"
    QUORUM = "quorum voters (n - k)"
    NONE = "none: no check"


class Evidence(StrEnum):
    """What counts as sealed."""

    SETTLED = "primary_conninfo gone since the seal, no walreceiver, asked twice"
    GONE = "primary_conninfo empty, no walreceiver, asked twice; it may have been empty before the seal"
    ONCE = "primary_conninfo empty, no walreceiver, asked once"
    WALRECEIVER = "no walreceiver at this moment"


class Compare(StrEnum):
    """What the release compares before it deletes the leader key."""

    SEAL = "the key is the one this seal wrote (revision or lease)"
    NAME = "the key holds the guard's name"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a guard does; the defaults are docs/guard.md's."""

    sealed: Sealed = Sealed.QUORUM_PLUS_ONE
    evidence: Evidence = Evidence.SETTLED
    compare: Compare = Compare.SEAL
    hands_over: bool = True
    """The guard gives the key to a sealed voter; else it deletes the key, and Patroni elects."""
    most_wal: bool = True
    """The successor is the sealed voter with the most WAL; else any sealed voter."""
    resumes: bool = True
    """A guard may take the seal of another one over, which may have died."""
    resumer_knows: bool = True
    """It learns from that seal which standbys followed the leader then; else it takes every voter for one that did."""
    lease_of_ttl: bool = True
    """The key's lease is at least Patroni's ttl and the old leader's lease is revoked: when it ends, the old leader has
    stepped down."""
    rewrites_sync: bool = True
    """The seal puts /sync again, so that its revision rises."""
    lock_written_first: bool = True
    """The seal's transaction writes the leader key before /sync. Patroni applies the events of a transaction one by one
    and its leader renews its lease without comparing the key, so else it may use the new revision of /sync."""
    compares_sync: bool = True
    """The seal compares /sync with what the guard has read, so reading and sealing are one step."""
    compares_failover: bool = True
    """Seal and release require that /failover is absent."""
    grace: bool = False
    """The leader has held the key for a ttl before it may be sealed: no older vote is still in use."""
    hides_leader: bool = True
    """Standbys that see the seal find no address of a leader and drop primary_conninfo."""


HAND_OVER = Protocol()
"""quorum + 1 sealed; the one with the most WAL gets the key."""
CAREFUL = Protocol(sealed=Sealed.EVERY_VOTER, grace=True)
"""The same, and safe also when the successor releases the key early before it is promoted."""
RELEASE = Protocol(sealed=Sealed.EVERY_VOTER, grace=True, hands_over=False)
"""The key is deleted and Patroni elects."""
