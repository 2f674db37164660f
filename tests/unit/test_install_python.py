"""tools/install-python with fake programs on PATH: which Python it takes, what it installs, what it says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/install-python"
OLD, BARE, WHOLE = "*version_info*) exit 1", "*ensurepip*) exit 1", "nothing) true"


class Checkout:
    """A checkout whose Python and package manager are fakes; what they are asked is logged."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.log = folder / "programs", folder / "log"
        self.programs.mkdir()
        self.log.write_text("")
        (folder / "tools").mkdir()
        self.tool = shutil.copy(TOOL, folder / "tools")
        for name in ("bash", "dirname", "env", "cp", "mkdir", "chmod"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        self.fake("id", "echo 0")

    def fake(self, name: str, script: str) -> None:
        """A program of that name."""
        path = self.programs / name
        path.write_text(f'#!{shutil.which("bash")}\necho "{name} $*" >>"{self.log}"\n{script}\n')
        path.chmod(0o755)

    def python(self, lacks: str = WHOLE, name: str = "python3") -> None:
        """A Python 3 that may be too old, or lack venv; the Python of the environment that it makes logs its pip."""
        venv = f'mkdir -p .venv/bin; echo \'echo "pip $PIP_USE_PEP517 $*" >>"{self.log}"\' >.venv/bin/python'
        self.fake(name, f'case "$*" in {lacks};; "-m venv .venv") {venv}; chmod 755 .venv/bin/python;; esac')

    def manager(self, name: str = "apt-get", brings: str = WHOLE) -> None:
        """apt-get or dnf, whose python3 is whole, or lacks what `brings` says."""
        self.python(brings, "brought")
        self.fake(name, f'[[ "$*" != *install* ]] || cp "{self.programs}/brought" "{self.programs}/python3"')

    def run(self) -> subprocess.CompletedProcess[str]:
        """The tool, on nothing but these programs."""
        env = {**os.environ, "PATH": str(self.programs), "PYTHON": "python3"}
        return subprocess.run([self.tool], env=env, capture_output=True, text=True, check=False)

    def logged(self, start: str) -> list[str]:
        """What a program was asked."""
        return [line for line in self.log.read_text().splitlines() if line.startswith(start)]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


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


def test_an_ordinary_user_reads_what_to_ask_the_administrator_for(checkout: Checkout) -> None:
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


def test_packages_are_built_in_isolation_so_that_pip_prints_no_deprecation(checkout: Checkout) -> None:
    checkout.python()
    checkout.run()
    (asked,) = checkout.logged("pip")
    assert asked.startswith("pip 1 -m pip install -q --disable-pip-version-check --no-warn-script-location")
