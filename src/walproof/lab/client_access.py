"""Clients' way to the leader: HAProxy and PgBouncer configured, started, queried, paused and resumed.

Also the planned switchover, which holds clients in the pool meanwhile. Takes no other decision about members."""

import socket
import subprocess
from pathlib import Path

import psycopg

from walproof.errors import Error, MachineError, TargetError
from walproof.lab import home, patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.patroni import observe
from walproof.lab.privileges import confined, make_folder, make_log, member_uid, write_private
from walproof.lab.programs import haproxy_pgbouncer
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
    write_access(blueprint, pgbouncer_version(version.stdout))
    folder = blueprint.access_dir
    if not runs(blueprint, "haproxy"):
        spawn(blueprint, "haproxy", haproxy_pgbouncer.haproxy_argv(program("haproxy"), folder / "haproxy.cfg"))
    if not runs(blueprint, "pgbouncer"):
        spawn(blueprint, "pgbouncer", haproxy_pgbouncer.pgbouncer_argv(program("pgbouncer"), folder / "pgbouncer.ini"))


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


def switch_over(blueprint: Blueprint, leader: str, to: str | None, clock: Clock, *, hold: bool = True) -> str:
    """Switch over from `leader` to `to` (None: Patroni chooses); the new leader's name.

    With `hold`, PgBouncer lets transactions end and holds new ones until HAProxy sends writers to the new leader.
    """
    if hold:
        pool_command(blueprint, "PAUSE")
    try:
        patroni.switchover(blueprint, leader, to)
        return _wait_for_other(blueprint, leader, clock)
    finally:
        if hold:
            pool_command(blueprint, "RESUME")


def _wait_for_other(blueprint: Blueprint, leader: str, clock: Clock) -> str:
    found: list[str] = []

    def handed() -> bool:
        try:
            now = observe(blueprint).leader
        except Error:
            return False
        if now is None or now == leader or routed_leader(blueprint) != now:
            return False
        found[:] = [now]
        return True

    wait_for(Wait.SWITCHOVER, handed, clock, pace_s=0.05)
    return found[0]


def pgbouncer_version(output: str) -> tuple[int, int]:
    """(1, 18) of "PgBouncer 1.18.0"; MachineError when it cannot be parsed."""
    try:
        major, minor = output.split()[1].split(".")[:2]
        return int(major), int(minor)
    except (IndexError, ValueError):
        raise MachineError(f"pgbouncer --version prints {output!r}") from None


def write_access(blueprint: Blueprint, version: tuple[int, int]) -> None:
    """Folder and files of HAProxy and PgBouncer."""
    folder = blueprint.access_dir
    owner = member_uid(blueprint.number)
    make_folder(folder, 0o711)
    make_folder(blueprint.access_run_dir, owner=owner)
    ports = blueprint.ports
    write_private(
        folder / "haproxy.cfg",
        haproxy_pgbouncer.haproxy_cfg(
            haproxy_pgbouncer.HaproxySettings(
                addresses={m: blueprint.address(m) for m in blueprint.members},
                leader_port=ports["leader"],
                standby_port=ports["standby"],
                stats_port=ports["haproxy-stats"],
                socket=blueprint.access_run_dir / "haproxy.sock",
                fast_timeouts=blueprint.fast_timeouts,
            )
        ),
        reader=owner,
    )
    passwords = home.read_secrets(blueprint)
    write_private(folder / "users.txt", haproxy_pgbouncer.users_text({"postgres": passwords["postgres"]}), reader=owner)
    settings = haproxy_pgbouncer.PgbouncerSettings(
        port=ports["pgbouncer"],
        leader_port=ports["leader"],
        auth_file=folder / "users.txt",
        version=version,
        fast_timeouts=blueprint.fast_timeouts,
    )
    write_private(folder / "pgbouncer.ini", haproxy_pgbouncer.pgbouncer_ini(settings), reader=owner)
