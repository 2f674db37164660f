"""The means of the faults, tried on files and processes of the test's own: images, injection, control groups."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.fixtures.blueprints import a_blueprint
from walproof.errors import MachineError, UsageError
from walproof.lab import disk_images
from walproof.lab.blueprint import Disk
from walproof.lab.faults import crashes, disks
from walproof.machine import processors
from walproof.machine.programs import run

IMAGE = Disk("image", disk_images.SMALLEST)
needs_images = pytest.mark.skipif(disk_images.unavailable() is not None, reason=str(disk_images.unavailable()))
needs_strace = pytest.mark.skipif(disks.unavailable() is not None, reason=str(disks.unavailable()))
needs_groups = pytest.mark.skipif(
    processors.control_groups_unavailable() is not None, reason=str(processors.control_groups_unavailable())
)


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
@pytest.mark.parametrize("overlooked", [0, 1], ids=["seen", "overlooked at first"])
def test_an_image_mounted_in_another_mount_namespace_is_released_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlooked: int
) -> None:
    blueprint = a_blueprint(tmp_path, members=1, disk=IMAGE)
    disk_images.prepare(blueprint)
    # Overlooked as when the process that a namespace was known by ends in the middle of a scan.
    scans: list[list[str]] = [[]] * overlooked
    seen = disk_images._mount_namespaces
    monkeypatch.setattr(disk_images, "_mount_namespaces", lambda: scans.pop() if scans else seen())
    command = "read line; exec sleep 600"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", f"echo up; {command}"], stdin=-1, stdout=-1) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"up\n"
            disk_images.release(blueprint)
            assert disk_images.loops(blueprint) == ()
        finally:
            other.kill()


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
@pytest.mark.parametrize(("error", "says"), [("failing", "Input/output error"), ("full", "No space left on device")])
def test_injection_fails_flushes_of_a_running_process_and_detaches_from_it(
    tmp_path: Path, error: str, says: str
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


@pytest.mark.parametrize(("cores", "limit"), [(0.5, "5000 10000"), (2.0, "20000 10000"), (0.05, "1000 20000")])
def test_a_group_of_version_two_gets_quota_and_controller(tmp_path: Path, cores: float, limit: str) -> None:
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
    class Ended:
        def cmdline(self) -> list[str]:
            raise psutil.NoSuchProcess(1)

    class Writer:
        killed = False

        def cmdline(self) -> list[str]:
            return ["postgres: wp1: background writer "]

        def kill(self) -> None:
            self.killed = True

    writer = Writer()
    monkeypatch.setattr(crashes, "_postmaster", lambda *_: os.getpid())
    monkeypatch.setattr(psutil.Process, "children", lambda _: [Ended(), writer])
    crashes.crash_restart(a_blueprint(tmp_path), "n1")
    assert writer.killed
