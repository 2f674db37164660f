"""Links of a bare network without a TUN device, with one that is root's, and with one; as root and as uid 1000."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.bare_network import may_create_networks
from tests.fixtures.ordinary_user import AS_USER, INSIDE, Tun, home_of_user, seeing, why_no_namespaces, why_not_seen

ROOT = Path(__file__).parents[2]
PAIRS = {f"n{a}-n{b}" for a in (1, 2, 3) for b in (1, 2, 3) if a != b}
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.lab,
    pytest.mark.skipif(not may_create_networks(), reason="needs root and /dev/net/tun"),
]


def measured(tun: Tun, inside: list[str]) -> dict[str, Any]:
    """What the script measures where that device is seen."""
    with home_of_user() as folder:
        device = folder / "dev"
        if reason := why_not_seen(tun, device) or (why_no_namespaces() if AS_USER[0] in inside else ""):
            pytest.skip(reason)
        words = [*seeing(tun, device), *inside, sys.executable, "-m", "tests.fixtures.cut_network", str(folder)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


WHERE: dict[str, tuple[Tun, list[str]]] = {
    "root, none": ("hidden", ["unshare", "--net", "--mount", "--"]),
    "uid 1000, none": ("hidden", [*AS_USER, *INSIDE]),
    "uid 1000, root's": ("root's", [*AS_USER, *INSIDE]),
}


@pytest.fixture(scope="module", params=list(WHERE.values()), ids=list(WHERE))
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the script measured in each state."""
    return measured(*request.param)


def lost(measured: dict[str, float]) -> set[str]:
    """Pairs whose packets are all lost; every other pair loses none."""
    assert set(measured.values()) <= {0.0, 1.0}, measured
    return {pair for pair, share in measured.items() if share == 1.0}


def test_one_direction_is_cut_and_no_other(found: dict[str, Any]) -> None:
    assert lost(found["untouched"]) == set()
    assert lost(found["one way"]) == {"n1-n2"}


def test_a_partitioned_member_is_cut_from_every_other_and_what_was_cut_stays(
    found: dict[str, Any],
) -> None:
    assert lost(found["partitioned"]) == {"n1-n2", *(pair for pair in PAIRS if "n3" in pair)}
    assert lost(found["one way again"]) == {"n1-n2"}


def test_an_isolated_member_is_cut_from_everybody(found: dict[str, Any]) -> None:
    assert lost(found["isolated"]) == {pair for pair in PAIRS if "n2" in pair}


def test_the_link_emulator_that_is_not_needed_is_not_dead(found: dict[str, Any]) -> None:
    emulator, dead, summary = found["state"]
    assert (emulator, dead) == ("not needed", False)
    assert "isolated: n2" in summary


def test_recovery_and_the_end_leave_no_cut(found: dict[str, Any]) -> None:
    assert lost(found["recovered"]) == lost(found["recovered after a kill"]) == lost(found["ended"]) == set()


def test_a_delay_is_refused_by_name_and_changes_nothing(found: dict[str, Any]) -> None:
    for refused in (found["refused"], found["refused while cut"]):
        assert "delay, jitter, loss and rate" in refused
        assert "/dev/net/tun" in refused
        assert "chmod 666" in refused
    assert found["still one way"] == found["one way"]


def test_an_ordinary_user_with_a_device_shapes_isolates_and_recovers() -> None:
    steps = measured("everybody's", [*AS_USER, *INSIDE])
    assert steps["refused"] == ""
    assert steps["shaped"]["n1-n2"][0] > 19
    assert not any("n2" in pair for pair in steps["isolated"])
    assert steps["recovered"]["n1-n2"][0] > 19
