"""What clients connect to: HAProxy, which routes to leader and standbys, and PgBouncer, the pool in front of it.

Settings → haproxy.cfg, pgbouncer.ini and argv; starts nothing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HaproxySettings:
    """Addresses by member, ports on the loopback, the runtime socket, and how often health is checked."""

    addresses: dict[str, str]
    leader_port: int
    standby_port: int
    stats_port: int
    socket: Path
    fast_timeouts: bool = True


def haproxy_cfg(settings: HaproxySettings) -> str:
    """haproxy.cfg: two TCP proxies whose servers are up while Patroni's REST says primary or replica."""
    checks = (
        "inter 400ms fastinter 100ms downinter 250ms fall 2 rise 1"
        if settings.fast_timeouts
        else "inter 3s fall 3 rise 2"
    )
    check_timeout = "timeout check 800ms" if settings.fast_timeouts else "timeout check 3s"
    lines = [
        "global",
        "  maxconn 4000",
        "  log stdout format raw local0 notice",
        f"  stats socket {settings.socket} mode 600 level admin",
        "defaults",
        "  log global",
        "  mode tcp",
        "  retries 1",
        "  option redispatch 1",
        "  option clitcpka",
        "  option srvtcpka",
        "  timeout connect 1s",
        "  timeout queue 5s",
        "  timeout client 24h",
        "  timeout server 24h",
        f"  {check_timeout}",
        "frontend stats",
        f"  bind 127.0.0.1:{settings.stats_port}",
        "  mode http",
        "  timeout client 30s",
        "  http-request use-service prometheus-exporter if { path /metrics }",
        "  stats enable",
        "  stats uri /",
        *_proxy("leader", settings.leader_port, "/primary", checks, settings.addresses),
        *_proxy("standby", settings.standby_port, "/replica", checks, settings.addresses),
    ]
    return "\n".join(lines) + "\n"


def _proxy(name: str, port: int, path: str, checks: str, addresses: dict[str, str]) -> list[str]:
    servers = [
        f"  server {member} {address}:5432 check port 8008 {checks} on-marked-down shutdown-sessions"
        for member, address in addresses.items()
    ]
    balance = "roundrobin" if name == "standby" else "first"
    return [
        f"listen {name}",
        f"  bind 127.0.0.1:{port}",
        f"  balance {balance}",
        "  option httpchk",
        f"  http-check send meth GET uri {path}",
        "  http-check expect status 200",
        *servers,
    ]


def haproxy_argv(program: Path, config: Path) -> list[str]:
    """The command line; in the foreground, so that it is its own pid."""
    return [str(program), "-db", "-f", str(config)]


@dataclass(frozen=True, slots=True)
class PgbouncerSettings:
    """Ports on the loopback, the file of users, the log, and the version as (major, minor)."""

    port: int
    leader_port: int
    auth_file: Path
    version: tuple[int, int]
    pool_size: int = 100
    fast_timeouts: bool = True


def pgbouncer_ini(settings: PgbouncerSettings) -> str:
    """pgbouncer.ini: transaction pooling; prepared statements survive pooling from 1.21 on."""
    options = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(settings.port),
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "auth_file": str(settings.auth_file),
        "admin_users": "postgres",
        "pool_mode": "transaction",
        "default_pool_size": str(settings.pool_size),
        "max_client_conn": "1000",
        "ignore_startup_parameters": "extra_float_digits,options,search_path",
        "server_check_delay": "5",
        "tcp_keepalive": "1",
        "tcp_keepidle": "5",
        "tcp_keepintvl": "1",
        "tcp_keepcnt": "3",
        "log_connections": "0",
        "log_disconnections": "0",
        "log_stats": "0",
    }
    if settings.fast_timeouts:
        options |= {
            "server_login_retry": "0.3",
            "server_connect_timeout": "2",
            "tcp_user_timeout": "5000",
            "query_wait_timeout": "60",
        }
    if settings.version >= (1, 21):
        options["max_prepared_statements"] = "200"
    lines = ["[databases]", f"* = host=127.0.0.1 port={settings.leader_port}", "", "[pgbouncer]"]
    return "\n".join([*lines, *(f"{name} = {value}" for name, value in options.items())]) + "\n"


def users_text(passwords: dict[str, str]) -> str:
    """The file of users; holds passwords, which PgBouncer needs to log in at the server by SCRAM."""
    return "".join(f'"{user}" "{word}"\n' for user, word in passwords.items())


def pgbouncer_argv(program: Path, config: Path) -> list[str]:
    """The command line; in the foreground."""
    return [str(program), "-q", str(config)]
