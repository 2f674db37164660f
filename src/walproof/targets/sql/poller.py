"""Standing eyes on every member: one thread and one connection each, so that a silent member delays no other's look.

Never changes anything; a member that has not answered for `silent_s` is shown as unreachable.
"""

import threading
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from walproof.errors import TargetError
from walproof.model.ports import Target
from walproof.model.topology import ClusterView, MemberView, Role

LOOK = (resources.files("walproof.targets.sql.queries") / "observe.sql").read_text()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member last said, and when (seconds since the epoch)."""

    at: float
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Glance:
    """One joined look: the view, commits so far on the leader, sessions in SyncRep and the longest of their waits."""

    view: ClusterView
    commits: int | None
    waiting: int
    longest_wait_s: float


class Looking(Protocol):
    """Whatever gives glances until it is closed."""

    def view(self) -> ClusterView:
        """Just the cluster, as `CloseLook` has it."""
        return self.glance().view

    def glance(self) -> Glance:
        """What is known now."""
        ...

    def close(self) -> None:
        """Stop looking."""
        ...


class Looks:
    """Glances of a target that speaks no SQL, as the simulated one: one plain look each."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def view(self) -> ClusterView:
        """Just the cluster, as `CloseLook` has it."""
        return self.glance().view

    def glance(self) -> Glance:
        """One look."""
        return Glance(self._target.observe(), None, 0, 0.0)

    def close(self) -> None:
        """Nothing to close."""


def eyes_on(target: Target, *, pace_s: float = 0.5) -> Looking:
    """Standing eyes where members have addresses of their own, plain looks elsewhere."""
    try:
        target.member_endpoint(target.describe().members[0])
    except (TargetError, IndexError):
        return Looks(target)
    return Eyes(target, pace_s=pace_s)


class Eyes:
    """Looks at every member of a target each `pace_s`, until closed."""

    def __init__(self, target: Target, *, pace_s: float = 0.5, silent_s: float = 0.9) -> None:
        self._target = target
        self._pace_s = pace_s
        self._silent_s = silent_s
        self._names = target.describe().members
        self._answers: dict[str, Answer] = {}
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(name,), daemon=True) for name in self._names]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop looking; connections close as their threads notice."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=2)

    def _watch(self, name: str) -> None:
        while not self._closed.is_set():
            try:
                endpoint = self._target.member_endpoint(name)
                conninfo = endpoint.conninfo(
                    connect_timeout="1",
                    application_name="walproof eyes",
                    tcp_user_timeout="1500",
                    target_session_attrs="",
                )
                with psycopg.connect(
                    conninfo, autocommit=True, row_factory=dict_row, prepare_threshold=1
                ) as connection:
                    while not self._closed.is_set():
                        row = connection.execute(LOOK).fetchone()
                        if row is not None:
                            self._answers[name] = Answer(self._target.clock.now(), row)
                        self._closed.wait(self._pace_s)
            except psycopg.Error:
                self._answers.pop(name, None)
                self._closed.wait(self._pace_s / 2)

    def view(self) -> ClusterView:
        """Just the cluster, as `CloseLook` has it."""
        return self.glance().view

    def glance(self) -> Glance:
        """What is known now, from answers young enough."""
        now = self._target.clock.now()
        fresh = {n: a.row for n, a in list(self._answers.items()) if now - a.at <= self._pace_s + self._silent_s}
        return joined(now, self._names, fresh, {n: self._address(n) for n in self._names})

    def _address(self, name: str) -> str:
        return self._target.member_endpoint(name).hosts[0][0]


def joined(now: float, names: tuple[str, ...], rows: dict[str, dict[str, Any]], addresses: dict[str, str]) -> Glance:
    """Members' rows as one view: the leader is the one not in recovery on the highest timeline."""
    leaders = [n for n, r in rows.items() if not r["standby"]]
    leader = max(leaders, key=lambda n: rows[n]["timeline"] or 0, default=None)
    told = {s["name"]: s for s in rows[leader]["standbys"]} if leader else {}
    by_address = {s["address"]: s for s in told.values() if s["address"]}
    head = int(rows[leader]["lsn"]) if leader else None

    def member(name: str) -> MemberView:
        row = rows.get(name)
        if row is None:
            return MemberView(name, Role.UNKNOWN, "unreachable", address=addresses[name])
        replica = told.get(name) or by_address.get(addresses[name]) or {}
        lsn = int(row["lsn"])
        role = Role.STANDBY if row["standby"] else Role.LEADER
        return MemberView(
            name,
            role,
            (str(replica.get("state") or "not streaming") if row["standby"] else "running"),
            row["timeline"],
            lsn,
            None if head is None else max(0, head - lsn),
            addresses[name],
            str(replica.get("sync_state") or ""),
            row["names"],
        )

    view = ClusterView(now, tuple(member(n) for n in names), leader, rows[leader]["names"] if leader else "")
    row = rows[leader] if leader else None
    return Glance(
        view,
        int(row["commits"]) if row else None,
        int(row["waiting"]) if row else 0,
        float(row["longest_wait_s"]) if row else 0.0,
    )
