"""The lab's PostgreSQL superuser, who may run any program as the members' user: reads and changes nothing of ours."""

import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.fixtures.labs import leader_and_standby, port_base, what_is_left, why_no_lab
from tests.fixtures.tiers import each, every
from walproof.lab import create, home, members
from walproof.lab.blueprint import ETCD_PORT, REST_PORT, Blueprint
from walproof.lab.create import LabOrder, design
from walproof.lab.faults import catalogue, crashes
from walproof.lab.list_and_destroy import destroy_lab
from walproof.lab.privileges import FIRST_UID, MOST_LABS
from walproof.machine import pid_files, processors
from walproof.machine.clock import RealClock

pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]


@pytest.fixture(scope="module")
def superuser(lab: Blueprint) -> Iterator[psycopg.Connection]:
    conninfo = lab.endpoint("haproxy").client_conninfo()
    with psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        yield connection


@pytest.fixture
def of_root() -> Iterator[Path]:
    """A file of root's, mode 0600, in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "of-root"
        file.touch(0o600)
        file.write_text(secrets.token_hex())
        yield file


def sh(superuser: psycopg.Connection, script: str) -> str:
    """What a shell of the superuser's prints."""
    superuser.execute("CREATE TEMP TABLE IF NOT EXISTS printed (line text)")
    superuser.execute("TRUNCATE printed")
    superuser.execute("COPY printed FROM PROGRAM %s (FORMAT csv, DELIMITER E'\\x01', QUOTE E'\\x02')", (script,))
    return "\n".join(str(line) for (line,) in superuser.execute("SELECT line FROM printed").fetchall())


@pytest.mark.nightly
def test_etcd_answers_members_alone(lab: Blueprint) -> None:
    """It asks nobody for a password, and a page in a browser of the host may POST text/plain to any address."""
    for member in lab.members:
        socket.create_connection((lab.address(member), REST_PORT), timeout=5).close()
        for port in (ETCD_PORT, 2380):
            with pytest.raises(OSError, match="timed out"):
                socket.create_connection((lab.address(member), port), timeout=0.3)


@pytest.mark.nightly
def test_what_root_runs_in_a_members_namespace_is_not_the_labs(lab: Blueprint) -> None:
    """As `ip netns exec wp1-n2 tcpdump`."""
    argv = ["ip", "netns", "exec", lab.namespace("n2")]
    for as_user in ([], ["setpriv", "--reuid=65534", "--clear-groups"]):
        with subprocess.Popen([*argv, *as_user, "sh", "-c", "echo in; exec sleep 600"], stdout=-1) as other:
            try:
                assert other.stdout is not None and other.stdout.readline() == b"in\n"
                assert other.pid not in [p.pid for p in members.processes(lab, "n2")] != []
            finally:
                other.kill()


def test_a_0600_file_of_root_is_not_read(superuser: psycopg.Connection, of_root: Path) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="Permission denied"):
        superuser.execute("SELECT pg_read_file(%s)", (str(of_root),))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="Permission denied"):
        superuser.execute("COPY (SELECT 1) TO %s", (str(of_root),))
    assert of_root.read_text() not in sh(superuser, f"cat {of_root} 2>&1; true")


def test_nothing_that_is_roots_is_read(superuser: psycopg.Connection, lab: Blueprint) -> None:
    def kept_of_the_machine(path: str) -> None:
        output = sh(superuser, f"head -c 10 {path} 2>&1; ls -a {path} 2>&1 | head -3; true")
        assert "Permission denied" in output or "No such file" in output or "cannot" in output, output

    def kept_of_the_lab(name: str) -> None:
        assert (lab.home / name).exists()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            superuser.execute("SELECT pg_read_file(%s)", (str(lab.home / name),))

    every(["/etc/shadow", "/proc/1/environ", "/proc/1/maps", "/root/", "/dev/vda", "/dev/mem"], kept_of_the_machine)
    every(["secrets.json", "blueprint.json", "pgpass", "n1/init.pid", "n1/init.log"], kept_of_the_lab)


@pytest.mark.nightly
def test_another_labs_files_are_not_read(superuser: psycopg.Connection, lab: Blueprint) -> None:
    other = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chmod(other, 0o711)
    file = other / "patroni.yml"
    try:
        # As the files of the next lab of this machine: its user's, or readable by its group.
        for owner, group, mode in ((1, 1, 0o600), (0, 1, 0o640)):
            file.write_text("password")
            os.chown(file, FIRST_UID + lab.number + owner if owner else 0, FIRST_UID + lab.number + group)
            file.chmod(mode)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                superuser.execute("SELECT pg_read_file(%s)", (str(file),))
    finally:
        file.unlink()
        other.rmdir()


def _all(lab: Blueprint) -> list[psutil.Process]:
    inside = [p for m in lab.members for p in members.processes(lab, m)]
    return [*inside, *(p for p in members.marked(lab) if p not in inside)]


def test_no_process_of_the_lab_has_a_capability_or_is_nobody(lab: Blueprint) -> None:
    found = _all(lab)
    inside = {p for m in lab.members for p in members.processes(lab, m)}
    assert len(found) > 12
    for process in found:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        own = FIRST_UID + lab.number + (0 if process in inside else MOST_LABS)
        assert set(status["Uid"] + status["Gid"]) == {str(own)}, process
        assert status["Groups"] == []
        assert {status[f"Cap{which}"][0] for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}, process
        assert status["NoNewPrivs"] == ["1"]


@pytest.mark.nightly
def test_no_program_on_the_hosts_network_is_traced_or_told_anything(
    superuser: psycopg.Connection, lab: Blueprint
) -> None:
    """Whoever has its uid has its sockets, by pidfd_getfd(2): the host's loopback, and the way out."""
    for name in ("haproxy", "pgbouncer"):
        pid = pid_files.living(lab.access_dir / f"{name}.pid")
        seen = sh(
            superuser,
            f"cat /proc/{pid}/cmdline | tr '\\0' ' '; readlink /proc/{pid}/ns/net; kill -0 {pid} && echo OURS; true",
        )
        assert name in seen and "net:[" not in seen and "OURS" not in seen
    assert "Permission denied" in sh(superuser, f"ls {lab.access_run_dir} 2>&1; true")


@pytest.mark.nightly
def test_a_setuid_program_gives_no_rights(superuser: psycopg.Connection) -> None:
    assert sh(superuser, "su -c id 2>&1 </dev/null; mount -t tmpfs x /mnt 2>&1; id -un").splitlines()[-1] != "root"


@pytest.mark.nightly
def test_no_other_namespace_is_entered_and_no_device_made(superuser: psycopg.Connection) -> None:
    output = sh(superuser, "nsenter -t 1 -n true 2>&1 && echo IN; ip link add x type dummy 2>&1 && echo IN; true")
    assert "IN" not in output.splitlines()


@each(["", "n1", "access", "n1/init.pid", "n1/member.json", "n1/patroni.yml", "passwd"])
def test_what_steers_the_lab_is_not_changed(name: str, superuser: psycopg.Connection, lab: Blueprint) -> None:
    path = lab.home / name
    before = path.stat().st_mtime_ns
    sh(superuser,
       f"mv {path} {path}.x; rm -f {path}; ln -sf /etc/passwd {path}; echo x >> {path}; touch {path}/x; true",
    )  # fmt: skip
    assert path.stat().st_mtime_ns == before
    assert not path.is_symlink()
    assert path.stat().st_uid == 0
    assert not stat.S_IMODE(path.stat().st_mode) & 0o022


@pytest.mark.nightly
def test_a_planted_postmaster_pid_does_not_steer_a_fault(lab: Blueprint, of_root: Path) -> None:
    """What else may lie there: test_least_rights.py."""
    _, standby = leader_and_standby(lab)
    file = lab.data_dir(standby) / "postmaster.pid"
    kept = file.read_text()
    owner = file.stat().st_uid
    file.unlink()
    file.symlink_to(of_root)
    try:
        assert members.postmaster(lab, standby) is None
        with pytest.raises(Exception, match="already down"):
            crashes.kill(lab, standby)
    finally:
        file.unlink()
        file.write_text(kept)
        file.chmod(0o600)
        os.chown(file, owner, owner)
    assert members.postmaster(lab, standby) is not None


@pytest.mark.nightly
def test_a_reused_pid_of_an_init_process_is_not_signalled_and_the_member_starts(lab: Blueprint) -> None:
    _, standby = leader_and_standby(lab)
    crashes.kill_member(lab, standby)
    file = lab.member_dir(standby) / "init.pid"
    # SIGHUP, which asks a first process to start what is missing, would end this one.
    with subprocess.Popen(["sleep", "600"]) as bystander:
        file.write_text(f"{bystander.pid} 1 {(pid_files.identity(1) or '').split()[2]}")
        catalogue.recover(lab)
        assert bystander.poll() is None
        bystander.kill()
    assert pid_files.living(file) is not None
    assert members.postmaster(lab, standby) is not None


@pytest.mark.nightly
def test_control_groups_of_labs_of_one_name_are_apart(lab: Blueprint) -> None:
    assert lab.control_group("n1") == f"{lab.number}-n1"
    where = processors.hierarchy()
    if where is not None:
        assert processors.group_folder(where, lab.control_group("n1")).parent == where.root / processors.PARENT


@pytest.mark.nightly
def test_a_child_of_the_lab_imports_nothing_from_the_current_folder(lab: Blueprint, tmp_path: Path) -> None:
    (tmp_path / "secrets.py").write_text("raise SystemExit('IMPORTED')")
    words = [sys.executable, "-m", "secrets"]
    done = subprocess.run(words, env=home.environment(lab), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "IMPORTED" not in done.stderr


@pytest.mark.nightly
def test_a_lab_below_a_folder_closed_to_others_works_and_its_programs_see_nothing_else_there(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below /root: what is needed lies under its own path, the rest of the closed folder is not there."""
    closed = own_state / "closed"
    closed.mkdir(mode=0o700)
    (closed / "private").touch()
    monkeypatch.setenv("WALPROOF_STATE", str(closed / "state"))
    order = LabOrder(name=home.lab_name(), members=1, port=port_base() + 20)
    blueprint = create.create_lab(design(order), RealClock(), lambda _: None)
    try:
        with psycopg.connect(
            blueprint.endpoint("haproxy").client_conninfo(), cursor_factory=psycopg.ClientCursor
        ) as link:
            assert "state" in sh(link, f"cd {blueprint.data_dir('n1')} && pwd")
            assert "No such file" in sh(link, f"ls {closed}/private 2>&1; true")
    finally:
        destroy_lab(blueprint.name, RealClock())
    assert what_is_left(blueprint) == []
    assert (closed / "private").exists()


@pytest.mark.nightly
def test_who_takes_off_the_mark_and_leaves_the_namespace_is_found(
    superuser: psycopg.Connection, lab: Blueprint
) -> None:
    """As `env -i unshare`: `lab down` would leave him running, as the user of a later lab."""
    sh(superuser, "env -i PATH=$PATH setsid unshare --user --map-root-user --net sleep 86399 >/dev/null 2>&1 & echo")
    escaped = [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[-1] == "86399"]
    try:
        assert escaped
        assert set(escaped) <= set(members.marked(lab))
    finally:
        for process in escaped:
            process.kill()


@pytest.mark.nightly
def test_wal_that_the_superuser_wrote_is_read_with_his_rights(lab: Blueprint) -> None:
    """pg_waldump believes the counts in a record and reads beyond it."""
    programs = Path(tempfile.mkdtemp(dir="/tmp"))
    traces = members.LabTraces(replace(lab, postgres_bin=programs))
    try:
        (programs / "pg_waldump").write_text('#!/bin/sh\nid -u; head -c 1 "$2"/* > /dev/null && echo read\n')
        for path in (programs, programs / "pg_waldump"):
            path.chmod(0o755)
        traces.save("n1")
        assert traces.describe("n1", timeline=1, since=0).split() == [str(FIRST_UID + lab.number), "read"]
    finally:
        traces.discard()
        shutil.rmtree(programs)
