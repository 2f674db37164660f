"""A lab created by uid 1000, in namespaces of its own: up, a question, a fault, down; nothing stays."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.labs import port_base
from tests.fixtures.ordinary_user import home_of_user, left_behind, run, why_no_user_lab

REASON = why_no_user_lab()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]


@pytest.fixture
def user_home() -> Iterator[Path]:
    with home_of_user() as folder:
        yield folder


def test_an_ordinary_user_creates_queries_and_destroys_a_lab_without_any_privilege(user_home: Path) -> None:
    port = port_base() + 20
    up = run(user_home, "lab", "up", "--port", str(port))
    try:
        assert up.returncode == 0, up.stderr
        status = json.loads(run(user_home, "lab", "status", "--json").stdout)
        assert sorted(m["state"] for m in status["members"]) == ["running", "streaming", "streaming"]
        asked = run(user_home, "lab", "psql", "-c", "SELECT current_user, pg_is_in_recovery()")
        assert "postgres" in asked.stdout, asked.stderr
        outside = f"host=127.0.0.1 port={port} user=postgres passfile={user_home}/state/lab/pgpass"
        with psycopg.connect(outside) as link:
            assert link.execute("SELECT 41 + 1").fetchone() == (42,)
        assert run(user_home, "lab", "up", "--port", str(port)).returncode == 3
    finally:
        down = run(user_home, "lab", "down")
    assert down.returncode == 0, down.stderr
    until = time.monotonic() + 30
    while left_behind(user_home) and time.monotonic() < until:
        time.sleep(0.2)
    assert left_behind(user_home) == []
    assert not (user_home / "state" / "lab").exists()


def test_what_needs_root_says_so_and_refused_options_leave_nothing(user_home: Path) -> None:
    image = run(user_home, "lab", "up", "--disk", "image", "--port", str(port_base() + 20))
    assert (image.returncode, "needs root" in image.stderr) == (3, True), image.stderr
    refused = run(user_home, "lab", "up", "--members", "9", "--port", str(port_base() + 20))
    assert refused.returncode == 2
    until = time.monotonic() + 30
    while left_behind(user_home) and time.monotonic() < until:
        time.sleep(0.2)
    assert left_behind(user_home) == []
