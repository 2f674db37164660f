"""The lies that a simulated cluster tells on demand (`sim?lie=NAME`): the prover must not call any of them held."""

from dataclasses import replace

from walproof.model.guarantee import Level
from walproof.model.ports import Capability
from walproof.targets.simulated import lie
from walproof.targets.simulated.lie import Lie

_REPLACED = (
    *((fault, None) for fault in (
        Capability.KILL, Capability.STOP, Capability.KILL_MEMBER, Capability.FREEZE, Capability.POWER_CUT,
        Capability.PARTITION, Capability.ISOLATE, Capability.FAILING_DISK, Capability.FULL_DISK,
        Capability.PARTITION_ONE_WAY, Capability.SLOW_DISK, Capability.DCS_LOSS, Capability.RESTART,
        Capability.SWITCHOVER, Capability.CRASH_RESTART, Capability.PARTITION_WAL, Capability.PARTITION_ACKS,
        Capability.PAUSE_REPLAY,
    )),
    (Capability.KILL, Capability.RESTART),
    (Capability.KILL_MEMBER, Capability.KILL),
    (Capability.POWER_CUT, Capability.KILL_MEMBER),
    (Capability.FREEZE, Capability.KILL),
    (Capability.ISOLATE, Capability.PARTITION),
    (Capability.PARTITION, Capability.FREEZE),
    (Capability.CRASH_RESTART, Capability.RESTART),
    (Capability.PARTITION_WAL, Capability.PARTITION),
    (Capability.PARTITION_ACKS, Capability.PAUSE_REPLAY),
    (Capability.PAUSE_REPLAY, Capability.PARTITION_WAL),
)  # fmt: skip


def _name(fault: Capability, other: Capability | None) -> str:
    return f"no-{fault}" if other is None else f"{fault}-is-{other}"


_NO_FAULTS = {
    _name(fault, other): Lie(
        f"{fault} does nothing" if other is None else f"{fault} is a {other}", str(fault), instead=(fault, other)
    )
    for fault, other in _REPLACED
}
_ROWS = {
    "lost": Lie("rows of acknowledged commits disappear", rows=lambda rows, _: lie.without(rows, 20, 25)),
    "duplicate": Lie("a row is there twice", rows=lie.twice),
    "corrupted": Lie("a row's payload is another one", rows=lie.changed),
    "nowhere": Lie("a row is there that nobody wrote", rows=lie.invented),
    "lagging-read": Lie(
        "the leader is read before it has all rows",
        rows=lambda rows, leads: lie.without(rows, -6, -1) if leads else rows,
    ),
    "divergence": Lie(
        "a standby lacks rows although it has replayed everything",
        "restart",
        rows=lambda rows, leads: rows if leads else lie.without(rows, 20, 25),
    ),
    "fork": Lie(
        "the leader was promoted from a fork that lacks rows a standby has",
        rows=lambda rows, leads: lie.without(rows, -8, -2) if leads else rows,
    ),
}
_LEVELS = {
    "trigger-sets-level": Lie("a trigger sets the level to off", attempts=lie.ran_at(Level.OFF)),
    "pooler-drops-options": Lie("a pooler drops the start-up options", attempts=lie.ran_at(Level.LOCAL)),
    "role-default": Lie(
        "the role has a level of its own",
        attempts=lie.ran_at(Level.OFF),
        states=lie.overridden("postgres in every database: synchronous_commit=off"),
    ),
    "database-default": Lie(
        "the database has a level of its own",
        attempts=lie.ran_at(Level.LOCAL),
        states=lie.overridden("every role in postgres: synchronous_commit=local"),
    ),
    "function-override": Lie(
        "a function called by every INSERT sets the level",
        attempts=lie.ran_at(Level.LOCAL),
        states=lie.overridden("function walproof.touch: synchronous_commit=local"),
    ),
    "level-unknown": Lie(
        "nothing says at which level commits ran",
        attempts=lambda attempts: replace(attempts, level=attempts.level * 0 - 1),
    ),
    "names": Lie("the standby names are emptied, and the cluster says they are not"),
    "names-reduced": Lie(
        "ANY 2 became ANY 1 for a while", sync="quorum=2", attempts=lie.waited_for('ANY 1 ("n2", "n3")', share=0.2)
    ),
    "names-any": Lie(
        "the standby names are *, and a backup counts",
        attempts=lie.waited_for("*"),
        states=lie.later(lambda s: replace(s, senders=(*s.senders, "pg_receivewal")) if s.senders else s),
    ),
    "fsync-off": Lie("fsync is off", states=lie.settings(fsync="off")),
    "full-page-writes-off": Lie("full_page_writes is off", states=lie.settings(full_page_writes="off")),
}
_LEDGER = {
    "trigger-drops-rows": Lie(
        "a trigger drops every tenth row", attempts=lie.swallowed, states=lie.table(triggers=("drops_rows",))
    ),
    "deferred-trigger": Lie(
        "a deferred trigger sets the level after the row came back", states=lie.table(triggers=("sets_level",))
    ),
    "unlogged": Lie("the ledger's table is unlogged", states=lie.table(persistence="u")),
    "row-security": Lie("row security hides rows", states=lie.table(row_security=True)),
    "dead-writer": Lie("a writer was killed", incomplete="writer process 1 of 2 was killed by SIGKILL"),
    "dead-reader": Lie("the readers were killed", incomplete="the readers' process was killed by SIGKILL"),
    "full-disk-of-ledger": Lie("the ledger's disk is full", incomplete="writer process 2 of 2 failed: no space left"),
}
_CLUSTER = {
    "two-leaders": Lie("the old leader goes on acknowledging although there is a new one"),
    "downgraded": Lie("a cancelled wait for the standby is reported as plain success"),
    "same-timeline": Lie("another member leads without having been promoted", view=lie.same_timeline),
    "new-damage": Lie(
        "pages fail their checksum since the fault",
        states=lie.later(lambda s: replace(s, checksum_failures=(s.checksum_failures or 0) + 3)),
    ),
    "other-cluster": Lie(
        "a member is of another cluster",
        states=lie.later(lambda s: replace(s, system="8") if s.member == "n3" else s),
    ),
    "stale-read": Lie(
        "a standby waited for does not show the row", "none", Level.REMOTE_APPLY, "sync=on", witness=lie.stale
    ),
    "backward-read": Lie(
        "a standby shows less than it had shown", "none", Level.REMOTE_APPLY, "sync=on", witness=lie.backwards
    ),
}
LIES: dict[str, Lie] = {**_ROWS, **_LEVELS, **_LEDGER, **_CLUSTER, **_NO_FAULTS}
_HONEST = Lie("no lie")


def lie_of(name: str) -> Lie:
    """The lie of that name; one that changes nothing for ""."""
    return LIES[name] if name else _HONEST


ODDITIES = {
    "late": "a leader is announced long before it takes commits",
    "in-place": "a killed leader is started again in place, on the same timeline",
    "damaged": "pages had failed their checksum before",
    "unnamed": "a new leader serves a moment before it names a standby",
}
"""What an honest cluster may do (`sim?odd=NAME`): never broken because of it."""
