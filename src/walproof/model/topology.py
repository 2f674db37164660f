"""Who is in the cluster and where: members as seen in one observation, and how clients reach them.

And what one member is at one moment, as far as its PostgreSQL and its machine tell: the evidence about a fault."""

import math
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from walproof.errors import UsageError
from walproof.model.session_settings import AS_PSYCOPG_READS, session_options


class Role(StrEnum):
    """What a member is just now, as it says itself."""

    LEADER = "leader"
    STANDBY = "standby"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Route:
    """A way for clients to reach the leader, by the name its target gives it."""

    name: str
    pools: bool = False
    """A server session may serve another client after each transaction: nothing of a session stays."""
    follows: bool = True
    """New connections reach the leader after a failover too."""

    def one_address(self, hosts: int) -> bool:
        """Whether a new connection to the same one of so many hosts may reach another server than one that hangs.

        That is a proxy, a pooler, a service; also the only host of a DSN, which may be such a thing.
        """
        return self.follows and (self.name != "multi-host" or hosts == 1)


def route_of(routes: tuple[Route, ...], name: str) -> Route:
    """The route of that name; UsageError lists those there are.

    >>> route_of((Route("direct"), Route("pooler", pools=True)), "pooler").pools
    True
    """
    route = next((r for r in routes if r.name == name), None)
    if route is None:
        raise UsageError(f"{name!r} is not a route here", f"the routes are {', '.join(r.name for r in routes)}")
    return route


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Connection parameters for libpq: hosts in order, database, user, password file; never the password itself."""

    hosts: tuple[tuple[str, int], ...]
    database: str = "postgres"
    user: str = "postgres"
    passfile: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    pooled: bool = False
    """Behind a transaction pooler: what holds for a session must be sent with each transaction."""
    named: tuple[tuple[str, int], ...] = ()
    """Hosts that the user named, in lower case, each with its port: on others another user may listen."""
    binding: str = ""
    """channel_binding of walproof's own sessions on all other hosts: who passes a login on to a member has none."""

    def at(self, *hosts: tuple[str, int], **options: str) -> "Endpoint":
        """The same at other hosts, with options beside its own."""
        return replace(self, hosts=hosts, options=(*self.options, *options.items()))

    def words(self, **more: str) -> dict[str, str]:
        """libpq's parameters for the application's clients; `more` overrides, but its `options` are added.

        A host that the cluster names, and the user did not, gets no password in clear text, which any server may ask
        for (AuthenticationCleartextPassword): whoever writes a list of members would be told a superuser's. And
        PGPASSWORD, PGHOSTADDR or a service in our environment is another server's: libpq takes these before a file.
        """
        words = {
            "host": ",".join(h for h, _ in self.hosts),
            "port": ",".join(str(p) for _, p in self.hosts),
            "dbname": self.database,
            "user": self.user,
            "passfile": self.passfile or "",
            **dict(self.options),
        }
        if self._has_strangers:
            words.setdefault("require_auth", "!password")
        options = "" if self.pooled else f"{words.get('options', '')} {more.get('options', '')}".strip()
        given = {name: value for name, value in {**words, **more, "options": options}.items() if value}
        return {"password": "", "hostaddr": "", **given}

    @property
    def _has_strangers(self) -> bool:
        return not {(host.lower(), port) for host, port in self.hosts} <= set(self.named)

    def client_conninfo(self, **more: str) -> str:
        """`words` as a libpq connection string, of a session of walproof's own as the application has it."""
        return _text(self._bound(**more))

    def _bound(self, **more: str) -> dict[str, str]:
        """`words`, bound to the channel on a stranger's host; a program's are not: the wheel's pgbench has no TLS."""
        words = self.words(**more)
        return {"channel_binding": self.binding, **words} if self.binding and self._has_strangers else words

    def program(self, *argv: str, **more: str) -> tuple[str, ...]:
        """A program of PostgreSQL's with `words` behind it.

        That of an older version does not know require_auth, which is in its environment instead: it reads that or not.
        """
        words = self.words(**more)
        if not self._has_strangers:
            return (*argv, _text(words))
        return ("env", f"PGREQUIREAUTH={words.pop('require_auth')}", *argv, _text(words))

    def conninfo(self, **more: str) -> str:
        """The same for a session of walproof's own: it looks names up in pg_catalog alone, as the user who logs in.

        Else a database's owner could set search_path, role and session_authorization for it (ALTER DATABASE), and
        functions of theirs would run with a superuser's rights; and how long it lives and what answers look like
        (SESSION, which a DSN's options and `more` override). What the connection brings goes before that
        (process_settings, postinit.c). What is sent through a pool qualifies names instead.
        """
        words = self._bound(**more)
        if not self.pooled:
            first = "-c role=none -c session_authorization=" + re.sub(r"([\s\\])", r"\\\1", words.get("user", ""))
            end = f"-c search_path=pg_catalog {AS_PSYCOPG_READS}"
            words["options"] = " ".join(filter(None, (first, session_options(), words.get("options"), end)))
        return _text(words)


def _text(words: dict[str, str]) -> str:
    quoted = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in words.items()}
    return " ".join(f"{name}='{value}'" for name, value in quoted.items())


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member in one observation. lsn: WAL position in bytes; lag_bytes: behind the leader, None when unknown."""

    name: str
    role: Role
    state: str
    """running, streaming, starting, stopped, frozen, unreachable, not known …"""
    timeline: int | None = None
    lsn: int | None = None
    lag_bytes: int | None = None
    address: str = ""
    sync_state: str = ""
    """pg_stat_replication.sync_state of this standby: sync, quorum, potential, async, or empty."""
    standby_names: str | None = None
    """synchronous_standby_names in effect there, when it was asked."""
    identity: str = ""
    """Tells this instance from another that takes its name or address later (a pod's uid); "" where none is known."""
    streams_as: str | None = None
    """The name standby names know it by: as the leader sees it stream, of the leader its cluster_name; None unknown."""

    @property
    def serving(self) -> bool:
        """Whether its PostgreSQL runs, and streams when it is a standby."""
        return self.state in ("running", "streaming")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One observation of everything. `at` is seconds since the epoch."""

    at: float
    members: tuple[MemberView, ...]
    leader: str | None
    standby_names: str = ""
    unseen: str = ""
    """What has to be granted for who streams and which sessions wait to be seen; "" where this role may see it."""

    def member(self, name: str) -> MemberView | None:
        return next((m for m in self.members if m.name == name), None)

    @property
    def leader_timeline(self) -> int | None:
        """The leader's timeline; None without a leader, or where it does not say."""
        member = self.member(self.leader) if self.leader else None
        return member.timeline if member else None

    @property
    def healthy(self) -> bool:
        """Whether there is a leader and every other member is a standby that runs or streams."""
        return self.leader is not None and all(
            m.name == self.leader or (m.role is Role.STANDBY and m.serving) for m in self.members
        )

    @property
    def standbys(self) -> tuple[MemberView, ...]:
        return tuple(m for m in self.members if m.role is Role.STANDBY)

    @property
    def synchronous(self) -> tuple[str, ...]:
        """Names of the standbys that count for the quorum now."""
        return tuple(m.name for m in self.members if m.sync_state in ("sync", "quorum"))


@dataclass(frozen=True, slots=True)
class LinkView:
    """One direction between two members: asked and measured round trip (ms), cut or not."""

    source: str
    destination: str
    rtt_ms: float | None = None
    measured_ms: float | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """What a target is, for the record: versions and machine facts as text, the settings in effect.

    `facts` are shown as they are; who computes with one asks for its property, which alone reads the text.
    """

    target: str
    members: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    wal_volume: bool | None = None
    """Whether WAL has a volume of its own; None where the target cannot tell."""
    ttl_s: float | None = None
    """Patroni's ttl in effect; None without Patroni, or where the target cannot tell."""

    @property
    def simulated(self) -> bool:
        """Whether nothing of it was measured."""
        return self.facts.get("kind", "").startswith("simulated")

    @property
    def manager(self) -> str:
        """patroni, cloudnative-pg, none; "" in a record that does not say."""
        return self.facts.get("manager", "")

    @property
    def postgres(self) -> int:
        """PostgreSQL's major version, 0 where it is not known."""
        return int(self._number("postgres", r"\d+") or 0)

    @property
    def patroni(self) -> str:
        """Patroni's version, "" where it is not known."""
        return self._number("patroni", r"\d+(?:\.\d+)+")

    @property
    def nodes(self) -> dict[str, str]:
        """The Kubernetes node of each member that had one, in order; {} in a record that does not say.

        >>> Description("cnpg:db/pg", ("pg-1", "pg-2"), {"nodes": "pg-1 on a, pg-2 on a"}).nodes
        {'pg-1': 'a', 'pg-2': 'a'}
        """
        return dict(re.findall(r"([\w.-]+) on ([\w.-]+)", self.facts.get("nodes", "")))

    @property
    def barred(self) -> tuple[str, ...]:
        """Members that Patroni named for no commit then.

        >>> Description("c", ("n1", "n2"), {"patroni never names": 'n2 (nosync: "yes")'}).barred
        ('n2',)
        """
        return tuple(re.findall(r"(\S+) \(", self.facts.get("patroni never names", "")))

    def _number(self, word: str, pattern: str) -> str:
        """The first match in the first fact, by name, whose name holds the word; "" for none."""
        text = next((fact for name, fact in sorted(self.facts.items()) if word in name.lower()), "")
        match = re.search(pattern, text)
        return match[0] if match else ""

    @property
    def versions(self) -> dict[str, str]:
        return {name: fact for name, fact in self.facts.items() if "version" in name or name == "postgres"}

    @property
    def member_versions(self) -> frozenset[str]:
        """The different versions of PostgreSQL that its members answered with."""
        facts = self.facts.items()
        return frozenset(v for name, v in facts if name.startswith("postgres version of") and v[:1].isdigit())

    @property
    def processors(self) -> int:
        """Of the machine that the members share, 0 where it is not known."""
        text = self.facts.get("processors", "")
        return int(text) if text.isdigit() else 0

    @property
    def memory_bytes(self) -> int:
        """Of that machine, 0 where it is not known."""
        match = re.match(r"(\d+) GiB", self.facts.get("memory", ""))
        return int(match[1]) << 30 if match else 0

    @property
    def failover_ttl_s(self) -> float | None:
        """Patroni's ttl, in records without `ttl_s` by the lab's word for its timeouts; None where it is not known."""
        ttl_s = (
            {"fast": 20.0, "default": 30.0}.get(self.facts.get("timeouts", "")) if self.ttl_s is None else self.ttl_s
        )
        return ttl_s if ttl_s is not None and 0 < ttl_s < math.inf else None

    @property
    def failover_times_s(self) -> tuple[float, ...]:
        """Patroni's ttl, loop_wait and retry_timeout, or its ttl alone, or none, as far as the record tells them."""
        if self.failover_ttl_s is None:
            return ()
        loop, retry = {"fast": ("1", "3"), "default": ("10", "10")}.get(self.facts.get("timeouts", ""), ("", ""))
        more = self.facts.get("patroni loop_wait", loop), self.facts.get("patroni retry_timeout", retry)
        known = all(re.fullmatch("[0-9]{1,6}", word) for word in more)
        return (self.failover_ttl_s, *(map(float, more) if known else ()))


SIMULATED = "simulated, not a measurement"
"""The fact `kind` of a simulated cluster."""


def memory_fact(size: int) -> str:
    """The fact `memory` of a machine with so many bytes.

    >>> Description("lab", ("n1",), {"memory": memory_fact(24 << 30)}).memory_bytes >> 30
    24
    """
    return f"{size / 2**30:.0f} GiB"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster, commits so far on the leader, sessions in SyncRep and the longest such wait; None: not known."""

    view: ClusterView
    commits: int | None = None
    waiting: int | None = None
    longest_wait_s: float | None = None


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
    """One member at one moment. What is not known is None or "".

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
    """None where there is no such table or no answer."""
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
    hangs: tuple[str, ...] | None = None
    """Of "postmaster", "manager" and "rest" what runs and does not go on, or answer; None where not told."""
    stressed: bool | None = None
    """Whether processes that only compute run next to it."""
    chaos: tuple[str, ...] | None = None
    """Faults that Chaos Mesh's status says are injected into it now; None where it is not asked."""
    deaf_to: tuple[str, ...] = ()
    """Members whose packets were sent and did not arrive here, and "clients"; () too where that is not known."""
