"""Labs of ordinary users: the command moves into private user, network and mount namespaces.

Decides when to step inside, starts the namespace keeper, and executes the same command again inside.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from walproof.errors import MachineError
from walproof.lab import home, members, namespace_keeper
from walproof.lab.blueprint import Blueprint
from walproof.lab.machine_probes import check_machine, why_no_namespaces
from walproof.lab.privileges import isolated_python
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.machine.programs import program, search_path
from walproof.machine.quoting import pasted
from walproof.model.waiting import Wait, wait_for

CREATING = (("lab", "up"), ("demo",), ("study",), ("prove", "--pitfall"))
"""Arguments of commands that create a lab; others step inside only where one is."""
USING = ("lab", "demo", "price", "prove", "study", "watch", "doctor", "advise", "apply", "revert")
OUTSIDE = (("lab", "doctor"), ("lab", "ls"), ("lab", "down"))
"""Commands that work from outside of the namespaces."""


def step_inside(argv: list[str]) -> None:
    """Under an ordinary user, go on as the same command inside the lab's namespaces; returns where that is not needed.

    MachineError where the kernel allows ordinary users no namespaces.
    """
    if os.geteuid() == 0 or namespace_keeper.INSIDE in os.environ or not _uses_a_lab(argv):
        return
    if named := [*_values(argv, "--lab"), *(t[4:] for t in _values(argv, "--target") if t.startswith("lab:"))]:
        os.environ["WALPROOF_LAB"] = named[-1]
    pid = _holding_pid()
    if pid is None:
        if not any(set(some) <= set(argv) and some[0] == argv[0] for some in CREATING):
            return
        pid = _start_keeper(_first_port(argv))
    sys.stdout.flush()
    again = (sys.executable, "-P", "-m", "walproof", *argv)
    enter = isolated_python(namespace_keeper.__file__, "enter", str(pid), "--", *again)
    os.execv(sys.executable, enter)


def _uses_a_lab(argv: list[str]) -> bool:
    if not argv or argv[0] not in USING or tuple(argv[:2]) in OUTSIDE or {"-h", "--help"} & set(argv):
        return False
    return all(target.split(":")[0] == "lab" for target in _values(argv, "--target"))


def _first_port(argv: list[str]) -> int:
    ports = (int(text) for text in _values(argv, "--port") if text.isdigit())
    return next((port for port in ports if 1024 <= port <= 65000), 5500)


def _values(argv: list[str], option: str) -> list[str]:
    """What the option was given, as two arguments or as one with =."""
    pairs = zip(argv, [*argv[1:], ""], strict=True)
    given = ((argument, following) for argument, following in pairs if argument.split("=")[0] == option)
    return [argument.partition("=")[2] if "=" in argument else following for argument, following in given]


def _keeper_files(name: str) -> tuple[Path, Path]:
    """The pid file and the log of a lab's namespace keeper."""
    folder = home.state_folder()
    return folder / f".{name}.keeper", folder / f".{name}.keeper.log"


def _holding_pid() -> int | None:
    """A process that holds the lab's namespaces: the keeper, else any process of the lab."""
    if (pid := pid_files.living(_keeper_files(home.lab_name())[0])) is not None:
        return pid
    blueprint = home.stored(home.lab_name())
    processes = members.marked(blueprint) if blueprint is not None else []
    return processes[0].pid if processes else None


def _start_keeper(first_port: int) -> int:
    home.check_here(home.lab_name())
    check_machine()
    home.open_state()
    pid_file, log_file = _keeper_files(home.lab_name())
    pid_file.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        ports = Blueprint("", 0, (), Path(), Path(), 0, port_base=first_port).ports.values()
        listeners = {port: stack.enter_context(_listen(port)) for port in ports}
        forwarded = [f"{port}={listener.fileno()}" for port, listener in listeners.items()]
        # slave: what root unmounts meanwhile goes here too, such as the image of a lab of root's.
        options = ("--user", "--map-current-user", "--keep-caps", "--net", "--mount", "--propagation", "slave")
        keep = isolated_python(namespace_keeper.__file__, "keep", str(pid_file), *forwarded)
        log = stack.enter_context(log_file.open("wb"))
        process = subprocess.Popen(
            [str(program("unshare")), *options, *keep],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno() for listener in listeners.values()],
            start_new_session=True,
            env={**os.environ, "PATH": search_path()},
        )
        wait_for(Wait.PROGRAM_READY, lambda: pid_file.exists() or process.poll() is not None, RealClock(), pace_s=0.02)
    if process.poll() is not None:
        logged = log_file.read_text(errors="replace").strip().splitlines()
        reason = logged[-1] if logged else "no reason given"
        raise why_no_namespaces(first_port, reason)
    return process.pid


def _listen(port: int) -> socket.socket:
    """A listener on the host's own loopback; the keeper forwards it to what listens there inside."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as wrong:
        listener.close()
        raise MachineError(
            f"the address 127.0.0.1:{port} is already taken: {wrong.strerror}",
            pasted("walproof lab up --port {port:shell}", port=port + 100),
        ) from None
    return listener


def step_outside() -> None:
    """At the end of a command: end the keeper when no lab is in its namespaces, such as after refused options."""
    if namespace_keeper.INSIDE in os.environ and not home.lab_home(home.lab_name()).exists():
        end_keeper(home.lab_name())


def end_keeper(name: str) -> None:
    """End the lab's namespace keeper, once it is down; the namespaces end with their last process."""
    if os.geteuid() == 0:
        return
    pid_file, log_file = _keeper_files(name)
    pid = pid_files.living(pid_file)
    if pid is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    pid_file.unlink(missing_ok=True)
    log_file.unlink(missing_ok=True)
