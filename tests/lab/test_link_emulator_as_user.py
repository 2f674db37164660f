"""The link emulator of uid 1000, in private namespaces; and its error where /dev/net/tun is forbidden."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.bare_network import may_create_networks
from tests.fixtures.tun_device import AS_USER, Tun, seeing

ROOT = Path(__file__).parents[2]
INSIDE = ["unshare", "--user", "--map-current-user", "--keep-caps", "--net", "--mount", "--"]
SCRIPT = [sys.executable, "-m", "tests.fixtures.bare_network_as_user"]


def why_not() -> str:
    """Why this cannot be tried here, "" when it can."""
    if not may_create_networks():
        return "needs root and /dev/net/tun"
    tried = subprocess.run(
        [*AS_USER, sys.executable, "-c", "import walproof"], cwd=ROOT, capture_output=True, check=False
    )
    if tried.returncode or not os.stat(ROOT).st_mode & stat.S_IXOTH:
        return "this Python or this checkout is not readable for uid 1000"
    tried = subprocess.run([*AS_USER, *INSIDE, "true"], capture_output=True, check=False)
    return "this kernel allows ordinary users no namespaces" if tried.returncode else ""


REASON = why_not()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="wpw-", dir="/tmp"))
    (path / "dev").mkdir()
    os.chown(path, 1000, 1000)
    yield path
    shutil.rmtree(path)


def run(folder: Path, tun: Tun) -> subprocess.CompletedProcess[str]:
    words = [*seeing(tun, folder / "dev"), *AS_USER, *INSIDE, *SCRIPT, str(folder)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_an_ordinary_user_shapes_isolates_and_recovers(folder: Path) -> None:
    done = run(folder, "everybody's")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["shaped"]["n1-n2"] > 19
    assert found["isolated"] == {}
    assert found["recovered"]["n1-n2"] > 19


def test_without_the_device_it_says_why_and_what_to_type(folder: Path) -> None:
    done = run(folder, "root's")
    assert done.returncode == 3
    assert "/dev/net/tun" in done.stderr
    assert "chmod 666" in done.stderr
