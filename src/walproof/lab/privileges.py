"""The user the lab's programs run as: nobody under root (PostgreSQL refuses root), the invoking user otherwise."""

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

UNDER_ROOT = "nobody"


def member_user() -> str:
    """The name of the user members run as."""
    return UNDER_ROOT if os.geteuid() == 0 else str(os.geteuid())


def as_member_user(argv: Sequence[str]) -> list[str]:
    """The command line under the members' user.

    Under root only CAP_DAC_READ_SEARCH is kept, as an ambient capability: a Python below root's home is unreadable
    for nobody otherwise (capabilities(7), setpriv(1)).
    """
    if os.geteuid() != 0:
        # Inside a private user namespace: what runs there needs none of its capabilities.
        return ["setpriv", "--inh-caps", "-all", "--ambient-caps", "-all", "--", *argv]
    user = pwd.getpwnam(UNDER_ROOT)
    kept = "-all,+dac_read_search"
    return [
        *("setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"),
        *("--inh-caps", kept, "--ambient-caps", kept, "--bounding-set", kept, "--"),
        *argv,
    ]


def give(path: Path) -> None:
    """Hand a file or folder to the members' user; nothing to do for an ordinary user."""
    if os.geteuid() == 0:
        user = pwd.getpwnam(UNDER_ROOT)
        os.chown(path, user.pw_uid, user.pw_gid)


def write_private(path: Path, text: str, *, given: bool = True) -> None:
    """Write a file only its owner reads, from its first byte on; owned by the members' user when `given`."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    if given:
        give(temporary)
    temporary.replace(path)


def make_folder(path: Path, mode: int = 0o700, *, given: bool = True) -> None:
    """Create a folder with that mode, owned by the members' user when `given`."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if given:
        give(path)
