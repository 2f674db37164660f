"""What pitfalls do to a lab: connect to members, commit in the background, freeze replication, await events."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import psycopg

from walproof.errors import TargetError
from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults.catalogue import recover as clear_faults
from walproof.machine import untrusted
from walproof.machine.answering import BoundedLogin
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.targets.choose import choose

Connection = psycopg.Connection[Any]


@dataclass(slots=True)
class Attempt:
    """One commit in a thread of its own: the answer its client got, and when."""

    connection: Connection
    pid: int
    thread: threading.Thread | None = None
    answer: str = ""
    """"success", the error's text, or "" while there is none."""
    notices: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    def answered(self, within_s: float) -> bool:
        """Whether the client got an answer within that time."""
        if self.thread is not None:
            self.thread.join(within_s)
        return self.answer != ""


class PitfallLab:
    """One lab, and what pitfalls need to do with it."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.target = choose(f"lab:{blueprint.name}")
        self.clock = RealClock()
        self._connections: list[Connection] = []

    @property
    def leader(self) -> str:
        """The leader's name now; TargetError when there is none."""
        leader = self.target.observe().leader
        if leader is None:
            raise TargetError("the lab has no leader just now", "walproof lab status")
        return leader

    @property
    def standbys(self) -> tuple[str, ...]:
        leader = self.leader
        return tuple(m for m in self.blueprint.members if m != leader)

    def client(self, member: str, **more: str) -> Connection:
        """A client of the application, straight to a member, in autocommit."""
        return BoundedLogin.connect(self.blueprint.member_endpoint(member).client_conninfo(**more), autocommit=True)

    def connect(self, member: str, level: str = "on", **more: str) -> Connection:
        """A connection straight to a member; every transaction commits at that level."""
        connection = self.client(member, **more)
        connection.execute(f"SET synchronous_commit = {level}")
        self._connections.append(connection)
        return connection

    def query(self, member: str, statement: str, *values: object) -> Any:
        """The first value of a statement on a member, None when there is no row."""
        with self.client(member) as connection:
            connection.execute("SET synchronous_commit = local")
            cursor = connection.execute(statement, values)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def create_table(self) -> None:
        """A new table, readable on every member."""
        with self.client(self.leader) as connection:
            connection.execute("DROP TABLE IF EXISTS walproof_pitfall")
            connection.execute("SET synchronous_commit = remote_apply")
            connection.execute("CREATE TABLE walproof_pitfall (key text, at timestamptz DEFAULT clock_timestamp())")
        for member in self.blueprint.members:
            self.wait_until(lambda m=member: self.readable(m))  # type: ignore[misc]

    def readable(self, member: str) -> bool:
        try:
            return self.count(member) is not None
        except psycopg.Error:
            return False

    def count(self, member: str, prefix: str = "") -> int:
        rows = self.query(member, "SELECT count(*) FROM walproof_pitfall WHERE key LIKE %s || '%%'", prefix)
        return int(rows)

    def insert(self, member: str, prefix: str, rows: int, level: str = "on") -> None:
        """So many rows, each a commit of its own, over one connection; every one is acknowledged."""
        connection = self.connect(member, level)
        for i in range(rows):
            connection.execute("INSERT INTO walproof_pitfall (key) VALUES (%s)", (f"{prefix}-{i}",))

    def attempt(
        self, key: str, level: str = "on", *, connection: Connection | None = None, statement: str = ""
    ) -> Attempt:
        """One INSERT committed in the background, on the leader when no connection is given."""
        used = connection or self.connect(self.leader, level)
        attempt = Attempt(used, used.info.backend_pid)
        used.add_notice_handler(lambda notice: attempt.notices.append(notice.message_primary or ""))
        text = statement or "INSERT INTO walproof_pitfall (key) VALUES (%(key)s)"

        def run() -> None:
            attempt.began = time.time()
            try:
                used.execute(text, {"key": key} if "%(key)s" in text else None)
                answer = "success"
            except psycopg.Error as wrong:
                answer = str(wrong).strip().splitlines()[0] if str(wrong).strip() else type(wrong).__name__
            attempt.ended = time.time()
            attempt.answer = answer

        attempt.thread = threading.Thread(target=run, daemon=True)
        attempt.thread.start()
        return attempt

    def wait_until(self, done: Callable[[], bool], wait: Wait = Wait.PITFALL_SHOWN) -> float:
        """Wait until `done` is true; seconds waited. WaitTimeout when it stays false."""
        return wait_for(wait, done, self.clock)

    def wait_for_syncrep(self, attempt: Attempt) -> None:
        where = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        leader = self.leader
        self.wait_until(lambda: self.query(leader, where, attempt.pid) == "SyncRep")

    @contextmanager
    def receivers_frozen(self, standbys: Sequence[str]) -> Iterator[None]:
        """The WAL receivers of those standbys are frozen: nothing new is received, the connections stay."""
        processes = [p for member in standbys for p in members.processes(self.blueprint, member)]
        stopped = [p for p in processes if "walreceiver" in _title(p)]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            if len(stopped) < len(standbys):
                raise TargetError("a standby has no WAL receiver to freeze", "walproof lab status")
            yield
        finally:
            for process in stopped:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGCONT)

    @contextmanager
    def patroni_frozen(self, standbys: Sequence[str]) -> Iterator[None]:
        """The Patroni of those standbys is frozen, as it would resume a paused replay."""
        found = [members.program_pid(self.blueprint, m, "patroni") for m in standbys]
        pids = [pid for pid in found if pid is not None]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @contextmanager
    def standbys_down(self, standbys: Sequence[str]) -> Iterator[None]:
        """PostgreSQL of those standbys is down and their Patroni frozen; etcd keeps running."""
        with self.patroni_frozen(standbys):
            for member in standbys:
                postmaster = members.postmaster(self.blueprint, member)
                if postmaster is not None:
                    os.kill(postmaster, signal.SIGKILL)
            yield

    def new_leader(self, old: str) -> str:
        """Wait for another leader than the old one; its name."""

        def another_leads() -> bool:
            now = self.target.observe().leader
            return now is not None and now != old

        self.wait_until(another_leads, Wait.NEW_LEADER)
        return self.leader

    def recover(self) -> None:
        clear_faults(self.blueprint, self.clock)

    def close(self, *, recover: bool = True) -> None:
        """Close every connection; clear every fault and wait until the lab is healthy, when `recover`."""
        for connection in self._connections:
            with suppress(psycopg.Error):
                connection.close()
        self._connections.clear()
        if recover:
            self.recover()


def _title(process: psutil.Process) -> str:
    try:
        return untrusted.of_process(process.pid, "cmdline")[0]
    except OSError:
        return ""
