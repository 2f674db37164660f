"""The lab as a stage for pitfalls: connections to members, commits that wait, replication held. Judges nothing."""

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
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.targets.lab.target import LabTarget

Link = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Whether the pitfall showed itself, and what was seen."""

    reproduced: bool
    evidence: str


@dataclass(slots=True)
class Attempt:
    """One commit in a thread of its own: what its client was told, and when."""

    key: str
    thread: threading.Thread | None = None
    link: Link | None = None
    pid: int = 0
    told: str = ""
    """"success", the error's text, or "" while nothing was told."""
    notices: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    def done(self, within_s: float) -> bool:
        """Whether the client was told anything within that time."""
        if self.thread is not None:
            self.thread.join(within_s)
        return self.told != ""


class Scene:
    """One lab and the few verbs that pitfalls need."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.target = LabTarget(blueprint)
        self.clock = RealClock()
        self._links: list[Link] = []

    @property
    def leader(self) -> str:
        """The leader's name now; TargetError when there is none."""
        found = self.target.observe().leader
        if found is None:
            raise TargetError("the lab has no leader just now", "walproof lab status")
        return found

    @property
    def standbys(self) -> tuple[str, ...]:
        """Every other member."""
        leader = self.leader
        return tuple(m for m in self.blueprint.members if m != leader)

    def link(self, member: str, level: str = "on", **more: str) -> Link:
        """A connection straight to a member; every transaction commits at that level."""
        way = self.blueprint.member_endpoint(member).conninfo(**more)
        found = psycopg.connect(way, autocommit=True)
        found.execute(f"SET synchronous_commit = {level}")
        self._links.append(found)
        return found

    def ask(self, member: str, question: str, *values: object) -> Any:
        """The first value a member answers with, None when there is no row."""
        with psycopg.connect(self.blueprint.member_endpoint(member).conninfo(), autocommit=True) as link:
            link.execute("SET synchronous_commit = local")
            cursor = link.execute(question, values)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def begin(self) -> None:
        """A fresh table on every member."""
        with psycopg.connect(self.blueprint.member_endpoint(self.leader).conninfo(), autocommit=True) as link:
            link.execute("DROP TABLE IF EXISTS walproof_pitfall")
            link.execute("SET synchronous_commit = remote_apply")
            link.execute("CREATE TABLE walproof_pitfall (key text, at timestamptz DEFAULT clock_timestamp())")
        for member in self.blueprint.members:
            self.until(lambda m=member: self.reads(m))  # type: ignore[misc]

    def reads(self, member: str) -> bool:
        """Whether the table can be read there."""
        try:
            return self.count(member) is not None
        except psycopg.Error:
            return False

    def count(self, member: str, prefix: str = "") -> int:
        """Rows on that member whose key begins so."""
        found = self.ask(member, "SELECT count(*) FROM walproof_pitfall WHERE key LIKE %s || '%%'", prefix)
        return int(found)

    def attempt(self, key: str, level: str = "on", *, link: Link | None = None, statement: str = "") -> Attempt:
        """One INSERT committed in the background, on the leader when no connection is given."""
        found = Attempt(key, link=link or self.link(self.leader, level))
        assert found.link is not None
        found.pid = found.link.info.backend_pid
        found.link.add_notice_handler(lambda notice: found.notices.append(notice.message_primary or ""))
        text = statement or "INSERT INTO walproof_pitfall (key) VALUES (%(key)s)"

        def run() -> None:
            found.began = time.time()
            try:
                assert found.link is not None
                found.link.execute(text, {"key": key} if "%(key)s" in text else None)
                told = "success"
            except psycopg.Error as wrong:
                told = str(wrong).strip().splitlines()[0] if str(wrong).strip() else type(wrong).__name__
            found.ended = time.time()
            found.told = told

        found.thread = threading.Thread(target=run, daemon=True)
        found.thread.start()
        return found

    def until(self, shown: Callable[[], bool], wait: Wait = Wait.PITFALL_SHOWN) -> float:
        """Wait for something to show; seconds waited. WaitTimeout when it does not."""
        return wait_for(wait, shown, self.clock)

    def waits_for_standby(self, attempt: Attempt) -> None:
        """Wait until that commit waits for its standby."""
        where = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        leader = self.leader
        self.until(lambda: self.ask(leader, where, attempt.pid) == "SyncRep")

    @contextmanager
    def held(self, standbys: Sequence[str]) -> Iterator[None]:
        """The WAL receivers of those standbys stand still: nothing new is received, the connections stay."""
        stopped: list[psutil.Process] = []
        for member in standbys:
            found = [p for p in members.processes(self.blueprint, member) if "walreceiver" in _title(p)]
            for process in found:
                process.send_signal(signal.SIGSTOP)
                stopped.append(process)
        try:
            if len(stopped) < len(standbys):
                raise TargetError("a standby has no WAL receiver to hold", "walproof lab status")
            yield
        finally:
            for process in stopped:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGCONT)

    @contextmanager
    def managers_still(self, standbys: Sequence[str]) -> Iterator[None]:
        """The Patroni of those standbys stands still for a moment: it would resume a paused replay."""
        pids = [members.program_pid(self.blueprint, m, "patroni") for m in standbys]
        for pid in pids:
            if pid is not None:
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                if pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    @contextmanager
    def no_standby_runs(self, standbys: Sequence[str]) -> Iterator[None]:
        """PostgreSQL of those standbys is down and their Patroni stands still; etcd goes on."""
        with self.managers_still(standbys):
            for member in standbys:
                postmaster = members.postmaster(self.blueprint, member)
                if postmaster is not None:
                    os.kill(postmaster, signal.SIGKILL)
            yield

    def new_leader(self, old: str) -> str:
        """Wait for another leader than the old one; its name."""

        def found() -> bool:
            now = self.target.observe().leader
            return now is not None and now != old

        self.until(found, Wait.NEW_LEADER)
        return self.leader

    def end(self, *, heal: bool = True) -> None:
        """Close every connection and heal the lab."""
        for link in self._links:
            with suppress(psycopg.Error):
                link.close()
        self._links.clear()
        if heal:
            self.target.operations.recover()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
