"""Checks of the clients' way to the leader: HAProxy's checks and timeouts, poolers' connections, clients' own."""

from collections.abc import Iterator

from walproof.advising.doctor.finding import Hit, Severity, checks_of
from walproof.machine.quoting import pasted
from walproof.model.access_path import CLIENTS, reads_by_name
from walproof.model.facts import Facts

_STATEMENT_S = 60.0
"""Of an OLTP statement that nothing else ends: a commit may wait for a standby as long as wal_sender_timeout."""


def _haproxy_asks_no_role(facts: Facts) -> Iterator[Hit]:
    kinds = {"": "whether the port is open", "pgsql-check": "whether PostgreSQL answers"}
    for proxy in facts.access.to_the_leader:
        if not proxy.asks_role and len(proxy.unchecked) < len(proxy.servers):
            fix = pasted(
                "option httpchk, http-check send meth GET uri /primary, http-check expect status 200; check port 8008"
            )
            asked = kinds.get(proxy.asks, proxy.asks)
            yield Hit(f"{proxy.name}.check asks {asked}, of {len(proxy.servers)} servers", fix, proxy.name, proxy.file)


def _haproxy_server_unchecked(facts: Facts) -> Iterator[Hit]:
    for proxy in facts.access.proxies:
        for server in proxy.unchecked if len(proxy.servers) > 1 else ():
            severity = Severity.WARNING if proxy.for_reads else None
            evidence = f"{proxy.name}.{server} has no check"
            yield Hit(evidence, pasted("add check port 8008 to its line"), proxy.name, proxy.file, severity)


def _haproxy_keeps_sessions(facts: Facts) -> Iterator[Hit]:
    for proxy in facts.access.to_the_leader:
        if proxy.lingering and proxy.asks_role:
            servers = ", ".join(f"{proxy.name}.{server}" for server in proxy.lingering)
            fix = pasted("on-marked-down shutdown-sessions, on each server line or on default-server")
            yield Hit(f"{servers}: no on-marked-down shutdown-sessions", fix, proxy.name, proxy.file)


def _haproxy_cuts_statements(facts: Facts) -> Iterator[Hit]:
    """Against the longest statement that PostgreSQL lets run, where it is limited."""
    setting = facts.leader.setting("statement_timeout") if facts.leader else None
    limit = setting.seconds if setting else 0.0
    for proxy in facts.access.to_the_leader:
        if 0 < (proxy.timeout_server_s or 0) < (limit or _STATEMENT_S):
            allowed = f"statement_timeout is {limit:g} s" if limit else "statement_timeout is not set"
            evidence = f"{proxy.name}.timeout-server is {proxy.timeout_server_s:g} s, {allowed}"
            longer = f"{limit or _STATEMENT_S:g}"
            fix = pasted("timeout server longer than {longer:words} s, and timeout client too", longer=longer)
            yield Hit(evidence, fix, "timeout-server", proxy.file)


def _pgbouncer_any_host(facts: Facts) -> Iterator[Hit]:
    for name, database, host in ((pool.name, *one) for pool in facts.access.pools for one in pool.hosts.items()):
        if "," in host and not reads_by_name(database):
            fix = pasted(
                "one host: HAProxy or an address that follows the leader (PgBouncer has no target_session_attrs)"
            )
            yield Hit(f"{database}: host={host}", fix, "", name)


def _client_any_host(facts: Facts) -> Iterator[Hit]:
    for client in facts.access.clients:
        its = CLIENTS[client.kind]
        asked = client.parameters.get(its["role"])
        if len(client.hosts) > 1 and asked in (None, "any") and not reads_by_name(client.name):
            evidence = f"host={','.join(client.hosts)}, {its['role']} {'= any' if asked else 'is not set'}"
            yield Hit(evidence, pasted(its["ask"]), client.where, client.name)


def _client_waits_for_dead(facts: Facts) -> Iterator[Hit]:
    """A lone host may be a proxy beside the client, or an address that moves: that is a note."""
    for client in facts.access.clients:
        its = CLIENTS[client.kind]
        given = its.get("unset", {}) | client.parameters
        bounded = {name for name, value in given.items() if value.strip("0") and not value.startswith("-")}
        if client.parameters.get("keepalives") == "0":
            bounded -= {"tcp_user_timeout", "keepalives_idle"}
        if missing := [words for words in its["bounds"] if not bounded & {*words.split(" or ")}]:
            severity = Severity.NOTE if len(client.hosts) == 1 else None
            evidence = f"host={','.join(client.hosts)} without {' and '.join(missing)}"
            yield Hit(evidence, pasted(its["fix"]), client.where, client.name, severity)


CHECKS = checks_of("path", globals())
