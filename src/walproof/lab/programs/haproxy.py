"""HAProxy, which routes to the leader and to the standbys. Settings → haproxy.cfg, argv; starts nothing."""

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


def config_text(settings: HaproxySettings) -> str:
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


def argv(program: Path, config: Path) -> list[str]:
    """The command line; in the foreground, so that it is its own pid."""
    return [str(program), "-db", "-f", str(config)]
