"""HAProxy and PgBouncer as processes: started, queried, paused and resumed. Decides nothing about members."""

import socket
import subprocess
from pathlib import Path

import psycopg

from walproof.errors import MachineError, TargetError
from walproof.lab import assembly, home
from walproof.lab.blueprint import Blueprint
from walproof.lab.confinement import confined
from walproof.lab.privileges import make_log
from walproof.lab.programs import haproxy, pgbouncer
from walproof.machine import pid_files
from walproof.machine.programs import program
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for


def check_ports(blueprint: Blueprint) -> None:
    """MachineError names the first port on the loopback that is taken."""
    for name, port in blueprint.ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as wrong:
                raise MachineError(
                    f"the address 127.0.0.1:{port} ({name}) is already taken: {wrong.strerror}",
                    f"walproof lab up --port {blueprint.port_base + 100}",
                ) from None


def spawn(blueprint: Blueprint, name: str, argv: list[str], **variables: str) -> None:
    """Start a program of the access layer as the members' user, with those environment variables too."""
    folder = blueprint.access_dir
    make_log(folder / f"{name}.log")
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            confined(blueprint, argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=home.environment(blueprint, HOME=str(blueprint.access_run_dir), **variables),
            start_new_session=True,
        )
    pid_files.write(folder / f"{name}.pid", process.pid)


def runs(blueprint: Blueprint, name: str) -> bool:
    """Whether the program of that name of the access layer is alive."""
    return pid_files.living(blueprint.access_dir / f"{name}.pid") is not None


def start(blueprint: Blueprint) -> None:
    """Write the files and start HAProxy and PgBouncer where they do not run."""
    version = subprocess.run([program("pgbouncer"), "--version"], capture_output=True, text=True, check=False)
    assembly.write_access(blueprint, assembly.pgbouncer_version(version.stdout))
    folder = blueprint.access_dir
    if not runs(blueprint, "haproxy"):
        spawn(blueprint, "haproxy", haproxy.argv(program("haproxy"), folder / "haproxy.cfg"))
    if not runs(blueprint, "pgbouncer"):
        spawn(blueprint, "pgbouncer", pgbouncer.argv(program("pgbouncer"), folder / "pgbouncer.ini"))


def routed_leader(blueprint: Blueprint) -> str | None:
    """The member HAProxy routes writers to now, None when none (queried over its runtime socket)."""
    try:
        with socket.socket(socket.AF_UNIX) as runtime:
            runtime.settimeout(1)
            runtime.connect(_short(blueprint.access_run_dir / "haproxy.sock"))
            runtime.sendall(b"show stat\n")
            answer = b"".join(iter(lambda: runtime.recv(65536), b"")).decode()
    except OSError:
        return None
    for line in answer.splitlines():
        cells = line.split(",")
        if len(cells) > 17 and cells[0] == "leader" and cells[1] in blueprint.members and cells[17].startswith("UP"):
            return cells[1]
    return None


def _short(path: Path) -> str:
    """A socket's path may be 107 bytes at most (unix(7)): this message is clearer than the kernel's."""
    if len(str(path).encode()) > 107:
        raise MachineError(f"the path {path} is too long for a socket", "set WALPROOF_STATE to a shorter folder")
    return str(path)


def check_paths(blueprint: Blueprint) -> None:
    """MachineError when the state folder's path is too long for sockets."""
    _short(blueprint.access_run_dir / "haproxy.sock.12345.tmp")


def wait_until_routed(blueprint: Blueprint, clock: Clock, leader: str | None = None) -> None:
    """Wait until HAProxy and PgBouncer route a writer to the leader (to that one, when named)."""

    def routed() -> bool:
        found = routed_leader(blueprint)
        return found is not None and (leader is None or found == leader)

    wait_for(Wait.PROGRAM_READY, routed, clock, pace_s=0.05)


def pool_command(blueprint: Blueprint, command: str) -> None:
    """A command on PgBouncer's console: PAUSE, RESUME or RELOAD; TargetError when it refuses."""
    conninfo = blueprint.endpoint("pgbouncer", database="pgbouncer").conninfo()
    try:
        with psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor) as console:
            console.execute(command.encode())
    except psycopg.Error as wrong:
        raise TargetError(f"PgBouncer refuses {command}: {str(wrong).strip()}", "walproof lab status") from None


def pool_clients(blueprint: Blueprint) -> dict[str, int]:
    """PgBouncer's clients by state, active and waiting; empty when its console does not answer."""
    conninfo = blueprint.endpoint("pgbouncer", database="pgbouncer").conninfo()
    try:
        with psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor) as console:
            cursor = console.execute("SHOW POOLS")
            names = [column.name for column in cursor.description or ()]
            pools = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except psycopg.Error:
        return {}
    return {state: sum(int(pool[f"cl_{state}"]) for pool in pools) for state in ("active", "waiting")}
