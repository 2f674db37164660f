"""What a choice sets in PostgreSQL and in Patroni, as plain names and values with the reason for each."""

import re
from dataclasses import dataclass

from walproof.errors import UsageError
from walproof.model.advice import Choice, ClusterProfile
from walproof.model.configuration import PARAMETERS, ConfigChange, SyncReplication
from walproof.model.guarantee import Quorum, QuorumKind

_VALUE = re.compile(r"[A-Za-z0-9.]{1,32}")
_NAME = re.compile(r"[A-Za-z0-9._:-]{0,128}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One rendered recipe: a short name, the file it belongs in, the text."""

    name: str
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Set:
    """One parameter of PostgreSQL and why."""

    name: str
    value: str
    why: str


def standby_names(choice: Choice, cluster: ClusterProfile) -> str:
    """synchronous_standby_names for a cluster without a manager: every member, so that it is right after a promotion.

    The leader's own name in the list does no harm: it never streams from itself.
    """
    if choice.quorum == 0:
        return ""
    names = cluster.members or ("standby1", "standby2")
    return Quorum(choice.quorum_kind or QuorumKind.ANY, choice.quorum, names).text


def postgres_settings(choice: Choice) -> tuple[Set, ...]:
    """Parameters on every member, without synchronous_standby_names: PostgreSQL 14 to 18 know them all."""
    _refuse_foreign(choice)
    seconds = choice.timeouts.network_s
    remote = choice.level.remote
    stall = "an unreachable standby stalls commits this long" if remote else "an unreachable standby is dropped then"
    return (
        Set("synchronous_commit", str(choice.level), "what a commit guarantees; classes may differ with SET LOCAL"),
        Set("wal_sender_timeout", f"{seconds}s", stall),
        Set("wal_receiver_timeout", f"{seconds}s", "a standby reconnects to the new leader then"),
        Set("tcp_user_timeout", f"{seconds}s", "unanswered data ends the connection, instead of TCP's 15 minutes"),
        Set("tcp_keepalives_idle", str(max(5, seconds // 2)), "an idle peer that is gone is detected"),
        Set("tcp_keepalives_interval", "3", "seconds between probes"),
        Set("tcp_keepalives_count", "3", "probes that may stay unanswered"),
        *(Set(name, value, "as priced") for name, value in choice.parameters),
    )


def _refuse_foreign(choice: Choice) -> None:
    """UsageError for a parameter that walproof never sets: records and advice may be a stranger's."""
    for name, value in choice.parameters:
        if name not in PARAMETERS or not _VALUE.fullmatch(value):
            raise UsageError(
                f"the advice sets {name} = {value!r}, which walproof never sets", "it comes from its records: ask whose"
            )


def check_names(cluster: ClusterProfile) -> None:
    """UsageError for a member or a version that would be more than one word of a configuration file."""
    for name in (*cluster.members, cluster.patroni):
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name to write into a recipe", "letters, digits, . _ : and - make one")


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, () when unknown.

    >>> version_of("4.1.0")
    (4, 1, 0)
    """
    return tuple(int(p) for p in text.split(".") if p.isdigit())


def patroni_settings(choice: Choice, cluster: ClusterProfile) -> dict[str, object]:
    """Patroni's dynamic configuration without postgresql.parameters; keys its version lacks are left out."""
    version = version_of(cluster.patroni) or (4, 1)
    remote = choice.quorum > 0
    quorum = remote and choice.quorum_kind is QuorumKind.ANY and version >= (4,)
    mode = "quorum" if quorum else ("on" if version >= (4,) else True)
    start = "primary_start_timeout" if version >= (3,) else "master_start_timeout"
    times = choice.timeouts
    timing = {
        "ttl": times.ttl,
        "loop_wait": times.loop_wait,
        "retry_timeout": times.retry_timeout,
        start: times.primary_start_timeout,
    }
    return {
        **(timing if times.rto_required else {}),
        **({"failsafe_mode": True} if version >= (3,) else {}),
        "synchronous_mode": mode if remote else ("off" if version >= (4,) else False),
        "synchronous_mode_strict": remote and choice.strict,
        **({"synchronous_node_count": choice.quorum} if remote else {}),
    }


def config_change(choice: Choice, cluster: ClusterProfile) -> ConfigChange:
    """The choice as a change of a cluster's configuration; keys that the manager's version lacks are left out."""
    parameters = {s.name: s.value for s in postgres_settings(choice)}
    sync = SyncReplication(None, 0)
    if choice.quorum > 0:
        method = choice.quorum_kind or QuorumKind.ANY
        if cluster.manager == "patroni" and (version_of(cluster.patroni) or (4, 1)) < (4,):
            method = QuorumKind.FIRST
        # Without a manager nothing degrades: every commit waits.
        sync = SyncReplication(method, choice.quorum, choice.strict if cluster.manager != "none" else None)
    manager = {k: v for k, v in patroni_settings(choice, cluster).items() if not k.startswith("synchronous_")}
    return ConfigChange(parameters, sync, manager if cluster.manager == "patroni" else {})
