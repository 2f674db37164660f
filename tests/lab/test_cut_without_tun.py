"""Cuts where there is no TUN device, as root and as an ordinary user: real namespaces, the device really hidden."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.tun_device import AS_USER, seeing, why_not

ROOT = Path(__file__).parents[2]
INSIDE = ["unshare", "--user", "--map-current-user", "--keep-caps", "--net", "--mount", "--"]
PAIRS = {f"n{a}-n{b}" for a in (1, 2, 3) for b in (1, 2, 3) if a != b}


def why_none() -> str:
    """Why this cannot be tried here, "" when it can."""
    if os.geteuid() != 0:
        return "needs root, to hide /dev/net/tun"
    with tempfile.TemporaryDirectory() as folder:
        return why_not("hidden", Path(folder))


REASON = why_none()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]


@pytest.fixture(scope="module", params=["root", "an ordinary user"])
def found(request: pytest.FixtureRequest) -> Iterator[dict[str, dict[str, float]]]:
    """What the script measured in each state."""
    folder = Path(tempfile.mkdtemp(prefix="wpc-", dir="/tmp"))
    (folder / "dev").mkdir()
    os.chown(folder, 1000, 1000)
    words = ["unshare", "--net", "--mount", "--"]
    if request.param != "root":
        words = [*AS_USER, *INSIDE]
        tried = [*words, sys.executable, "-c", "import walproof"]
        if subprocess.run(tried, cwd=ROOT, capture_output=True, check=False).returncode:
            pytest.skip("uid 1000 may not have namespaces here, or not read this checkout")
    try:
        done = subprocess.run(
            [
                *seeing("hidden", folder / "dev"),
                *words,
                sys.executable,
                "-m",
                "tests.fixtures.cut_network",
                str(folder),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)


def lost(measured: dict[str, float]) -> set[str]:
    """Pairs whose packets are all lost; every other pair loses none."""
    assert set(measured.values()) <= {0.0, 1.0}, measured
    return {pair for pair, share in measured.items() if share == 1.0}


def test_one_direction_is_cut_and_no_other(found: dict[str, dict[str, float]]) -> None:
    assert lost(found["untouched"]) == set()
    assert lost(found["one way"]) == {"n1-n2"}


def test_a_partitioned_member_is_cut_from_every_other_and_what_was_cut_stays(
    found: dict[str, dict[str, float]],
) -> None:
    assert lost(found["partitioned"]) == {"n1-n2", *(pair for pair in PAIRS if "n3" in pair)}
    assert lost(found["one way again"]) == {"n1-n2"}


def test_an_isolated_member_is_cut_from_everybody(found: dict[str, dict[str, float]]) -> None:
    assert lost(found["isolated"]) == {pair for pair in PAIRS if "n2" in pair}


def test_the_link_emulator_that_is_not_needed_is_not_dead(found: dict[str, Any]) -> None:
    emulator, dead, summary = found["state"]
    assert (emulator, dead) == ("not needed", False)
    assert "isolated: n2" in summary


def test_recovery_and_the_end_leave_no_cut(found: dict[str, dict[str, float]]) -> None:
    assert lost(found["recovered"]) == lost(found["ended"]) == set()


def test_a_delay_is_refused_by_name_and_changes_nothing(found: dict[str, dict[str, float]]) -> None:
    for refused in (found["refused"], found["refused while cut"]):
        assert "delay, jitter, loss and rate" in refused
        assert "/dev/net/tun" in refused
        assert "chmod 666" in refused
    assert found["still one way"] == found["one way"]
