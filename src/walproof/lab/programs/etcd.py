"""etcd, the lab's DCS: one member for each PostgreSQL. Settings → argv and readiness question; starts nothing."""

from dataclasses import dataclass
from pathlib import Path

CLIENT_PORT = 2379
PEER_PORT = 2380


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """One etcd member: its name and address, all addresses by name, its folder, heartbeat and election in ms."""

    name: str
    addresses: dict[str, str]
    data_dir: Path
    token: str
    heartbeat_ms: int = 100
    election_ms: int = 1000

    @property
    def address(self) -> str:
        """This member's own address."""
        return self.addresses[self.name]


def argv(settings: EtcdSettings, program: Path) -> list[str]:
    """The command line; listens on the member's own address and nowhere else."""
    client = f"http://{settings.address}:{CLIENT_PORT}"
    peer = f"http://{settings.address}:{PEER_PORT}"
    everybody = ",".join(f"{name}=http://{address}:{PEER_PORT}" for name, address in settings.addresses.items())
    options = {
        "name": settings.name,
        "data-dir": str(settings.data_dir),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": everybody,
        "initial-cluster-state": "new",
        "initial-cluster-token": settings.token,
        "heartbeat-interval": str(settings.heartbeat_ms),
        "election-timeout": str(settings.election_ms),
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "logger": "zap",
        "log-level": "warn",
    }
    return [str(program), *(f"--{name}={value}" for name, value in options.items())]


def health_url(address: str) -> str:
    """Answers with "health":"true" once the member knows a leader."""
    return f"http://{address}:{CLIENT_PORT}/health"
