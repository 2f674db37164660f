"""PgBouncer, the lab's pool in front of HAProxy's leader port. Settings → pgbouncer.ini, argv; starts nothing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PgbouncerSettings:
    """Ports on the loopback, the file of users, the log, and the version as (major, minor)."""

    port: int
    leader_port: int
    auth_file: Path
    version: tuple[int, int]
    pool_size: int = 100
    fast_timeouts: bool = True


def config_text(settings: PgbouncerSettings) -> str:
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


def argv(program: Path, config: Path) -> list[str]:
    """The command line; in the foreground."""
    return [str(program), "-q", str(config)]
