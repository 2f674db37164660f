"""Probes this machine for what a lab needs: files, programs' versions, namespaces; refuses a lab it cannot have.

Changes and starts nothing; what probes printed is judged in requirements.py."""

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from walproof.errors import MachineError
from walproof.lab import home, requirements
from walproof.lab.requirements import MISSING, Output
from walproof.links import devices
from walproof.machine.programs import Packaged, postgres_bin, program, search_path, table

FILES = (
    "/etc/os-release",
    "/proc/version",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/sys/fs/cgroup/cgroup.controllers",
)
_NETWORK = "ip link add wpprobe type bridge && ip link add wpprobe0 type veth peer name wpprobe1"
_LONGEST_S = 10.0


def quick() -> dict[str, Output]:
    """What costs no time: the system, its rights, the programs without their versions, Patroni and PostgreSQL."""
    return {**dict(_system()), **{f"program {p.program}": _program(p.program) for p in _wanted()}, **dict(_python())}


def everything(first_port: int) -> dict[str, Output]:
    """Every probe; the ports are eight in a row from the first. Namespaces that are tried end with their command."""
    outputs = quick()
    if outputs["uname -s"].text != "Linux":
        return outputs
    for row in _wanted():
        output = outputs[f"program {row.program}"]
        if output.worked:
            outputs[f"program {row.program}"] = Output(f"{output.text}\n{_version(output.text)}".strip())
    inside = ["unshare", *(() if os.geteuid() == 0 else ("--user", "--map-current-user", "--keep-caps"))]
    outputs["namespaces"] = _run([*inside, "--net", "--mount", "true"])
    outputs["bridge and veth"] = _run([*inside, "--net", "sh", "-c", _NETWORK])
    why_no_tun = devices.why_no_tun()
    outputs["/dev/net/tun"] = Output(why_no_tun or "", 1 if why_no_tun else 0)
    outputs["losetup -f"] = _run(["losetup", "-f"])
    outputs["control group v1"] = Output("", 0 if Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists() else MISSING)
    outputs["ports taken"] = Output(" ".join(str(p) for p in range(first_port, first_port + 8) if why_taken(p)))
    outputs["free bytes of the state folder"] = _free(home.state_folder())
    outputs["free bytes of /dev/shm"] = _free(Path("/dev/shm"))
    return outputs


def _wanted() -> list[Packaged]:
    return [row for row in table() if row.needed_for != "test"]


def _system() -> Iterator[tuple[str, Output]]:
    yield "uname -s", Output(platform.system())
    yield "uname -m", Output(platform.machine())
    yield "uname -r", Output(platform.release())
    yield "python", Output(platform.python_version())
    yield "libc", Output(" ".join(platform.libc_ver()).strip() or "unknown")
    yield "id -u", Output(str(os.geteuid()))
    for name in FILES:
        yield name, _read(Path(name))
    status = _read(Path("/proc/self/status"))
    capabilities = [line.split()[1] for line in status.text.splitlines() if line.startswith("CapEff:")]
    yield "CapEff", Output(capabilities[0]) if capabilities else Output("", MISSING)
    yield "container", Output(_container())


def _container() -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    return "podman" if Path("/run/.containerenv").exists() else ""


def _python() -> Iterator[tuple[str, Output]]:
    try:
        folder = postgres_bin(None)
        yield "PostgreSQL", _run([str(folder / "postgres"), "--version"])
    except MachineError as missing:
        yield "PostgreSQL", Output(missing.message, MISSING)
    try:
        there = importlib.util.find_spec("patroni") is not None
        yield "Patroni", Output(version("patroni") if there else "", 0 if there else MISSING)
    except PackageNotFoundError:
        yield "Patroni", Output("", MISSING)


def _program(name: str) -> Output:
    try:
        return Output(str(program(name)))
    except MachineError:
        return Output("", MISSING)


def _version(path: str) -> str:
    """The first line that the program prints about its version; "" when it prints none."""
    option = {"ip": "-V", "bridge": "-V", "haproxy": "-v", "mkfs.ext4": "-V", "strace": "-V"}
    done = _run([path, option.get(Path(path).name, "--version")])
    return next((line.strip() for line in done.text.splitlines() if any(c.isdigit() for c in line)), "")


def _run(argv: Sequence[str]) -> Output:
    try:
        executable = program(argv[0])
    except MachineError:
        return Output("", MISSING)
    try:
        done = subprocess.run(
            [executable, *argv[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
            env={**os.environ, "PATH": search_path(), "LC_ALL": "C.UTF-8"},
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as wrong:
        return Output(str(wrong), 126)
    return Output("\n".join(part.strip() for part in (done.stdout, done.stderr) if part.strip()), abs(done.returncode))


def _read(path: Path) -> Output:
    try:
        return Output(path.read_text("utf-8", errors="replace").strip())
    except FileNotFoundError:
        return Output("", MISSING)
    except OSError as wrong:
        return Output(str(wrong.strerror), 1)


def why_taken(port: int) -> str | None:
    """Why nothing can listen on that port of 127.0.0.1, in the kernel's words; None where it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as wrong:
            return wrong.strerror
    return None


def _free(path: Path) -> Output:
    there = next((folder for folder in (path, *path.parents) if folder.exists()), None)
    if there is None or (path == Path("/dev/shm") and not path.exists()):
        return Output("", MISSING)
    return Output(str(shutil.disk_usage(there).free))


_MORE = "`walproof lab doctor` shows everything; in a checkout, `make install` installs it"


def check_machine(*, postgres_of_wheel: bool = True) -> None:
    """Find what a lab needs, without trying namespaces; MachineError names the first thing that is missing."""
    outputs = quick()
    if not postgres_of_wheel:
        outputs.pop("PostgreSQL", None)
    if (row := requirements.blocking(requirements.judged(outputs))) is not None:
        raise MachineError(row.found, f"{row.todo}; {_MORE}")


def why_no_namespaces(first_port: int, reason: str) -> MachineError:
    """The error for an ordinary user who may have no namespaces for that reason: which setting refuses them."""
    row = requirements.blocking(requirements.judged(everything(first_port)))
    if row is not None:
        return MachineError(row.found, row.todo)
    return MachineError(f"ordinary users may not have namespaces: {reason}", "run as root (sudo)")
