"""A lab of uid 1000, with /dev/net/tun and without: up, questions, faults, down, and nothing of it stays.

With the device links have delays; without it every cut still works.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psycopg
import pytest

from tests.fixtures.labs import port_base
from tests.fixtures.ordinary_user import Tun, home_of_user, left_behind, run, seeing, why_no_user_lab, why_not_seen
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for

REASON = why_no_user_lab()
pytestmark = [pytest.mark.nightly, pytest.mark.lab, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]

Walproof = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module", params=["everybody's", "hidden"])
def tun(request: pytest.FixtureRequest) -> Tun:
    """Which device the ordinary user sees."""
    found: Tun = request.param
    return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The user's home; nothing of the user's runs any more when the tests have ended."""
    with home_of_user() as home:
        yield home
        wait_for(Wait.PROGRAM_GONE, lambda: left_behind(home) == [], RealClock())
        assert not (home / "state" / "lab").exists()


@pytest.fixture(scope="module")
def walproof(tun: Tun, folder: Path) -> Iterator[Walproof]:
    """The command line of uid 1000, a lab of its own being up."""
    device = folder / "dev"
    if reason := why_not_seen(tun, device):
        pytest.skip(reason)
    command: Walproof = partial(run, folder, before=seeing(tun, device))
    up = command("lab", "up", "--port", str(port_base() + 20))
    try:
        assert up.returncode == 0, up.stderr
        yield command
    finally:
        down = command("lab", "down")
    assert down.returncode == 0, down.stderr


def loss(walproof: Walproof) -> dict[str, float | None]:
    """The measured one-way loss of every direction."""
    done = walproof("lab", "link", "--json")
    assert done.returncode == 0, done.stderr
    return {f"{row['from']}-{row['to']}": row["loss"] for row in json.loads(done.stdout)["links"]}


def status(walproof: Walproof) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(walproof("lab", "status", "--json").stdout)
    return found


def test_it_answers_inside_and_outside_of_its_namespaces(walproof: Walproof, folder: Path) -> None:
    assert sorted(m["state"] for m in status(walproof)["members"]) == ["running", "streaming", "streaming"]
    asked = walproof("lab", "psql", "-c", "SELECT current_user, pg_is_in_recovery()")
    assert "postgres" in asked.stdout, asked.stderr
    outside = f"host=127.0.0.1 port={port_base() + 20} user=postgres passfile={folder}/state/lab/pgpass"
    with psycopg.connect(outside) as link:
        assert link.execute("SELECT 41 + 1").fetchone() == (42,)
    assert walproof("lab", "up", "--port", str(port_base() + 20)).returncode == 3


def test_delays_are_there_or_say_why_not(walproof: Walproof, tun: Tun) -> None:
    done = walproof("lab", "link", "--rtt", "20ms", "--json")
    if tun == "hidden":
        assert done.returncode == 3
        assert done.stderr.startswith("walproof: delay, jitter, loss and rate of links need the link emulator")
        assert "/dev/net/tun" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        links = json.loads(done.stdout)["links"]
        assert links and all(row["rtt_ms"] > 19 for row in links)
        assert walproof("lab", "link", "--clear").returncode == 0


@pytest.mark.parametrize("fault", ["partition", "isolate"])
def test_a_standby_is_cut_off_and_comes_back(walproof: Walproof, fault: str, tun: Tun) -> None:
    if (fault, tun) == ("isolate", "everybody's"):
        pytest.skip("the link emulator cuts both alike")
    member = next(str(m["name"]) for m in status(walproof)["members"] if m["role"] != "leader")
    done = walproof("lab", "fault", fault, member)
    assert done.returncode == 0, done.stderr
    try:
        lost = loss(walproof)
        assert {pair for pair, share in lost.items() if share == 1.0} == {p for p in lost if member in p}
    finally:
        cleared = walproof("lab", "fault", "clear", "--json")
    assert cleared.returncode == 0, cleared.stderr
    assert json.loads(cleared.stdout)["healthy"]
    assert set(loss(walproof).values()) == {0.0}


def test_a_drill_without_the_device_partitions_the_leader_and_judges_what_it_acknowledged(
    walproof: Walproof, tun: Tun
) -> None:
    if tun != "hidden":
        pytest.skip("with the device every lab's drills show it")
    done = walproof("prove", "--fault", "partition", "--levels", "on", "--record", "drill", "--json")
    assert done.returncode in (0, 4), done.stderr
    assert "/dev/net/tun" not in done.stderr + done.stdout


def test_what_needs_root_says_so_and_refused_options_leave_nothing() -> None:
    with home_of_user() as home:
        image = run(home, "lab", "up", "--disk", "image", "--port", str(port_base()))
        assert (image.returncode, "needs root" in image.stderr) == (3, True), image.stderr
        assert run(home, "lab", "up", "--members", "9", "--port", str(port_base())).returncode == 2
        wait_for(Wait.PROGRAM_GONE, lambda: left_behind(home) == [], RealClock())
