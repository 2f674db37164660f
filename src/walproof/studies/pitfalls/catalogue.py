"""The pitfalls P1–P22 of the field: their titles, and the function that reproduces each."""

from collections.abc import Callable
from dataclasses import dataclass

from walproof.errors import UsageError
from walproof.studies.pitfalls import failover, loss, visibility, waits
from walproof.studies.pitfalls.pitfall_lab import Finding, PitfallLab


@dataclass(frozen=True, slots=True)
class Pitfall:
    """One known trap. `slow`: takes about half a minute or more."""

    number: str
    title: str
    reproduce: Callable[[PitfallLab], Finding]
    slow: bool = False
    ruins: bool = False
    """Leaves data files behind that were never flushed: the lab is not used again."""


CATALOGUE: tuple[Pitfall, ...] = (
    Pitfall("P1", "a cancelled wait becomes success, visible and unreplicated", waits.cancelled),
    Pitfall("P2", "restarting the primary makes waiting commits visible, unreplicated", waits.restarted),
    Pitfall("P3", "remote_write does not survive the standby's power cut", loss.standby_power, slow=True),
    Pitfall("P4", "a partitioned leader acknowledges until it demotes; all lost", loss.partitioned_leader, slow=True),
    Pitfall("P5", "non-strict mode: the last standby goes, commits silently become local", failover.silently_local),
    Pitfall("P6", "strict mode's '*' is satisfied by any WAL receiver", failover.anybody, slow=True),
    Pitfall("P7", "ANY 1 (a, b): leader and acknowledging standby lost together", loss.quorum_dies_together),
    Pitfall("P8", "a standby name that nobody has: commits wait for ever", waits.for_nobody),
    Pitfall("P9", "pg_rewind erases acknowledged commits without a trace", loss.rewound, slow=True),
    Pitfall("P10", "divergence is not loss: commits in doubt count apart", loss.divergence_is_not_loss, slow=True),
    Pitfall("P11", "standby reads are stale at on; at remote_apply only some are fresh", visibility.stale),
    Pitfall("P12", "order of visibility differs between members (long fork)", visibility.long_fork),
    Pitfall("P13", "an invisible waiting commit becomes visible by a restart", waits.invisible_then_visible),
    Pitfall("P14", "remote_apply freezes when a standby's query blocks replay", visibility.replay_blocked),
    Pitfall("P15", "an unreachable standby stalls commits until wal_sender_timeout", waits.unreachable_standby),
    Pitfall("P16", "one slow standby disk stalls everyone under ALL; ANY hides it", visibility.slow_disk),
    Pitfall("P17", "clients never notice a dead leader without TCP timeouts", failover.unnoticed, slow=True),
    Pitfall("P18", "fsync off, or a lying disk, breaks every promise", loss.lying_disk, slow=True, ruins=True),
    Pitfall("P19", "a frozen leader wakes up and answers after its successor", loss.frozen_leader, slow=True),
    Pitfall("P20", "SET LOCAL synchronous_commit opts one transaction out", loss.opted_out, slow=True),
    Pitfall("P21", "lag columns show what was reported, not what would be lost", visibility.misleading_lag, slow=True),
    Pitfall("P22", "maximum_lag_on_failover 0 leaves nobody eligible", failover.nobody_eligible, slow=True),
)


@dataclass(frozen=True, slots=True)
class TargetPitfall:
    """One known trap of a target's manager, reproduced on a cluster there is; `thread`: where it is known upstream."""

    number: str
    title: str
    thread: str
    consents: tuple[str, ...] = ()


ON_TARGET: tuple[TargetPitfall, ...] = (
    TargetPitfall(
        "K1",
        "PostgreSQL frozen under a living manager: the lease is renewed, nobody is promoted",
        "cloudnative-pg#11348, #11265",
        ("freeze",),
    ),
    TargetPitfall(
        "K2",
        "dataDurability preferred: the last standby goes, commits silently become local",
        "cloudnative-pg#5793, #8790",
        ("kill-member",),
    ),
    TargetPitfall(
        "K3",
        "enableAlterSystem: ALTER SYSTEM overrides what the operator writes, and is not corrected",
        "no thread is known",
        ("config",),
    ),
    TargetPitfall(
        "K4", "status.phase says healthy during an outage", "cloudnative-pg#5150 (the same words, no pod)", ("freeze",)
    ),
    TargetPitfall("K5", "fsync = off and full_page_writes = off pass admission", "cloudnative-pg#5506 (on purpose)"),
    TargetPitfall(
        "K6",
        "an isolated primary, reachable again, holds its lease while it shuts down",
        "cloudnative-pg#11280, #11518",
        ("isolate",),
    ),
    TargetPitfall(
        "K7", "kubectl's port-forward ends with the first client of TLS", "kubernetes/kubectl#1169, cloudnative-pg#8767"
    ),
)
"""Those of CloudNativePG (targets/cnpg/pitfalls.py)."""


def target_pitfalls(text: str) -> tuple[TargetPitfall, ...]:
    """The target's pitfalls named in a text: "all", or numbers like "K1,K5"; UsageError for an unknown one."""
    if text.strip().lower() == "all":
        return ON_TARGET
    known = {p.number.lower(): p for p in ON_TARGET}
    numbers = [part.strip().lower() for part in text.split(",") if part.strip()]
    if any(number in {p.number.lower() for p in CATALOGUE} for number in numbers):
        raise UsageError(
            f"{text} is reproduced on a lab of its own and leaves every other cluster alone",
            "leave --target and --lab out",
        )
    if not numbers or any(number not in known for number in numbers):
        raise UsageError(f"{text!r} is no pitfall of a target", f"{', '.join(p.number for p in ON_TARGET)}, or all")
    return tuple(known[number] for number in numbers)


def pitfalls(text: str) -> tuple[Pitfall, ...]:
    """The pitfalls named in a text: "all", or numbers like "P1,P4"; UsageError for an unknown one."""
    if text.strip().lower() == "all":
        return CATALOGUE
    known = {p.number.lower(): p for p in CATALOGUE}
    numbers = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not numbers or any(number not in known for number in numbers):
        raise UsageError(f"{text!r} is not a known pitfall", "P1 to P22, several with commas, or all")
    return tuple(known[number] for number in numbers)
