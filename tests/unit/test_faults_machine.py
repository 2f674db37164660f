"""The means of the faults, tried on files and processes of the test's own: images, injection, control groups."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import psutil
import pytest

from tests.fixtures.blueprints import a_blueprint
from tests.fixtures.ordinary_user import AS_USER, UID, home_of_user, why_no_namespaces
from tests.fixtures.tiers import each
from walproof.errors import MachineError, UsageError, WaitTimeout
from walproof.lab import disk_images, members, mount_view
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.faults import crashes, disks
from walproof.lab.mount_view import mounts
from walproof.machine import processors
from walproof.machine.clock import RealClock
from walproof.machine.programs import run
from walproof.model.waiting import Wait, wait_for

IMAGE = Disk("image", disk_images.SMALLEST)
needs_images = pytest.mark.skipif(disk_images.unavailable() is not None, reason=str(disk_images.unavailable()))
needs_strace = pytest.mark.skipif(disks.unavailable() is not None, reason=str(disks.unavailable()))
needs_groups = pytest.mark.skipif(
    processors.control_groups_unavailable() is not None, reason=str(processors.control_groups_unavailable())
)


@pytest.fixture
def on_image(tmp_path: Path) -> Iterator[Blueprint]:
    """One member, its disk mounted; released at the end."""
    blueprint = a_blueprint(tmp_path, members=1, disk=IMAGE)
    disk_images.prepare(blueprint)
    yield blueprint
    disk_images.release(blueprint)
    assert disk_images.loops(blueprint) == ()


@needs_images
def test_after_a_power_cut_what_was_flushed_is_there_and_what_was_not_is_gone(tmp_path: Path) -> None:
    blueprint = a_blueprint(tmp_path, members=1, disk=IMAGE)
    disk_images.prepare(blueprint)
    try:
        disk = blueprint.data_dir("n1").parent
        for name, flushed in (("kept", True), ("gone", False)):
            with (disk / name).open("w") as file:
                file.write("a commit")
                file.flush()
                if flushed:
                    os.fsync(file.fileno())
        opened = [os.open(disk, os.O_RDONLY)]
        crashes.shut_down(opened)
        os.close(opened[0])
        with pytest.raises(OSError, match="Input/output"):
            (disk / "late").write_text("too late")
        disk_images.detach(blueprint, "n1")
        assert not disk_images.mounted(disk)
        disk_images.attach(blueprint, "n1")
        assert (disk / "kept").read_text() == "a commit"
        assert not (disk / "gone").exists() or (disk / "gone").read_text() != "a commit"
    finally:
        disk_images.release(blueprint)
    assert disk_images.loops(blueprint) == ()
    assert not disk_images.mounted(disk)


@needs_images
def test_a_file_system_is_dead_by_itself_alone_not_by_what_the_labs_user_puts_there(on_image: Blueprint) -> None:
    disk = on_image.data_dir("n1").parent
    for name in (".alive", "ballast"):
        (disk / name).mkdir()
    assert not crashes.is_dead(disk)
    with pytest.raises(MachineError, match="the disk of n1 cannot be filled: File exists"):
        disks._fill(on_image, "n1")
    (disk / "ballast").rmdir()
    disks._fill(on_image, "n1")
    assert os.statvfs(disk).f_bavail == 0 and not crashes.is_dead(disk)
    with disk_images.opened(on_image, "n1") as opened:
        crashes.shut_down(opened)
    assert crashes.is_dead(disk)


OTHER_ROOTS, OTHER_USERS = ["unshare", "--mount"], [*AS_USER, "unshare", "--user", "--map-root-user", "--mount"]


@contextmanager
def another_process(kind: list[str], script: str = "") -> Iterator[int]:
    """Its pid once it has run the script."""
    if "--user" in kind and (why := why_no_namespaces()):
        pytest.skip(why)
    command = [*kind, "bash", "-c", f"{script}\necho up; read line; exec sleep 600"]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"up\n"
            yield other.pid
        finally:
            other.kill()


@needs_images
# rows: seen, overlooked at first, of another user, where root cannot unmount it
@pytest.mark.parametrize(
    ("kind", "overlooked"), [(OTHER_ROOTS, 0), (OTHER_ROOTS, 1), ([*OTHER_USERS, "--propagation", "slave"], 0)]
)
def test_an_image_mounted_in_another_mount_namespace_is_released_too(
    kind: list[str], overlooked: int, on_image: Blueprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Overlooked as when the process that a namespace was known by ends in the middle of a scan.
    overlooks = [True] * overlooked

    def scanned(argv: list[str], **more: str) -> str:
        return "" if mount_view.UNMOUNT in argv and overlooks and overlooks.pop() else run(argv, **more)

    monkeypatch.setattr(disk_images, "run", scanned)
    with another_process(kind):
        disk_images.release(on_image)
        assert disk_images.loops(on_image) == ()


HOSTILE = """
set -e; cd {home}
printf '#!/bin/sh\ntouch {ran}' > evil; chmod 755 evil; odd=$(printf 'a\rb\302\205\377'); mkdir "$odd"
mount -t tmpfs none "$odd"; mount --bind evil "$(command -v umount)"
"""


def power_on(blueprint: Blueprint) -> None:
    disk_images.detach(blueprint, "n1")
    disk_images.attach(blueprint, "n1")


@needs_images
@pytest.mark.parametrize(("holds", "act"), [
    ("a mount namespace of another user", disk_images.release),
    ("an open folder", disk_images.release),
    ("an open folder", power_on),
])  # fmt: skip
def test_who_holds_an_image_is_named_and_nothing_of_theirs_is_run_or_mounted_twice(
    holds: str, act: Callable[[Blueprint], None], on_image: Blueprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, ran = on_image.data_dir("n1").parent, tmp_path / "ran"
    monkeypatch.setenv("WALPROOF_PATIENCE", "0.1")
    kind = [] if holds == "an open folder" else [*OTHER_USERS, "--propagation", "private"]
    with (
        home_of_user() as home,
        another_process(kind, HOSTILE.format(home=home, ran=ran) if kind else f"exec 3<{disk}") as pid,
        pytest.raises(WaitTimeout, match=rf"process .*\b{pid} of user {UID if kind else 0}\b.*: end it"),
    ):
        act(on_image)
    assert disk_images.images_dir(on_image).exists() and not ran.exists()
    monkeypatch.undo()  # and what it could not release it does now


ANOTHERS = """
set -e; mkdir -p {lab}; mount -t tmpfs none {lab}; mkdir -p {lab}/images {lab}/disk; cd {lab}
truncate -s 8M images/n1-disk.img; mkfs.ext4 -q -F images/n1-disk.img
mount -o loop images/n1-disk.img disk; echo theirs > disk/file; {then}
"""


@needs_images
@pytest.mark.parametrize("then", ["", "rm images/n1-disk.img"], ids=["kept", "deleted"])
@pytest.mark.parametrize("is_here", [True, False])
def test_the_disk_of_another_containers_lab_at_the_same_path_is_left_alone(
    tmp_path: Path, then: str, is_here: bool
) -> None:
    blueprint = a_blueprint(tmp_path, members=1, disk=IMAGE)
    with another_process(OTHER_ROOTS, ANOTHERS.format(lab=blueprint.home, then=then)) as pid:
        disk = Path(f"/proc/{pid}/root{blueprint.home}/disk")
        if is_here:
            disk_images.prepare(blueprint)
            disk_images.detach(blueprint, "n1")
            disk_images.attach(blueprint, "n1")
        assert len(disk_images.loops(blueprint)) == is_here
        disk_images.release(blueprint)
        assert (disk / "file").read_text() == "theirs\n" and disk.stat().st_dev != disk.parent.stat().st_dev


DETACHED = """
import subprocess, sys
from pathlib import Path
from tests.fixtures.blueprints import a_blueprint
from walproof.lab import disk_images
from walproof.lab.blueprint import Disk
from walproof.lab.mount_view import mounts
b = a_blueprint(Path(sys.argv[1]), members=1, disk=Disk("image", disk_images.SMALLEST))
(volume,) = disk_images.volumes(b)
disk_images.prepare(b)
with subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo up; exec sleep 600"], stdout=-1) as other:
    other.stdout.readline()
    for _ in range(3):
        disk_images.detach(b, "n1")
        print(len(disk_images.loops(b)), [place for _, place in mounts() if place == str(volume.mount_point)])
        disk_images.attach(b, "n1")
    other.kill()
disk_images.release(b)
print(len(disk_images.loops(b)), [place for _, place in mounts() if str(b.home) in place])
"""


@needs_images
@each(["private", "shared"])
def test_detaching_leaves_nothing_where_mounts_propagate_and_where_not(root: str, tmp_path: Path) -> None:
    # The machine's / is shared under systemd and private in most containers. A link on the way is resolved.
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    where = ["unshare", "--mount", "--propagation", root]
    command = [*where, sys.executable, "-c", DETACHED, str(tmp_path / "link")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["0 []"] * 4, done


@needs_images
def test_a_volume_that_cannot_be_mounted_leaves_no_mount(on_image: Blueprint, monkeypatch: pytest.MonkeyPatch) -> None:
    (volume,) = disk_images.volumes(on_image)
    disk_images.detach(on_image, "n1")
    subprocess.run(["mount", "--bind", volume.mount_point, volume.mount_point], check=True)  # as after a kill -9
    monkeypatch.setattr(disk_images, "_loop", mock.Mock(side_effect=MachineError("no loop device is left")))
    with pytest.raises(MachineError, match="no loop device"):
        disk_images.attach(on_image, "n1")
    assert str(volume.mount_point) not in [place for _, place in mounts()]


@needs_images
@each([crashes._cut, disks._fill])
def test_no_file_system_is_harmed_that_is_the_machines_own(
    fault: Callable[[Blueprint, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after a reboot, and in a mount namespace without the lab's mounts.
    blueprint = a_blueprint(tmp_path, members=1, disk=IMAGE)
    blueprint.data_dir("n1").parent.mkdir(parents=True)
    harm = mock.Mock(side_effect=OSError)
    monkeypatch.setattr(crashes, "shut_down", harm)
    monkeypatch.setattr(os, "posix_fallocate", harm)
    with pytest.raises(MachineError, match="not mounted where walproof looks"):
        fault(blueprint, "n1")
    harm.assert_not_called()


@needs_images
def test_an_image_is_never_mounted_twice(on_image: Blueprint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "set_link", mock.Mock())
    with another_process(OTHER_ROOTS):
        run(["umount", str(on_image.data_dir("n1").parent)])  # this view of the machine lacks it now
        with monkeypatch.context() as runs:
            runs.setattr(members, "processes", lambda *_: [psutil.Process()])
            with pytest.raises(MachineError, match="not mounted where walproof looks"):
                crashes.power_on(on_image, "n1")
        held = disk_images.loops(on_image)
        crashes.power_on(on_image, "n1")
        assert len(held) == len(disk_images.loops(on_image)) == 1


@needs_images
def test_when_no_loop_device_is_left_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint = a_blueprint(tmp_path, members=2, disk=IMAGE)
    asked = []

    def only_one(argv: list[str], *, hint: str = "") -> str:
        if argv[:2] == ["losetup", "--find"]:
            asked.append(argv)
            if len(asked) > 1:
                raise MachineError("losetup failed: losetup: cannot find an unused loop device")
        return run(argv, hint=hint)

    monkeypatch.setattr(disk_images, "run", only_one)
    with pytest.raises(MachineError, match="no loop device is left"):
        disk_images.prepare(blueprint)
    assert disk_images.loops(blueprint) == ()
    assert not disk_images.images_dir(blueprint).exists()


@needs_images
def test_a_disk_too_small_for_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too small"):
        disk_images.prepare(a_blueprint(tmp_path, disk=Disk("image", 1 << 20)))


def test_a_wal_volume_with_a_plain_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="WAL volume"):
        disk_images.prepare(a_blueprint(tmp_path, disk=Disk("plain", wal_volume=True)))


def test_a_plain_disk_has_no_volumes(tmp_path: Path) -> None:
    assert disk_images.volumes(a_blueprint(tmp_path)) == ()


FLUSHER = """
import os, sys
print("up", flush=True)
for line in sys.stdin:
    with open(sys.argv[1], "w") as file:
        try:
            os.pwrite(file.fileno(), b"x", 0)
            os.fdatasync(file.fileno())
            print("flushed", flush=True)
        except OSError as wrong:
            print(wrong.strerror, flush=True)
"""


@needs_strace
@each([("failing", "Input/output error"), ("full", "No space left on device")])
def test_injection_fails_flushes_of_a_running_process_and_detaches_from_it(
    error: str, says: str, tmp_path: Path
) -> None:
    flusher = subprocess.Popen(
        [sys.executable, "-S", "-c", FLUSHER, str(tmp_path / "file")], stdin=-1, stdout=-1, text=True, bufsize=1
    )
    assert flusher.stdin is not None
    assert flusher.stdout is not None

    def flush() -> str:
        assert flusher.stdin is not None
        assert flusher.stdout is not None
        flusher.stdin.write("flush\n")
        flusher.stdin.flush()
        return flusher.stdout.readline().strip()

    try:
        assert flusher.stdout.readline() == "up\n"
        assert flush() == "flushed"
        with subprocess.Popen(disks.strace_argv(*disks.injection(error), (flusher.pid,))) as strace:
            while disks.tracer(flusher.pid) == 0:
                assert strace.poll() is None
            assert flush() == says
            strace.terminate()
        assert flush() == "flushed"
    finally:
        flusher.kill()
        flusher.communicate()


def test_a_slow_flush_is_asked_for_in_microseconds_before_it_is_issued() -> None:
    argv = disks.strace_argv(*disks.injection("slow", 0.005), (7, 8))
    assert "inject=fdatasync,fsync:delay_enter=5000" in argv
    assert argv[-4:] == ("-p", "7", "-p", "8")
    assert "-f" in argv


@each([(0.5, "5000 10000"), (2.0, "20000 10000"), (0.05, "1000 20000")])
def test_a_group_of_version_two_gets_quota_and_controller(cores: float, limit: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("")
    where = processors.Hierarchy(tmp_path, 2)
    processors.create_group(where, processors.group_folder(where, "250-n1"), cores)
    assert (tmp_path / "walproof" / "250-n1" / "cpu.max").read_text() == limit
    assert processors.cores(where, processors.group_folder(where, "250-n1")) == cores
    assert (tmp_path / "walproof" / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


@needs_groups
def test_a_real_group_limits_its_process_and_is_deleted_under_it() -> None:
    found = processors.hierarchy()
    assert found is not None
    group = processors.group_folder(found, f"paper-{os.getpid()}")
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        processors.create_group(found, group, 0.5)
        (group / "cgroup.procs").write_text(str(sleeper.pid))
        assert str(sleeper.pid) in (group / "cgroup.procs").read_text().split()
        processors.delete_group(group)
        assert not group.exists()
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()
        processors.delete_group(group)


def test_a_session_that_ends_meanwhile_hides_no_background_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    writer = subprocess.Popen(["postgres: wp1: background writer ", "600"], executable="sleep")
    named = psutil.Process(writer.pid)  # between exec and its arguments the kernel shows none
    wait_for(Wait.PROGRAM_READY, lambda: "background" in "".join(named.cmdline()), RealClock())
    monkeypatch.setattr(crashes, "_postmaster", lambda *_: os.getpid())
    monkeypatch.setattr(psutil.Process, "children", lambda _: [ended, writer])
    crashes.crash_restart(a_blueprint(tmp_path), "n1")
    assert writer.wait(60) == -signal.SIGKILL
