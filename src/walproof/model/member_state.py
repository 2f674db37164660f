"""What one member is at one moment, as far as its PostgreSQL and its machine tell: the evidence about a fault."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """The ledger's table as one server has it; anything but the default means that it is not ours alone any more."""

    persistence: str = "p"
    """pg_class.relpersistence: p permanent, u unlogged, t temporary."""
    triggers: tuple[str, ...] = ()
    """Names of triggers on it, of event triggers of the database and of rewrite rules."""
    row_security: bool = False


@dataclass(frozen=True, slots=True)
class MemberState:
    """One member at one moment. What nobody can tell is None or "".

    `at`: seconds since the epoch on walproof's clock. What SQL tells comes first, then what the machine tells.
    """

    member: str
    at: float
    answers: bool = False
    """Whether its PostgreSQL answered a question asked over the network within two seconds."""
    in_recovery: bool | None = None
    started: str = ""
    """pg_postmaster_start_time() as text: compared for equality only, because it is the server's own clock."""
    stats_reset: str = ""
    """pg_stat_bgwriter.stats_reset as text: recovery after a crash resets statistics, an orderly restart does not."""
    system: str = ""
    """System identifier of the cluster (pg_control_system)."""
    timeline: int | None = None
    lsn: int | None = None
    """WAL position in bytes: flushed where it leads, replayed where it follows."""
    settings: dict[str, str] = field(default_factory=dict)
    """fsync, full_page_writes, synchronous_commit, synchronous_standby_names … in effect for a new session."""
    overrides: tuple[str, ...] = ()
    """synchronous_commit settings of roles and databases (pg_db_role_setting), each as `role/database: setting`."""
    checksum_failures: int | None = None
    senders: tuple[str, ...] | None = None
    """application_name of each walsender that streams from here; None when not asked."""
    receives: bool | None = None
    """Whether a walreceiver streams here."""
    replay_paused: bool | None = None
    """Whether it replays no WAL because it was asked not to; None where it leads."""
    table: LedgerTable | None = None
    """None where there is no such table or nobody answered."""
    postmaster: str = ""
    """Identity of the postmaster's process on its machine; "none" when there is none."""
    processes: str = ""
    """All processes of the member: "running", "frozen" (every one stopped) or "none"."""
    disk: str = ""
    """Its file systems: "sound", "dead" (gone or shut down), "failing" (flushes fail), "full" or "slow"."""
    dcs: str = ""
    """Its process of the DCS: "running", "frozen" or "none"."""
    container: str = ""
    """Identity of its pod and how often its container was started again there: UID/N; "none" without a pod."""
    manager: str = ""
    """The manager in the same container: "running", "frozen" or "none"; `processes` are PostgreSQL's alone then."""
    stressed: bool | None = None
    """Whether processes that only compute run next to it."""
    chaos: tuple[str, ...] | None = None
    """Faults that Chaos Mesh's status says are injected into it now; None where it is not asked."""
    deaf_to: tuple[str, ...] = ()
    """Members whose packets were sent and did not arrive here, and "clients"; () too where nobody can tell."""
