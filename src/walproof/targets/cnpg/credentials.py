"""Users and passwords from secrets: in memory only, handed to libpq as a password file that is on no disk."""

import base64
import binascii
import os
from dataclasses import dataclass, field

from walproof.errors import TargetError
from walproof.targets.cnpg.api import SECRETS, KubernetesApi
from walproof.targets.cnpg.objects import Cluster, Secret, read

_kept: list[int] = []
"""Descriptors of the password files: open as long as this process."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A user and its password; neither repr nor an exception shows the password."""

    user: str
    password: str = field(repr=False)


def credential_of(api: KubernetesApi, name: str) -> Credential:
    """The user and password in a secret; TargetError names the secret and the key that is missing, no value."""
    return credential_in(read(Secret, api.get(SECRETS, name)))


def credential_in(secret: Secret) -> Credential:
    """As `credential_of`, of a secret that was read."""
    user = _value(secret, "username")
    return Credential(user, _value(secret, "password"))


def secret_of(cluster: Cluster, named: str = "") -> str:
    """The secret of the user to log in as: the one that is named, else the application's."""
    return named or f"{cluster.metadata.name}-app"


def _value(secret: Secret, key: str) -> str:
    try:
        return base64.b64decode(secret.data[key], validate=True).decode()
    except (KeyError, binascii.Error, UnicodeDecodeError):
        raise TargetError(
            f"the secret {secret.metadata.name} has no {key} that can be read",
            'a secret of type kubernetes.io/basic-auth is needed: secret = "…" in the target file names another',
        ) from None


def pgpass(credential: Credential) -> str:
    """The password file's line, for every server and database."""
    escaped = credential.password.replace("\\", "\\\\").replace(":", "\\:")
    return f"*:*:*:*:{escaped}\n"


def passfile(credential: Credential) -> str:
    """A path that this process and its children read the password at; it is memory, and gone with this process."""
    descriptor = os.memfd_create("walproof-pgpass", os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, pgpass(credential).encode())
    _kept.append(descriptor)
    return f"/proc/{os.getpid()}/fd/{descriptor}"
