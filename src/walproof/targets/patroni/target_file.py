"""The target file of a Patroni cluster, and a bare REST address as one."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr, field_validator

from walproof.errors import UsageError
from walproof.machine.redaction import without_secrets
from walproof.targets.external.target_file import EXAMPLE, Strict, TargetFile, is_file, read_file, rest_parts


class RestPart(Strict):
    """How Patroni's REST wants to be spoken to; the password may stand in a file of mode 0600 instead."""

    user: str = ""
    password: SecretStr = SecretStr("")
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    plain_http: bool = False
    """Whether user and password may go over plain HTTP to another machine."""


class PatroniFile(TargetFile):
    rest: tuple[str, ...] = ()
    restapi: RestPart = RestPart()

    @property
    def named_hosts(self) -> frozenset[str]:
        """Hosts of `rest` and of [members]: what /cluster says beyond them may be a lie, and a command goes there."""
        named = (at.rpartition(":")[0] or at for at in self.members.values())
        hosts = (*(urlsplit(url).hostname or "" for url in self.rest), *(host.strip("[]") for host in named))
        return frozenset(host.lower() for host in hosts if host)

    @field_validator("rest")
    @classmethod
    def _no_password(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if any(without_secrets(url) != url for url in urls):
            raise ValueError("an address holds a password: it belongs into restapi.user and restapi.password_file")
        return urls


def secret(path: str, key: str) -> str:
    """The password in a file, "" for no file; UsageError names the key whose file cannot be read."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as wrong:
        raise UsageError(f"{key} {path} cannot be read: {wrong.strerror}", "chmod 600, your own") from None


def read_address(address: str) -> tuple[str, PatroniFile]:
    """(name without any password, target) of a REST address or a target file; UsageError when it is not valid."""
    if is_file(address):
        path, file = read_file(PatroniFile, address)
        if not file.rest:
            raise UsageError(f'the target file {address}: patroni needs rest = ["http://host:8008"]', EXAMPLE)
        return path, file
    bare, user, password = rest_parts(address)
    rest = RestPart(user=user, password=SecretStr(password))
    return bare, PatroniFile(kind="patroni", rest=(bare,), restapi=rest)
