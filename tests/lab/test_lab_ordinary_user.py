"""A lab created by uid 1000, in namespaces of its own: up, a question, a fault, down; nothing stays."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.labs import port_base, why_no_lab

UID = 1000
AS_USER = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--"]


def why_not() -> str:
    """Why no lab can be created here by uid 1000, "" when it can."""
    if reason := why_no_lab():
        return reason
    readable = subprocess.run([*AS_USER, sys.executable, "-c", "import walproof"], capture_output=True, check=False)
    if readable.returncode:
        return "this Python or this checkout is not readable for uid 1000"
    words = ["unshare", "--user", "--map-current-user", "--keep-caps", "--net", "--mount", "true"]
    allowed = subprocess.run([*AS_USER, *words], capture_output=True, text=True, check=False)
    return f"this kernel allows ordinary users no namespaces: {allowed.stderr.strip()}" if allowed.returncode else ""


REASON = why_not()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]


@pytest.fixture
def user_home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="wpu-", dir="/tmp"))
    os.chown(folder, UID, UID)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(user_home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WALPROOF_LAB", "XDG_"))}
    return subprocess.run(
        [*AS_USER, sys.executable, "-m", "walproof", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**kept, "HOME": str(user_home), "WALPROOF_STATE": str(user_home / "state")},
        cwd=user_home,
    )


def left_behind(user_home: Path) -> list[str]:
    """Command lines of processes of uid 1000 that belong to this home."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            if entry.stat().st_uid == UID and str(user_home).encode() in environment:
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


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
