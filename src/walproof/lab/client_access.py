"""Clients' way to the leader: HAProxy and PgBouncer configured, started, queried, paused and resumed.

Also the planned switchover, which holds clients in the pool meanwhile. Takes no other decision about members."""

import errno
import socket
import subprocess
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from walproof.errors import Error, MachineError, TargetError
from walproof.lab import home, patroni
from walproof.lab.blueprint import POSTGRES_PORT, REST_PORT, Blueprint
from walproof.lab.machine_probes import why_taken
from walproof.lab.patroni import observe
from walproof.lab.privileges import access_uid, confined, make_folder, write_private
from walproof.machine import pid_files
from walproof.machine.answering import BoundedLogin, answering
from walproof.machine.clock import RealClock
from walproof.machine.programs import program
from walproof.machine.quoting import pasted
from walproof.machine.text_templates import filled
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for

_MOST_ANSWER, _ANSWER_S = 1 << 20, 2.0


def check_ports(blueprint: Blueprint) -> None:
    """MachineError names the first port on the loopback that is taken."""
    for name, port in blueprint.ports.items():
        if why := why_taken(port):
            raise MachineError(
                f"the address 127.0.0.1:{port} ({name}) is already taken: {why}",
                pasted("walproof lab up --port {port:shell}", port=blueprint.port_base + 100),
            )


def spawn(blueprint: Blueprint, name: str, argv: list[str], **variables: str) -> None:
    """Start a program of the access layer as its own user, with those environment variables too."""
    folder = blueprint.access_dir
    environment = home.environment(blueprint, HOME=str(blueprint.access_run_dir), **variables)
    pid_files.start(confined(blueprint, argv), folder / f"{name}.pid", folder / f"{name}.log", environment, folder)


def runs(blueprint: Blueprint, name: str) -> bool:
    """Whether the program of that name of the access layer is alive."""
    return pid_files.living(blueprint.access_dir / f"{name}.pid") is not None


def start(blueprint: Blueprint) -> None:
    """Write the files and start HAProxy and PgBouncer where they do not run."""
    version = subprocess.run(
        [program("pgbouncer"), "--version"], capture_output=True, text=True, errors="replace", check=False
    )
    write_access(blueprint, pgbouncer_version(version.stdout))
    folder = blueprint.access_dir
    # In the foreground, so that each is its own pid.
    if not runs(blueprint, "haproxy"):
        spawn(blueprint, "haproxy", [str(program("haproxy")), "-db", "-f", str(folder / "haproxy.cfg")])
    if not runs(blueprint, "pgbouncer"):
        spawn(blueprint, "pgbouncer", [str(program("pgbouncer")), "-q", str(folder / "pgbouncer.ini")])


def routed_leader(blueprint: Blueprint) -> str | None:
    """The member HAProxy routes writers to now, None when none (queried over its runtime socket)."""
    try:
        with socket.socket(socket.AF_UNIX) as runtime:
            runtime.settimeout(1)
            runtime.connect(_short(_haproxy_socket(blueprint)))
            runtime.sendall(b"show stat\n")
            answer = _bounded(runtime).decode(errors="replace")
    except OSError:
        return None
    for line in answer.splitlines():
        cells = line.split(",")
        if len(cells) > 17 and cells[0] == "leader" and cells[1] in blueprint.members and cells[17].startswith("UP"):
            return cells[1]
    return None


def _bounded(runtime: socket.socket) -> bytes:
    """All that is answered; OSError where it does not end: the socket lies in a folder of HAProxy's user."""
    answer, clock = bytearray(), RealClock()
    until = clock.now() + _ANSWER_S
    while piece := runtime.recv(1 << 16):
        answer += piece
        if len(answer) > _MOST_ANSWER or clock.now() > until:
            raise OSError(errno.EMSGSIZE, "the answer does not end as HAProxy's do")
    return bytes(answer)


def _short(path: Path) -> str:
    """A socket's path may be 107 bytes at most (unix(7)): this message is clearer than the kernel's."""
    if len(str(path).encode()) > 107:
        raise MachineError(f"the path {path} is too long for a socket", "set WALPROOF_STATE to a shorter folder")
    return str(path)


def check_paths(blueprint: Blueprint) -> None:
    """MachineError when the state folder's path is too long for sockets."""
    _short(_haproxy_socket(blueprint).with_suffix(".sock.12345.tmp"))


def _haproxy_socket(blueprint: Blueprint) -> Path:
    return blueprint.access_run_dir / "haproxy.sock"


def pool_command(blueprint: Blueprint, command: str) -> None:
    """A command on PgBouncer's console: PAUSE, RESUME or RELOAD; TargetError when it refuses."""
    try:
        with _console(blueprint) as console:
            console.execute(command.encode())
    except psycopg.Error as wrong:
        raise TargetError(f"PgBouncer refuses {command}: {str(wrong).strip()}", "walproof lab status") from None


def _console(blueprint: Blueprint) -> "psycopg.Connection[dict[str, Any]]":
    conninfo = blueprint.endpoint("pgbouncer", database="pgbouncer").conninfo()
    return BoundedLogin.connect(conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor, row_factory=dict_row)


def pool_clients(blueprint: Blueprint) -> dict[str, int]:
    """PgBouncer's clients by state, active and waiting; empty when its console does not answer."""
    try:
        with _console(blueprint) as console, answering(console):
            pools = console.execute("SHOW POOLS").fetchall()
    except psycopg.Error:
        return {}
    return {state: sum(int(pool[f"cl_{state}"]) for pool in pools) for state in ("active", "waiting")}


def switch_over(blueprint: Blueprint, leader: str, to: str | None, clock: Clock, *, hold: bool = True) -> str:
    """Switch over from `leader` to `to` (None: Patroni chooses); the new leader's name.

    With `hold`, PgBouncer lets transactions end and holds new ones until HAProxy sends writers to the new leader.
    """
    if hold:
        pool_command(blueprint, "PAUSE")
    try:
        patroni.rest(blueprint).switch_over(leader, to, at=blueprint.rest_url(leader))
        return _wait_for_other(blueprint, leader, clock)
    finally:
        if hold:
            pool_command(blueprint, "RESUME")


def _wait_for_other(blueprint: Blueprint, leader: str, clock: Clock) -> str:
    successors: list[str] = []

    def handed() -> bool:
        try:
            now = observe(blueprint).leader
        except Error:
            return False
        if now is None or now == leader or routed_leader(blueprint) != now:
            return False
        successors[:] = [now]
        return True

    wait_for(Wait.SWITCHOVER, handed, clock, pace_s=0.05)
    return successors[0]


def pgbouncer_version(output: str) -> tuple[int, int]:
    """(1, 18) of "PgBouncer 1.18.0"; MachineError when it cannot be parsed."""
    try:
        major, minor = output.split()[1].split(".")[:2]
        return int(major), int(minor)
    except (IndexError, ValueError):
        raise MachineError(f"pgbouncer --version prints {output!r}") from None


def write_access(blueprint: Blueprint, version: tuple[int, int]) -> None:
    """Folder and files of HAProxy and PgBouncer; PgBouncer needs the password to log in at the server by SCRAM."""
    folder, owner = blueprint.access_dir, access_uid(blueprint.number)
    make_folder(folder, 0o711)
    make_folder(blueprint.access_run_dir, owner=owner)
    password = home.read_secrets(blueprint)["postgres"]
    write_private(folder / "haproxy.cfg", haproxy_cfg(blueprint), reader=owner)
    write_private(folder / "users.txt", f'"postgres" "{password}"\n', reader=owner)
    write_private(folder / "pgbouncer.ini", pgbouncer_ini(blueprint, version), reader=owner)


def haproxy_cfg(blueprint: Blueprint) -> str:
    """haproxy.cfg: two TCP proxies whose servers are up while Patroni's REST says primary or replica."""
    place, ports = _haproxy_socket(blueprint), {"postgres_port": POSTGRES_PORT, "rest_port": REST_PORT}
    return filled("walproof.lab", "haproxy.cfg.j2", lab=blueprint, socket=place, **ports)


def pgbouncer_ini(blueprint: Blueprint, version: tuple[int, int]) -> str:
    """pgbouncer.ini: transaction pooling; prepared statements survive pooling from 1.21 on."""
    return filled("walproof.lab", "pgbouncer.ini.j2", lab=blueprint, keeps_prepared=version >= (1, 21))
