"""Clusters whose guards share one etcd: one leader killed in each at the same moment, with guards and without in turn.

`python -m benchmarks.guard_shared_etcd [--clusters 3] [--repeat 3]`: about ten minutes. Needs root. Three machines,
each an address of its own on loopback with one member of etcd and one of every cluster; each cluster's leader is on
another machine. While the guards watch, a lease of 10 s is granted and not renewed, as a dead leader's: an election
of etcd would keep it alive. Exit 1 when a cluster with a guard lost something or came back later than the latest
without one, or that lease outlived its time.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg
import yaml

from benchmarks.command import command
from walproof.errors import TargetError
from walproof.guarding.etcd import Etcd3, EtcdAccess
from walproof.lab import configuration
from walproof.lab.blueprint import ETCD_PORT, Blueprint
from walproof.lab.privileges import make_folder, write_private
from walproof.machine.clock import RealClock
from walproof.machine.programs import postgres_bin
from walproof.model.facts import LEADER_ROLES
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.rest import PatroniRest, RestAccess

MACHINES = {f"m{n}": f"127.77.0.{n}" for n in (1, 2, 3)}
ROLES = ("postgres", "replicator", "rewinder", "rest")
LEASE_S, WATCHED_S, SLACK_S = 10.0, 45.0, 5.0
"""The lease that is not renewed, how long it is watched, and how much later than its time it may end."""
UID = pwd.getpwnam("nobody").pw_uid
"""initdb asks for the name of its user."""


def started(argv: list[str], folder: Path, name: str) -> "subprocess.Popen[bytes]":
    """A program as the servers' user, its output in a file."""
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            argv, stdout=log, stderr=log, cwd=folder, user=UID, group=UID, extra_groups=[], start_new_session=True,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )  # fmt: skip


def stopped(process: "subprocess.Popen[bytes]", how: signal.Signals = signal.SIGTERM) -> None:
    """End a program, with -9 when it does not."""
    process.send_signal(how)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(slots=True)
class Cluster:
    """One Patroni cluster: a member on every machine, on ports of its own."""

    scope: str
    number: int
    folder: Path
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """PostgreSQL's."""
        return 6500 + self.number

    def url(self, machine: str) -> str:
        """Patroni's REST."""
        return f"http://{MACHINES[machine]}:{6520 + self.number}"

    @property
    def rest(self) -> PatroniRest:
        """Its client."""
        urls = tuple(map(self.url, MACHINES))
        return PatroniRest(RestAccess(urls, "walproof", "rest", verify=False, timeout_s=1.0, plain_http=True))

    def conninfo(self, **more: str) -> str:
        """The leader, wherever it is."""
        words = {"host": ",".join(MACHINES.values()), "port": ",".join([str(self.port)] * 3), "user": "postgres"}
        words |= {"dbname": "postgres", "password": "postgres", "connect_timeout": "1"}
        return psycopg.conninfo.make_conninfo("", **{**words, "target_session_attrs": "read-write", **more})

    def configure(self) -> None:
        """Folders, patroni.yml of every member, and the target file for its guard."""
        small = {"shared_buffers": "16MB", "max_connections": "60"}
        paper = Blueprint(self.scope, 0, tuple(MACHINES), self.folder, postgres_bin(None), 18, parameters=small)
        hosts = [f"{address}:{ETCD_PORT}" for address in MACHINES.values()]
        for machine, address in MACHINES.items():
            home = self.folder / machine
            make_folder(home, owner=UID)
            tree: dict[str, Any] = yaml.safe_load(configuration.patroni_yml(paper, machine, {r: r for r in ROLES}))
            tree["etcd3"]["hosts"] = hosts
            hba = [f"host {database} all 127.0.0.0/8 scram-sha-256" for database in ("all", "replication")]
            tree["postgresql"] |= {"data_dir": str(home / "data"), "pgpass": str(home / "pgpass"), "pg_hba": hba}
            for part, port in (("restapi", 6520 + self.number), ("postgresql", self.port)):
                tree[part] |= dict.fromkeys(("listen", "connect_address"), f"{address}:{port}")
            write_private(home / "patroni.yml", yaml.safe_dump(tree), reader=UID)
        for name, text in (("passfile", "*:*:*:postgres:postgres\n"), ("rest", "rest")):
            write_private(self.folder / name, text)
        (self.folder / "target.toml").write_text(
            f'kind = "patroni"\nrest = {[self.url(m) for m in MACHINES]}\n'
            f'dsn = "user=postgres dbname=postgres passfile={self.folder}/passfile"\n'
            f'[restapi]\nuser = "walproof"\npassword_file = "{self.folder}/rest"\nplain_http = true\n'
            f'[etcd3]\nhosts = {hosts}\nscope = "{self.scope}"\n'
        )

    def start(self, machine: str) -> None:
        """Its member there, where it does not run."""
        if machine not in self.running:
            home = self.folder / machine
            (home / "data" / "postmaster.pid").unlink(missing_ok=True)
            self.running[machine] = started(configuration.patroni_argv(home / "patroni.yml"), home, "patroni")

    def leader(self) -> str:
        """Whose PostgreSQL leads, by its own Patroni; "" when none does."""
        for machine in MACHINES:
            status = self.rest.status(f"{self.url(machine)}/patroni")
            if status.get("role") in LEADER_ROLES and status.get("state") == "running":
                return machine
        return ""

    def healthy(self) -> bool:
        """A leader, and both standbys named."""
        with suppress(psycopg.Error), psycopg.connect(self.conninfo()) as connection:
            rows = connection.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'").fetchall()
            return bool(self.leader()) and rows == [("quorum",), ("quorum",)]
        return False

    def lead_from(self, machine: str) -> None:
        """Switch over to that machine, where another one leads."""
        wait_for(Wait.CLUSTER_HEALTHY, self.healthy, RealClock(), pace_s=0.5)
        if (leader := self.leader()) != machine:
            self.rest.switch_over(self.url(leader), leader, machine)
            wait_for(Wait.CLUSTER_HEALTHY, lambda: self.leader() == machine and self.healthy(), RealClock(), pace_s=0.5)

    def kill(self, machine: str) -> None:
        """Its member there with -9: Patroni, then PostgreSQL's every process."""
        process = self.running.pop(machine)
        process.kill()
        with suppress(psutil.Error, OSError, ValueError):
            postmaster = psutil.Process(int((self.folder / machine / "data" / "postmaster.pid").read_text().split()[0]))
            for one in (postmaster, *postmaster.children()):
                with suppress(psutil.Error):
                    one.kill()
        process.wait()

    def kill_all(self) -> None:
        """Every member."""
        for machine in list(self.running):
            self.kill(machine)


class Writer(threading.Thread):
    """Commits one row after another, wherever the leader is, and keeps what was acknowledged and when."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.acknowledged, self.ended = cluster, list[tuple[float, int]](), threading.Event()

    def run(self) -> None:
        """Until `ended`."""
        number = time.time_ns()
        words = self.cluster.conninfo(tcp_user_timeout="1000", options="-c statement_timeout=1000")
        while not self.ended.is_set():
            with suppress(psycopg.Error), psycopg.connect(words, autocommit=True) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS kept (n bigint PRIMARY KEY)")
                while not self.ended.wait(0.01):
                    number += 1
                    connection.execute("INSERT INTO kept VALUES (%s)", [number])
                    self.acknowledged.append((time.monotonic(), number))
            self.ended.wait(0.05)

    def longest_s(self) -> float:
        """The longest time without an acknowledgement."""
        times = [at for at, _ in self.acknowledged]
        return max(b - a for a, b in pairwise(times))

    def lost(self) -> int:
        """What was acknowledged and is not there."""
        with psycopg.connect(self.cluster.conninfo()) as connection:
            held = {n for (n,) in connection.execute("SELECT n FROM kept").fetchall()}
        return sum(n not in held for _, n in self.acknowledged)


def etcd_client() -> Etcd3:
    """A client of the shared etcd."""
    return Etcd3(EtcdAccess(tuple(f"http://{address}:{ETCD_PORT}" for address in MACHINES.values())))


def term() -> int:
    """Of etcd's raft: how many elections there were."""
    return int(etcd_client().call("/maintenance/status", {})["raftTerm"])


def orphan_lived_s() -> float:
    """How long a lease of LEASE_S lives that is not renewed, watched for WATCHED_S at most."""
    client, began = etcd_client(), time.monotonic()
    lease = client.grant(LEASE_S)
    while time.monotonic() - began < WATCHED_S:
        with suppress(TargetError):
            if int(client.call("/lease/timetolive", {"ID": str(lease)}).get("TTL", -1)) < 0:
                break
        time.sleep(0.2)
    return time.monotonic() - began


@contextmanager
def guards(clusters: list[Cluster]) -> Iterator[list[Path]]:
    """One guard for each cluster; their logs."""
    logs = [cluster.folder / "guard.log" for cluster in clusters]
    with ExitStack() as stack:
        for cluster, path in zip(clusters, logs, strict=True):
            argv = [sys.executable, "-m", "walproof", "guard", "--target", str(cluster.folder / "target.toml")]
            with path.open("wb") as log:
                guard = subprocess.Popen([*argv, "--allow", "takeover"], stdout=log, stderr=log)
            stack.callback(stopped, guard)
        wait_for(Wait.GUARD_READY, lambda: all("watching" in log.read_text() for log in logs), RealClock())
        yield logs


@dataclass(frozen=True, slots=True)
class Found:
    """What a killed leader cost a cluster: seconds without acknowledgements; lost of so many acknowledged."""

    scope: str
    away_s: float
    lost: int
    acknowledged: int


def killed(clusters: list[Cluster]) -> list[Found]:
    """One leader killed in each at once."""
    writers = [Writer(cluster) for cluster in clusters]
    for writer in writers:
        writer.start()
    time.sleep(3.0)
    leaders = [cluster.leader() for cluster in clusters]
    RealClock().together([lambda c=c, m=m: c.kill(m) for c, m in zip(clusters, leaders, strict=True)])  # type: ignore[misc]
    at = time.monotonic()

    def back() -> bool:
        return all(w.acknowledged and w.acknowledged[-1][0] > at + 1.0 for w in writers)

    wait_for(Wait.NEW_LEADER, back, RealClock())
    time.sleep(1.5)
    for writer in writers:
        writer.ended.set()
        writer.join()
    for cluster, machine in zip(clusters, leaders, strict=True):
        cluster.start(machine)
    return [Found(w.cluster.scope, w.longest_s(), w.lost(), len(w.acknowledged)) for w in writers]


def apart(clusters: list[Cluster]) -> None:
    """Every leader on another machine, as far as there are machines."""
    for cluster, machine in zip(clusters, [*MACHINES] * len(clusters), strict=False):
        cluster.lead_from(machine)


def guarded(clusters: list[Cluster]) -> tuple[list[Found], float]:
    """One round with guards: what each cluster found, and how long the lease lived that was not renewed."""
    apart(clusters)
    with guards(clusters) as logs:
        before = term()
        lived = orphan_lived_s()
        print(f"  leaders alive: a lease of {LEASE_S:g} s lived {lived:.1f} s, {term() - before} elections of etcd")
        found = killed(clusters)
        for log in logs:
            lines = [line for line in log.read_text().splitlines() if "moved to" not in line]
            print("".join(f"      {log.parent.name}: {line}\n" for line in lines), end="")
    shown("with guards", found)
    return found, lived


def shown(arm: str, found: list[Found]) -> None:
    """One line a cluster."""
    for one in found:
        print(f"  {arm:12} {one.scope}: back after {one.away_s:5.1f} s, lost {one.lost} of {one.acknowledged:,}")
    sys.stdout.flush()


@contextmanager
def machines(count: int) -> Iterator[list[Cluster]]:
    """The etcd and so many clusters, ended and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="walproof-shared-etcd-"))
    folder.chmod(0o711)
    clusters = [Cluster(f"c{number}", number, folder / f"c{number}") for number in range(1, count + 1)]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for machine in MACHINES:
            make_folder(folder / machine, owner=UID)
            argv = configuration.etcd_argv(MACHINES, machine, folder / machine / "etcd", "shared")
            stack.callback(stopped, started(argv, folder / machine, "etcd"))
        for turn, cluster in enumerate(clusters):
            make_folder(cluster.folder, 0o711)
            cluster.configure()
            stack.callback(cluster.kill_all)
            cluster.start([*MACHINES][turn % len(MACHINES)])
        for cluster in clusters:
            wait_for(Wait.FIRST_LEADER, lambda c=cluster: bool(c.leader()), RealClock())  # type: ignore[misc]
            for machine in MACHINES:
                cluster.start(machine)
        yield clusters


def main(*, clusters: int = 3, repeat: int = 3) -> int:
    """Rounds in turn, and the verdict."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with_guards, without, lives = list[Found](), list[Found](), list[float]()
    with machines(clusters) as running:
        for number in range(1, repeat + 1):
            print(f"round {number}", flush=True)
            found, lived = guarded(running)
            with_guards += found
            lives.append(lived)
            apart(running)
            without += (alone := killed(running))
            shown("without", alone)
    latest, latest_alone = max(one.away_s for one in with_guards), max(one.away_s for one in without)
    lost = sum(one.lost for one in with_guards)
    print(
        f"{clusters} clusters on one etcd, {repeat} rounds: back after {latest:.1f} s with guards, "
        f"{latest_alone:.1f} s without; with guards {lost} lost of {sum(one.acknowledged for one in with_guards):,}; "
        f"a lease of {LEASE_S:g} s that nobody renews lived {max(lives):.1f} s at most (watched for {WATCHED_S:g} s)"
    )
    return int(lost > 0 or latest > latest_alone or max(lives) > LEASE_S + SLACK_S)


if __name__ == "__main__":
    command(main)
