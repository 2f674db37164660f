"""tools/install-programs and tools/install-python with fake programs on PATH: what they ask for, and what they say."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
REAL = ("bash", "dirname", "grep", "awk", "env", "cat", "cp", "mkdir", "chmod")
OLD, BARE, WHOLE = "*version_info*) exit 1", "*ensurepip*) exit 1", "nothing) true"


class Fakes:
    """A folder of fake programs that is all there is on PATH; what they are asked is logged."""

    def __init__(self, folder: Path, tool: Path) -> None:
        self.programs, self.log, self.tool = folder / "programs", folder / "log", tool
        self.programs.mkdir()
        self.log.write_text("")
        for name in REAL:
            real = shutil.which(name)
            assert real is not None
            (self.programs / name).symlink_to(real)
        self.fake("id", "echo 0")

    def fake(self, name: str, script: str) -> None:
        """A program of that name."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!{shutil.which("bash")}\necho "{name} $*" >>"{self.log}"\n{script}\n')
        path.chmod(0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The tool, on nothing but these programs."""
        env = {**os.environ, "PATH": str(self.programs), "PYTHON": "python3"}
        argv = [str(self.programs / "bash"), str(self.tool), *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    def logged(self, start: str) -> list[str]:
        """What a program was asked."""
        return [line for line in self.log.read_text().splitlines() if line.startswith(start)]


class Machine(Fakes):
    """A machine with a package manager, for tools/install-programs."""

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

    def installs(self) -> list[str]:
        """The packages that were asked for."""
        lines = [line.split() for line in self.log.read_text().splitlines() if " install " in f" {line} "]
        return [
            word for line in lines for word in line if word[0].isalpha() and word not in ("apt-get", "dnf", "install")
        ]


class Checkout(Fakes):
    """A checkout whose Python and package manager are fakes, for tools/install-python."""

    def python(self, lacks: str = WHOLE, name: str = "python3") -> None:
        """A Python 3 that may be too old, or lack venv; the Python of the environment that it makes logs its pip."""
        venv = f'mkdir -p .venv/bin; echo \'echo "pip $PIP_USE_PEP517 $*" >>"{self.log}"\' >.venv/bin/python'
        self.fake(name, f'case "$*" in {lacks};; "-m venv .venv") {venv}; chmod 755 .venv/bin/python;; esac')

    def manager(self, name: str = "apt-get", brings: str = WHOLE) -> None:
        """apt-get or dnf, whose python3 is whole, or lacks what `brings` says."""
        self.python(brings, "brought")
        self.fake(name, f'[[ "$*" != *install* ]] || cp "{self.programs}/brought" "{self.programs}/python3"')


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, TOOLS / "install-programs")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    (tmp_path / "tools").mkdir()
    return Checkout(tmp_path, Path(shutil.copy(TOOLS / "install-python", tmp_path / "tools")))


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


def test_a_whole_python_is_taken_and_nothing_installed(checkout: Checkout) -> None:
    checkout.python()
    checkout.manager()
    done = checkout.run()
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "python: .venv is ready\n")
    assert checkout.logged("apt-get") == []


@pytest.mark.parametrize("lacks", [None, BARE, OLD])
def test_debians_python_is_installed_where_none_is_whole(checkout: Checkout, lacks: str | None) -> None:
    if lacks:
        checkout.python(lacks)
    checkout.manager()
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "installing python3 python3-venv"
    assert checkout.logged("apt-get")[-1].endswith("--no-install-recommends python3 python3-venv")


def test_fedoras_python_is_one_package(checkout: Checkout) -> None:
    checkout.manager("dnf")
    assert checkout.run().returncode == 0
    assert checkout.logged("dnf") == ["dnf install -y -q python3"]


def test_an_ordinary_user_without_a_whole_python_reads_what_to_ask_for(checkout: Checkout) -> None:
    checkout.manager()
    checkout.fake("id", "echo 1000")
    checkout.fake("sudo", "exit 1")
    done = checkout.run()
    assert done.returncode == 3
    assert "Ask your administrator for: apt-get install --no-install-recommends python3 python3-venv" in done.stderr
    assert checkout.logged("apt-get") == []


def test_a_distribution_whose_python_is_too_old_is_named(checkout: Checkout) -> None:
    checkout.manager(brings=OLD)
    done = checkout.run()
    assert done.returncode == 3
    assert "this distribution's is older" in done.stderr


def test_without_a_package_manager_the_reader_installs_it(checkout: Checkout) -> None:
    done = checkout.run()
    assert done.returncode == 3
    assert "Python 3.11 or newer with the module venv is needed" in done.stderr


def test_packages_come_by_hash_and_are_built_by_the_pinned_setuptools(checkout: Checkout) -> None:
    checkout.python()
    checkout.run()
    begins = "pip 1 -m pip install -q --disable-pip-version-check --no-warn-script-location "
    assert [asked.removeprefix(begins) for asked in checkout.logged("pip")] == [
        "--require-hashes -r tools/build.lock",
        "--require-hashes --no-build-isolation -r tools/requirements.lock",
        "--no-deps --no-build-isolation -e .",
    ]
