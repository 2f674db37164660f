"""A choice for what lies between clients and the leader: PgBouncer, HAProxy, and the application itself."""

from walproof.advising.recipes.settings import Recipe
from walproof.model.advice import Choice, ClusterProfile


def pgbouncer(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """The lines of pgbouncer.ini that belong to the choice."""
    seconds = choice.timeouts.network_s
    host = "haproxy.example" if cluster.members else "leader.example"
    text = f"""\
; walproof: {choice.text}
[databases]
; one address that always is the leader (HAProxy, a virtual IP), never one member
* = host={host} port=5432

[pgbouncer]
pool_mode = transaction
; SET LOCAL synchronous_commit holds for its transaction; a plain SET would leak to the next client
default_pool_size = {choice.pool or choice.clients}
; as priced: more servers at once were not faster, only slower to answer
max_client_conn = {max(1000, 10 * choice.clients)}
server_connect_timeout = 2
server_login_retry = 1
; after a failover the pool tries again each second
tcp_keepalive = 1
tcp_keepidle = {max(5, seconds // 2)}
tcp_keepintvl = 3
tcp_keepcnt = 3
tcp_user_timeout = {1000 * seconds}
; milliseconds; a dead leader is noticed, instead of TCP's 15 minutes
query_wait_timeout = {int(choice.timeouts.leader_failure_s) + 10}
; longer than a failover: clients wait through it instead of failing
"""
    return Recipe("pgbouncer", "walproof-pgbouncer.ini", text)


def haproxy(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """A listener that follows the leader by Patroni's health check."""
    members = cluster.members or ("n1", "n2", "n3")
    servers = "\n".join(f"    server {m} {m}:5432 check port 8008" for m in members)
    seconds = choice.timeouts.network_s
    text = f"""\
# walproof: {choice.text}
listen postgres_leader
    bind *:5000
    mode tcp
    option httpchk OPTIONS /primary
    http-check expect status 200
    # a member that is no longer the leader loses its sessions at once: nobody keeps writing there
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
    timeout connect 2s
    # a commit that waits for a standby is not idle: longer than a failover ({choice.timeouts.leader_failure_s:g} s)
    timeout client 30m
    timeout server 30m
    option clitcpka
    option srvtcpka
{servers.replace("check port", f"tcp-ut {seconds}s check port")}
"""
    return Recipe("haproxy", "walproof-haproxy.cfg", text)


def application(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """For the application: its connection string, and the level of each class of transactions."""
    hosts = ",".join(cluster.members or ("n1", "n2", "n3"))
    seconds = choice.timeouts.network_s
    lines = [
        f"-- walproof: {choice.text}",
        f"-- connect with: postgresql://app@{hosts}/app?target_session_attrs=read-write&connect_timeout=2"
        f"&tcp_user_timeout={1000 * seconds}&keepalives_idle={max(5, seconds // 2)}"
        "&keepalives_interval=3&keepalives_count=3",
        "-- a connection lost during COMMIT is unknown, not failed: check before you repeat it (idempotency key)",
        "-- never cancel a commit that waits: PostgreSQL answers with a warning and success, unreplicated",
        "",
    ]
    for one in choice.classes:
        lines += [
            f"-- {one.name}: {one.requirements.text or 'no requirement'} ({one.why})",
            "BEGIN;",
            f"SET LOCAL synchronous_commit = '{one.level}';",
            "-- … the transaction …",
            "COMMIT;",
            f"-- or for a role of its own: ALTER ROLE {one.name} SET synchronous_commit = '{one.level}';",
            "",
        ]
    if not choice.classes:
        lines += [
            "-- everything runs at the cluster's level; a transaction that may be lost sets its own:",
            "BEGIN;",
            "SET LOCAL synchronous_commit = 'local';",
            "COMMIT;",
        ]
    return Recipe("application", "walproof-application.sql", "\n".join(lines) + "\n")
