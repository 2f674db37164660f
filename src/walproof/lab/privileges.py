"""The user the lab's programs run as: a uid of the lab's own under root, the invoking user otherwise; no capability.

Also who owns the lab's files: folders that steer the lab are root's, and what members write is theirs.
"""

import grp
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from walproof.machine.programs import program

FIRST_UID = 60600
"""Lab N runs as uid and gid 60600 + N, up to 60854: a range that neither Debian nor systemd gives to anybody."""


def member_uid(number: int) -> int:
    """The uid, and gid, of the lab of that number (0: of no lab); one's own for an ordinary user."""
    return FIRST_UID + number if os.geteuid() == 0 else os.geteuid()


def numbers_of_accounts() -> set[int]:
    """Numbers of labs whose uid or gid an account of this machine has: no lab may run as somebody."""
    accounts = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    return {number - FIRST_UID for number in accounts}


def without_rights(number: int, argv: Sequence[str]) -> list[str]:
    """The command line as that lab's user: no group of others, no capability, and none to be had by any exec.

    setpriv(1); inside a private user namespace the user stays, and what runs there needs none of its capabilities.
    """
    drop = ("--no-new-privs", "--inh-caps", "-all", "--ambient-caps", "-all", "--bounding-set", "-all", "--", *argv)
    if os.geteuid() != 0:
        return [str(program("setpriv")), *drop]
    uid = str(member_uid(number))
    return [str(program("setpriv")), "--reuid", uid, "--regid", uid, "--clear-groups", *drop]


def write_private(path: Path, text: str, *, reader: int | None = None) -> None:
    """Write a file only its owner reads, from its first byte on; under root the lab's user `reader` may read it too.

    Never through a link: it is written under another name and renamed into place.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if reader is not None and os.geteuid() == 0:
            os.fchown(file.fileno(), 0, reader)
            os.fchmod(file.fileno(), 0o640)
    temporary.replace(path)


def make_folder(path: Path, mode: int = 0o700, *, owner: int | None = None) -> None:
    """Create a folder with that mode, ours or of the lab's user `owner`; the folder above it must not be theirs."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if owner is not None and os.geteuid() == 0:
        os.chown(path, owner, owner)


def make_log(path: Path, owner: int | None = None) -> None:
    """A log that only we read, or that the lab's user `owner` may append to; in a folder where it replaces nothing."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        if owner is not None and os.geteuid() == 0:
            os.fchown(opened, owner, owner)
    finally:
        os.close(opened)
