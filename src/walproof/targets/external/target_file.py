"""What `--target` names when it is a cluster of yours: a TOML file, a libpq URL or DSN, or a Patroni REST address."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from walproof.errors import UsageError

if TYPE_CHECKING:
    from walproof.targets.external.cluster import OwnCluster

EXAMPLE = 'three lines: kind = "patroni", rest = ["http://10.0.0.11:8008"], dsn = "user=postgres"'
_HINT = "--target cluster.toml, --target postgresql://user@host1,host2/db, or --target http://host:8008"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RestPart(_Strict):
    """How Patroni's REST wants to be spoken to; the password may stand in a file of mode 0600 instead."""

    user: str = ""
    password: SecretStr = SecretStr("")
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True


class CapsPart(_Strict):
    """Never more than this, whatever is asked."""

    max_clients: int | None = Field(default=None, ge=1)
    rate: float | None = Field(default=None, gt=0)


class TargetFile(_Strict):
    """A cluster of yours. `{host}`, `{port}`, `{member}` and `{member2}` are filled into commands of `faults`."""

    kind: Literal["postgres", "patroni"]
    dsn: str = ""
    service: str = ""
    rest: tuple[str, ...] = ()
    restapi: RestPart = RestPart()
    members: dict[str, str] = {}
    """name → host:port, where walproof cannot find a member by itself."""
    routes: dict[Literal["haproxy", "pgbouncer"], str] = {}
    faults: dict[str, str] = {}
    """Your commands, by the names in FAULTS."""
    caps: CapsPart = CapsPart()
    database: str = "walproof_own"


FAULTS = (
    "kill",
    "stop",
    "kill-member",
    "freeze",
    "thaw",
    "cut-power",
    "restart",
    "isolate",
    "cut",
    "switch-over",
    "heal",
    "revive",
    "logs",
)


def read_target_file(path: Path) -> TargetFile:
    """The file's content; UsageError names the line or the key that is wrong."""
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as wrong:
        raise UsageError(f"the target file {path} cannot be read: {wrong.strerror}", _HINT) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"the target file {path} is not TOML: {wrong}", EXAMPLE) from None
    return target_of(tree, str(path))


def target_of(tree: dict[str, object], where: str) -> TargetFile:
    """The target a tree of TOML describes; UsageError names the key that is wrong."""
    try:
        target = TargetFile.model_validate(tree)
    except ValidationError as wrong:
        first = wrong.errors(include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(f"the target file {where}: {key}: {first['msg']}", "see docs/your-cluster.md") from None
    unknown = set(target.faults) - set(FAULTS)
    if unknown:
        raise UsageError(
            f"the target file {where}: faults.{min(unknown)} is no fault", "the commands are " + ", ".join(FAULTS)
        )
    if target.kind == "patroni" and not target.rest:
        raise UsageError(f'the target file {where}: patroni needs rest = ["http://host:8008"]', EXAMPLE)
    if target.kind == "postgres" and not (target.dsn or target.service):
        raise UsageError(f"the target file {where}: postgres needs dsn or service", 'dsn = "host=a,b user=postgres"')
    return target


def described(text: str) -> tuple[str, TargetFile]:
    """(name without any password, what is meant) of a `--target`; UsageError when it is not valid."""
    if text.startswith(("http://", "https://")):
        bare, user, password = _without_password(text)
        rest = RestPart(user=user, password=SecretStr(password))
        return bare, TargetFile(kind="patroni", rest=(bare,), restapi=rest)
    if text.startswith(("postgres://", "postgresql://")):
        bare, _, _ = _without_password(text)
        return bare, TargetFile(kind="postgres", dsn=text)
    path = Path(text)
    if path.suffix == ".toml" or path.is_file():
        return str(path.absolute()), read_target_file(path)
    if "=" in text:
        words = " ".join(w for w in text.split() if not w.startswith("password="))
        return words, TargetFile(kind="postgres", dsn=text)
    raise UsageError(f"{text!r} is no target: neither a file, a URL nor a DSN", _HINT)


def _without_password(url: str) -> tuple[str, str, str]:
    """(URL without its password, user, password); hosts of libpq URLs may be several."""
    try:
        parts = urlsplit(url)
        # Several hosts of libpq are not one port; libpq reads those itself.
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0) if url.startswith("http") else True
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{url.rpartition('@')[2]} is not a URL: its host or port cannot be read", _HINT)
    info, at, hosts = parts.netloc.rpartition("@")
    user, _, password = info.partition(":")
    http = parts.scheme.startswith("http")
    netloc = hosts if http else f"{user}{at}{hosts}"
    return (
        urlunsplit(parts._replace(netloc=netloc)).rstrip("/") if http else urlunsplit(parts._replace(netloc=netloc)),
        user,
        password,
    )


def own_cluster(text: str) -> "OwnCluster":
    """The target that `text` names, reached and looked at once; TargetError when it does not answer."""
    name, file = described(text)
    if file.kind == "patroni":
        from walproof.targets.patroni.target import open_patroni

        return open_patroni(name, file)
    from walproof.targets.postgres.target import open_postgres

    return open_postgres(name, file)
