"""PostgreSQL parameters given to a lab: read from NAME=VALUE texts, checked by PostgreSQL itself (`postgres -C`)."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from walproof.errors import UsageError
from walproof.lab.confinement import confined_check

_RESERVED = {
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
"""Parameters that cannot be given, and why."""


def read_parameters(texts: tuple[str, ...]) -> dict[str, str]:
    """Parameters by name of "name=value" texts; UsageError for anything else.

    >>> read_parameters(("work_mem=64MB",))
    {'work_mem': '64MB'}
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is not a parameter", "write it like --param work_mem=64MB")
        found[name.strip().lower()] = value.strip()
    return found


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
        done = subprocess.run(confined_check(argv, Path(folder)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        reason = re.sub(r"^.*?(FATAL|ERROR):\s*", "", last)
        raise UsageError(f"PostgreSQL refuses {name}={value}: {reason}", "see pg_settings for names and units")
    return done.stdout.rstrip("\n")


def check_parameters(bin_dir: Path, parameters: dict[str, str]) -> None:
    """UsageError when PostgreSQL itself refuses a name or a value, or the lab or Patroni sets the parameter."""
    for name, why in _RESERVED.items():
        if name in parameters:
            raise UsageError(f"{name} cannot be set: {why}", f"leave --param {name}=… out")
    for name, value in parameters.items():
        canonical(bin_dir, name, value)
