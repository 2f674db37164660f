"""Which package of which distribution has a program, and the command that installs it. Reads a table; installs none."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

_TOOLS = {"debian": "apt-get install --no-install-recommends", "fedora": "dnf install"}


@dataclass(frozen=True, slots=True)
class Packaged:
    """A program, what it is needed for, and its package by family of distributions; "-" where there is none."""

    program: str
    needed_for: str
    by_family: dict[str, str]


@cache
def table() -> tuple[Packaged, ...]:
    """Every program of the table, in its order."""
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
    found = [package for package in packages if package != "-"]
    none = [name for name in wanted if rows.get(name, name) == "-"]
    parts = [f"sudo {_TOOLS[of]} {' '.join(found)}"] if found else []
    parts += [f"put {', '.join(none)} on PATH: this distribution has no package of it"] if none else []
    return "; ".join(parts)


def this_family() -> str | None:
    """The family of this machine's distribution."""
    try:
        return family(Path("/etc/os-release").read_text("utf-8"))
    except OSError:
        return None
