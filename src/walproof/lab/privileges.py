"""The least rights of the lab's programs: their user, no capability, namespaces, the files they see.

And who owns the lab's files: folders that steer the lab are root's, what members write is theirs. Starts nothing."""

import fcntl
import grp
import json
import os
import pwd
import random
import re
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from walproof.errors import MachineError
from walproof.lab import mount_view
from walproof.lab.blueprint import Blueprint
from walproof.links.devices import NAMESPACES
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.machine.programs import program, search_path
from walproof.machine.quoting import pasted
from walproof.model.waiting import Wait, wait_for

FIRST_UID, MOST_LABS = 60600, 254
_ALONE = range(2 * MOST_LABS + 1, 2 * MOST_LABS + 76)
"""The members of lab N run as uid and gid 60600 + N, up to 60854, its programs on the host's network as 254 more, up to
61108, and what runs alone as one of the 75 after them: a range that neither Debian nor systemd gives to an account."""
_USERS = "/run/walproof-users.lock"
_SUBORDINATE = ("/etc/subuid", "/etc/subgid")
WHOSE_UID = "whose a uid is: `ps -eo uid,args`, `getent passwd UID`, `getent group UID`, /etc/subuid, /etc/subgid"


def member_uid(number: int) -> int:
    """The uid, and gid, of the members of the lab of that number (0: of no lab); one's own for an ordinary user."""
    return FIRST_UID + number if os.geteuid() == 0 else os.geteuid()


def access_uid(number: int) -> int:
    """The uid, and gid, of that lab's programs on the host's network: no member traces one or takes its sockets.

    One uid for both would make a namespace no border: ptrace(2) and pidfd_getfd(2) ask for the uid alone.
    """
    return member_uid(MOST_LABS + number)


def users_of_lab(number: int) -> set[int]:
    """Every uid that the lab of that number alone has; none for an ordinary user, or without a number."""
    return {member_uid(number), access_uid(number)} if os.geteuid() == 0 and number else set()


def is_user_of_labs(uid: int) -> bool:
    """Whether a lab of root's may run as that user.

    >>> is_user_of_labs(60601), is_user_of_labs(61108), is_user_of_labs(60600), is_user_of_labs(1000)
    (True, True, False, False)
    """
    return FIRST_UID < uid <= FIRST_UID + 2 * MOST_LABS


@contextmanager
def number_of_no_lab() -> Iterator[int]:
    """A number, beyond those of labs, whose user no account, no process and no other walproof of this machine has.

    It is held by a lock of one byte, which goes with this process. Root's alone; MachineError when none is free.
    """
    try:
        opened = os.open(_USERS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as wrong:
        raise MachineError(f"{_USERS} cannot be written: {wrong.strerror}", "what is run alone takes a /run") from None
    with os.fdopen(opened) as locks:
        for number in unused(random.sample(_ALONE, len(_ALONE))):
            with suppress(OSError):  # another walproof's
                fcntl.fcntl(locks, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
                if number not in _running():  # looked at once it is ours: what a killed one ran may end later than that
                    break
        else:
            uids = f"{FIRST_UID + _ALONE[0]} to {FIRST_UID + _ALONE[-1]}"
            raise MachineError(f"no user of uids {uids} is free to run a program alone", WHOSE_UID)
        try:
            yield number
        finally:
            wait_for(Wait.PROGRAM_GONE, lambda: number not in _running(), RealClock())


def _running() -> set[int]:
    """Numbers of labs, and beyond, as whose user a process runs."""
    return {
        uid - FIRST_UID
        for one in psutil.process_iter(["uids"])
        if not is_over(one.pid)
        for uid in one.info["uids"] or ()
    }


def is_over(pid: int) -> bool:
    """Whether no thread of that process is left: one whose first alone has ended looks like a zombie, and goes on."""
    try:
        state, *fields = pid_files.stat(pid)
    except OSError:
        return True
    return state in "ZX" and int(fields[16]) <= 1  # num_threads, field 20 of proc(5)


def unused(numbers: Iterable[int]) -> Iterator[int]:
    """Those of these numbers, of labs or beyond, whose uids no account, group, subordinate range or process has.

    A container's labs count, where it has no user namespace: the users of one kernel are the same for all of it. An
    ordinary user's lab runs as that user: it may have any number.
    """
    running = {FIRST_UID + number for number in _running()}
    for number in numbers:
        uids = users_of_lab(number) if number <= MOST_LABS else {member_uid(number)}
        if not uids & running and not any(map(_is_anothers, uids)):
            yield number


def _is_anothers(uid: int) -> bool:
    """Whether an account, a group or a user's range of /etc/subuid (for rootless containers) has that uid or gid.

    It is asked for by itself: a directory (SSSD, LDAP) lists no accounts, and knows them by their uid.
    """
    for known in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):
            known(uid)
            return True
    for path in _SUBORDINATE:
        with suppress(OSError):
            ranges = re.findall(r"(?m)^[^#:]*:(\d{1,10}):(\d{1,10})$", Path(path).read_text(errors="replace"))
            if any(0 <= uid - int(first) < int(count) for first, count in ranges):
                return True
    return False


_NS_GET_USERNS, _NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB701, 0xB702, 0xB704
"""Linux' include/uapi/linux/nsfs.h; ioctl_ns(2)."""


def is_in_container(pid: int, user: int) -> bool:
    """Whether it runs in a namespace of processes below ours that `user` cannot have made.

    What runs there is another machine's, to us: root's own too, for no lab of root's makes one. Not where we may not
    look (without CAP_SYS_PTRACE): a lab's program would hide there. OSError where it has ended.
    """
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    if len(status.partition("\nNSpid:")[2].partition("\n")[0].split()) == 1:
        return False
    if user == 0:
        return True
    ours, opened = os.stat("/proc/self/ns/pid"), list[int]()
    try:
        opened.append(os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC))
        while not os.path.samestat(os.fstat(opened[-1]), ours):
            opened.append(fcntl.ioctl(opened[-1], _NS_GET_USERNS))
            # Without a right over ours he makes some below a user namespace of his own alone.
            if fcntl.ioctl(opened[-1], _NS_GET_OWNER_UID, bytes(4)) != struct.pack("I", user):
                return True
            opened.append(fcntl.ioctl(opened[-2], _NS_GET_PARENT))
    except PermissionError:
        return False
    finally:
        for one in opened:
            os.close(one)
    return False


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


def let_read(path: Path, reader: int) -> None:
    """Let the lab's user read a file or folder of root's, and change nothing; an ordinary user is that user."""
    if os.geteuid() == 0:
        os.chown(path, 0, reader, follow_symlinks=False)
        path.chmod(0o750 if path.is_dir() else 0o640)


def make_log(path: Path, owner: int) -> None:
    """A log that the lab's user `owner` may append to; in a folder where it replaces nothing."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        if os.geteuid() == 0:
            os.fchown(opened, owner, owner)
    finally:
        os.close(opened)


def apart(**given: Any) -> dict[str, Any]:
    """How a confined program is started, for subprocess: what it would inherit of us is a right, too.

    No terminal, into which a process of our session types (TIOCSTI), no variable and no folder of ours; but what is
    `given`. Ctrl-C does not reach it: who waits for it ends it.
    """
    environment = {"PATH": search_path(), "LC_ALL": "C.UTF-8"}
    return {"stdin": subprocess.DEVNULL, "start_new_session": True, "cwd": "/", "env": environment, **given}


_PROGRAMS = ("etcd", "haproxy", "pgbouncer")


def confined(blueprint: Blueprint, argv: Sequence[str], *, member: str = "") -> list[str]:
    """The command line that runs argv in the member's network namespace as the members' user; without a member on the
    host's network, as the user of such programs.

    A member has an IPC namespace too: shared memory of a PostgreSQL that is killed with -9 goes with its last process.
    Under root the program has a view of the files of its own, in which its user has a name (initdb asks for one).
    """
    limited = without_rights(blueprint.number + (0 if member else MOST_LABS), argv)
    enter = [str(program("nsenter")), f"--net={NAMESPACES / blueprint.namespace(member)}", "--"] if member else []
    spaces = ["--ipc"] if member else []
    if os.geteuid() != 0:
        return [*enter, str(program("unshare")), *spaces, "--", *limited] if member else limited
    own = blueprint.member_dir(member) if member else blueprint.access_dir
    closed = closed_folders([*environment_paths(), blueprint.postgres_bin.parent, blueprint.home, Path(argv[0])])
    view = {"home": str(blueprint.home), "own": str(own), "passwd": str(_passwd(blueprint)), "closed": closed}
    return [*enter, *_seeing(view, spaces), *limited]


def confined_check(argv: Sequence[str], folder: Path) -> list[str]:
    """The command line of a program that belongs to no lab yet, as the user of none, that may read `folder`."""
    limited = without_rights(0, argv)
    if os.geteuid() != 0:
        return limited
    return [*_seeing({"closed": closed_folders([Path(argv[0]).parents[1], folder])}, []), *limited]


def namespaces() -> list[str]:
    """The command line that runs what follows without network, in a namespace of processes that ends with us.

    The first of the namespace stays root: the death signal that --kill-child gives it would go with its user.
    """
    fork = [str(program("unshare")), "--fork"]
    spaces = ["--ipc", "--net", "--pid", "--kill-child", "--mount-proc"]
    return [str(program("setpriv")), "--pdeathsig", "KILL", "--", *fork, *spaces, "--", *fork, "--"]


_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/sys",
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
    "/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew",
)  # fmt: skip
"""What programs need of a machine and its package managers: libraries, locales, time zones. Services have sockets
elsewhere."""


def confined_alone(number: int, argv: Sequence[str], folder: Path, *written: Path) -> list[str]:
    """As `confined_check`, for a server as the user of that number that may write below `folder` and `written` alone;
    `folder`/passwd is its /etc/passwd. It sees no process but its own and, of the files, but these and what programs
    need (a socket with a path would answer it), has no network, and all that it began ends with it, and with us. No
    file that it writes is larger than twice the largest of PostgreSQL's.
    """
    own, programs = [folder, *written], shown_alone(Path(argv[0]).parent)
    limit = [str(program("prlimit")), f"--fsize={2 << 30}", "--"]
    limited = without_rights(number, [*limit, *argv])
    shown = _also_resolved([*programs, *own, Path(limited[0]), Path(limit[0])]) - {"/"}
    view: dict[str, Any] = {"shown": sorted(filter(os.path.exists, shown)), "written": sorted(_also_resolved(own))}
    view |= {"passwd": str(folder / "passwd"), "closed": closed_folders([*programs, *own])}
    return [*namespaces(), *_seeing(view, []), *limited]


def shown_alone(programs: Path) -> list[Path]:
    """What a server of that folder's programs, run by `confined_alone`, sees whole of the machine's files."""
    prefixes = [programs.parent, Path(os.path.realpath(programs)).parent]
    prefixes += [Path(*path.parts[:3]) for path in prefixes if path.is_relative_to("/opt")]  # with their libraries
    inside = [one / name for one in prefixes for name in ("lib", "lib64", "share")]  # which may be links out of it
    return [one for one in (*map(Path, _SYSTEM), *prefixes, *inside) if one != Path("/")]


def _also_resolved(paths: Iterable[Path]) -> set[str]:
    return {str(p) for given in paths for p in (given, os.path.realpath(given))}


def _seeing(view: dict[str, Any], spaces: Sequence[str]) -> list[str]:
    seen = isolated_python(mount_view.__file__, json.dumps(view))
    return [str(program("unshare")), *spaces, "--mount", "--propagation", "slave", "--", *seen]


def isolated_python(script: str, *arguments: str) -> list[str]:
    """A script with the standard library alone: neither environment nor current folder chooses what is imported."""
    return [sys.executable, "-I", "-S", script, *arguments]


def check_readable(postgres_bin: Path) -> None:
    """MachineError when the lab's user could not read this Python, or that PostgreSQL, even in a view of its own."""
    if os.geteuid() == 0:
        closed_folders([*environment_paths(), postgres_bin.parent])


def _passwd(blueprint: Blueprint) -> Path:
    return blueprint.home / "passwd"


def write_passwd(blueprint: Blueprint) -> None:
    """The lab's own copy of /etc/passwd, in which its users have names; the machine's file is never changed."""
    if os.geteuid() != 0:
        return
    uids = {"": member_uid(blueprint.number), "-access": access_uid(blueprint.number)}
    lines = Path("/etc/passwd").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    rest = f"walproof lab:{blueprint.home}:/usr/sbin/nologin"
    ours = [f"walproof{blueprint.number}{which}:x:{uid}:{uid}:{rest}" for which, uid in uids.items()]
    path = _passwd(blueprint)
    write_private(path, "\n".join([*lines, *ours, ""]))
    path.chmod(0o644)


def environment_paths() -> list[Path]:
    """Everything a Python child of ours needs: the environment, its base, every link of the interpreter, our code."""
    paths = [Path(sys.prefix), Path(sys.base_prefix), *links_of(Path(sys.executable)), Path(mount_view.__file__).parent]
    return [*paths, *(program(name) for name in _PROGRAMS)]


def links_of(path: Path) -> list[Path]:
    """The path, and each one that its chain of symbolic links names.

    >>> links_of(Path("/nowhere"))
    [PosixPath('/nowhere')]
    """
    chain = [path]
    while chain[-1].is_symlink() and len(chain) < 40:
        chain.append(Path(os.path.normpath(chain[-1].parent / os.readlink(chain[-1]))))
    return chain


def closed_folders(paths: Iterable[Path]) -> dict[str, list[str]]:
    """By each topmost folder that others may not enter: what is needed below it, folders before what lies in them.

    MachineError when something needed may not be read by others even where it lies open.
    """
    closed: dict[str, list[str]] = {}
    for path in map(Path, sorted(_also_resolved(paths))):
        first = next((f for f in reversed(path.parents) if not _others(f) & stat.S_IXOTH), None)
        if first is None:
            continue
        needed = closed.setdefault(str(first), [])
        if not any(path.is_relative_to(other) for other in needed):
            _check_readable(path)
            needed.append(str(path))
    return closed


def _others(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return stat.S_IRWXO


def _check_readable(path: Path) -> None:
    if not _others(path) & stat.S_IXOTH:
        raise MachineError(
            f"the lab's own user may not read {path}: it is closed to others",
            pasted("chmod -R go+rX {path:path}", path=path),
        )
