"""What a lab of root's must withstand: processes of its own user, other users above its state folder, no rights."""

import grp
import os
import pwd
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.fixtures.blueprints import a_blueprint
from tests.fixtures.tiers import each
from walproof.errors import MachineError
from walproof.lab import disk_images, home, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.privileges import MOST_LABS, is_over, isolated_python, member_uid
from walproof.machine import untrusted
from walproof.machine.clock import RealClock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a lab of root's")
_HOPS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NPROC, (60, 60))
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
for _ in range(8):
    if os.fork() == 0:
        break
else:
    sys.exit()
print("hops", flush=True)
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""


@pytest.fixture
def hopping(tmp_path: Path) -> Iterator[Blueprint]:
    """A lab whose user runs processes that fork and end all the time: a walk of /proc finds the parent."""
    blueprint = replace(a_blueprint(tmp_path / "lab"), number=MOST_LABS)
    argv = [sys.executable, "-I", "-S", "-c", _HOPS, str(member_uid(MOST_LABS))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"hops\n"
        try:
            yield blueprint
        finally:
            subprocess.run(isolated_python("-c", members.KILL_ALL, str(member_uid(MOST_LABS))), check=False)


def test_what_forks_all_the_time_is_ended(hopping: Blueprint) -> None:
    members.kill_marked(hopping, RealClock({}))
    assert members.marked(hopping) == []


_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_HIDDEN = ("unshare", "--user", "--pid", "--fork", "--map-root-user")


_SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


def running(uid: int, before: tuple[str, ...], after: tuple[str, ...], code: str = _SLEEPS) -> Iterator[psutil.Process]:
    """A process of that user in the namespace of processes that `before`, as root, or `after`, as he, makes."""
    limited = ("setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--no-new-privs")
    argv = [*before, *limited, *after, sys.executable, "-IS", "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        if started.stdout.readline() != b"up\n":
            pytest.skip("no such namespace may be made here")
        first = psutil.Process(started.pid)
        family = [first, *first.children(recursive=True)]
        try:
            yield family[-1]
        finally:
            for one in reversed(family):
                with suppress(psutil.NoSuchProcess):
                    one.kill()


@pytest.mark.nightly
# rows: container, hidden, hidden-in-container
@each([(_CONTAINER, (), True), ((), _HIDDEN, False), (_CONTAINER, _HIDDEN, True)])
def test_a_containers_lab_of_the_same_number_is_left(
    before: tuple[str, ...], after: tuple[str, ...], survives: bool, tmp_path: Path
) -> None:
    """Without a user namespace its users are the host's, and kill(2) reaches down into its namespace of processes."""
    blueprint = replace(a_blueprint(tmp_path / "lab"), number=MOST_LABS - 1)
    uid = member_uid(blueprint.number)
    for process in running(uid, before, after):
        for own in running(uid, (), ()):
            assert process.uids().real == uid
            members.kill_marked(blueprint, RealClock({}))
            assert is_over(own.pid)
            assert is_over(process.pid) != survives


@pytest.mark.nightly
def test_what_hides_is_ended_where_root_may_look_at_nobody() -> None:
    """Without CAP_SYS_PTRACE root does not see by whom a namespace was made; to send a signal asks for none of it."""
    uid = member_uid(MOST_LABS - 1)
    code = f"from walproof.lab.privileges import is_in_container as it; print(it(int(input()), {uid}))"
    typed = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", sys.executable, "-c", code]
    for process in running(uid, (), _HIDDEN):
        done = subprocess.run(typed, input=f"{process.pid}\n", capture_output=True, text=True, check=False)
        assert done.stdout == "False\n", done.stderr


@pytest.mark.nightly
def test_roots_own_in_a_container_are_left_too(tmp_path: Path) -> None:
    """Its link emulator and disk guard have the mark that a lab of that name has here: the state folder is the same."""
    blueprint = a_blueprint(tmp_path / "lab")
    mark = ("env", f"{home.MARK}={blueprint.home}")
    for process in running(0, (*_CONTAINER, *mark), ()):
        for own in running(0, mark, ()):
            assert members.marked(blueprint) == [own]
            members.kill_marked(blueprint, RealClock({}))
            assert is_over(own.pid) and not is_over(process.pid)


_ENDS_ITS_FIRST_THREAD = """
import ctypes, threading, time
def work():
    while not open("/proc/self/stat").read().rpartition(")")[2].startswith(" Z"): pass
    print("up", flush=True); time.sleep(600)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.nightly
def test_one_whose_first_thread_has_ended_is_ended_beside_a_container_too(tmp_path: Path) -> None:
    """It is a zombie to look at; the one kill(2) for all that its user runs would reach into the container."""
    blueprint = replace(a_blueprint(tmp_path / "lab"), number=MOST_LABS - 2)
    for process in running(member_uid(blueprint.number), _CONTAINER, ()):
        for own in running(member_uid(blueprint.number), (), (), _ENDS_ITS_FIRST_THREAD):
            assert own.status() == psutil.STATUS_ZOMBIE and not is_over(own.pid)
            members.kill_marked(blueprint, RealClock({}))
            assert is_over(own.pid) and not is_over(process.pid)


def a_folder(path: Path, owner: int = 0, mode: int = 0o755) -> Path:
    path.mkdir()
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path


def behind_a_link(folder: Path) -> Path:
    target, theirs = a_folder(folder / "target"), a_folder(folder / "theirs", 12345)
    (theirs / "link").symlink_to(target)
    return theirs / "link" / "state"


def at_a_link_of_others(folder: Path) -> Path:
    a_folder(folder / "target")
    (folder / "link").symlink_to(folder / "target")
    os.lchown(folder / "link", 12345, 12345)
    return folder / "link"


def under_an_acl(path: Path) -> Path:
    """A folder of root's and its group, mode 0775 to look at, in which another user may write (acl(5))."""
    entries = ((1, 7, -1), (2, 7, 12345), (4, 5, -1), (16, 7, -1), (32, 5, -1))  # linux/posix_acl_xattr.h
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(a_folder(path), "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("this file system has no ACLs")
    return path


# rows: below-theirs, below-one-for-all, theirs, link-below-theirs, their-link, below-an-acl, for-all
@each([
    lambda folder: a_folder(folder / "theirs", 12345) / "state",
    lambda folder: a_folder(folder / "open", mode=0o777) / "state",
    lambda folder: a_folder(folder / "theirs", 12345),
    behind_a_link,
    at_a_link_of_others,
    lambda folder: under_an_acl(folder / "shared") / "state",
    lambda folder: a_folder(folder / "sticky", mode=0o1777),
])  # fmt: skip
def test_no_lab_lies_where_another_user_can_put_a_link_in_its_way(
    place: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = place(tmp_path)
    monkeypatch.setenv("WALPROOF_STATE", str(state))
    with suppress(FileNotFoundError):
        before = state.stat().st_mode
    with pytest.raises(MachineError, match="another user owns"):
        home.open_state()
    assert not state.exists() or state.stat().st_mode == (before if "before" in locals() else state.stat().st_mode)


@each([0o755, 0o1777])
def test_ones_own_folder_and_a_sticky_one_will_do(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALPROOF_STATE", str(a_folder(tmp_path / "above", mode=mode) / "state"))
    assert home.open_state().is_dir()


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALPROOF_STATE", str(a_folder(tmp_path / "private", mode=0o700)))
    assert home.open_state().stat().st_mode & 0o777 == 0o700


def test_without_the_right_to_mount_there_are_no_images() -> None:
    argv = ["setpriv", "--bounding-set", "-sys_admin", sys.executable, "-P", "-c"]
    done = subprocess.run(
        [*argv, "from walproof.lab import disk_images; print(disk_images.unavailable())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "no CAP_SYS_ADMIN" in done.stdout or (disk_images.unavailable() or "") in done.stdout.strip() != "None"


@each([
        (1000, (), {"me": 1000}, True), (1000, ("me", "root"), {"me": 1000}, True), (0, (), {"me": 1000}, True),
        (1000, ("agent",), {"me": 1000}, False), (1000, (), {"me": 1000, "agent": 1000}, False),
        (100, (), {"me": 100, "agent": 100}, False), (0, ("agent",), {"me": 1000}, False), (0, (), {}, True),
        (1000, (), {}, False), (0, ("agent",), {}, False),
    ])  # fmt: skip
def test_a_group_is_ones_own_by_who_is_in_it(
    group: int,
    members: tuple[str, ...],
    accounts: dict[str, int],
    is_own: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A group that bears the user's name has other members on many machines: `usermod -aG postgres telegraf`."""
    entries = [SimpleNamespace(pw_name=name, pw_gid=gid) for name, gid in accounts.items()]
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: dict(enumerate(entries))[0])
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="me", gr_mem=list(members)))
    assert untrusted.is_own_group(group, tmp_path) == is_own
