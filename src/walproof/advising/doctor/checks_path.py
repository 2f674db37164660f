"""Checks of the clients' way to the leader: HAProxy's checks and timeouts, PgBouncer's and Poolers' connections."""

from collections.abc import Callable, Iterator

from walproof.advising.doctor.finding import Hit, Rule, checks_of
from walproof.model.access_path import Pool, Proxy
from walproof.model.facts import Facts

_NOTICED_S = 10.0
"""Patroni's own template, inter 3s fall 3, takes 9 s."""
_STATEMENT_S = 60.0
"""Of an OLTP statement that nothing else ends: a commit may wait for a standby as long as wal_sender_timeout."""
_MOST_S = {"server_lifetime": 3600.0, "server_check_delay": 30.0}
"""PgBouncer's defaults."""
_PATIENCE_S = {"server_connect_timeout": 30.0, "server_login_retry": 30.0}
"""Twice PgBouncer's defaults."""


def _of_pools(rule: Callable[[Pool], Iterator[Hit]]) -> Rule:
    return lambda facts: (hit for pool in facts.access.pools for hit in rule(pool))


def _to_the_leader(facts: Facts) -> list[Proxy]:
    return [proxy for proxy in facts.access.proxies if not proxy.for_reads and len(proxy.servers) > 1]


def _asks_no_role(facts: Facts) -> Iterator[Hit]:
    kinds = {"": "whether the port is open", "pgsql-check": "whether PostgreSQL answers"}
    for proxy in _to_the_leader(facts):
        if not proxy.asks_role and len(proxy.unchecked) < len(proxy.servers):
            fix = "option httpchk, http-check send meth GET uri /primary, http-check expect status 200; check port 8008"
            asked = kinds.get(proxy.asks, proxy.asks)
            yield Hit(f"{proxy.name}.check asks {asked}, of {len(proxy.servers)} servers", fix, proxy.name)


def _unchecked(facts: Facts) -> Iterator[Hit]:
    for proxy in facts.access.proxies:
        for server in proxy.unchecked if len(proxy.servers) > 1 else ():
            yield Hit(f"{proxy.name}.{server} has no check", "add check port 8008 to its line", proxy.name)


def _keeps_sessions(facts: Facts) -> Iterator[Hit]:
    for proxy in _to_the_leader(facts):
        if proxy.lingering and proxy.asks_role:
            servers = ", ".join(f"{proxy.name}.{server}" for server in proxy.lingering)
            fix = "on-marked-down shutdown-sessions, on each server line or on default-server"
            yield Hit(f"{servers}: no on-marked-down shutdown-sessions", fix, proxy.name)


def _slow(facts: Facts) -> Iterator[Hit]:
    for proxy in _to_the_leader(facts):
        if (late := proxy.interval_s * proxy.fall) > _NOTICED_S:
            evidence = f"{proxy.name}.{proxy.servers[0]}: inter {proxy.interval_s:g} s × fall {proxy.fall} = {late:g} s"
            yield Hit(evidence, "inter 2s fall 3, or fastinter 500ms", proxy.name)


def _cuts(facts: Facts) -> Iterator[Hit]:
    """Against the longest statement that PostgreSQL lets run, where it is limited."""
    setting = facts.leader.setting("statement_timeout") if facts.leader else None
    limit = setting.seconds if setting else 0.0
    for proxy in _to_the_leader(facts):
        if 0 < (proxy.timeout_server_s or 0) < (limit or _STATEMENT_S):
            allowed = f"statement_timeout is {limit:g} s" if limit else "statement_timeout is not set"
            evidence = f"{proxy.name}.timeout-server is {proxy.timeout_server_s:g} s, {allowed}"
            fix = f"timeout server longer than {limit or _STATEMENT_S:g} s, and timeout client too"
            yield Hit(evidence, fix, "timeout-server")


@_of_pools
def _any_host(pool: Pool) -> Iterator[Hit]:
    for database, host in pool.hosts.items():
        if "," in host:
            fix = "one host: HAProxy or an address that follows the leader (PgBouncer has no target_session_attrs)"
            yield Hit(f"{database}: host={host}", fix, "", pool.name)


@_of_pools
def _keeps_server(pool: Pool) -> Iterator[Hit]:
    for name, most in _MOST_S.items():
        if (seconds := pool.seconds(name)) is not None and seconds > most:
            yield Hit(f"{name} = {seconds:g} s", f"{name} = {most:g}", "", pool.name)


@_of_pools
def _waits_for_dead(pool: Pool) -> Iterator[Hit]:
    if pool.seconds("tcp_keepalive") == 0:
        fix = "tcp_keepalive = 1, tcp_keepidle = 5, tcp_keepintvl = 1, tcp_keepcnt = 3"
        yield Hit("tcp_keepalive = 0", fix, "", pool.name)
    for name, most in _PATIENCE_S.items():
        seconds = pool.seconds(name)
        if seconds is not None and (seconds > most or (seconds == 0 and name == "server_connect_timeout")):
            yield Hit(f"{name} = {seconds:g} s", f"{name} = {most / 2:g}", "", pool.name)


@_of_pools
def _alone(pool: Pool) -> Iterator[Hit]:
    if pool.instances == 1:
        yield Hit("instances: 1", "spec.instances: 2, on nodes of their own", "", pool.name)


@_of_pools
def _paused(pool: Pool) -> Iterator[Hit]:
    if pool.paused:
        yield Hit("paused: true", "spec.pgbouncer.paused: false", "", pool.name)


CHECKS = checks_of(
    "path",
    {
        "haproxy-asks-no-role": _asks_no_role,
        "haproxy-server-unchecked": _unchecked,
        "haproxy-keeps-sessions": _keeps_sessions,
        "haproxy-check-slow": _slow,
        "haproxy-cuts-statements": _cuts,
        "pgbouncer-any-host": _any_host,
        "pgbouncer-keeps-server": _keeps_server,
        "pgbouncer-waits-for-dead": _waits_for_dead,
        "pooler-alone": _alone,
        "pooler-paused": _paused,
    },
)
