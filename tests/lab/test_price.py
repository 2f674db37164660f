"""`walproof price` on a real cluster: a round trip is paid by `on`, Ctrl-C loses nothing, the lab is left as it was."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.bare_network import may_create_networks
from tests.fixtures.labs import why_no_lab
from walproof.errors import Error
from walproof.lab import network_links
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock
from walproof.model.event import SampleDone
from walproof.model.waiting import Wait, wait_for
from walproof.records.reader import read

REASON = why_no_lab() or ("" if may_create_networks() else "needs root and /dev/net/tun")
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]

PRICE = [sys.executable, "-m", "walproof", "price", "--json"]
SHORT = ["--levels", "local,on", "--clients", "1", "--workload", "insert", "--scale", "1", "--sample", "0.5s"]


def finished(arguments: list[str], cwd: Path) -> dict[str, Any]:
    """The one JSON object of a run that must succeed."""
    done = subprocess.run([*PRICE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counted(record: Path) -> int:
    """Samples of the grid that the record holds so far."""
    with contextlib.suppress(Error):
        return sum(isinstance(e, SampleDone) and e.result.sample.block > 0 for e in read(record).events)
    return 0


def test_the_round_trip_is_paid_by_on_and_not_by_local(lab: Blueprint, tmp_path: Path) -> None:
    found = finished([*SHORT, "--rtt", "20ms", "--budget", "8s", "--record", "rec"], tmp_path)
    latency = {arm["level"]: arm["latency_ms"]["p50"] for arm in found["arms"]}
    assert latency["on"] >= 18
    assert latency["local"] < latency["on"]
    assert all(arm["blocks"] >= 2 for arm in found["arms"])
    assert not any("not in effect" in caveat for arm in found["arms"] for caveat in arm["caveats"])
    assert network_links.configured(lab).settings == {}


LIAR = """CREATE TABLE jobs (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
INSERT INTO jobs SELECT generate_series(1, 1000);
CREATE FUNCTION enq(job int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  UPDATE jobs SET n = n + 1 WHERE id = job;
END $$;
"""


@pytest.mark.nightly
def test_a_level_that_a_function_sets_is_not_priced_as_the_one_asked(lab: Blueprint, tmp_path: Path) -> None:
    (tmp_path / "init.sql").write_text(LIAR)
    (tmp_path / "enq.sql").write_text("\\set id random(1, 1000)\nSELECT enq(:id);\n")
    asked = ["--levels", "local,on", "--clients", "1,8", "--rtt", "8ms", "--budget", "16s", "--sample", "1s"]
    done = subprocess.run(
        [*PRICE, *asked, "--init", "init.sql", "--workload", "enq.sql", "--record", "rec"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)["conclusion"]
    assert "The level on was not in effect: transactions do not wait for a standby" in found
    assert "gains" not in found


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(lab: Blueprint, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*PRICE, *SHORT, "--rtt", "2ms", "--budget", "5min", "--precision", "0.01%", "--record", "rec"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started: Callable[[], bool] = lambda: counted(tmp_path / "rec") >= 4 or running.poll() is not None  # noqa: E731
    wait_for(Wait.WRITERS_UP, started, RealClock(), times=6)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert json.loads(out)["stopped_by"] == "interrupted"
    assert network_links.configured(lab).settings == {}
    before = counted(tmp_path / "rec")
    found = finished(["--resume", "rec", "--budget", "1s"], tmp_path)
    assert found["stopped_by"] == "budget"
    assert counted(tmp_path / "rec") >= before >= 4
