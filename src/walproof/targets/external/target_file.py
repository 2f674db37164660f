"""What the address of an external cluster means: a TOML target file, a libpq URL or DSN, or a REST address."""

import os
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from walproof.errors import UsageError
from walproof.machine.redaction import without_secrets
from walproof.machine.toml_files import described, read_toml
from walproof.model.units import duration_s
from walproof.model.waiting import Wait

EXAMPLE = 'three lines: kind = "patroni", rest = ["http://10.0.0.11:8008"], dsn = "user=postgres"'
HINT = "--target cluster.toml, postgresql://user@host1,host2/db, http://host:8008 (Patroni), or cnpg:NAMESPACE/NAME"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CapsPart(Strict):
    """Never more than this, even where more is asked: connections that write at a time, transactions per second.

    Without `rate` pricing measures how much the cluster can, and the writers of `prove` commit at WRITES a second.
    """

    max_clients: int = Field(default=64, ge=1)
    rate: float | None = Field(default=None, gt=0)


class RoutePart(Strict):
    """A route that the user names: host:port, and whether a transaction pooler answers there."""

    address: str
    pools: bool = False

    @property
    def host(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    @field_validator("address")
    @classmethod
    def _has_port(cls, address: str) -> str:
        if not address.rpartition(":")[0] or not address.rpartition(":")[2].isdigit():
            raise ValueError(f"{address!r} is not host:port")
        return address


class TargetFile(Strict):
    """An external cluster. `{host}`, `{port}`, `{member}` and `{member2}` are filled into commands of `faults`."""

    kind: str
    dsn: str = ""
    service: str = ""
    members: dict[str, str] = {}
    """name → host:port, where walproof cannot find a member by itself."""
    routes: dict[str, RoutePart] = {}
    """name → "host:port", or a table of address and pools; one named pgbouncer pools."""
    faults: dict[str, str] = {}
    """The user's commands, by the names in FAULTS."""
    caps: CapsPart = CapsPart()
    waits: dict[str, str] = {}
    """Named waits that take longer here: cluster-healthy = "20min", where a standby is cloned anew slowly."""

    @property
    def named_hosts(self) -> frozenset[str] | None:
        """The only hosts that enter a command as {host}; None where the manager finds no others by itself."""
        return None

    @property
    def waits_s(self) -> dict[str, float]:
        """Seconds by the names of model.waiting; UsageError for what is no wait or no duration."""
        known = {wait.name.lower().replace("_", "-"): wait.name for wait in Wait}
        unknown = sorted(set(self.waits) - set(known))
        if unknown:
            raise UsageError(f"waits.{unknown[0]} is no wait", f"the waits are {', '.join(known)}")
        return {**WAITS_S, **{known[name]: duration_s(text) for name, text in self.waits.items()}}

    @model_validator(mode="before")
    @classmethod
    def _no_database(cls, tree: object) -> object:
        if isinstance(tree, dict) and "database" in tree:
            raise ValueError(_NO_DATABASE)
        return tree

    @field_validator("routes", mode="before")
    @classmethod
    def _short_routes(cls, routes: object) -> object:
        if not isinstance(routes, dict):
            return routes
        return {n: {"address": r, "pools": n == "pgbouncer"} if isinstance(r, str) else r for n, r in routes.items()}


WAITS_S = {Wait.CLUSTER_HEALTHY.name: 600.0}
"""Cloning a standby of an external cluster anew outlasts the lab's two minutes."""
WRITES = 1000.0
"""Commits per second of all writers of `prove` where [caps] names no rate."""
FAULTS = (
    "kill", "stop", "kill-member", "freeze", "thaw", "hang-postmaster", "hang-manager", "hang-rest", "resume",
    "power-cut", "restart", "isolate", "partition", "switchover", "recover", "logs",
)  # fmt: skip
_NO_DATABASE = "database is no key any more: take it out. Each run makes a database of its own, under a random name"
F = TypeVar("F", bound=TargetFile)


def read_tree(path: Path) -> dict[str, object]:
    """The file's TOML; UsageError names the line that is wrong."""
    return read_toml(path, f"the target file {path}", EXAMPLE)


def validated(model: type[F], tree: dict[str, object], where: str) -> F:
    """The target that a tree of TOML describes; UsageError names the key that is wrong."""
    target = described(model, tree, f"the target file {where}", "see docs/external-clusters.md")
    unknown = sorted(set(target.faults) - set(FAULTS))
    if unknown:
        commands = "the commands are " + ", ".join(FAULTS)
        raise UsageError(f"the target file {where}: faults.{unknown[0]} is no fault", commands)
    return target


def read_file(model: type[F], address: str) -> tuple[str, F]:
    """(the target file's whole path, its target); UsageError where it cannot be read or is not valid."""
    path = Path(address)
    return str(path.absolute()), validated(model, read_tree(path), str(path))


def is_file(address: str) -> bool:
    return Path(address).suffix == ".toml" or os.path.isfile(address)


def kind_of(address: str) -> str | None:
    """Which kind of external cluster an address means, None for no address of one; UsageError for a bad file."""
    if address.startswith(("http://", "https://")):
        return "patroni"
    if address.startswith(("postgres://", "postgresql://")):
        return "postgres"
    if is_file(address):
        kind = read_tree(Path(address)).get("kind")
        if not isinstance(kind, str):
            raise UsageError(f"the target file {address}: kind: field required", EXAMPLE)
        return kind
    return "postgres" if "=" in address else None


def rest_parts(url: str) -> tuple[str, str, str]:
    """(REST address without user and password, user, password); UsageError when it is not a URL."""
    shown = without_secrets(url)
    try:
        bare = urlsplit(shown)
        usable = bool(bare.hostname) and (bare.port is None or bare.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{shown} is not a URL: its host or port cannot be read", HINT)
    user, _, password = url.partition("://")[2].rpartition("@")[0].partition(":")
    return shown.rstrip("/"), unquote(user), unquote(password)
