"""Machines that lack something, or answer strangely: each gets one sentence and what to do, never a trace."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.recorded_machines import from_text, machine
from tests.fixtures.tiers import each
from walproof.lab import requirements
from walproof.lab.home import Identity
from walproof.lab.requirements import MISSING, Output, Row, State
from walproof.machine import pid_files, programs
from walproof.machine.programs import program

NONE = Output("", MISSING)
V2 = "/sys/fs/cgroup/cgroup.controllers"


def row_of(base: str, subject: str, changes: dict[str, Output]) -> Row:
    """The line of that subject on a recorded machine on which something else was printed."""
    rows = requirements.judged({**machine(base), **changes})
    return next(row for row in rows if row.subject == subject)


REFUSED = Output("unshare: unshare failed: No space left on device", 1)
CASES = {
    "a required program is missing": (
        "debian-12-user", "haproxy", {"program haproxy": NONE}, State.BLOCKS, "haproxy is missing", "apt-get install"),
    "only bridge is missing": (
        "fedora-user", "bridge", {"program bridge": NONE}, State.LIMITED, "bridge is missing", "dnf install iproute"),
    "mkfs.ext4 is missing": (
        "this-machine-root", "mkfs.ext4", {"program mkfs.ext4": NONE}, State.LIMITED, "mkfs.ext4", "e2fsprogs"),
    "an unknown distribution": (
        "debian-12-user", "etcd", {"program etcd": NONE, "/etc/os-release": Output("ID=void")}, State.BLOCKS, "etcd",
        "put them on PATH"),
    "no os-release at all": (
        "debian-12-user", "etcd", {"program etcd": NONE, "/etc/os-release": NONE}, State.BLOCKS, "etcd",
        "install etcd"),
    "user namespaces switched off by Debian's setting": (
        "debian-12-user", "rights",
        {"namespaces": REFUSED, "/proc/sys/kernel/unprivileged_userns_clone": Output("0")},
        State.BLOCKS, "kernel.unprivileged_userns_clone is 0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    "no user namespaces left to give": (
        "fedora-user", "rights", {"namespaces": REFUSED, "/proc/sys/user/max_user_namespaces": Output("0")},
        State.BLOCKS, "user.max_user_namespaces is 0", "sudo sysctl user.max_user_namespaces=15000"),
    "AppArmor restricts user namespaces": (
        "ubuntu-24.04-user", "rights", {}, State.BLOCKS, "apparmor_restrict", "sudo sysctl kernel.apparmor_restrict"),
    "namespaces refused for no known reason": (
        "debian-12-user", "rights", {"namespaces": Output("", 1)}, State.BLOCKS, "exit code 1", "sudo"),
    "root without capabilities": (
        "this-machine-root", "rights", {"CapEff": Output("0000000000000000")}, State.BLOCKS, "no CAP_NET_ADMIN",
        "--cap-add NET_ADMIN"),
    "root whose seccomp forbids unshare": (
        "this-machine-root", "rights", {"namespaces": REFUSED}, State.BLOCKS, "may not have namespaces", "seccomp"),
    "the tun device is root's": (
        "wsl2-user", "/dev/net/tun",
        {"/dev/net/tun": Output("/dev/net/tun cannot be opened here (Permission denied): chmod 666 /dev/net/tun", 1)},
        State.LIMITED, "Permission denied", "chmod 666"),
    "no control group limits processors": (
        "debian-13-root", "control groups", {V2: Output("memory pids")}, State.LIMITED, "no controller cpu", "cgroup2"),
    "control groups of version 1": (
        "debian-13-root", "control groups", {V2: NONE, "control group v1": Output("")}, State.WORKS, "v1", ""),
    "no loop devices": (
        "this-machine-root", "loop devices", {"losetup -f": Output("losetup: cannot find an unused loop device", 1)},
        State.LIMITED, "cannot find", "modprobe loop"),
    "tracing is forbidden for good": (
        "this-machine-root", "tracing", {"/proc/sys/kernel/yama/ptrace_scope": Output("3")}, State.LIMITED, "is 3",
        "restart"),
    "Python is too old": (
        "debian-12-user", "Python", {"python": Output("3.9.2")}, State.BLOCKS, "3.9.2 is too old", "3.11"),
    "musl in place of glibc": (
        "alpine-root", "PostgreSQL", {"libc": Output("musl 1.2.5")}, State.BLOCKS, "musl", "glibc"),
    "PostgreSQL is there and does not run": (
        "debian-12-user", "PostgreSQL", {"PostgreSQL": Output("libicu.so.60: cannot open", 127 + 1)}, State.BLOCKS,
        "libicu", ".[lab]"),
    "bridges are not in the kernel": (
        "wsl2-user", "network", {"bridge and veth": Output("Error: Unknown device type.", 2)}, State.BLOCKS,
        "Unknown device type", "modprobe"),
    "the disk is full": (
        "debian-12-user", "disk", {"free bytes of the state folder": Output("1048576")}, State.BLOCKS, "only 0.0 GiB",
        "WALPROOF_STATE"),
    "shared memory of a container": (
        "this-machine-root", "/dev/shm", {"free bytes of /dev/shm": Output("1048576")}, State.LIMITED, "1 MiB",
        "--shm-size"),
    "no shared memory": (
        "this-machine-root", "/dev/shm", {"free bytes of /dev/shm": NONE}, State.LIMITED, "not there", "mount"),
    "ports are taken": (
        "this-machine-root", "ports", {"ports taken": Output("5500 5503")}, State.LIMITED, "5500, 5503", "--port"),
    "WSL 1": (
        "wsl2-user", "system", {"/proc/version": Output("Linux version 4.4.0-19041-Microsoft")}, State.BLOCKS, "WSL 1",
        "wsl --set-version"),
    "FreeBSD": ("macos", "system", {"uname -s": Output("FreeBSD")}, State.BLOCKS, "this is FreeBSD", "--target"),
}  # fmt: skip


@each(CASES)
def test_a_machine_that_lacks_something_names_it_and_says_what_to_do(case: str) -> None:
    base, subject, changes, state, found, todo = CASES[case]
    row = row_of(base, subject, changes)
    assert row.state is state
    assert found in row.found
    assert todo in row.todo


@each(["", "garbage", "--- \n---", "--- id -u\nnobody\n--- CapEff\nzz\n--- python\nx.y"])
def test_a_damaged_recording_is_judged_without_a_trace(text: str) -> None:
    assert requirements.judged(from_text(text))


def walproof(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    argv = [sys.executable, "-m", "walproof", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=60)


def test_the_table_prints_one_conclusion_first_and_is_json_on_demand(tmp_path: Path) -> None:
    done = walproof("lab", "doctor", WALPROOF_STATE=str(tmp_path))
    assert done.returncode in (0, 3)
    assert done.stdout.splitlines()[0].split(" lab ")[0] in ("A", "No")
    tree = json.loads(walproof("lab", "doctor", "--json", WALPROOF_STATE=str(tmp_path)).stdout)
    assert tree["lab"] is (done.returncode == 0)
    assert list(tmp_path.iterdir()) == []


def test_raw_and_json_at_once_are_refused() -> None:
    done = walproof("lab", "doctor", "--raw", "--json")
    assert done.returncode == 2
    assert "hint" in done.stderr


def test_a_program_in_usr_sbin_alone_is_found_without_it_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ip", path="/usr/sbin:/sbin") is None:
        pytest.skip("ip is not in /usr/sbin here")
    monkeypatch.setenv("PATH", "/nowhere")
    program.cache_clear()
    assert str(program("ip")).endswith("/sbin/ip")


def test_programs_of_a_distribution_without_package_manager_of_ours_are_named() -> None:
    assert programs.install_command(["etcd"], None) == "install etcd and put them on PATH"
    assert programs.family("") is None
    assert programs.family("ID\n=\nID_LIKE") is None


def test_a_machine_that_is_called_another_name_meanwhile_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """DHCP, cloud-init and a laptop on a VPN change it: a lab's number and processes are here all the same."""
    marked = Identity(1, "demo", pid_files.identity(os.getpid()) or "", pid_files.here())
    process = pid_files.this_process()
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert marked.is_here and marked.owner_pid == os.getpid() and not marked.elsewhere
    assert pid_files.ended(process) is False
