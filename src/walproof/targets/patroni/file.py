"""The target file of a Patroni cluster, and a bare REST address as one."""

from pathlib import Path

from pydantic import SecretStr, field_validator

from walproof.errors import UsageError
from walproof.machine.redaction import without_secrets
from walproof.targets.external.target_file import (
    EXAMPLE,
    Strict,
    TargetFile,
    is_file,
    read_tree,
    rest_parts,
    validated,
)


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
    """An external cluster that Patroni manages."""

    rest: tuple[str, ...] = ()
    restapi: RestPart = RestPart()

    @field_validator("rest")
    @classmethod
    def _no_password(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if any(without_secrets(url) != url for url in urls):
            raise ValueError("an address holds a password: it belongs into restapi.user and restapi.password_file")
        return urls


def read_address(address: str) -> tuple[str, PatroniFile]:
    """(name without any password, target) of a REST address or a target file; UsageError when it is not valid."""
    if is_file(address):
        path = Path(address)
        file = validated(PatroniFile, read_tree(path), str(path))
        if not file.rest:
            raise UsageError(f'the target file {path}: patroni needs rest = ["http://host:8008"]', EXAMPLE)
        return str(path.absolute()), file
    bare, user, password = rest_parts(address)
    rest = RestPart(user=user, password=SecretStr(password))
    return bare, PatroniFile(kind="patroni", rest=(bare,), restapi=rest)
