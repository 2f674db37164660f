"""tools/install-programs with fake package managers on PATH: what it asks them for, and what it says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/install-programs"
REAL = ("bash", "dirname", "grep", "awk", "env", "cat")


class Machine:
    """A folder of fake programs that is all there is on PATH; what they are asked is logged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        for name in REAL:
            found = shutil.which(name)
            assert found is not None
            (folder / name).symlink_to(found)
        self.fake("id", "echo 0")
        self.log.write_text("")

    def fake(self, name: str, script: str) -> None:
        """A program of that name."""
        path = self.folder / name
        path.write_text(f'#!{shutil.which("bash")}\necho "{name} $*" >>"{self.log}"\n{script}\n')
        path.chmod(0o755)

    def debian(self, *, installed: str = "", unavailable: str = "nothing") -> None:
        """apt, where packages matching `installed` are there and those matching `unavailable` in no source."""
        self.fake("dpkg-query", f'[[ " {installed} " == *" ${{!#}} "* ]] && echo "install ok installed"')
        self.fake("apt-cache", f'[[ "${{!#}}" != {unavailable} ]]')
        self.fake("apt-get", "true")
        for name in ("tee", "chmod", "rm"):
            self.fake(name, "cat >/dev/null </dev/null")

    def fedora(self, *, installed: str = "", unavailable: str = "nothing") -> None:
        """dnf, likewise."""
        self.fake("rpm", f'[[ " {installed} " == *" ${{!#}} "* ]]')
        self.fake("dnf", f'case "$*" in *repoquery*) [[ "${{!#}}" == {unavailable} ]] || echo "${{!#}}-1.0" ;; esac')

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The tool, on nothing but these programs."""
        env = {**os.environ, "PATH": str(self.folder)}
        argv = [str(self.folder / "bash"), str(TOOL), *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    def installs(self) -> list[str]:
        """The packages that were asked for."""
        lines = [line.split() for line in self.log.read_text().splitlines() if " install " in f" {line} "]
        return [
            word for line in lines for word in line if word[0].isalpha() and word not in ("apt-get", "dnf", "install")
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_apt_is_asked_once_for_each_missing_package_and_for_no_other(machine: Machine) -> None:
    machine.debian(installed="haproxy util-linux iproute2 e2fsprogs strace")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.installs() == ["etcd-server", "pgbouncer", "prometheus", "prometheus-postgres-exporter"]


def test_postgresql_15_is_optional(machine: Machine) -> None:
    machine.debian(installed="haproxy util-linux iproute2 e2fsprogs strace", unavailable="postgresql-15")
    done = machine.run("test")
    assert done.returncode == 0, done.stderr
    assert "postgresql-15 is not to be had here" in done.stderr
    assert "postgresql-15" not in machine.installs()
    assert "chromium" in machine.installs()


def test_dnf_gets_fedoras_names_and_what_fedora_has_not_is_named(machine: Machine) -> None:
    machine.fedora(installed="haproxy util-linux")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert {"etcd", "iproute", "e2fsprogs"} <= set(machine.installs())
    assert len(set(machine.installs())) == len(machine.installs())
    assert "prometheus-postgres-exporter" in done.stderr


def test_a_fedora_without_etcd_says_so_and_installs_nothing(machine: Machine) -> None:
    machine.fedora(unavailable="etcd")
    done = machine.run()
    assert done.returncode == 3
    assert "no package source of this machine has etcd, and there is no lab without" in done.stderr
    assert machine.installs() == []


def test_nothing_missing_asks_for_nothing(machine: Machine) -> None:
    machine.fedora(installed="etcd haproxy pgbouncer iproute util-linux e2fsprogs strace golang-github-prometheus")
    machine.fake("prometheus-postgres-exporter", "true")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.installs() == []


@pytest.mark.parametrize(("family", "command"), [("debian", "apt-get install"), ("fedora", "dnf install")])
def test_an_ordinary_user_reads_what_to_ask_the_administrator_for(machine: Machine, family: str, command: str) -> None:
    getattr(machine, family)(installed="haproxy")
    machine.fake("id", "echo 1000")
    machine.fake("sudo", "exit 1")
    done = machine.run("test")
    assert done.returncode == 3
    assert "Ask your administrator for:" in done.stderr
    assert command in done.stderr
    assert "etcd" in done.stderr
    assert "postgresql-15" not in done.stderr
    assert machine.installs() == []


def test_an_ordinary_user_who_lacks_only_what_tests_want_goes_on(machine: Machine) -> None:
    machine.debian(
        installed="etcd-server haproxy pgbouncer iproute2 util-linux e2fsprogs strace prometheus "
        "prometheus-postgres-exporter"
    )
    machine.fake("id", "echo 1000")
    done = machine.run("test")
    assert done.returncode == 0, done.stderr
    assert "left out, for only tests want them: etcd-client postgresql-15 chromium" in done.stderr


def test_a_machine_with_neither_apt_nor_dnf_names_the_programs(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 3
    assert "neither apt nor dnf is here" in done.stderr
    assert "etcd" in done.stderr
    assert "chromium" not in done.stderr
