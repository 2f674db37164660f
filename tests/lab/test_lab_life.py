"""A lab's life through the command line: up, status, psql, switchover, down; killed on its way; bad input.

The shared lab is made by `lab up` and ended by `lab down`, which leaves nothing (tests/fixtures/labs.py).
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import ended, one_sentence
from tests.fixtures.labs import lab_command as run
from tests.fixtures.labs import leader_and_standby, port_base, what_is_left, why_no_lab
from walproof.errors import UsageError
from walproof.lab import configuration, home, members, network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.client_access import routed_leader
from walproof.lab.patroni import observe, wait_until_healthy
from walproof.lab.privileges import users_of_lab
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import SyncMode

pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]
UP = [sys.executable, "-m", "walproof", "lab", "up", "--port"]


def test_every_standby_is_streaming_and_synchronous_and_a_second_up_says_that_it_is_up(lab: Blueprint) -> None:
    status = json.loads(run("status", "--json").stdout)
    assert set(status) == {"members", "leader", "synchronous_standby_names"}
    assert [set(m) for m in status["members"]] == [{"name", "role", "state", "timeline", "lag_bytes", "address"}] * 3
    assert sorted(m["state"] for m in status["members"]) == ["running", "streaming", "streaming"]
    assert status["synchronous_standby_names"].startswith("ANY 1 (")
    assert status["leader"] in run("status").stdout
    again = run("up")
    assert (again.returncode, "is up already" in again.stderr, "Traceback" in again.stderr) == (3, True, False)


def test_psql_asks_the_leader_or_a_member_and_logs_are_shown(lab: Blueprint) -> None:
    _, standby = leader_and_standby(lab)
    assert "7MB" in run("psql", "-c", "SHOW work_mem").stdout
    assert " t" in run("psql", "--member", standby, "-c", "SELECT pg_is_in_recovery()").stdout
    assert run("psql", "--member", "n9", "-c", "SELECT 1").returncode == 2
    assert "patroni.log" in run("logs", "n1", "--lines", "5").stdout
    assert "haproxy.log" in run("logs", "access").stdout
    assert run("logs", "n9").returncode == 2


def test_clients_reach_the_leader_over_every_route_and_nobody_without_the_password(lab: Blueprint) -> None:
    for route in ("multi-host", "haproxy", "pgbouncer"):
        with psycopg.connect(lab.endpoint(route).client_conninfo(), autocommit=True) as connection:
            assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
    conninfo = lab.member_endpoint("n1").client_conninfo(passfile="/dev/null", password="guessed")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(conninfo)


def test_secrets_are_in_files_that_only_their_owner_reads(lab: Blueprint) -> None:
    password = home.read_secrets(lab)["postgres"]
    files = [path for path in lab.home.rglob("*") if path.is_file() and path.suffix != ".img"]

    def holds(path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):  # servers at work replace their own files
            return password.encode() in path.read_bytes()
        return False

    holding = [path for path in files if holds(path)]
    assert len(holding) >= 5
    assert all(path.stat().st_mode & 0o037 == 0 for path in holding)
    assert {path.stat().st_gid for path in holding if path.stat().st_mode & 0o040} == users_of_lab(lab.number)
    assert not any(path.suffix == ".log" for path in holding)
    for member in lab.members:
        lines = [process.cmdline() for process in members.processes(lab, member)]
        assert lines and password not in str(lines)


def test_a_switchover_hands_over_and_clients_of_the_pool_lose_no_transaction(lab: Blueprint) -> None:
    conninfo = lab.endpoint("pgbouncer").client_conninfo(connect_timeout="60")
    over, failed, done = threading.Event(), [], []

    def write() -> None:
        try:
            with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as connection:
                while not over.is_set():
                    connection.execute("INSERT INTO handed VALUES (1)")
                    done.append(1)
        except psycopg.Error as wrong:
            failed.append(str(wrong))

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS handed; CREATE TABLE handed (a int)")
    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    output = run("switchover")
    before = len(done)
    wait_for(Wait.FIRST_COMMIT_AFTER, lambda: len(done) > before or bool(failed), RealClock())
    over.set()
    for writer in writers:
        writer.join()
    assert output.returncode == 0, output.stderr
    assert failed == []
    with psycopg.connect(conninfo, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM handed").fetchone() == (len(done),)
    leader, _ = leader_and_standby(lab)
    assert f"The leader is {leader}" in output.stdout
    assert routed_leader(lab) == leader
    assert run("switchover", "--to", leader).returncode == 2


def test_parameters_and_names_are_in_effect_everywhere_once_they_are_set(lab: Blueprint) -> None:
    wait_until_healthy(lab, RealClock())
    configuration.set_parameters(lab, {"max_connections": "410", "work_mem": "5MB"})
    for member in lab.members:
        with psycopg.connect(lab.member_endpoint(member).client_conninfo()) as connection:
            assert connection.execute("SHOW max_connections").fetchone() == ("410",)
            assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
    configuration.set_parameters(lab, {"work_mem": None, "max_connections": None})
    assert "7MB" in run("psql", "-c", "SHOW work_mem").stdout
    with pytest.raises(UsageError):
        configuration.set_parameters(lab, {"work_mem": "much"})
    try:
        configuration.set_sync(lab, SyncMode.STRICT, 2)
        assert observe(lab).standby_names.startswith("2 (")
        configuration.set_sync(lab, SyncMode.OFF, 1)
        assert observe(lab).standby_names == ""
    finally:
        configuration.set_sync(lab, SyncMode.QUORUM, 1)
    assert observe(lab).standby_names.startswith("ANY 1 (")


MOMENTS: dict[str, Callable[[Blueprint], bool]] = {
    "planned": lambda blueprint: True,
    "wired": lambda blueprint: bool(network_links.leftovers({blueprint.number})),
    "started": lambda blueprint: all(members.processes(blueprint, m) for m in blueprint.members),
}


@pytest.mark.parametrize(
    ("moment", "verb"),
    [
        ("wired", "down"),
        *(pytest.param(*row, marks=pytest.mark.nightly) for row in (("planned", "down"), ("started", "up"))),
    ],
)
def test_what_a_killed_up_left_is_destroyed_by_the_next_command(moment: str, verb: str, own_state: Path) -> None:
    up = subprocess.Popen([*UP, str(port_base() + 20)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def reached() -> bool:
        assert up.poll() is None
        blueprint = home.stored(home.lab_name())
        return blueprint is not None and MOMENTS[moment](blueprint)

    wait_for(Wait.PROGRAM_READY, reached, RealClock(), pace_s=0.001)
    os.kill(up.pid, signal.SIGKILL)
    up.wait()
    left = home.stored(home.lab_name())
    assert left is not None
    if verb == "up":
        # The new lab has one member: it could not have been the old one coming back.
        assert run("up", "--members", "1", "--port", str(port_base() + 20)).returncode == 0
        assert json.loads(run("status", "--json").stdout)["leader"] == "n1"
    assert run("down").returncode == 0
    assert what_is_left(left) == []


def test_an_up_that_is_interrupted_ends_what_it_had_started(own_state: Path) -> None:
    words = [*UP, str(port_base() + 20)]
    up = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert up.stdout is not None
    said: list[str] = []
    while "waiting until" not in (line := up.stdout.readline()):  # what follows takes seconds
        assert line, said
        said.append(line)
    up.send_signal(signal.SIGINT)
    blueprint = home.stored(home.lab_name())
    output, _ = up.communicate(timeout=120)
    assert (up.returncode, "Traceback" in output) == (130, False), output
    assert blueprint is not None
    assert what_is_left(blueprint) == []


BAD = (
    ("up --quorum 0", 2, "quorum"), ("up --param no_such_thing=1", 2, "no_such_thing"),
    ("up --param work_mem=much", 2, "work_mem"), ("up --param port=1", 2, "port"), ("up --sync maybe", 2, "maybe"),
    ("up --disk-size -3", 2, "size"), ("up --postgres 9", 3, "postgresql"), ("up --postgres /nowhere", 3, "/nowhere"),
    ("logs n1", 3, "no lab is up"), ("nonsense", 2, "nonsense"),
)  # fmt: skip


@pytest.mark.parametrize(("words", "code", "says"), BAD)
def test_bad_input_is_answered_in_one_sentence(
    words: str, code: int, says: str, own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_sentence(ended(capsys, ["lab", *words.split()]), says, code)
    assert not (own_state / home.lab_name()).exists()


HIDDEN = (
    "import shutil; which = shutil.which\n"
    "shutil.which = lambda name, **more: None if name == 'haproxy' else which(name, **more)\n"
    "from walproof.cli.main import main; main(['lab', 'up'])"
)


def test_a_taken_address_and_a_missing_program_are_named_and_nothing_is_started(own_state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port_base() + 20))
        taken.listen()
        output = run("up", "--port", str(port_base() + 20))
    assert (output.returncode, f"127.0.0.1:{port_base() + 20}" in output.stderr) == (3, True), output.stderr
    output = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False)
    assert output.returncode == 3
    assert "haproxy" in output.stderr and "make install" in output.stderr
    assert not (own_state / home.lab_name()).exists()
