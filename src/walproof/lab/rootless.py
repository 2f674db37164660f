"""Labs of ordinary users: the whole command steps into private user, network and mount namespaces of its own.

Decides when to step inside, starts the keeper of the namespaces, and replaces this process by itself inside them.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from walproof.errors import MachineError
from walproof.lab import home, namespace_keeper
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock
from walproof.machine.software import program
from walproof.model.waiting import Wait, wait_for

RAISING = (("lab", "up"), ("demo",), ("study",), ("prove", "--pitfall"))
"""Words of commands that raise a lab; others step inside only where one is."""
USING = ("lab", "demo", "price", "prove", "study", "watch", "doctor", "advise", "apply", "restore")


def step_inside(argv: list[str]) -> None:
    """Under an ordinary user, go on as the same command inside the lab's namespaces; returns where that is not needed.

    MachineError where the kernel allows ordinary users no namespaces.
    """
    if os.geteuid() == 0 or namespace_keeper.INSIDE in os.environ or not _means_the_lab(argv):
        return
    pid = _holder()
    if pid is None:
        if not any(set(words) <= set(argv) and words[0] == argv[0] for words in RAISING):
            return
        pid = _start_keeper(_first_port(argv))
    sys.stdout.flush()
    gate = [
        sys.executable,
        "-S",
        namespace_keeper.__file__,
        "enter",
        str(pid),
        "--",
        sys.executable,
        "-m",
        "walproof",
        *argv,
    ]
    os.execv(sys.executable, gate)


def _means_the_lab(argv: list[str]) -> bool:
    if not argv or argv[0] not in USING or {"-h", "--help"} & set(argv):
        return False
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        named = following if word == "--target" else word.removeprefix("--target=") if "--target=" in word else None
        if named is not None and named.split(":")[0] != "lab":
            return False
    return True


def _first_port(argv: list[str]) -> int:
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        text = following if word == "--port" else word.removeprefix("--port=") if "--port=" in word else ""
        if text.isdigit() and 1024 <= int(text) <= 65000:
            return int(text)
    return 5500


def _pid_file() -> Path:
    return home.state_folder() / f".{home.lab_name()}.keeper"


def _holder() -> int | None:
    """A process that holds the lab's namespaces: the keeper, else any process of the lab."""
    from walproof.lab import members

    try:
        pid = int(_pid_file().read_text())
        if b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    except (OSError, ValueError):
        pass
    blueprint = home.stored(home.lab_name())
    found = members.marked(blueprint) if blueprint is not None else []
    return found[0].pid if found else None


def _start_keeper(first_port: int) -> int:
    folder = home.open_state()
    pid_file = folder / f".{home.lab_name()}.keeper"
    pid_file.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        lent = {port: stack.enter_context(_listen(port)) for port in _ports(first_port)}
        words = [f"{port}={listener.fileno()}" for port, listener in lent.items()]
        options = ("--user", "--map-current-user", "--keep-caps", "--net", "--mount")
        log = stack.enter_context((folder / f".{home.lab_name()}.keeper.log").open("wb"))
        process = subprocess.Popen(
            [
                program("unshare"),
                *options,
                sys.executable,
                "-S",
                namespace_keeper.__file__,
                "keep",
                str(pid_file),
                *words,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno() for listener in lent.values()],
            start_new_session=True,
            env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"},
        )
        wait_for(
            Wait.PROGRAM_READY,
            lambda: pid_file.exists() or process.poll() is not None,
            RealClock(),
            pace_s=0.02,
        )
    if process.poll() is not None:
        said = (folder / f".{home.lab_name()}.keeper.log").read_text().strip().splitlines()
        raise MachineError(
            f"this machine allows ordinary users no namespaces of their own: {said[-1] if said else 'no reason given'}",
            "run as root (sudo), or allow them: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces>0",
        )
    return process.pid


def _ports(first_port: int) -> list[int]:
    drawn = Blueprint("", 0, (), Path(), Path(), 0, port_base=first_port)
    return list(drawn.ports.values())


def _listen(port: int) -> socket.socket:
    """A listener on the host's own loopback; the keeper lends it to what listens there inside."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as wrong:
        listener.close()
        raise MachineError(
            f"the address 127.0.0.1:{port} is already taken: {wrong.strerror}", f"walproof lab up --port {port + 100}"
        ) from None
    return listener


def step_outside() -> None:
    """At the end of a command: end the keeper when no lab stands in its namespaces, such as after a refused order."""
    if namespace_keeper.INSIDE in os.environ and not home.lab_home(home.lab_name()).exists():
        let_go()


def let_go() -> None:
    """End the keeper, from inside, once the lab is down; the namespaces go with the last process in them."""
    pid = os.environ.get(namespace_keeper.INSIDE, "")
    if os.geteuid() == 0 or not pid.isdigit():
        return
    with contextlib.suppress(OSError):
        if b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGTERM)
    for left in (".keeper", ".keeper.log"):
        (home.state_folder() / f".{home.lab_name()}{left}").unlink(missing_ok=True)
