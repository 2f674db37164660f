"""The lab's folder: its blueprint as JSON, its secrets, its lock. Knows nothing of processes."""

import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from walproof.errors import Error, MachineError, UsageError
from walproof.lab.blueprint import Blueprint
from walproof.lab.privileges import links_of, make_folder, write_private
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.machine.programs import search_path
from walproof.machine.quoting import pasted
from walproof.machine.untrusted import is_own_group
from walproof.model.waiting import Wait, wait_for

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", re.ASCII)
_TAKEN = ("applied", "journals")
"""Folders of the state folder that hold journals: no lab may be made, and later removed, there."""
IDENTITY = "walproof-lab.json"
"""The file that marks a folder as a lab's, named as no other program's is: nothing without it is ever removed."""
MARK = "WALPROOF_LAB_HOME"
"""Environment variable that every process of a lab carries: what is left of a lab is found by it."""
_BLUEPRINTS = TypeAdapter(Blueprint)


def lab_name() -> str:
    """The lab to use when none is named: WALPROOF_LAB, else "lab"."""
    return os.environ.get("WALPROOF_LAB") or "lab"


def state_folder() -> Path:
    """Where labs live: WALPROOF_STATE, else /var/lib/walproof for root and ~/.local/state/walproof."""
    named = os.environ.get("WALPROOF_STATE")
    if named:
        return Path(named).absolute()
    return Path("/var/lib/walproof") if os.geteuid() == 0 else Path.home() / ".local" / "state" / "walproof"


def lab_home(name: str) -> Path:
    """The folder of the lab of that name, whether it exists or not; UsageError for what cannot name one."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise UsageError(
            f"{name[:60]!r} cannot name a lab", "use up to 40 ASCII letters, digits, - and _, a letter or digit first"
        )
    return state_folder() / name


def own_state() -> Path:
    """The state folder, there or not; MachineError where another user could put one of his in its place."""
    folder = state_folder()
    try:
        theirs = _of_others(folder)
    except OSError as wrong:
        raise MachineError(
            f"cannot see whose {folder} is: {wrong.strerror}", "may you pass the folders above?"
        ) from None
    if theirs is not None:
        raise MachineError(
            f"another user owns {theirs} or may write in it, and could put a folder or links in the place of {folder}",
            "set WALPROOF_STATE to a folder below folders of root's or your own",
        )
    return folder


def open_state() -> Path:
    """The state folder, created when missing; MachineError as `own_state`, and where it cannot be written."""
    folder = state_folder()
    try:
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        own_state()
        if made and os.geteuid() == 0:
            # Members run as users of their own and must get through, never list it; one that is closed they see empty.
            folder.chmod(0o711)
    except OSError as wrong:
        raise MachineError(
            f"the state folder {folder} cannot be created: {wrong.strerror}", "set WALPROOF_STATE to a folder you own"
        ) from None
    if not os.access(folder, os.W_OK):
        raise MachineError(f"no right to write in {folder}", "set WALPROOF_STATE to a folder you own")
    return folder


def _of_others(folder: Path) -> Path | None:
    """The component of the path, links followed one by one, that another user but root can replace; None for none.

    A sticky folder (/tmp) above it lets nobody rename what is not theirs. The owner of / can do all of it: root, shown
    as the overflow uid in a user namespace that does not map root (user_namespaces(7)).
    """
    trusted, links = (0, os.geteuid(), Path("/").lstat().st_uid), links_of(folder)
    for link in links:
        for one in (link, *link.parents):
            if not os.path.lexists(one):
                continue
            status = one.lstat()
            if status.st_uid not in trusted:
                return one
            if stat.S_ISLNK(status.st_mode):
                if one != link and (theirs := _of_others(one)) is not None:
                    return theirs
            elif (one == links[-1] or not status.st_mode & stat.S_ISVTX) and (
                status.st_mode & 0o002 or (status.st_mode & 0o020 and not is_own_group(status.st_gid, one))
            ):
                return one
    return None


@contextmanager
def exclusively(lock: Path, refusal: Callable[[str], Error] | None = None) -> Iterator[IO[str]]:
    """One walproof after another is in the block; the lock, a file and no link, given open, ends with its process.

    refusal: what is raised instead of waiting, made of the number of the process that is in it. WaitTimeout;
    MachineError where the folder is gone.
    """
    if not lock.parent.is_dir():
        raise MachineError(f"there is no {lock.parent} any more", "walproof lab up")
    with open(lock, "a+", opener=lambda p, f: os.open(p, f | os.O_NOFOLLOW, 0o600)) as file:

        def entered() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if refusal is None:
            wait_for(Wait.ANOTHER_CHANGE, entered, RealClock(), pace_s=0.01)
        elif not entered():
            file.seek(0)
            raise refusal(file.readline(20).strip())
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Only one walproof creates or destroys a lab at a time; the lock ends with its process."""
    path = lab_home(name).with_name(f".{name}.lock")
    open_state()
    why = f"another walproof is creating or destroying the lab {name} just now"
    with exclusively(path, lambda pid: MachineError(f"{why} (process {pid})", "wait for it, then walproof lab status")):
        yield


@dataclass(frozen=True, slots=True)
class Identity:
    """Marks a folder as a lab's and says what ends it where its blueprint cannot be read.

    made_by: the command, such as "demo"; owner: the process (`pid_files.identity`) that the lab ends with, "" for none;
    place: `pid_files.here` where it was made, "" in marks of earlier versions. The number is its own only there.
    """

    number: int
    made_by: str = "lab up"
    owner: str = ""
    place: str = ""

    @property
    def is_here(self) -> bool:
        """Whether it was made on this boot of this machine."""
        return not self.place or pid_files.is_here(self.place)

    @property
    def elsewhere(self) -> str:
        """The name of the other machine or container that it was made on, which alone can tell what lives; "" here."""
        same = self.is_here or self.place.partition(" ")[0] == pid_files.machine()
        return "" if same else pid_files.name_of_machine(self.place) or "another machine"

    @property
    def owner_pid(self) -> int | None:
        """The living process that the lab ends with."""
        pid = int(self.owner.split()[0]) if self.owner else 0
        return pid if pid and self.is_here and pid_files.identity(pid) == self.owner else None

    @property
    def left_behind(self) -> bool:
        """Whether it was to end with a process that has died."""
        return bool(self.owner) and not self.elsewhere and self.owner_pid is None


_IDENTITIES = TypeAdapter(Identity)


def identity(name: str) -> Identity | None:
    """What marks the lab's folder; None where nothing does, number 0 where the mark cannot be read."""
    folder = lab_home(name)
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return None
        with open(folder / IDENTITY, "rb", opener=lambda p, f: os.open(p, f | os.O_NOFOLLOW)) as file:
            mark = _IDENTITIES.validate_json(file.read(4096))
            return mark if not mark.owner or mark.owner.split()[0].isdigit() else Identity(mark.number)
    except ValueError:
        return Identity(0)
    except OSError:
        return None


def store(blueprint: Blueprint, made_by: str = "lab up", owner: str = "") -> None:
    """Write mark and blueprint: before anything is started, so that `walproof lab down` finds what to end."""
    make_folder(blueprint.home, 0o711)
    marked = Identity(blueprint.number, made_by, owner, pid_files.here())
    write_private(blueprint.home / IDENTITY, _IDENTITIES.dump_json(marked).decode())
    write_private(blueprint.home / "blueprint.json", _BLUEPRINTS.dump_json(blueprint, indent=1).decode())


def check_here(name: str, ended_on: frozenset[str] = frozenset()) -> None:
    """MachineError where a lab was made on another machine, and not on one of those: nobody here knows what lives."""
    marked = identity(name)
    if marked is not None and marked.elsewhere and marked.elsewhere not in ended_on:
        raise MachineError(
            f"the lab {name} was made on {marked.elsewhere}, where it may still run",
            pasted(
                "use it there, or name another lab with --lab; where it has ended: "
                "walproof lab down {name:argument} --ended-on {where:shell}",
                name=name,
                where=marked.elsewhere,
            ),
        )


def stored(name: str) -> Blueprint | None:
    """The blueprint of a lab, up or not; None when there is no such lab. Its number is 0 once another's may be that."""
    blueprint, marked = _stored(name), identity(name)
    return blueprint if blueprint is None or marked is None or marked.is_here else replace(blueprint, number=0)


def _stored(name: str) -> Blueprint | None:
    try:
        return _BLUEPRINTS.validate_json((lab_home(name) / "blueprint.json").read_bytes())
    except FileNotFoundError:
        return None
    except (PermissionError, NotADirectoryError):
        raise MachineError(f"no right to read the lab in {lab_home(name)}", "run as the user who created it") from None
    except ValueError:
        return None


def is_complete(blueprint: Blueprint) -> bool:
    """Whether `lab up` had succeeded."""
    return (blueprint.home / "up").exists()


def load(name: str | None = None) -> Blueprint:
    """The blueprint of a lab that is up; MachineError when none is, or the folder is another user's.

    Programs that a blueprint names are run with our rights.
    """
    wanted = name or lab_name()
    check_here(wanted)
    blueprint = stored(wanted)
    if blueprint is None or not is_complete(blueprint):
        raise MachineError(f"no lab is up (looked for {wanted!r} in {state_folder()})", "walproof lab up")
    marked = identity(wanted)
    if marked is not None and not marked.is_here:
        raise MachineError(
            f"the lab {wanted} ended with an earlier boot of this machine",
            pasted("walproof lab down {name:argument}", name=wanted),
        )
    if marked is None or blueprint.home != lab_home(wanted):
        raise MachineError(
            f"{lab_home(wanted)} is no lab of this user's, so nothing in it is obeyed",
            "set WALPROOF_STATE to a folder of your own",
        )
    return blueprint


def used_numbers() -> set[int]:
    stored_labs = (_stored(path.parent.name) for path in state_folder().glob("*/blueprint.json"))
    return {blueprint.number for blueprint in stored_labs if blueprint is not None}


def make_secrets(blueprint: Blueprint) -> None:
    """New random passwords, in files only their owner reads: secrets.json and libpq's pgpass."""
    passwords = {who: secrets.token_urlsafe(24) for who in ("postgres", "replicator", "rewinder", "rest")}
    write_private(blueprint.home / "secrets.json", json.dumps(passwords))
    lines = [f"*:*:*:{role}:{password}\n" for role, password in passwords.items() if role != "rest"]
    write_private(blueprint.passfile, "".join(lines))


def read_secrets(blueprint: Blueprint) -> dict[str, str]:
    """Passwords by role: postgres, replicator, rewinder, rest."""
    passwords: dict[str, str] = json.loads((blueprint.home / "secrets.json").read_text())
    return passwords


def environment(blueprint: Blueprint, **variables: str) -> dict[str, str]:
    """The environment of every process of the lab: minimal, with the mark it is found by, and those variables."""
    kept = {name: os.environ[name] for name in ("TZ", "WALPROOF_STATE") if name in os.environ}
    # Safe path: `python -m` imports nothing from the current folder.
    python = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    return {**kept, **python, "PATH": search_path(), "LC_ALL": "C.UTF-8", MARK: str(blueprint.home), **variables}
