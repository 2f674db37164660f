"""Checks of the clients' way to the leader: HAProxy's checks and timeouts, PgBouncer's and Poolers' connections."""

from collections.abc import Callable, Iterator

from walproof.advising.doctor.finding import Hit, Rule, checks_of
from walproof.model.access_path import Pool, Proxy
from walproof.model.facts import Facts

_NOTICED_S = 10.0
"""Patroni's own template, inter 3s fall 3, takes 9 s."""
_STATEMENT_S = 60.0
"""Of an OLTP statement that nothing else ends: a commit may wait for a standby as long as wal_sender_timeout."""
_LIFETIME_S, _CHECK_S, _CONNECT_S, _RETRY_S = 3600.0, 30.0, 30.0, 30.0
"""PgBouncer's defaults, and twice the defaults of server_connect_timeout and server_login_retry."""


def _of_each(part: Callable[[Facts], tuple[Proxy, ...]]) -> Callable[[Callable[[Facts, Proxy], Iterator[Hit]]], Rule]:
    def decorated(rule: Callable[[Facts, Proxy], Iterator[Hit]]) -> Rule:
        return lambda facts: (hit for proxy in part(facts) for hit in rule(facts, proxy))

    return decorated


def _of_pools(rule: Callable[[Pool], Iterator[Hit]]) -> Rule:
    return lambda facts: (hit for pool in facts.access.pools for hit in rule(pool))


_to_the_leader = _of_each(lambda facts: tuple(p for p in facts.access.proxies if not p.for_reads))
_all_proxies = _of_each(lambda facts: facts.access.proxies)


@_to_the_leader
def _asks_no_role(_facts: Facts, proxy: Proxy) -> Iterator[Hit]:
    if len(proxy.servers) > 1 and not proxy.asks_role and len(proxy.unchecked) < len(proxy.servers):
        asked = {"": "whether the port is open", "pgsql-check": "whether PostgreSQL answers"}.get(
            proxy.asks, proxy.asks
        )
        fix = "option httpchk, http-check send meth GET uri /primary, http-check expect status 200; check port 8008"
        yield Hit(f"{proxy.name}.check asks {asked}, of {len(proxy.servers)} servers", fix, proxy.name)


@_all_proxies
def _unchecked(_facts: Facts, proxy: Proxy) -> Iterator[Hit]:
    for server in proxy.unchecked if len(proxy.servers) > 1 else ():
        yield Hit(f"{proxy.name}.{server} has no check", "add check port 8008 to its line", proxy.name)


@_to_the_leader
def _keeps_sessions(_facts: Facts, proxy: Proxy) -> Iterator[Hit]:
    if proxy.lingering and len(proxy.servers) > 1 and proxy.asks_role:
        servers = ", ".join(f"{proxy.name}.{server}" for server in proxy.lingering)
        fix = "on-marked-down shutdown-sessions, on each server line or on default-server"
        yield Hit(f"{servers}: no on-marked-down shutdown-sessions", fix, proxy.name)


@_to_the_leader
def _slow(_facts: Facts, proxy: Proxy) -> Iterator[Hit]:
    if (late := proxy.interval_s * proxy.fall) > _NOTICED_S and len(proxy.servers) > 1:
        evidence = f"{proxy.name}.{proxy.servers[0]}: inter {proxy.interval_s:g} s × fall {proxy.fall} = {late:g} s"
        yield Hit(evidence, "inter 2s fall 3, or fastinter 500ms", proxy.name)


@_to_the_leader
def _cuts(facts: Facts, proxy: Proxy) -> Iterator[Hit]:
    """Against the longest statement that PostgreSQL lets run, where it is limited."""
    limit = facts.leader.settings["statement_timeout"].seconds if _limited(facts) and facts.leader else 0.0
    timeout = proxy.timeout_server_s
    if timeout is not None and 0 < timeout < (limit or _STATEMENT_S):
        allowed = f"statement_timeout is {limit:g} s" if limit else "statement_timeout is not set"
        evidence = f"{proxy.name}.timeout-server is {timeout:g} s, {allowed}"
        fix = f"timeout server longer than {limit or _STATEMENT_S:g} s, and timeout client too"
        yield Hit(evidence, fix, "timeout-server")


def _limited(facts: Facts) -> bool:
    return facts.leader is not None and facts.leader.value("statement_timeout", "0") != "0"


@_of_pools
def _any_host(pool: Pool) -> Iterator[Hit]:
    for database, host in pool.hosts.items():
        if "," in host:
            fix = "one host: HAProxy or an address that follows the leader (PgBouncer has no target_session_attrs)"
            yield Hit(f"{database}: host={host}", fix, pool.name, pool.name)


@_of_pools
def _keeps_server(pool: Pool) -> Iterator[Hit]:
    limits = {"server_lifetime": _LIFETIME_S, "server_check_delay": _CHECK_S}
    for name, most in limits.items():
        if (seconds := pool.seconds(name)) is not None and seconds > most:
            yield Hit(f"{name} = {seconds:g} s", f"{name} = {most:g}", pool.name, pool.name)


@_of_pools
def _waits_for_dead(pool: Pool) -> Iterator[Hit]:
    if pool.seconds("tcp_keepalive") == 0:
        yield Hit(
            "tcp_keepalive = 0", "tcp_keepalive = 1, tcp_keepidle = 5, tcp_keepintvl = 1, tcp_keepcnt = 3", pool.name
        )
    for name, most in {"server_connect_timeout": _CONNECT_S, "server_login_retry": _RETRY_S}.items():
        seconds = pool.seconds(name)
        if seconds is not None and (seconds > most or (seconds == 0 and name == "server_connect_timeout")):
            yield Hit(f"{name} = {seconds:g} s", f"{name} = {most / 2:g}", pool.name, pool.name)


@_of_pools
def _alone(pool: Pool) -> Iterator[Hit]:
    if pool.instances == 1:
        yield Hit("instances: 1", "spec.instances: 2, on nodes of their own", "spec.instances", pool.name)


@_of_pools
def _paused(pool: Pool) -> Iterator[Hit]:
    if pool.paused:
        yield Hit("paused: true", "spec.pgbouncer.paused: false", "spec.pgbouncer", pool.name)


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
