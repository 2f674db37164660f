"""What one writer process is told: plain values that travel as JSON in a file; never a password."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from walproof.model.guarantee import Level
from walproof.model.topology import Endpoint


@dataclass(frozen=True, slots=True)
class WriterOrder:
    """Writers `first` to `first + count - 1` of a drill write at `level` through `endpoint` into `path`.

    `pooled`: sessions are not the client's own (PgBouncer, transaction pooling), so level and server go with each
    row. Times in seconds: `patience_s` without an answer the writer goes elsewhere and only listens on the old
    connection; `grace_s` is how long answers are awaited at the end.
    """

    path: str
    endpoint: Endpoint
    level: Level
    first: int
    count: int
    drill: int
    payload_bytes: int = 100
    pooled: bool = False
    patience_s: float = 3.0
    connect_s: float = 2.0
    grace_s: float = 1.0


@dataclass(frozen=True, slots=True)
class WitnessOrder:
    """What the readers are told: the leader's way in, every member's, and the writers' note files."""

    path: str
    leader: Endpoint
    members: tuple[tuple[str, Endpoint], ...]
    notes: tuple[str, ...]
    writers: int
    drill: int
    pace_s: float = 0.05


def _endpoint(raw: dict[str, Any]) -> Endpoint:
    return Endpoint(
        tuple((str(h), int(p)) for h, p in raw["hosts"]),
        raw["database"],
        raw["user"],
        raw["passfile"],
        tuple((str(k), str(v)) for k, v in raw["options"]),
    )


def write_order(order: WriterOrder | WitnessOrder, path: Path) -> None:
    """Put the order on file."""
    path.write_text(json.dumps(asdict(order)), encoding="utf-8")


def read_writer_order(path: Path) -> WriterOrder:
    """The order that write_order put there."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return WriterOrder(**{**raw, "endpoint": _endpoint(raw["endpoint"]), "level": Level(raw["level"])})


def read_witness_order(path: Path) -> WitnessOrder:
    """The order that write_order put there."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    members = tuple((str(name), _endpoint(endpoint)) for name, endpoint in raw["members"])
    notes = tuple(str(n) for n in raw["notes"])
    return WitnessOrder(**{**raw, "leader": _endpoint(raw["leader"]), "members": members, "notes": notes})
