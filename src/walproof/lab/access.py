"""HAProxy and PgBouncer as processes: started, asked, held and let go. Decides nothing about members."""

import socket
import subprocess
from pathlib import Path

import psutil
import psycopg

from walproof.errors import MachineError, TargetError
from walproof.lab import assembly, home
from walproof.lab.blueprint import Blueprint
from walproof.lab.privileges import as_member_user
from walproof.lab.programs import haproxy, pgbouncer
from walproof.machine.software import program
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


def spawn(blueprint: Blueprint, name: str, argv: list[str], **more: str) -> None:
    """Start a program of the access layer as the members' user; `more` goes into its environment."""
    folder = blueprint.access_dir
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            as_member_user(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=home.environment(blueprint, HOME=str(folder), **more),
            start_new_session=True,
        )
    (folder / f"{name}.pid").write_text(str(process.pid))


def runs(blueprint: Blueprint, name: str) -> bool:
    """Whether the program of that name of the access layer is alive."""
    try:
        process = psutil.Process(int((blueprint.access_dir / f"{name}.pid").read_text()))
        return process.status() != psutil.STATUS_ZOMBIE and str(blueprint.access_dir) in " ".join(process.cmdline())
    except (OSError, ValueError, psutil.Error):
        return False


def start(blueprint: Blueprint) -> None:
    """Write the files and start HAProxy and PgBouncer where they do not run."""
    said = subprocess.run([program("pgbouncer"), "--version"], capture_output=True, text=True, check=False)
    assembly.write_access(blueprint, assembly.pgbouncer_version(said.stdout))
    folder = blueprint.access_dir
    if not runs(blueprint, "haproxy"):
        spawn(blueprint, "haproxy", haproxy.argv(program("haproxy"), folder / "haproxy.cfg"))
    if not runs(blueprint, "pgbouncer"):
        spawn(blueprint, "pgbouncer", pgbouncer.argv(program("pgbouncer"), folder / "pgbouncer.ini"))


def routed_leader(blueprint: Blueprint) -> str | None:
    """Whom HAProxy sends writers to just now, None when nobody (asked over its runtime socket)."""
    try:
        with socket.socket(socket.AF_UNIX) as talk:
            talk.settimeout(1)
            talk.connect(_short(blueprint.access_dir / "haproxy.sock"))
            talk.sendall(b"show stat\n")
            said = b"".join(iter(lambda: talk.recv(65536), b"")).decode()
    except OSError:
        return None
    for line in said.splitlines():
        words = line.split(",")
        if len(words) > 17 and words[0] == "leader" and words[1] in blueprint.members and words[17].startswith("UP"):
            return words[1]
    return None


def _short(path: Path) -> str:
    """A socket's path may be 107 bytes at most (unix(7)): the check is clearer than the kernel's message."""
    if len(str(path).encode()) > 107:
        raise MachineError(f"the path {path} is too long for a socket", "set WALPROOF_STATE to a shorter folder")
    return str(path)


def check_paths(blueprint: Blueprint) -> None:
    """MachineError when the state folder's path is too long for sockets."""
    _short(blueprint.access_dir / "haproxy.sock.12345.tmp")


def wait_until_routed(blueprint: Blueprint, clock: Clock, leader: str | None = None) -> None:
    """Wait until HAProxy and PgBouncer let a writer through to the leader (to that one, when named)."""

    def through() -> bool:
        found = routed_leader(blueprint)
        return found is not None and (leader is None or found == leader)

    wait_for(Wait.PROGRAM_READY, through, clock, pace_s=0.05)


def pool_command(blueprint: Blueprint, command: str) -> None:
    """A word to PgBouncer's console: PAUSE, RESUME or RELOAD; TargetError when it refuses."""
    way = blueprint.endpoint("pgbouncer", database="pgbouncer").conninfo()
    try:
        with psycopg.connect(way, autocommit=True, cursor_factory=psycopg.ClientCursor) as console:
            console.execute(command.encode())
    except psycopg.Error as wrong:
        raise TargetError(f"PgBouncer refuses {command}: {str(wrong).strip()}", "walproof lab status") from None


def pool_clients(blueprint: Blueprint) -> dict[str, int]:
    """PgBouncer's clients by state, active and waiting; empty when its console does not answer."""
    way = blueprint.endpoint("pgbouncer", database="pgbouncer").conninfo()
    try:
        with psycopg.connect(way, autocommit=True, cursor_factory=psycopg.ClientCursor) as console:
            cursor = console.execute("SHOW POOLS")
            names = [column.name for column in cursor.description or ()]
            pools = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except psycopg.Error:
        return {}
    return {state: sum(int(pool[f"cl_{state}"]) for pool in pools) for state in ("active", "waiting")}
