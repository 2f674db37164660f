"""What a writer's or reader's process shall do: plain values that travel as JSON in a file; never a password."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from walproof.machine.clock import OFFSET
from walproof.model.guarantee import Level
from walproof.model.topology import Endpoint


@dataclass(frozen=True, slots=True)
class WriterTask:
    """Writers `first` to `first + count - 1` of a drill write at `level` through `endpoint` into `path`.

    `pooled`: sessions are shared by clients (PgBouncer, transaction pooling), so level and server go with each row.
    `rate`: commits per second of these writers together at most; None: as fast as they can.
    `clock_offset`: what the times of the process that started it add to the machine's monotonic clock, seconds.
    After `answer_timeout_s` without an answer a writer connects to another server and only listens on the old
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
    answer_timeout_s: float = 3.0
    connect_timeout_s: float = 2.0
    grace_s: float = 1.0
    rate: float | None = None
    clock_offset: float = OFFSET


@dataclass(frozen=True, slots=True)
class ReaderTask:
    """Readers ask every member each `interval_s`, compare with the writers' `attempt_files`, and report to `path`."""

    path: str
    members: tuple[tuple[str, Endpoint], ...]
    attempt_files: tuple[str, ...]
    writers: int
    drill: int
    interval_s: float = 0.05
    clock_offset: float = OFFSET


def _endpoint(raw: dict[str, Any]) -> Endpoint:
    return Endpoint(
        tuple((str(h), int(p)) for h, p in raw["hosts"]),
        raw["database"],
        raw["user"],
        raw["passfile"],
        tuple((str(k), str(v)) for k, v in raw["options"]),
    )


def task_text(task: WriterTask | ReaderTask) -> str:
    """The task as JSON."""
    return json.dumps(asdict(task))


def read_writer_task(path: Path) -> WriterTask:
    """The task in a file of its text."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return WriterTask(**{**raw, "endpoint": _endpoint(raw["endpoint"]), "level": Level(raw["level"])})


def read_reader_task(path: Path) -> ReaderTask:
    """The task in a file of its text."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    members = tuple((str(name), _endpoint(endpoint)) for name, endpoint in raw["members"])
    files = tuple(str(name) for name in raw["attempt_files"])
    return ReaderTask(**{**raw, "members": members, "attempt_files": files})
